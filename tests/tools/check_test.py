#!/usr/bin/env python3
"""Negative controls of tools/check.py: one planted violation per rule must be named, and alone."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

CHECK = pathlib.Path(__file__).resolve().parents[2] / "tools/check.py"
HEAD = "// SPDX-License-Identifier: Apache-2.0\n/// @file\n/// @brief Text.\n"

# The smallest project that passes every rule.
CLEAN = {
    ".clang-format": "BasedOnStyle: Google\nColumnLimit: 100\n",
    "CMakeLists.txt": "eptransport_add_part(core FILES core/a.hpp)  # a comment\n"
                      "eptransport_add_part(wire FILES backends/wire/wire.hpp\n"
                      "  backends/wire/detail/part.hpp DEPENDS core)\n"
                      "eptransport_add_part(kernels FILES kernels/k.hpp kernels/k.cuh)\n",
    "README.md": "# Title\n\n[file](CMakeLists.txt) and README.md\n\n"
                 "<!-- from: examples/e.cpp -->\n```cpp\nint x = 1;\n```\n",
    "examples/e.cpp": HEAD + "int main() {\n  // [readme]\n  int x = 1;\n  // [/readme]\n"
                             "  return x - 1;\n}\n",
    "include/eptransport/core/a.hpp":
        HEAD + "#pragma once\n\nnamespace eptransport {\n\n/// A type.\nstruct a {};\n\n"
               "/// A concept.\ntemplate <class T>\nconcept Thing = true;\n\n"
               "}  // namespace eptransport\n",
    "backends/wire/wire.hpp":
        HEAD + "#pragma once\n\n#include <eptransport/backends/wire/detail/part.hpp>\n"
               "#include <eptransport/core/a.hpp>\n",
    "backends/wire/detail/part.hpp": HEAD + "#pragma once\n\nstruct undocumented_detail {};\n",
    "kernels/k.hpp": HEAD + "#pragma once\n\n#include <eptransport/core/a.hpp>\n\n"
                            "// Fast on NVLink; a default is no efa.\nint default_value();\n",
    "kernels/k.cuh": HEAD + "#pragma once\n\ninline void wait() { asm volatile(\"\"); }\n",
    "tests/a_test.cpp": HEAD + "#include <eptransport/backends/wire/wire.hpp>\n"
                               "#include <eptransport/core/a.hpp>\n"
                               "#include <eptransport/kernels/k.hpp>\n",
}

CORE = "include/eptransport/core/a.hpp"
KERNEL = "kernels/k.hpp"


def write(root, name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def append(name, text):
    return lambda root: write(root, name, (root / name).read_text() + text)


def replace(name, old, new):
    def plant(root):
        text = (root / name).read_text()
        assert old in text, f"{old!r} is not in {name}"
        write(root, name, text.replace(old, new))

    return plant


def retarget_link(root):
    (root / "include/eptransport/proxy").unlink()
    (root / "include/eptransport/proxy").symlink_to("../../gdaki")


def add_header(root):
    write(root, "kernels/new.hpp", HEAD + "#pragma once\n")
    append("tests/a_test.cpp", "#include <eptransport/kernels/new.hpp>\n")(root)


# (rule, the file that the message must name, how to plant the violation)
VIOLATIONS = [
    ("format", CORE, replace(CORE, "struct a {};", "struct  a{ };")),
    ("links", "include/eptransport/proxy", retarget_link),
    ("header-list", "CMakeLists.txt", add_header),
    ("header-list", "CMakeLists.txt", replace("CMakeLists.txt", "core/a.hpp", "core/a.hpp no.hpp")),
    ("header-list", "CMakeLists.txt", append("CMakeLists.txt",
                                             "eptransport_add_part(twice FILES core/a.hpp)\n")),
    ("includes", CORE, append(CORE, "\n#include <eptransport/kernels/k.hpp>\n")),
    ("includes", KERNEL, append(KERNEL, "\n#include <eptransport/backends/wire/wire.hpp>\n")),
    ("includes", KERNEL, append(KERNEL, "\n#include \"k.cuh\"\n")),
    ("includes", KERNEL, append(KERNEL, "\n#include <eptransport/core/none.hpp>\n")),
    ("includes", "examples/e.cpp", append(
        "examples/e.cpp", "\n#include <eptransport/backends/wire/detail/part.hpp>\n")),
    ("includes", "tests/a_test.cpp", append(
        "tests/a_test.cpp", "\n#include \"../kernels/k.hpp\"\n")),
    ("file-header", CORE, replace(CORE, "// SPDX", "// License")),
    ("file-header", CORE, replace(CORE, "/// @brief", "///")),
    ("file-header", CORE, replace(CORE, "#pragma once\n", "")),
    ("size", CORE, append(CORE, "//\n" * 500)),
    ("line-length", "CMakeLists.txt", append("CMakeLists.txt", "# " + "x" * 99 + "\n")),
    ("macro-prefix", CORE, append(CORE, "\n#define MAX_RANKS 8\n")),
    ("file-name", "tests/BTest.cpp", lambda root: write(root, "tests/BTest.cpp", HEAD)),
    ("printing", CORE, append(CORE, "\ninline void f() { printf(\"x\"); }\n")),
    ("printing", CORE, append(CORE, "\n#include <iostream>\n")),
    ("cycles", "kernels/k.cuh", append(
        "kernels/k.cuh", "\ninline long f() { return clock64(); }\n")),
    ("using-namespace", CORE, append(CORE, "\nusing namespace std;\n")),
    ("backend-name", KERNEL, append(KERNEL, "\nint nvlink_width();\n")),
    ("backend-name", KERNEL, append(KERNEL, "\nconst char* wire = \"EFA\";\n")),
    ("asm", CORE, append(CORE, "\ninline void f() { asm volatile(\"\"); }\n")),
    ("asm", KERNEL, append(KERNEL, "\n#ifdef __CUDA_ARCH__\n#endif\n")),
    ("concept-name", CORE, replace(CORE, "concept Thing", "concept is_thing")),
    ("doc-comment", CORE, replace(CORE, "/// A type.\n", "")),
    ("doc-comment", CORE, replace(CORE, "/// A concept.\n", "")),
    ("doc-comment", CORE, append(CORE, "\ntemplate <class T>\nvoid undocumented(T) {}\n")),
    ("readme-block", "README.md", replace("README.md", "int x = 1;", "int x = 2;")),
    ("readme-block", "README.md", replace("examples/e.cpp", "  // [readme]\n", "")),
    ("dead-link", "README.md", append("README.md", "\n[gone](docs/gone.md)\n")),
    ("named-document", "README.md", append("README.md", "\nSee MISSING.md.\n")),
    ("test-mirror", KERNEL, replace("tests/a_test.cpp",
                                    "#include <eptransport/kernels/k.hpp>\n", "")),
    ("words", "README.md", append("README.md", "\nTODO: write\n")),
    ("words", "README.md", append("README.md", "\nAs in issue 7.\n")),
    ("words", "README.md", append("README.md", "\nSee /home/me/notes.\n")),
    ("no-download", "CMakeLists.txt", append("CMakeLists.txt", "# https:/" "/example.org/x.tar\n")),
]


class CheckTest(unittest.TestCase):

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name).resolve()
        for name, text in CLEAN.items():
            write(self.root, name, text)
        for name in ("backends", "proxy", "gdaki", "kernels"):
            (self.root / name).mkdir(exist_ok=True)
            (self.root / "include/eptransport" / name).symlink_to(f"../../{name}")
        (self.root / "tools").mkdir()
        shutil.copy(CHECK, self.root / "tools/check.py")

    def tearDown(self):
        self.folder.cleanup()

    def check(self, *arguments, **environment):
        done = subprocess.run([sys.executable, self.root / "tools/check.py", *arguments],
                              capture_output=True, text=True, env={**os.environ, **environment})
        self.assertEqual(done.stderr, "")
        problems = re.findall(r"^([^:\n]+)(?::\d+)?: \[([\w-]+)\]", done.stdout, re.M)
        return done.returncode, problems, done.stdout

    def git(self, *arguments):
        subprocess.run(["git", "-C", self.root, *arguments], check=True, capture_output=True)

    def test_a_clean_tree_passes(self):
        status, _, output = self.check()
        self.assertEqual(status, 0, output)

    def test_each_violation_is_named_and_alone(self):
        for rule, file, plant in VIOLATIONS:
            with self.subTest(rule=rule, file=file):
                self.tearDown()
                self.setUp()
                plant(self.root)
                status, problems, output = self.check()
                self.assertEqual(status, 1, output)
                self.assertEqual(set(problems), {(file, rule)}, output)

    def test_each_rule_has_a_violation(self):
        rules = self.check("--rules")[2].split()
        self.assertEqual(set(rules), {rule for rule, _, _ in VIOLATIONS})

    def test_a_missing_formatter_is_a_failure(self):
        status, problems, _ = self.check(PATH=str(self.root), CLANG_FORMAT="")
        self.assertEqual((status, problems), (1, [(".clang-format", "format")]))

    def test_a_reason_excuses_a_line_and_a_file(self):
        append(CORE, "\n// check: macro-prefix another's name\n#define OTHER 1\n")(self.root)
        append(CORE, "// check: size one table\n" + "//\n" * 500)(self.root)
        status, _, output = self.check()
        self.assertEqual(status, 0, output)

    def test_an_excuse_without_a_reason_counts_for_nothing(self):
        append(CORE, "\n// check: macro-prefix\n#define OTHER 1\n")(self.root)
        self.assertEqual(self.check()[1], [(CORE, "macro-prefix")])

    def test_fix_formats_and_copies_the_regions(self):
        replace(CORE, "struct a {};", "struct  a{ };")(self.root)
        replace("README.md", "int x = 1;", "int x = 2;")(self.root)
        status, _, output = self.check("--fix")
        self.assertEqual(status, 0, output)
        self.assertIn("int x = 1;", (self.root / "README.md").read_text())

    def test_staged_looks_at_staged_files_only(self):
        self.git("init", "-q")
        append(CORE, "\n#define FIRST 1\n")(self.root)
        append(KERNEL, "\n#define SECOND 1\n")(self.root)
        self.git("add", KERNEL)
        self.assertEqual(self.check("--staged")[1], [(KERNEL, "macro-prefix")])

    def test_ignored_files_are_not_checked(self):
        self.git("init", "-q")
        write(self.root, ".gitignore", "/out/\n")
        write(self.root, "out/Bad Name.cpp", "#define X\n")
        status, _, output = self.check()
        self.assertEqual(status, 0, output)


if __name__ == "__main__":
    unittest.main()

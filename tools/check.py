#!/usr/bin/env python3
"""Checks what no compiler checks: format, includes, names, sizes, documents.

  check.py            the whole tree; exit status 1 when a rule is broken
  check.py --fix      first formats the sources and copies the example regions into the documents
  check.py --staged   per-file rules look only at the files that git has staged
  check.py --rules    the names of the rules

A line is excused from a rule by `check: <rule> <reason>` in a comment on it or on the line above;
a file from `size` by such a comment anywhere in it.
"""

import argparse
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINKED = ("backends", "proxy", "gdaki", "kernels")  # published below include/eptransport by links
CPP = {".hpp", ".cuh", ".cpp", ".cu"}
TEXT = CPP | {".py", ".sh", ".cmake", ".txt", ".md", ".json", ".in", ".yml", ""}
OWN = {"tools/check.py", "tests/tools/check_test.py"}  # they spell out what they look for
MAX_COLUMNS = 100
WARN_LINES, MAX_LINES = 300, 500

# Who may include what: the home folder of a header -> patterns of <eptransport/...> paths. A folder
# may always include itself; a backend only its own subfolder.
CORE = r"core/|eptransport\.hpp$"
MAY_INCLUDE = {
    "eptransport.hpp": [r"core/"],
    "core": [],
    "backends": [CORE, r"proxy/", r"gdaki/"],
    "backends/libfabric/": [r"backends/proxied/"],  # proxied ranks over other ports
    "proxy": [CORE],
    "gdaki": [CORE],
    "kernels": [CORE, r"proxy/[^/]*\.cuh$", r"gdaki/[^/]*\.cuh$"],
}

# Words that date or place a text: it must read the same next year on another machine.
WORDS = [
    (r"\b(TODO|FIXME|XXX)\b", "unfinished work belongs in the tracker"),
    (r"(?i)\bissue #?\d+", "a tracker number says nothing to a reader of the code"),
    (r"(?i)\bsessions?\b", "say what the thing is"),
    (r"(?<![\w.}/])/(work|home|root|Users|mnt|scratch)(/|\b)", "a path of one machine"),
    (r"(?<![\w.])[.]{2}/shared\b", "a path outside the project"),
    (r"(?<![\w./*\\])[.](?!ci/|git/|github/|cache/)[a-z]+/", "a hidden folder outside the project"),
]


class Source:
    """One text file, with its comments told apart from its code."""

    def __init__(self, path):
        self.path = path
        self.name = path.relative_to(ROOT).as_posix()
        self.text = path.read_text(encoding="utf-8")
        self.lines = self.text.splitlines()
        self.is_cpp = path.suffix in CPP
        self.home = self.name.removeprefix("include/eptransport/")  # as <eptransport/...> spells it
        top = self.home.split("/")[0]
        self.is_library = path.suffix in {".hpp", ".cuh"} and (
            self.name.startswith("include/") or top in LINKED)
        self.is_detail = "/detail/" in self.home

    @property
    def code(self):
        """The lines with comments blanked out."""
        return blank(self.text, strings=False)

    @property
    def bare_code(self):
        """The lines with comments and the contents of strings blanked out."""
        return blank(self.text, strings=True)

    def excused(self, rule, line):
        around = self.lines[max(line - 2, 0):line]
        return any(re.search(rf"check: {rule} \S+", text) for text in around)


TOKENS = re.compile(
    r'(?P<raw>R"(?P<mark>\w*)\(.*?\)(?P=mark)")|(?P<comment>//[^\n]*|/\*.*?\*/)'
    r'|(?P<string>"(?:\\.|[^"\\\n])*"|(?<!\w)\'(?:\\.|[^\'\\\n])+\')', re.S)


def blank(text, strings):
    def replace(match):
        if match.group("comment") or strings:
            return re.sub(r"[^\n]", " ", match.group())
        return match.group()

    return TOKENS.sub(replace, text).splitlines()


class Tree:
    """The files under test: all of them, and those that per-file rules look at."""

    def __init__(self, staged):
        self.paths = [path for path in listed_paths() if path.suffix in TEXT]
        chosen = set(staged_paths()) if staged else None
        self.all = [Source(p) for p in self.paths if p.is_file() and not p.is_symlink()]
        self.chosen = [s for s in self.all if chosen is None or s.path in chosen]
        self.library = [s for s in self.all if s.is_library]

    def cpp(self):
        return [s for s in self.chosen if s.is_cpp]

    def headers(self):
        return [s for s in self.chosen if s.is_library]

    def documents(self):
        return [s for s in self.chosen if s.path.suffix == ".md"]


def git_lines(*arguments):
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    return done.stdout.split("\0")[:-1] if done.returncode == 0 else None


def listed_paths():
    names = None
    if (ROOT / ".git").exists():
        names = git_lines("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if names is not None:
        return sorted(ROOT / name for name in set(names))
    found = []
    for folder, below, files in os.walk(ROOT):
        below[:] = [name for name in below if name not in ("build", ".git", "__pycache__")]
        found += [pathlib.Path(folder) / name for name in files]
    return sorted(found)


def staged_paths():
    names = git_lines("diff", "-z", "--cached", "--name-only", "--diff-filter=ACMR")
    return [ROOT / name for name in names or []]


RULES = {}


def rule(function):
    """Registers a rule: a generator of (source or path, line, message)."""
    RULES[function.__name__.replace("_", "-")] = function
    return function


def matches(sources, pattern, view="lines"):
    """Every (source, line number, match) of a pattern in one view of the sources."""
    compiled = re.compile(pattern)
    for source in sources:
        for number, line in enumerate(getattr(source, view), 1):
            for match in compiled.finditer(line):
                yield source, number, match


def clang_format():
    """A clang-format of version 16 or later, or None."""
    for name in (os.environ.get("CLANG_FORMAT"), "clang-format-16", "clang-format"):
        program = name and shutil.which(name)
        if program:
            says = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
            version = re.search(r"version (\d+)", says)
            if version and int(version.group(1)) >= 16:
                return program
    return None


@rule
def format(tree):
    program = clang_format()
    if not program:
        yield ".clang-format", 0, "NOT CHECKED, needs clang-format 16: tools/install_deps.sh test"
        return
    names = [s.name for s in tree.cpp()]
    if not names:
        return
    done = subprocess.run([program, "--dry-run", *names], cwd=ROOT, capture_output=True, text=True)
    first = {}
    for name, line in re.findall(r"^(\S+?):(\d+):\d+: warning:", done.stderr, re.M):
        first.setdefault(name, int(line))
    for name, line in first.items():
        yield name, line, "is not formatted from here on; run `make format`"
    if done.returncode != 0:
        yield ".clang-format", 0, done.stderr.strip().splitlines()[-1]


@rule
def links(tree):
    for name in LINKED:
        link = ROOT / "include/eptransport" / name
        if not link.is_symlink() or os.readlink(link) != f"../../{name}":
            yield f"include/eptransport/{name}", 0, f"must be a link to ../../{name}"


@rule
def header_list(tree):
    text = re.sub(r"#[^\n]*", "", (ROOT / "CMakeLists.txt").read_text())
    listed = []
    for arguments in re.findall(r"eptransport_add_part\(([^)]*)\)", text):
        files = re.search(r"\bFILES\b(.*?)(?=\bDEPENDS\b|\bPACKAGES\b|$)", arguments, re.S)
        listed += files.group(1).split() if files else []
    present = {source.home for source in tree.library}
    for name in sorted(present - set(listed)):
        yield "CMakeLists.txt", 0, f"no part lists {name}"
    for name in sorted(set(listed) - present):
        yield "CMakeLists.txt", 0, f"lists {name}, which does not exist"
    for name in sorted({n for n in listed if listed.count(n) > 1}):
        yield "CMakeLists.txt", 0, f"lists {name} more than once"


def own_folder(home):
    """What a header may include without asking: its folder, for a backend its subfolder."""
    depth = 2 if home.startswith("backends/") else 1
    return "/".join(home.split("/")[:depth]) + "/"


@rule
def includes(tree):
    homes = {source.home for source in tree.library}
    for source, line, match in matches(tree.cpp(), r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', "code"):
        quote, path = match.groups()
        if quote == '"' and (source.is_library or "eptransport/" in path or ".." in path):
            yield source, line, f"spell the project's headers <eptransport/...>, not \"{path}\""
        if quote == '"' or not path.startswith("eptransport/"):
            continue
        home = path.removeprefix("eptransport/")
        if home not in homes:
            yield source, line, f"<{path}> does not exist"
        if "/detail/" in home and not source.name.startswith("tests/"):
            if not source.home.startswith(home.split("detail/")[0]):
                yield source, line, f"<{path}> is a detail of another folder"
        if not source.is_library:
            continue
        top = source.home.split("/")[0]
        if not home.startswith(own_folder(source.home)) and not any(
                re.match(pattern, home) for pattern in
                MAY_INCLUDE.get(top, []) + MAY_INCLUDE.get(own_folder(source.home), [])):
            yield source, line, f"{top} must not include <{path}>"


@rule
def file_header(tree):
    for source in tree.cpp():
        head = source.lines[:3] + [""] * 3
        if "// SPDX-License-Identifier: Apache-2.0" not in head:
            yield source, 1, "line 1 must be `// SPDX-License-Identifier: Apache-2.0`"
        elif not source.name.startswith("tests/compile_fail/") and not (
                head[1] == "/// @file" and head[2].startswith("/// @brief ")):
            yield source, 2, "lines 2 and 3 must be `/// @file` and `/// @brief ...`"
        if source.path.suffix in {".hpp", ".cuh"} and "#pragma once" not in source.lines:
            yield source, 1, "has no `#pragma once`"


@rule
def size(tree):
    for source in tree.headers():
        if len(source.lines) > MAX_LINES and not re.search(r"// check: size \S+", source.text):
            yield source, MAX_LINES, f"has {len(source.lines)} lines, more than {MAX_LINES}"


@rule
def line_length(tree):
    for source in tree.chosen:
        if source.path.suffix in {".md", ".json"} or source.name == "LICENSE":
            continue
        for number, line in enumerate(source.lines, 1):
            one_literal = number > 1 and source.lines[number - 2].startswith("#error")
            if len(line) > MAX_COLUMNS and not one_literal:
                yield source, number, f"has {len(line)} columns, more than {MAX_COLUMNS}"


@rule
def macro_prefix(tree):
    for source, line, match in matches(tree.cpp(), r"^\s*#\s*define\s+(\w+)", "code"):
        if not match.group(1).startswith("EPT_"):
            yield source, line, f"the macro {match.group(1)} must begin with EPT_"


@rule
def file_name(tree):
    for source in tree.cpp():
        if not re.fullmatch(r"[a-z0-9_]+", source.path.stem):
            yield source, 0, "file names are snake_case"


@rule
def printing(tree):
    pattern = r"\b(v?f?printf|f?puts|putchar)\s*\(|<(iostream|print)>|\bstd::(cout|cerr|clog)\b"
    for source, line, match in matches(tree.headers(), pattern, "bare_code"):
        yield source, line, f"a header must not print: {match.group().strip()}"


@rule
def cycles(tree):
    pattern = r"\bclock64\b|\bstd::clock\b|\b(__)?rdtscp?\b|%clock"
    for source, line, match in matches(tree.headers(), pattern, "code"):
        yield source, line, f"cycles are no time, use nanoseconds: {match.group()}"


@rule
def using_namespace(tree):
    for source, line, _ in matches(tree.headers(), r"\busing\s+namespace\b", "bare_code"):
        yield source, line, "a header must not open a namespace for its users"


@rule
def backend_name(tree):
    kernels = [s for s in tree.cpp() if s.name.startswith("kernels/")]
    pattern = r"(?i)libfabric|(?<![a-z])efa(?![a-z])|mlx5|gdaki|nvlink"
    for source, line, match in matches(kernels, pattern, "code"):
        yield source, line, f"a kernel must not know a wire by its name: {match.group()}"


@rule
def asm(tree):
    for source, line, match in matches(tree.headers(), r"\b(asm|__asm|__asm__|__CUDA_ARCH__)\b",
                                       "bare_code"):
        if not re.match(r"core/memory\.cuh$|kernels/[^/]+\.cuh$|gdaki/", source.home):
            yield source, line, f"{match.group()} belongs in core/memory.cuh, kernels/*.cuh, gdaki/"


@rule
def concept_name(tree):
    for source, line, match in matches(tree.cpp(), r"\bconcept\s+(\w+)", "bare_code"):
        if not re.fullmatch(r"([A-Z][a-z0-9]*)+", match.group(1)):
            yield source, line, f"the concept {match.group(1)} must be PascalCase"


def namespace_declarations(source):
    """Yields (line, text) of the types, concepts and templates declared at namespace scope."""
    opened = []  # for each open brace: the namespace's name, or None for any other brace
    statement, start, in_directive = "", 0, False
    for number, line in enumerate(source.bare_code, 1):
        if in_directive or line.lstrip().startswith("#"):
            in_directive = line.rstrip().endswith("\\")
            continue
        for char in line + "\n":
            at_scope = all(name is not None for name in opened)
            if at_scope and char in "{;":
                text = " ".join(statement.split())
                public = not any("detail" in name for name in opened)
                if public and re.match(r"(template|struct|class|enum|union)\b", text):
                    yield start, text + char
            if char == "{":
                name = re.search(r"\bnamespace\s*([\w:]*)\s*$", statement)
                opened.append(name.group(1) if at_scope and name else None)
            elif char == "}" and opened:
                opened.pop()
            if char in "{};":
                statement = ""
            else:
                if not statement.strip() and not char.isspace():
                    start = number
                statement += char


@rule
def doc_comment(tree):
    for source in tree.headers():
        if source.is_detail:
            continue
        for line, text in namespace_declarations(source):
            forward = re.fullmatch(r"(template ?<.*> ?)?(struct|class|enum|union)[\w: ]+;", text)
            defined_before = re.match(r"template ?<>|template [^<]", text) or (
                re.search(r">::\w+ ?\(", text) and "concept" not in text)
            if forward or defined_before:
                continue
            if line < 2 or not source.lines[line - 2].lstrip().startswith("///"):
                yield source, line, f"has no `///` comment right above: {text[:60]}"


@rule
def readme_block(tree):
    for source in tree.documents():
        for number, example, block, region in example_blocks(source):
            if region is None:
                yield source, number, f"{example} has no region between [readme] and [/readme]"
            elif block != region:
                yield source, number, f"differs from {example}; run `check.py --fix`"


BLOCK = re.compile(r"(<!-- from: (\S+) -->\n```\w*\n)(.*?)(?=^```)", re.S | re.M)


def example_blocks(source):
    for match in BLOCK.finditer(source.text):
        number = source.text.count("\n", 0, match.start()) + 1
        yield number, match.group(2), match.group(3), example_region(match.group(2))


def example_region(name):
    """The lines between `// [readme]` and `// [/readme]`, moved to the left margin."""
    path = ROOT / name
    if not path.is_file():
        return None
    found = re.search(r"^[ \t]*// \[readme\]\n(.*?)^[ \t]*// \[/readme\]", path.read_text(),
                      re.S | re.M)
    if not found:
        return None
    lines = found.group(1).splitlines()
    indent = min((len(x) - len(x.lstrip()) for x in lines if x.strip()), default=0)
    return "".join(line[indent:] + "\n" for line in lines)


@rule
def dead_link(tree):
    for source in tree.documents():
        prose = re.sub(r"^```.*?^```|`[^`\n]*`", lambda m: re.sub(r"[^\n]", " ", m.group()),
                       source.text, flags=re.S | re.M)
        for number, line in enumerate(prose.splitlines(), 1):
            for target in re.findall(r"\]\(([^)\s]+)\)", line):
                path = target.split("#")[0]
                if re.match(r"[a-z]+:", target) or not path:
                    continue
                goal = (source.path.parent / path).resolve()
                if not goal.exists() or not goal.is_relative_to(ROOT):
                    yield source, number, f"leads nowhere: {target}"


@rule
def named_document(tree):
    names = {source.path.name for source in tree.all}
    for source, line, match in matches(tree.chosen, r"\b[A-Z]{3,}\.md\b"):
        if match.group() not in names and source.name not in OWN:
            yield source, line, f"names {match.group()}, which is not in the project"


@rule
def test_mirror(tree):
    included = r"#include <eptransport/([^>]+)>"
    library = {source.home: source for source in tree.library}
    tested, fresh = set(), set()
    for source in tree.all:
        if source.is_cpp and source.name.startswith("tests/"):
            fresh |= set(re.findall(included, source.text))
    while fresh:
        tested |= fresh
        texts = [library[home].text for home in fresh if home in library]
        fresh = {home for text in texts for home in re.findall(included, text)} - tested
    for source in tree.library:
        if source.path.suffix == ".hpp" and not source.is_detail and source.home not in tested:
            yield source, 0, "no test reaches it by its includes"


@rule
def words(tree):
    for pattern, why in WORDS:
        for source, line, match in matches(tree.chosen, pattern):
            if source.name not in OWN | {"LICENSE", ".gitignore"}:
                yield source, line, f"'{match.group()}': {why}"


@rule
def no_download(tree):
    for source, line, match in matches(tree.chosen, r"https?:/{2}"):
        if not source.is_cpp and source.path.suffix != ".md" and source.name != "LICENSE":
            yield source, line, "nothing is fetched: addresses belong in documents and comments"


def fix(tree):
    program = clang_format()
    names = [s.name for s in tree.cpp()]
    if program and names:
        subprocess.run([program, "-i", *names], cwd=ROOT, check=True)
    for source in tree.documents():
        fixed = BLOCK.sub(lambda m: m.group(1) + (example_region(m.group(2)) or m.group(3)),
                          source.text)
        if fixed != source.text:
            source.path.write_text(fixed, encoding="utf-8")


def report(tree):
    """Prints every problem and returns how many there are."""
    count = 0
    for name, function in RULES.items():
        for where, line, message in function(tree):
            if isinstance(where, Source):
                if line and where.excused(name, line):
                    continue
                where = where.name
            print(f"{where}:{line}: [{name}] {message}" if line else f"{where}: [{name}] {message}")
            count += 1
    for source in tree.headers():
        if WARN_LINES < len(source.lines) <= MAX_LINES:
            print(f"{source.name}: warning: {len(source.lines)} lines, aim at 150")
    return count


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--fix", action="store_true", help="format, and copy example regions")
    parser.add_argument("--staged", action="store_true", help="only files staged in git")
    parser.add_argument("--rules", action="store_true", help="list the rules")
    arguments = parser.parse_args()
    if arguments.rules:
        print("\n".join(RULES))
        return 0
    start = time.monotonic()
    if arguments.fix:
        fix(Tree(arguments.staged))
    tree = Tree(arguments.staged)
    count = report(tree)
    print(f"check: {len(tree.chosen)} files, {len(RULES)} rules, {count} problems, "
          f"{time.monotonic() - start:.1f} s")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Negative controls of the header test: headers_alone_test.py CMAKE CXX_COMPILER."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

CMAKE, COMPILER = sys.argv[1:3]
MODULES = pathlib.Path(__file__).resolve().parents[2] / "cmake"
PROJECT = f"""cmake_minimum_required(VERSION 3.25)
project(control VERSION 1.0 LANGUAGES CXX)
set(EPTRANSPORT_CUDA_ON OFF)
list(APPEND CMAKE_MODULE_PATH {MODULES})
include(EptransportParts)
include(EptransportDevelopment)
eptransport_add_part(core FILES first.hpp header.hpp)
eptransport_add_headers_alone(headers_alone)
"""
GOOD = "#pragma once\n#include <string>\ninline std::string text() { return {}; }\n"


class HeadersAloneTest(unittest.TestCase):

    def build(self, header):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "include/eptransport").mkdir(parents=True)
            (root / "CMakeLists.txt").write_text(PROJECT)
            (root / "include/eptransport/first.hpp").write_text(GOOD)
            (root / "include/eptransport/header.hpp").write_text(header)
            subprocess.run([CMAKE, "-G", "Ninja", "-S", root, "-B", root / "build",
                            f"-DCMAKE_CXX_COMPILER={COMPILER}"], check=True, capture_output=True)
            done = subprocess.run([CMAKE, "--build", root / "build"],
                                  capture_output=True, text=True)
        return done.returncode, done.stdout

    def refused(self, header, why):
        status, output = self.build(header)
        self.assertNotEqual(status, 0, output)
        self.assertRegex(output, why)

    def test_a_complete_header_passes(self):
        self.assertEqual(self.build(GOOD.replace("text", "other"))[0], 0)

    def test_a_header_that_lacks_an_include_is_refused(self):
        self.refused("#pragma once\ninline std::string other();\n", "std")

    def test_a_header_without_guard_is_refused(self):
        self.refused("struct twice {};\n", "redefinition of .*twice")

    def test_a_header_that_throws_is_refused(self):
        self.refused("#pragma once\ninline void f() { throw 1; }\n", "exception")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])

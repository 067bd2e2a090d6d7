#!/usr/bin/env python3
"""Negative controls of examples/expect_output.py."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "examples/expect_output.py"
SOURCE = """/// @file
// You see
//   first line
//   took ... ns, 2 of 3
//
//   last line
#include <cstdio>
// You see
//   not this
"""
OUTPUT = "first line\\n  took 17 ns, 2 of 3\\nnoise\\nlast line"


class ExpectOutputTest(unittest.TestCase):

    def run_example(self, source=SOURCE, program=f"print('{OUTPUT}')"):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "example.cpp")
            path.write_text(source)
            done = subprocess.run([sys.executable, SCRIPT, path, sys.executable, "-c", program],
                                  capture_output=True, text=True)
        return done.returncode, done.stdout.splitlines()[-1]

    def test_the_named_output_passes(self):
        self.assertEqual(self.run_example()[0], 0)

    def test_a_missing_line_fails(self):
        status, why = self.run_example(program="print('first line')")
        self.assertEqual(status, 1)
        self.assertIn("the line 'took ... ns, 2 of 3'", why)

    def test_another_order_fails(self):
        status, why = self.run_example(program="print('last line\\n' + '" + OUTPUT[:-9] + "')")
        self.assertEqual(status, 1)
        self.assertIn("the line 'last line'", why)

    def test_half_a_line_fails(self):
        program = f"print('{OUTPUT} and more')"
        self.assertEqual(self.run_example(program=program)[0], 1)

    def test_a_failing_program_fails(self):
        status, why = self.run_example(program=f"print('{OUTPUT}'); raise SystemExit(3)")
        self.assertEqual(status, 1)
        self.assertIn("ended with status 3", why)

    def test_a_header_that_names_nothing_fails(self):
        status, why = self.run_example(source="// You learn\n//   much\n")
        self.assertEqual(status, 1)
        self.assertIn("has no lines after '// You see'", why)


if __name__ == "__main__":
    unittest.main()

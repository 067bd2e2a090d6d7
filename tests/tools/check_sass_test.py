#!/usr/bin/env python3
"""Negative controls of tools/check_sass.py, on lines as cuobjdump prints them."""

import pathlib
import subprocess
import sys
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools/check_sass.py"
STORE = ["UBLKCP.G.S [UR6], [UR5], UR4", "UTMACMDFLUSH"]
WAIT = ["DEPBAR.LE SB0, 0x0", "CCTL.IVALL"]
RELEASE = ["@!P0 REDG.E.ADD.64.STRONG.SYS desc[UR10][R18.64], R12"]
ACQUIRE = ["LDG.E.64.STRONG.SYS R12, desc[UR10][R14.64]", "CCTL.IVALL"]


def kernel(name, *instructions):
    lines = [f"\t\tFunction : {name}"]
    for at, text in enumerate(sum(instructions, [])):
        lines.append(f"        /*{at * 16:04x}*/                   {text} ;     /* 0x00000000 */")
        lines.append(" " * 100 + "/* 0x000fe200 */")
    return "\n".join(lines) + "\n"


GOOD = kernel("good", STORE, WAIT, RELEASE, ACQUIRE)


class CheckSassTest(unittest.TestCase):

    def check(self, text, *arguments):
        done = subprocess.run([sys.executable, SCRIPT, *arguments], input=text, text=True,
                              capture_output=True)
        return done.returncode, done.stdout

    def test_a_release_after_the_full_wait_passes(self):
        self.assertEqual(self.check(GOOD + kernel("plain", RELEASE, ACQUIRE))[0], 0)

    def test_a_release_before_the_wait_is_found(self):
        status, said = self.check(kernel("hasty", STORE, RELEASE, WAIT))
        self.assertEqual(status, 1)
        self.assertIn("hasty: 1 releases", said)

    def test_a_wait_for_the_source_alone_is_no_full_wait(self):
        self.assertEqual(self.check(kernel("reads", STORE, WAIT[:1], RELEASE))[0], 1)

    def test_a_second_store_needs_a_second_wait(self):
        self.assertEqual(self.check(kernel("twice", STORE, WAIT, STORE, RELEASE))[0], 1)

    def test_a_non_coherent_load_is_found(self):
        status, said = self.check(kernel("stale", ["LDG.E.128.CONSTANT R4, desc[UR4][R2.64]"]))
        self.assertEqual(status, 1)
        self.assertIn("1 loads through the non-coherent cache", said)

    def test_what_must_be_flagged_is(self):
        bad = kernel("on_purpose", STORE, RELEASE)
        self.assertEqual(self.check(GOOD + bad, "--must-flag", "on_purpose")[0], 0)
        self.assertEqual(self.check(GOOD, "--must-flag", "on_purpose")[0], 1)

    def test_nothing_is_no_pass(self):
        self.assertEqual(self.check("")[0], 1)


if __name__ == "__main__":
    unittest.main()

#!/usr/bin/env python3
"""Runs a compiler on a file that must be refused: expect_error.py FILE COMPILER [FLAG...].

Every `// expect-error: text` line of FILE names a text that an error of the compiler must contain.
"""

import pathlib
import re
import subprocess
import sys


def verdict(source, command):
    """Returns what is wrong, or None when FILE is refused for the reason it names."""
    texts = re.findall(r"^// expect-error: (.+)$", source.read_text(), re.M)
    if not texts:
        return "names no text in an '// expect-error: ' line"
    done = subprocess.run([*command, str(source)], capture_output=True, text=True)
    if done.returncode == 0:
        return "the compiler accepts this file, but must not"
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    for text in texts:
        if not any(text.strip() in line for line in errors):
            print(done.stderr)
            return f"no error contains '{text.strip()}'"
    return None


def main():
    source = pathlib.Path(sys.argv[1])
    wrong = verdict(source, sys.argv[2:])
    if wrong:
        print(f"{source}: {wrong}")
    return 1 if wrong else 0


sys.exit(main())

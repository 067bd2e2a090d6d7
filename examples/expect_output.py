#!/usr/bin/env python3
"""Runs an example and compares its output with its header: expect_output.py SOURCE PROGRAM...

The comment lines after `// You see`, up to the first line that is no comment, must appear in the
output as whole lines and in that order; `...` inside such a line stands for any text.
"""

import pathlib
import re
import subprocess
import sys


def expected_lines(source):
    """The lines of the header's "You see" block, without comment marks and blank lines."""
    lines = []
    inside = False
    for line in source.read_text().splitlines():
        comment = re.match(r"//+ ?(.*)$", line)
        if inside and not comment:
            break
        if inside and comment.group(1).strip():
            lines.append(comment.group(1).strip())
        if comment and comment.group(1).strip().rstrip(":") == "You see":
            inside = True
    return lines


def first_missing(wanted, output):
    """The first wanted line that the output lacks after the lines before it, or None."""
    rest = iter(line.strip() for line in output.splitlines())
    for line in wanted:
        pattern = ".*".join(re.escape(part) for part in line.split("..."))
        if not any(re.fullmatch(pattern, seen) for seen in rest):
            return line
    return None


def main():
    source = pathlib.Path(sys.argv[1])
    wanted = expected_lines(source)
    if not wanted:
        print(f"{source}: has no lines after '// You see'")
        return 1
    done = subprocess.run(sys.argv[2:], stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="")
    if done.returncode != 0:
        print(f"{source}: the program ended with status {done.returncode}")
        return 1
    missing = first_missing(wanted, done.stdout)
    if missing is not None:
        print(f"{source}: the output lacks, in this order, the line '{missing}'")
        return 1
    return 0


sys.exit(main())

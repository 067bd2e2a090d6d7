#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Reads machine code of Hopper kernels (cuobjdump --dump-sass) from standard input and checks:

  - no load through the non-coherent cache: peers write while kernels run
  - after a bulk store, no release before the full wait: between UTMACMDFLUSH (commit) and the next
    strong system-scope RED, ATOM or ST there is DEPBAR.LE SB0, 0x0 and, right after it,
    CCTL.IVALL. The wait for the source alone (.read) has no CCTL.IVALL.

  --must-flag TEXT   kernels whose name contains TEXT break the second rule on purpose; it is an
                     error if they are not found to
"""

import argparse
import re
import sys

INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][^\s;]*)([^;]*);")
RELEASE = re.compile(r"(RED|REDG|ATOM|ATOMG|ST|STG)\.\S*STRONG\.SYS")


def functions(lines):
    """Yields (name, instructions) of each kernel."""
    name, code = None, []
    for line in lines:
        start = re.search(r"Function : (\S+)", line)
        if start:
            if name:
                yield name, code
            name, code = start.group(1), []
            continue
        found = INSTRUCTION.match(line)
        if found and name:
            code.append((found.group(1), found.group(2)))
    if name:
        yield name, code


def early_releases(code):
    """Releases that follow a bulk store without its full wait."""
    pending, early = False, 0
    for at, (what, rest) in enumerate(code):
        if what.startswith("UTMACMDFLUSH"):
            pending = True
        elif what.startswith("DEPBAR") and "SB0, 0x0" in rest:
            after = [w for w, _ in code[at + 1:at + 4]]
            pending = pending and not any(w.startswith("CCTL.IVALL") for w in after)
        elif RELEASE.match(what) and pending:
            early += 1
    return early


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--must-flag", default=None)
    asked = parser.parse_args()
    kernels, bulk, problems, flagged = 0, 0, [], 0
    for name, code in functions(sys.stdin):
        kernels += 1
        bulk += any(what.startswith("UBLKCP.G") for what, _ in code)
        cached = sum(bool(re.match(r"LD\S*\.CONSTANT", what)) for what, _ in code)
        if cached:
            problems.append(f"{name}: {cached} loads through the non-coherent cache")
        early = early_releases(code)
        if early and asked.must_flag and asked.must_flag in name:
            flagged += 1
        elif early:
            problems.append(f"{name}: {early} releases before a bulk store has landed")
    if not kernels:
        problems.append("no kernel came")
    if asked.must_flag and not flagged:
        problems.append(f"no kernel named {asked.must_flag} was found to release early")
    for problem in problems:
        print("error:", problem)
    print(f"kernels: {kernels}, with bulk stores {bulk}, early releases on purpose {flagged}, "
          f"problems {len(problems)}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/python3
"""Runs ctest, and what failed once more, alone. Every test that needed this is kept in TABLE.

    scripts/second-try.py TABLE ctest OPTION...   exit code: ctest's; 1 when the table has more than $SECOND_TRIES tests (2)
    scripts/second-try.py TABLE                   prints the table; the same exit code

A second try is for whole systems on a machine that others use. It hides faults where there are many."""

import os
import pathlib
import subprocess
import sys

MOST = int(os.environ.pop("SECOND_TRIES", 2))  # not for the tests


def show(table):
    """Prints the table; exit code."""
    names = table.read_text().split() if table.exists() else []
    print(f"second tries: {len(names)}, at most {MOST}{':' if names else ''}", flush=True)
    for name in names:
        print(f"  {name}", flush=True)
    return 1 if len(names) > MOST else 0


def run(table, command):
    folder = pathlib.Path(command[command.index("--test-dir") + 1])
    failed = folder / "Testing/Temporary/LastTestsFailed.log"
    failed.unlink(missing_ok=True)  # ctest leaves that of an earlier run
    code = subprocess.run(command, check=False).returncode
    if code == 0 or not failed.exists():
        return code
    table.parent.mkdir(parents=True, exist_ok=True)
    with table.open("a") as lines:
        lines.writelines(line.partition(":")[2] + "\n" for line in failed.read_text().splitlines())
    if show(table):
        return code
    return subprocess.run([*command, "--rerun-failed", "-j1"], check=False).returncode


def main():
    if len(sys.argv) == 2:
        return show(pathlib.Path(sys.argv[1]))
    if len(sys.argv) < 4 or "--test-dir" not in sys.argv:
        sys.exit(__doc__.strip())
    return run(pathlib.Path(sys.argv[1]), sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())

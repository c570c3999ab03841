#!/usr/bin/env python3
"""The wheel on other systems: `make test-systems`. Each is made by debootstrap, once, and gets a layer that is thrown away.
There the wheel is installed into a virtual environment; `freeride-ctl doctor`, and a side task beside a training on CPUs,
are a user's who is not root; then pip removes it. Prints a table, and writes it as JSON; exit 1 where one is not as it
should be. Needs root, and Debian's mirror for what the cache does not have. The kernel is this host's in all of them.

Usage: systems.py --wheel FILE --cache FOLDER [--suites bookworm,trixie,bullseye] [--out FILE]
"""

import argparse
import json
import os
import pathlib
import sys

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(TESTS))
from rig.fresh import Layer, made

# An older glibc than the wheel is for; and there is no need for what trains.
TOO_OLD = {"bullseye"}
COLUMNS = ("python", "glibc", "install", "doctor", "side task", "uninstall")


def look(suite, cache, wheel):
    """What in_system.py finds there."""
    packages = ["python3", "python3-venv", *([] if suite in TOO_OLD else ["python3-torch"])]
    layer = Layer(made(suite, packages, cache), cache / f"{suite}.layer")
    seen = [(wheel.parent, "/mnt/wheel"), (TESTS, "/mnt/tests")]
    done = layer.run(["python3", "-B", "/mnt/tests/package/in_system.py"], seen, capture_output=True, text=True)
    layer.remove()
    if done.returncode != 0:
        sys.exit(f"systems.py: {suite}: {done.stderr.strip()}")
    return json.loads(done.stdout.splitlines()[-1])


def good(suite, found):
    if suite in TOO_OLD:
        return "is not a supported wheel on this platform" in found["install"]
    return found["install"] == found["doctor"] == found["uninstall"] == "ok" and "harvested" in found["side task"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--wheel", type=pathlib.Path, required=True)
    parser.add_argument("--cache", type=pathlib.Path, required=True)
    parser.add_argument("--suites", default="bookworm,trixie,bullseye")
    parser.add_argument("--out", type=pathlib.Path, help="JSON, a list: what was found in each, and whether it is good")
    given = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("systems.py: only root can make other systems; run this as root")
    cache = given.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    print("| system |", " | ".join(COLUMNS), "|")
    print("|---" * (len(COLUMNS) + 1) + "|")
    rows = []
    for suite in given.suites.split(","):
        print(f"systems.py: {suite}", file=sys.stderr, flush=True)
        found = look(suite, cache, given.wheel.resolve())
        print(
            f"| {suite} |", " | ".join(found.get(column, "–").replace("\n", " ") for column in COLUMNS), "|", flush=True
        )
        rows.append({"system": suite, "good": good(suite, found), **found})
    if given.out:
        given.out.write_text(json.dumps(rows, indent=1) + "\n")
    bad = [row["system"] for row in rows if not row["good"]]
    sys.exit(f"systems.py: not as it should be: {', '.join(bad)}" if bad else 0)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The wheel on other systems: `make test-systems`. Each is made by debootstrap, once, and gets a layer that is thrown away.
There the wheel is installed into a virtual environment; `freeride-ctl doctor`, and a side task beside a training on CPUs,
are a user's who is not root; then pip removes it. Prints a table; exit 1 where one is not as it should be. Needs root, and
Debian's mirror for what the cache does not have. The kernel is this host's in all of them.

Usage: systems.py --wheel FILE --cache FOLDER [--suites bookworm,trixie,bullseye]
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys

TESTS = pathlib.Path(__file__).resolve().parents[1]
MIRROR = "http://deb.debian.org/debian"
# An older glibc than the wheel is for; and there is no need for what trains.
TOO_OLD = {"bullseye"}
COLUMNS = ("python", "glibc", "install", "doctor", "side task", "uninstall")

# In a mount namespace of its own. $1: the system's files, $2: the wheel's folder, $3: tests/.
ENTER = """
set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=0755 layer /mnt
mkdir /mnt/changed /mnt/work /mnt/root
mount -t overlay -o "lowerdir=$1,upperdir=/mnt/changed,workdir=/mnt/work" layer /mnt/root
cd /mnt/root
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs -o mode=0755 tmpfs run
mkdir mnt/wheel mnt/tests old
mount --bind "$2" mnt/wheel
mount --bind "$3" mnt/tests
pivot_root . old
umount -l /old
exec python3 -B /mnt/tests/package/in_system.py
"""


def made(suite, cache):
    """The folder of the suite's files, with Python, and torch where trainings run."""
    root, new = cache / suite, cache / f"{suite}.new"
    if not root.exists():
        print(f"{suite}: is made, which takes some minutes", file=sys.stderr)
        shutil.rmtree(new, ignore_errors=True)
        debs = cache / "debs"
        debs.mkdir(exist_ok=True)
        packages = ["python3", "python3-venv", *([] if suite in TOO_OLD else ["python3-torch"])]
        command = ["debootstrap", "--variant=minbase", f"--cache-dir={debs}", f"--include={','.join(packages)}"]
        with open(cache / f"{suite}.log", "w") as log:
            done = subprocess.run([*command, suite, new, MIRROR], stdout=log, stderr=log, check=False)
        if done.returncode != 0:
            sys.exit(f"systems.py: debootstrap of {suite} failed, see {log.name}")
        new.rename(root)
    return root


def look(suite, root, wheel):
    """What in_system.py finds there."""
    unshare = ["unshare", "--mount", "--pid", "--ipc", "--fork", "--kill-child=KILL", "sh", "-c", ENTER, "enter"]
    done = subprocess.run([*unshare, root, wheel.parent, TESTS], capture_output=True, text=True, check=False)
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
    given = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("systems.py: only root can make other systems; run this as root")
    cache = given.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    print("| system |", " | ".join(COLUMNS), "|")
    print("|---" * (len(COLUMNS) + 1) + "|")
    bad = []
    for suite in given.suites.split(","):
        found = look(suite, made(suite, cache), given.wheel.resolve())
        print(
            f"| {suite} |", " | ".join(found.get(column, "–").replace("\n", " ") for column in COLUMNS), "|", flush=True
        )
        if not good(suite, found):
            bad.append(suite)
    sys.exit(f"systems.py: not as it should be: {', '.join(bad)}" if bad else 0)


if __name__ == "__main__":
    main()

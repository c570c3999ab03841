#!/usr/bin/env python3
"""clang-tidy over every source of ours, tests aside, that the given build has compiled. Usage: check-tidy.py BUILD_DIR
[STAMPS_DIR [SECONDS]]

A file that was clean is not looked at again until it, something of ours that it includes, or .clang-tidy changes:
stamps are kept by content in STAMPS_DIR (BUILD_DIR/tidy), which may be shared between checkouts. What was changed last
comes first; after SECONDS no other file is begun, and the next run goes on. Exit code 1: findings, printed as they
come."""

import collections
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Flags that clang 14 does not know: some it only warns of.
GCC_ALONE = (" -mtls-dialect=gnu2", " --param ggc-min-heapsize=524288")
NO_WARNINGS = ["--extra-arg=-Wno-ignored-optimization-argument", "--extra-arg=-Wno-unknown-warning-option"]
# LibTorch 1.13's headers are none that clang 14 can parse.
LEFT_OUT = (ROOT / "plugins/resnet",)


def included(build):
    """Object file to what of ours it was made from."""
    text = subprocess.run(["ninja", "-C", build, "-t", "deps"], capture_output=True, text=True, check=True).stdout
    files, target = {}, None
    for line in text.splitlines():
        if line.startswith("    "):
            path = (build / line.strip()).resolve()
            if path.is_relative_to(ROOT):
                files[target].append(path)
        elif ": #deps" in line:
            target = line.split(":")[0]
            files[target] = []
    return files


def apart(entries, database):
    """Files that were compiled together (FREERIDE_UNITY), each as its own entry; headers that gcc has precompiled as text."""
    for entry in entries:
        for header in re.findall(r"-include (\S+cmake_pch\.hxx)", entry["command"]):
            # Where no clang finds a .gch beside it.
            text = database / (hashlib.sha256(header.encode()).hexdigest()[:16] + ".hxx")
            text.write_text(pathlib.Path(header).read_text())
            entry["command"] = entry["command"].replace(header, str(text))
        path = pathlib.Path(entry["file"])
        joined = re.findall(r'^#include "(.+)"', path.read_text(), re.M) if path.parent.name == "Unity" else [str(path)]
        for file in joined:
            yield {**entry, "command": entry["command"].replace(str(path), file), "file": file}


def changed():
    """Path to when a commit changed it last; empty where there is no history."""
    text = subprocess.run(
        ["git", "-C", ROOT, "log", "--format=:%ct", "--name-only"], capture_output=True, text=True, check=False
    ).stdout
    times, now = {}, 0
    for line in text.splitlines():
        if line.startswith(":"):
            now = int(line[1:])
        elif line:
            times.setdefault(ROOT / line, now)
    return times


def main():
    if len(sys.argv) not in (2, 3, 4):
        sys.exit(__doc__.strip().splitlines()[0])
    build = pathlib.Path(sys.argv[1]).resolve()
    stamps = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else build / "tidy").expanduser().resolve()
    stamps.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + (float(sys.argv[3]) if len(sys.argv) == 4 else float("inf"))
    made_from, sources = included(build), {}
    database = build / "tidy-commands"
    database.mkdir(exist_ok=True)
    text = (build / "compile_commands.json").read_text()
    for flag in GCC_ALONE:
        text = text.replace(flag, "")
    commands = list(apart(json.loads(text), database))
    (database / "compile_commands.json").write_text(json.dumps(commands))
    for entry in commands:
        source = pathlib.Path(entry["directory"], entry["file"]).resolve()
        ours = (
            source.suffix == ".cpp"
            and source.is_relative_to(ROOT)
            and not source.is_relative_to(build.parent)
            and "test" not in source.name
        )
        if ours and not any(source.is_relative_to(folder) for folder in LEFT_OUT):
            words = entry["command"].split()
            # None: not compiled, so nobody knows what it includes
            made = made_from.get(words[words.index("-o") + 1], [])
            sources[source] = sorted({*sources.get(source, ()), *made, source, ROOT / ".clang-tidy"})

    def check(source):
        content = hashlib.sha256(str(source.relative_to(ROOT)).encode())
        for path in sources[source]:
            content.update(path.read_bytes() if path.exists() else b"-")
        stamp = stamps / content.hexdigest()
        known = len(sources[source]) > 2
        if known and stamp.exists():
            return "clean"
        if time.monotonic() > end:
            return "left"
        done = subprocess.run(
            ["clang-tidy", "--quiet", "-p", database, *NO_WARNINGS, source],
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        if done.returncode == 0 and known:
            stamp.touch()
        elif done.returncode:
            print(done.stdout.strip() or done.stderr.strip(), flush=True)
        return "findings" if done.returncode else "looked at"

    times = changed()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        said = collections.Counter(pool.map(check, sorted(sources, key=lambda source: -times.get(source, 0))))
    print(
        f"tidy: {said['findings'] or 'no'} of {len(sources)} files with findings; {said['clean']} unchanged since they were clean, {said['left']} left for another run"
    )
    sys.exit(1 if said["findings"] else 0)


if __name__ == "__main__":
    main()

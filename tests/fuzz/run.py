#!/usr/bin/python3
"""Runs the fuzz targets, each from its kept inputs on. Exit code 0: nothing was found; 1: something was, and the lines
say in which file.

    tests/fuzz/run.py --build build/asan --seconds 20              (make fuzz SECONDS=20)
    tests/fuzz/run.py --build build/asan --inputs 10000000 --record bench/results/fuzz.json
    tests/fuzz/run.py --build build/asan --keep                    what was found to be new joins the kept inputs

Kept inputs are one archive a target, fuzz_NAME_seed_corpus.zip, as OSS-Fuzz names them."""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
TARGETS = {  # name: its part of --inputs, by how quick it is
    "plugin_file": 0.43,
    "bus": 0.03,
    "pages": 0.22,
    "handover": 0.2,
    "saved_state": 0.02,
    "config": 0.03,
    "recording": 0.02,
    "hint": 0.05,
}
MOST_KEPT_BYTES = 8192  # of one input


def archive(name):
    return HERE / f"fuzz_{name}_seed_corpus.zip"


def unpack(name, folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if archive(name).exists():
        with zipfile.ZipFile(archive(name)) as kept:
            kept.extractall(folder)


def fuzz(name, options):
    """What a run did, as its line says."""
    program = options.build / "bin" / f"fuzz_{name}"
    corpus, found = options.build / "corpus" / name, options.build / "found"
    if not options.keep:
        unpack(name, corpus)
    found.mkdir(exist_ok=True)
    bound = f"-runs={round(options.inputs * TARGETS[name])}" if options.inputs else f"-max_total_time={options.seconds}"
    done = subprocess.run(
        [
            program,
            bound,
            "-print_final_stats=1",
            "-timeout=30",
            "-max_len=8192",
            f"-artifact_prefix={found}/{name}-",
            corpus,
        ],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    said = done.stdout + done.stderr

    def last(pattern):
        values = re.findall(pattern, said)
        return int(values[-1]) if values else 0

    return {
        "target": name,
        "inputs": last(r"stat::number_of_executed_units: (\d+)") or last(r"^#(\d+)"),
        "inputs_per_s": last(r"stat::average_exec_per_sec: +(\d+)"),
        "edges": last(r"cov: (\d+)"),
        "found": []
        if done.returncode == 0
        else [line for line in said.splitlines() if "SUMMARY" in line or "Test unit" in line]
        or [f"exit {done.returncode}: {said.strip()[-500:]}"],
    }


def keep(name, options):
    """The fewest of all known inputs that still reach everything become the kept ones."""
    fewest = options.build / "fewest" / name
    shutil.rmtree(fewest, ignore_errors=True)
    fewest.mkdir(parents=True)
    subprocess.run(
        [options.build / "bin" / f"fuzz_{name}", "-merge=1", "-max_len=8192", fewest, options.build / "corpus" / name],
        capture_output=True,
        check=True,
    )
    with zipfile.ZipFile(archive(name), "w", zipfile.ZIP_DEFLATED) as kept:
        for file in sorted(fewest.iterdir()):
            if file.stat().st_size <= MOST_KEPT_BYTES:
                kept.writestr(zipfile.ZipInfo(file.name), file.read_bytes(), zipfile.ZIP_DEFLATED)
    return f"{name}: {len(list(fewest.iterdir()))} inputs kept"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/asan"))
    parser.add_argument("--seconds", type=int, default=20, help="of each target")
    parser.add_argument("--inputs", type=int, help="of all targets together, instead of a time")
    parser.add_argument("--only", choices=TARGETS, action="append")
    parser.add_argument("--record", type=pathlib.Path, help="writes what was done to this file")
    parser.add_argument("--keep", action="store_true", help="does not run: renews the kept inputs")
    options = parser.parse_args()
    options.build = options.build.resolve()
    names = options.only or list(TARGETS)
    if options.keep:
        for name in names:
            print(keep(name, options))
        return 0
    os.environ.setdefault("UBSAN_OPTIONS", "print_stacktrace=1")
    results = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for one in pool.map(lambda name: fuzz(name, options), names):
            results.append(one)
            print(
                f"{one['target']:12} {one['inputs']:>10,} inputs {one['inputs_per_s']:>8,} a second {one['edges']:>6} edges"
                f"  {'nothing found' if not one['found'] else 'FOUND'}",
                flush=True,
            )
            for line in one["found"]:
                print(f"  {line}")
    total = sum(one["inputs"] for one in results)
    print(f"{total:,} inputs in all")
    if options.record:
        command = " ".join(["tests/fuzz/run.py", *sys.argv[1:]])
        options.record.write_text(
            json.dumps({"command": command, "inputs": total, "targets": results}, indent=1) + "\n"
        )
    return 1 if any(one["found"] for one in results) else 0


if __name__ == "__main__":
    sys.exit(main())

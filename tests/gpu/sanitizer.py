#!/usr/bin/env python3
"""Do the kernels that this project brings touch what is not theirs? compute-sanitizer over the side tasks' kernels, a
few steps of each at a small size, and over the worker's GPU probe. On one GPU.

    tests/gpu/sanitizer.py --bin DIR --plugins DIR --out FILE [--dry-run]

--dry-run: on a CPU and without the sanitizer, to try out this script. The hook's only kernel is empty. Exit code 1 if
a tool has found something, or a program did not do its work."""

import argparse
import ctypes
import json
import mmap
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1]))
from rig.gpus import gpus

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
TASKS = {
    "pagerank": ["vertices=20000", "edges=300000", "tolerance=1e-15"],
    "sgd": ["vertices=20000", "edges=300000"],
    "image": ["synthetic=512"],
}
PROBES = 20
PAGE = struct.Struct("IIIIqqqqq")  # worker/acting/probe_page.hpp: asked, answered, launched, ready, then times
PATIENCE_S = 120


def words_of(tool, options):
    return [] if options.dry_run else ["compute-sanitizer", "--tool", tool, "--error-exitcode", "99"]


def summary(said):
    """What the tool says at its end."""
    found = re.findall(r"========= (.*SUMMARY.*)", said)
    return found[-1].strip() if found else ""


def task(tool, name, options, device):
    command = [
        *words_of(tool, options),
        options.bin / "bench-side-task",
        "run",
        "--plugin",
        options.plugins / f"{name}.so",
    ]
    command += ["--device", device, "--scratch", options.out.parent, "--steps", 12]
    for param in TASKS[name]:
        command += ["--param", param]
    process = subprocess.Popen(
        [*map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=options.out.parent,
        start_new_session=True,
    )
    try:
        said = process.communicate(timeout=PATIENCE_S)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return 124, 0, process.communicate()[0] + f"did not end within {PATIENCE_S} s"
    steps = [json.loads(line).get("steps", 0) for line in said.splitlines() if line.startswith("{")]
    return process.returncode, sum(steps), said


def probe(tool, options):
    """The probe's process, asked as the acting thread asks it."""
    fd = os.memfd_create("probe", 0)
    os.ftruncate(fd, 4096)
    page = mmap.mmap(fd, 4096)
    at = ctypes.c_uint32.from_buffer(page, 0)
    struct.pack_into("q", page, PAGE.size - 8, 200_000)  # for_ns
    process = subprocess.Popen(
        [*words_of(tool, options), str(options.bin / "freeride-worker"), "--probe", str(fd)],
        pass_fds=[fd],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

    def until(word, value):
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end and process.poll() is None:
            if struct.unpack_from("I", page, 4 * word)[0] == value:
                return True
            time.sleep(0.001)
        return False

    answered = 0
    if until(3, 1):
        for serial in range(1, PROBES + 1):
            at.value = serial
            wake(page)
            if not until(1, serial):
                break
            answered += 1
    # The probe has no end of its own; the tool says what it has found once that one is gone.
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in children or [process.pid]:
        os.kill(int(pid), signal.SIGTERM)
    said = process.communicate(timeout=PATIENCE_S)[0]
    return 99 if re.search(r"SUMMARY: [1-9]", said) or "SUMMARY" not in said else 0, answered, said


def wake(page):
    """futex(FUTEX_WAKE) on the first word."""
    address = ctypes.addressof(ctypes.c_uint32.from_buffer(page, 0))
    ctypes.CDLL(None).syscall(202, ctypes.c_void_p(address), 1, 1 << 30, None, None, 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("--bin", "--plugins", "--out"):
        parser.add_argument(name, type=lambda text: pathlib.Path(text).resolve(), required=True)
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    gpu = None if options.dry_run else gpus()[0]
    record = {"machine": f"{gpu.name}, {gpu.driver}" if gpu else "dry run", "rows": []}
    good = True
    for what in (*TASKS, *([] if options.dry_run else ["probe"])):
        for tool in TOOLS:
            begin = time.monotonic()
            code, work, said = (
                probe(tool, options) if what == "probe" else task(tool, what, options, gpu.uuid if gpu else "cpu-0")
            )
            row = {"program": what, "tool": tool, "code": code, "work": work, "said": summary(said)}
            if code != 0 or work == 0:
                good, row["output"] = False, said[-3000:]
            record["rows"].append(row)
            options.out.write_text(json.dumps(record, indent=1) + "\n")
            print(
                f"{what:10} {tool:10} {work:4} steps, exit code {code}: {row['said']} ({time.monotonic() - begin:.1f} s)",
                flush=True,
            )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

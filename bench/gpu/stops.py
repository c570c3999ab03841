#!/usr/bin/env python3
"""What stopping a side task's process inside the CUDA driver costs: it, and somebody else on the same GPU.

    stops.py --out FILE [--rounds 400] [--mps]

One process allocates and frees 64 MiB without end (`--mps`: as a client of an MPS server of its own). It is stopped at
random moments for 2 ms, as between leases. Another, in a context outside of MPS as training is, allocates, sets and
frees 2 MiB meanwhile: what holds a lock of the driver's while it is stopped would be seen there. In turns: the first
process goes on, is stopped inside a call, or has nothing to do."""

import argparse
import ctypes
import json
import mmap
import os
import pathlib
import random
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent.parent / "tests"), str(HERE)]
from ranks import machine

STOPPED_S = 0.002
BIG, SMALL = 64 << 20, 2 << 20


class Words:
    """Numbers of 8 bytes in memory that processes share."""

    def __init__(self, count):
        self.map = mmap.mmap(-1, 8 * count)

    def __getitem__(self, i):
        return struct.unpack_from("q", self.map, 8 * i)[0]

    def __setitem__(self, i, value):
        struct.pack_into("q", self.map, 8 * i, value)


class Gpu:
    """A context, and the calls that are timed."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name, *arguments):
        error = getattr(self.cuda, name)(*arguments)
        if error != 0:
            raise RuntimeError(f"{name} failed with error {error}")

    def allocate(self, size):
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
        return at

    def free(self, at):
        self.call("cuMemFree_v2", at)

    def set(self, at):
        self.call("cuMemsetD8_v2", at, ctypes.c_ubyte(1), ctypes.c_size_t(1))
        self.call("cuCtxSynchronize")


READY, BUSY, PHASE, CALLS = range(4)  # words of the first process; PHASE 1: inside a call


def allocating(words):
    gpu = Gpu()
    words[READY] = 1
    while True:
        if not words[BUSY]:
            time.sleep(0.0005)
            continue
        words[PHASE] = 1
        gpu.free(gpu.allocate(BIG))
        words[PHASE] = 0
        words[CALLS] += 1


TURNS = 4096  # of the other process: when each began, and what it took; word 0 is how many there were


def beside(words):
    gpu = Gpu()
    gpu.free(gpu.allocate(SMALL))
    while True:
        begin = time.monotonic_ns()
        at = gpu.allocate(SMALL)
        gpu.set(at)
        gpu.free(at)
        turn = words[0] % TURNS
        words[1 + 2 * turn], words[2 + 2 * turn] = begin, time.monotonic_ns() - begin
        words[0] += 1
        time.sleep(0.0002)


def started(function, words, **more):
    pid = os.fork()
    if pid == 0:
        os.environ.update(more)
        try:
            function(words)
        except Exception as error:
            print(error, file=sys.stderr, flush=True)
        os._exit(1)
    return pid


def state_of(pid):
    return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def quantiles(us):
    if not us:
        return {"n": 0}
    us = sorted(us)
    return {"n": len(us), "p50": us[len(us) // 2], "p99": us[min(len(us) - 1, len(us) * 99 // 100)], "max": us[-1]}


def wait(what, done, seconds=60):
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise SystemExit(f"{what}: not within {seconds} s")
        time.sleep(0.001)


def measure(rounds, more):
    words, seen = Words(4), Words(1 + 2 * TURNS)
    first, other = started(allocating, words, **more), started(beside, seen)
    stops, goes, took, inside = [], [], {"goes on": [], "stopped inside a call": [], "nothing to do": []}, 0
    chance = random.Random(1)
    try:
        wait("the contexts", lambda: words[READY] and seen[0])
        for _ in range(rounds):
            words[BUSY] = 1
            for what in took:
                words[BUSY] = int(what != "nothing to do")
                time.sleep(0.002 + 0.002 * chance.random())
                if what == "stopped inside a call":
                    begin = time.monotonic_ns()
                    os.kill(first, signal.SIGSTOP)
                    while state_of(first) != "T":
                        pass
                    stops.append((time.monotonic_ns() - begin) / 1e3)
                    what = what if words[PHASE] else "nothing to do"
                at, turns = time.monotonic_ns(), seen[0]
                time.sleep(STOPPED_S)
                until, last, calls = time.monotonic_ns(), seen[0], words[CALLS]
                if state_of(first) == "T":
                    begin = time.monotonic_ns()
                    os.kill(first, signal.SIGCONT)
                    if words[PHASE]:
                        inside += 1
                        while words[CALLS] == calls:
                            pass
                        goes.append((time.monotonic_ns() - begin) / 1e3)
                for turn in range(turns, last):
                    begin_ns, ns = seen[1 + 2 * (turn % TURNS)], seen[2 + 2 * (turn % TURNS)]
                    if at <= begin_ns and begin_ns + ns <= until:
                        took[what].append(ns / 1e3)
                if last == turns:  # not one turn in all that time: it is longer than that
                    took[what].append((until - at) / 1e3)
    finally:
        for pid in (first, other):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return {
        "rounds": rounds,
        "stopped_inside_a_call": inside,
        "stop_us": quantiles(stops),
        "continue_to_the_calls_end_us": quantiles(goes),
        "other_process_us": {what: quantiles(us) for what, us in took.items()},
        "other_process_mean_us": {what: statistics.fmean(us) for what, us in took.items() if us},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--mps", action="store_true")
    options = parser.parse_args()
    record = {"machine": machine()[:1], "command": " ".join(sys.argv), "without MPS": measure(options.rounds, {})}
    if options.mps:
        with tempfile.TemporaryDirectory() as pipes:
            server = {"CUDA_MPS_PIPE_DIRECTORY": pipes, "CUDA_MPS_LOG_DIRECTORY": pipes}
            environment = {**os.environ, **server}
            subprocess.run(["nvidia-cuda-mps-control", "-d"], env=environment, check=True)
            try:
                record["as an MPS client"] = measure(options.rounds, server)
            finally:
                subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, env=environment, check=False)
    pathlib.Path(options.out).write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()

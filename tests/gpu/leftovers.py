#!/usr/bin/env python3
"""Can a side task read what was left in GPU memory? On one GPU, with its real MPS; needs PyTorch.

    tests/gpu/leftovers.py --out FILE [--gpu N]

A process fills all but a few GiB with a pattern, and frees it, or is killed. Then another process takes all memory that
is free, without writing to it, and counts the words of the pattern. Both under an MPS server each (as side tasks of
FreeRide), the first outside of MPS (as a training), or both under one server (for comparison: FreeRide never does that).
Exit code 1 if a side task could read anything."""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

PATTERN = 0x5A17C0DEFACE0FF5
CHUNK = 1 << 27  # words: 1 GiB
FILL = """
import sys, time, torch
kept, free = [], torch.cuda.mem_get_info()[0] - (4 << 30)
while free > 0:
    kept.append(torch.empty({chunk}, dtype=torch.int64, device="cuda").fill_({pattern}))
    free -= {chunk} * 8
torch.cuda.synchronize()
print(len(kept), flush=True)
if "{end}" == "free":
    kept.clear()
    torch.cuda.empty_cache()
    print("freed", flush=True)
time.sleep(600)
"""
LOOK = """
import torch
kept, found = [], 0
while torch.cuda.mem_get_info()[0] > (3 << 30):
    kept.append(torch.empty({chunk}, dtype=torch.int64, device="cuda"))
    found += int((kept[-1] == {pattern}).sum())
nonzero = sum(int((one != 0).sum()) for one in kept)
print(len(kept), found, nonzero)
"""


class Mps:
    """A control daemon with a folder of its own."""

    def __init__(self, gpu):
        self.folder = tempfile.mkdtemp(prefix="mps-")
        self.env = {
            "CUDA_VISIBLE_DEVICES": gpu,
            "CUDA_MPS_PIPE_DIRECTORY": self.folder,
            "CUDA_MPS_LOG_DIRECTORY": self.folder,
        }
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env={**os.environ, **self.env}, check=True)

    def end(self):
        subprocess.run(
            ["nvidia-cuda-mps-control"], input="quit\n", text=True, env={**os.environ, **self.env}, check=False
        )


def case(name, gpu, end, first_in_mps, second_in_mps, same_server):
    outside = {"CUDA_VISIBLE_DEVICES": gpu, "CUDA_MPS_PIPE_DIRECTORY": "/dev/null"}
    servers = [Mps(gpu) for _ in range(first_in_mps + second_in_mps - same_server)]
    first_env = servers[0].env if first_in_mps else outside
    second_env = servers[0 if same_server else -1].env if second_in_mps else outside
    words = {"chunk": CHUNK, "pattern": PATTERN, "end": end}
    first = subprocess.Popen(
        [sys.executable, "-c", FILL.format(**words)], env={**os.environ, **first_env}, stdout=subprocess.PIPE, text=True
    )
    try:
        filled = int(first.stdout.readline())
        if end == "free":
            assert first.stdout.readline().strip() == "freed"
        else:
            first.send_signal(signal.SIGKILL)
            first.wait()
            time.sleep(1)  # until the driver has taken its memory back
        looked = subprocess.run(
            [sys.executable, "-c", LOOK.format(**words)],
            env={**os.environ, **second_env},
            capture_output=True,
            text=True,
        )
        if looked.returncode:
            raise RuntimeError(looked.stderr[-500:])
        searched, found, nonzero = map(int, looked.stdout.split())
    finally:
        first.kill()
        first.wait()
        for server in servers:
            server.end()
    row = {
        "case": name,
        "filled_gib": filled,
        "searched_gib": searched,
        "found_bytes": found * 8,
        "nonzero_bytes": nonzero * 8,
    }
    print(json.dumps(row), flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True)
    parser.add_argument("--gpu", type=int, default=0)
    options = parser.parse_args()
    gpu = subprocess.run(
        ["nvidia-smi", "-i", str(options.gpu), "--query-gpu=uuid", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    rows = []
    for name, *how in (
        ("a training was killed, a side task looks", "kill", False, True, False),
        ("a training has freed, a side task looks", "free", False, True, False),
        ("a side task was killed, another looks", "kill", True, True, False),
        ("a side task has freed, another looks", "free", True, True, False),
        ("both under one MPS server, the first was killed", "kill", True, True, True),
        ("both under one MPS server, the first has freed", "free", True, True, True),
    ):
        try:
            rows.append(case(name, gpu, *how))
        except (RuntimeError, ValueError, AssertionError, subprocess.SubprocessError) as error:
            rows.append({"case": name, "failed": str(error)})
            print(json.dumps(rows[-1]), flush=True)
    pathlib.Path(options.out).write_text(json.dumps({"gpu": gpu, "rows": rows}, indent=1) + "\n")
    side_tasks = rows[:4]
    sys.exit(any(row.get("found_bytes", 1) for row in side_tasks))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""What waits on GPUs cost training and give side tasks, by how far the host is ahead of its GPU: the last stage of a 1F1B on one GPU,
replayed (gpu/replay.py), side tasks without a budget, this build and another one in the same call. With --real a pipeline over NCCL, a
stage on each GPU.

    gpu_waits.py --build after=DIST --build before=DIST --out bench/results/waits-h200.json
    gpu_waits.py --runs after:1.3:8:resnet18=30 …     # BUILD:HOST RATIO:CONNECTIONS:SIDE TASKS, one run each
    gpu_waits.py --summary FILE                       # recomputes rows from the samples

DIST: make dist's folder. Host ratio: what the host needs to post a block over what the GPU needs to compute it (gpu/slow_host.py).
Connections: CUDA_DEVICE_MAX_CONNECTIONS; 8 is CUDA's own."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent / "tests"), str(HERE / "gpu")]
import analysis

from ranks import machine
from rig.processes import flags, write_whole

TASKS = "pagerank=25,resnet18=30"
RUNS = [f"after:{ratio}:8:{TASKS}" for ratio in (0.5, 1.0, 1.3)] + [f"after:1.0:1:{TASKS}", f"before:1.3:8:{TASKS}"]
FIGURES = (
    "time_increase_pct", "time_increase_ci95_upper_pct", "harvested_share_pct", "overrun_p99_us", "edge_to_lease_p50_us",
    "edge_to_lease_p99_us", "steps_per_s", "iterations_with", "iterations_without", "unleased_iteration_ms",
)  # fmt: skip


def measured(run, builds, options):
    """One training of one build; its samples."""
    build, ratio, connections, tasks = run.split(":")
    dist, out = pathlib.Path(builds[build]), pathlib.Path(tempfile.mkdtemp()) / "run.json"
    words = [sys.executable, HERE / "harvest.py"]
    words += flags(bin=dist / "bin", plugins=dist / "plugins", python=dist / "python", out=out, host_ratio=ratio)
    words += flags(blocks=options.blocks, iterations=6, warm_up=25, seconds=tasks, watchdog=options.watchdog)
    words += (["--small"] if options.small else []) + ([] if options.real else flags(bubbles_ms=options.bubbles_ms))
    env = {name: value for name, value in os.environ.items() if name != "CUDA_DEVICE_MAX_CONNECTIONS"}
    env |= {"CUDA_DEVICE_MAX_CONNECTIONS": connections} if connections != "8" else {}
    begin, limit = time.monotonic(), options.watchdog + 60
    with open(out.with_suffix(".log"), "w") as log:
        try:
            subprocess.run([str(word) for word in words], env=env, stdout=log, stderr=log, timeout=limit, check=False)
        except subprocess.TimeoutExpired:
            log.write("took too long")
    record = json.loads(out.read_text()) if out.exists() else {"samples": [], "times": {}, "failures": ["no record"]}
    print(f"== {run}: {time.monotonic() - begin:.0f} s", record["failures"], flush=True)
    if record["failures"] or not record["samples"]:
        print(out.with_suffix(".log").read_text()[-3000:], flush=True)
    return {
        "build": build,
        "host_ratio": float(ratio),
        "connections": int(connections),
        "failures": record["failures"],
        "times": record["times"],
        "samples": [{key: sample[key] for key in analysis.RECORDED if key in sample} for sample in record["samples"]],
    }


def rows_of(runs):
    rows = []
    for run in runs:
        same = {key: run[key] for key in ("build", "host_ratio", "connections")}
        hook = analysis.hook_row(run["times"])
        if hook:
            row = {**same, "side_task": "none", "time_increase_pct": hook["hook_pct"], "pairs": hook["hook_pairs"]}
            row |= {"time_increase_ci95_upper_pct": hook["hook_ci95_upper_pct"], "hook_cpu_pct": hook["hook_cpu_pct"]}
            rows.append({**row, "counters": run["times"]["held"][0].get("counters")})
        for sample in run["samples"]:
            row = analysis.row_of(sample)
            rows.append({**same, "side_task": sample["name"], **{key: row.get(key) for key in FIGURES}})
    return rows


def summarise(record):
    rows = rows_of(record["runs"])
    after = [row for row in rows if row["build"] == "after"]
    same = {(row["side_task"], row["host_ratio"], row["connections"]): row for row in rows if row["build"] == "before"}
    for row in after:
        before = same.get((row["side_task"], row["host_ratio"], row["connections"]))
        if before:
            row["before_time_increase_pct"] = before["time_increase_pct"]
            row["before_harvested_share_pct"] = before.get("harvested_share_pct")

    def most(key, alone):
        return max((row[key] for row in after if (row["side_task"] == "none") == alone), default=None)

    return {
        "rows": rows,
        "hook_alone_ci95_upper_pct": most("time_increase_ci95_upper_pct", True),
        "overrun_p99_us": most("overrun_p99_us", False),
        "mark_to_lease_p99_us": most("edge_to_lease_p99_us", False),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", action="append", default=[], metavar="NAME=DIST")
    parser.add_argument("--runs", nargs="*", default=RUNS)
    parser.add_argument("--out")
    parser.add_argument("--summary", metavar="FILE")
    parser.add_argument(
        "--blocks", type=int, default=14, help="hooked and unhooked ones, of 6 iterations, before side tasks"
    )
    parser.add_argument("--watchdog", type=int, default=150, help="seconds of a run")
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--bubbles-ms", default="20,12,30,20", help="of a replay: its waits")
    parser.add_argument("--small", action="store_true", help="a small model: to try out this script")
    options = parser.parse_args()
    if options.summary:
        print(json.dumps(summarise(json.loads(pathlib.Path(options.summary).read_text())), indent=1))
        return
    if not options.build or not options.out:
        parser.error("--build and --out are needed")
    builds = dict(one.split("=", 1) for one in options.build)
    record = {"command": " ".join(sys.argv), "machine": machine(), "runs": []}
    for run in options.runs:
        record["runs"].append(measured(run, builds, options))
        write_whole(options.out, json.dumps({**record, **summarise(record)}))
    for row in rows_of(record["runs"]):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()

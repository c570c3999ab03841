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
import blocks
import summary as summary_of
from ranks import machine
from rig.processes import write_whole
from rig.statistics import interval

TASKS = "pagerank=25,resnet18=30"
RUNS = [f"after:{ratio}:8:{TASKS}" for ratio in (0.5, 1.0, 1.3)] + [f"after:1.0:1:{TASKS}", f"before:1.3:8:{TASKS}"]
KEPT = (
    "side_task",
    "name",
    "iteration_ms",
    "leased",
    "ways_us",
    "overrun_us",
    "in_steps_ns",
    "bubble_ns",
    "steps",
    "worker_cpu_pct",
)


def measured(run, builds, options):
    """One training of one build; its samples."""
    build, ratio, connections, tasks = run.split(":")
    dist = pathlib.Path(builds[build])
    out = pathlib.Path(tempfile.mkdtemp()) / "run.json"
    words = [sys.executable, HERE / "hook_gpu_harvest.py", "--bin", dist / "bin", "--plugins", dist / "plugins"]
    words += [
        "--python",
        dist / "python",
        "--out",
        out,
        "--host-ratio",
        ratio,
        "--blocks",
        options.blocks,
        "--iterations",
        6,
    ]
    words += ["--warm-up", 25, "--block-ms", 1000, "--seconds", tasks, "--watchdog", options.watchdog]
    words += ["--small"] if options.small else []
    words += [] if options.real else ["--bubbles-ms", options.bubbles_ms]
    env = dict(os.environ)
    env.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    if connections != "8":
        env["CUDA_DEVICE_MAX_CONNECTIONS"] = connections
    begin = time.monotonic()
    with open(out.with_suffix(".log"), "w") as log:
        try:
            subprocess.run(
                [str(word) for word in words], env=env, stdout=log, stderr=log, timeout=options.watchdog + 60
            )
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
        "samples": [{key: sample[key] for key in KEPT if key in sample} for sample in record["samples"]],
    }


def rows_of(runs):
    rows = []
    for run in runs:
        same = {key: run[key] for key in ("build", "host_ratio", "connections")}
        if run["times"].get("held"):
            of_rank = run["times"]["held"][0]
            values = blocks.increases(of_rank["iteration_ms"], of_rank["hooked"])
            mean, half = interval(values)
            rows.append({**same, "side_task": "none", "time_increase_pct": round(mean, 3), "pairs": len(values)})
            rows[-1]["time_increase_ci95_upper_pct"] = round(mean + half, 3)
            rows[-1]["counters"] = of_rank.get("counters")
            rows[-1]["hook_cpu_pct"] = blocks.summarise(run)["hook_cpu_pct"]
        for sample in run["samples"]:
            row = summary_of.row_of(sample)
            rows.append({**same, "side_task": sample["name"], "time_increase_pct": row["time_increase_pct"]})
            rows[-1]["time_increase_ci95_upper_pct"] = round(
                row["time_increase_pct"] + row["time_increase_ci95_half_pct"], 3
            )
            for key in (
                "harvested_share_pct",
                "overrun_p99_us",
                "edge_to_lease_p50_us",
                "edge_to_lease_p99_us",
                "steps_per_s",
            ):
                rows[-1][key] = row.get(key)
            rows[-1].update(
                {key: row.get(key) for key in ("iterations_with", "iterations_without", "unleased_iteration_ms")}
            )
    return rows


def summarise(record):
    rows = rows_of(record["runs"])
    after = [row for row in rows if row["build"] == "after"]
    for row in after:
        for other in rows:
            if other["build"] == "before" and all(
                other[key] == row[key] for key in ("side_task", "host_ratio", "connections")
            ):
                row["before_time_increase_pct"] = other["time_increase_pct"]
                row["before_harvested_share_pct"] = other.get("harvested_share_pct")
    harvested = [row for row in after if row["side_task"] != "none"]
    return {
        "rows": rows,
        "hook_alone_ci95_upper_pct": max(
            (row["time_increase_ci95_upper_pct"] for row in after if row["side_task"] == "none"), default=None
        ),
        "overrun_p99_us": max((row["overrun_p99_us"] for row in harvested), default=None),
        "mark_to_lease_p99_us": max((row["edge_to_lease_p99_us"] for row in harvested), default=None),
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

#!/usr/bin/python3
"""Runs the benchmarks, prints a table and writes latency.json. Exits 1 if a benchmark fails, or, with --strict, if a
figure misses its goal. Goals are ratios within one run: absolute times say little about a machine that is shared."""

import argparse
import json
import os
import pathlib
import subprocess
import sys

# (what, its key, the key it is compared with, factor, unit): goal is value <= factor * other.
GOALS = [
    ("bubble begins -> RunNextStep entered, p50", "edge_to_step_p50_us", "grpc_rtt_p50_us", 0.1, "us"),
    ("bubble begins -> RunNextStep entered, p99", "edge_to_step_p99_us", "grpc_rtt_p99_us", 0.5, "us"),
    ("bubble ends -> paused, between steps, p50", "edge_to_pause_p50_us", "grpc_rtt_p50_us", 0.1, "us"),
    ("bubble ends -> paused, between steps, p99", "edge_to_pause_p99_us", "grpc_rtt_p99_us", 0.5, "us"),
]
LIMITS = [
    ("manager + worker + paused task, idle", "idle_cpu_pct", 1, "% of a core"),
    ("wake-ups of the idle manager", "idle_wakeups_per_s_manager", 10, "/s"),
    ("wake-ups of the idle worker", "idle_wakeups_per_s_worker", 10, "/s"),
    ("wake-ups of the paused task", "idle_wakeups_per_s_task", 10, "/s"),
]


def measure(program, arguments):
    start = [sys.executable, program] if program.suffix == ".py" else [program]
    print(f"bench: {' '.join([program.name, *arguments])}", file=sys.stderr, flush=True)  # each takes a minute or more
    done = subprocess.run([*start, *arguments], stdout=subprocess.PIPE, text=True, timeout=580, check=False)
    if done.returncode != 0:
        sys.exit(f"bench: {program.name} failed with exit code {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def hook_cost(build, seconds):
    """What the attached hook costs training; with torch, of which the rest knows nothing."""
    script = pathlib.Path(__file__).resolve().parent / "hook_cost.py"
    return measure(script, ["--build", str(build), "--seconds", str(seconds)])


def table(figures):
    """Lines of the table, and whether every goal is reached."""
    lines, reached = [], True
    lines.append(f"{'':46} {'measured':>12} {'beside it':>14}   goal")
    for what, key, other, factor, unit in GOALS:
        value, beside = figures[key], figures[other]
        ratio = value / beside if beside else float("inf")
        ok = ratio <= factor
        reached = reached and ok
        lines.append(
            f"{what:46} {value:9.1f} {unit:2} {beside:11.1f} {unit:2}   {ratio:.3f} x (<= {factor:.1f} x){'' if ok else '  MISSED'}"
        )
    for what, key, limit, unit in LIMITS:
        ok = figures[key] <= limit
        reached = reached and ok
        lines.append(f"{what:46} {figures[key]:9.2f} {unit:16}   (<= {limit:g}){'' if ok else '  MISSED'}")
    if "hook_time_increase_pct" in figures:
        low, high = figures["hook_time_increase_ci95_pct"]
        ok = low <= 0
        reached = reached and ok
        lines.append(
            f"{'hook attached, no side task: time increase':46} {figures['hook_time_increase_pct']:+9.2f} %  {'':18}   "
            f"(95 %: {low:+.2f} to {high:+.2f}; includes 0){'' if ok else '  MISSED'}"
        )
    after, in_a_row = (
        [figures[f"grpc_rtt_{kind}{quantile}_us"] for quantile in ("p50", "p99")] for kind in ("", "in_a_row_")
    )
    lines.append(
        f"gRPC C++ unary round trip: p50 {after[0]:.1f} us, p99 {after[1]:.1f} us, one after each bubble; "
        f"in a row: p50 {in_a_row[0]:.1f} us, p99 {in_a_row[1]:.1f} us"
    )
    lines.append(f"load {figures['load_average']:.1f}, {figures['cores']} cores")
    return lines, reached


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="build folder with bin/bench-acting")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for latency.json")
    parser.add_argument("--quick", action="store_true", help="fewer samples: to see that it works")
    parser.add_argument(
        "--hook-seconds", type=int, default=120, help="length of the training that the hook's cost is taken from"
    )
    parser.add_argument("--strict", action="store_true", help="a missed goal is a failure")
    options = parser.parse_args()
    quick = ["--quick"] if options.quick else []
    figures = {"load_average": os.getloadavg()[0], "cores": os.cpu_count()}
    programs = (options.build / "bin").resolve()
    figures.update(measure(programs / "bench-acting", quick))
    figures.update(hook_cost(options.build.resolve(), 60 if options.quick else options.hook_seconds))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "latency.json").write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")
    lines, reached = table(figures)
    print("\n".join(lines))
    print("all figures: %s" % (options.out / "latency.json"))
    if options.strict and not reached:
        sys.exit("bench: a goal was missed")


if __name__ == "__main__":
    main()

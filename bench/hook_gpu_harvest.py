#!/usr/bin/env python3
"""Bubbles that a GPU marks, harvested: manager, two workers, a 1F1B training on two GPUs and a side task on each.

    hook_gpu_harvest.py --bin DIR --plugins DIR --python DIR --out FILE [--step-us N]

Half of the time is held out, in blocks: training's iterations there are what the others are compared with. An observer that does not sleep
sees the marks, so that the way from the GPU's mark to the lease is measured from the mark itself.
"""
import argparse
import bisect
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import hook_gpu


def quantile(values, q):
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else None


def analyse(seen, samples):
    """One rank's row, from what the observer saw and the rank's iterations."""
    edges, leases = seen["edges"], seen["leases"]
    bubbles = []  # (begin, end, word)
    for (begin, word), (end, _) in zip(edges, edges[1:]):
        if word & 0xFFFF:
            bubbles.append((begin, end, word))
    starts = [bubble[0] for bubble in bubbles]
    latencies, leased, first = [], set(), set()
    for _, lease, opened, _, _ in leases:
        at = bisect.bisect_right(starts, opened) - 1
        if lease == 0 or at < 0 or opened > bubbles[at][1]:
            continue
        leased.add(bubbles[at][2] >> 16)
        if at not in first:
            first.add(at)
            latencies.append((opened - bubbles[at][0]) / 1e3)
    ends = [bubbles[at][1] for at in sorted(first)]
    overruns = []
    for end in ends:
        later = [at for at in seen["paused"] if end - 5_000_000 < at < end + 100_000_000]
        overruns.append(max(0, (min(later, key=lambda at: abs(at - end)) - end) / 1e3) if later else 0)
    first_iteration, last_iteration = (bubbles[0][2] >> 16) + 1, (bubbles[-1][2] >> 16) - 1
    with_side_task, without = [], []
    for iteration in range(first_iteration, last_iteration):
        before = iteration - 1 in leased
        if iteration < len(samples) and (iteration in leased) == before:  # not where blocks meet
            (with_side_task if iteration in leased else without).append(samples[iteration])
    inside = sum(end - begin for begin, end, word in bubbles if word >> 16 in leased)
    row = {"bubbles": len(bubbles), "bubble_share_pct": 100 * sum(e - b for b, e, _ in bubbles) / (edges[-1][0] - edges[0][0]),
           "edge_to_lease_p50_us": quantile(latencies, 0.5), "edge_to_lease_p99_us": quantile(latencies, 0.99), "leases_measured": len(latencies),
           "overrun_p50_us": quantile(overruns, 0.5), "overrun_p99_us": quantile(overruns, 0.99),
           "observer_longest_gap_us": seen["longest_gap_ns"] / 1e3,
           "harvested_share_pct": 100 * sum(work[2] for work in seen["work"]) / max(inside, 1), "steps": sum(work[0] for work in seen["work"]),
           "iterations_with": len(with_side_task), "iterations_without": len(without)}
    if len(with_side_task) > 5 and len(without) > 5:
        base = statistics.fmean(without)
        spread = (statistics.variance(with_side_task) / len(with_side_task) + statistics.variance(without) / len(without)) ** 0.5
        row["time_increase_pct"] = 100 * (statistics.fmean(with_side_task) / base - 1)
        row["time_increase_ci95_half_pct"] = 100 * 1.96 * spread / base
        row["unleased_iteration_ms"] = base
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", required=True)
    parser.add_argument("--plugins", required=True)
    parser.add_argument("--python", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--step-us", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--iterations", type=int, default=260)
    options = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="fr-", dir="/run")
    os.chmod(folder, 0o755)
    options.run_dir = folder + "/r"
    for name in ("/r", "/s"):
        os.mkdir(folder + name)
    started = []

    def start(name, words):
        process = subprocess.Popen(words, stdout=open(f"{folder}/{name}.out", "w"), stderr=open(f"{folder}/{name}.err", "w"))
        started.append((name, process))
        return process

    def ctl(*words):
        done = subprocess.run([options.bin + "/freeride-ctl", "--run-dir", options.run_dir, "--format", "json", *words], capture_output=True,
                              text=True, timeout=30)
        if done.returncode != 0:
            raise RuntimeError(f"ctl {' '.join(words)}: {done.stderr or done.stdout}")
        return json.loads(done.stdout) if done.stdout.strip() else {}

    def counters(name):
        found = ctl("task", name)
        return found.get("task", found)["state"]

    common = ["--run-dir", options.run_dir, "--state-dir", folder + "/s"]
    record = {"command": " ".join(sys.argv), "rows": []}
    ranks = None
    try:
        start("manager", [options.bin + "/freeride-manager", *common, "--holdout-pct", "50", "--holdout-block-ms", "2000", "--budget-pct", "100"])
        gpus = subprocess.run(["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"], capture_output=True, text=True).stdout.split()
        workers = []
        for index, gpu in enumerate(gpus[:2]):
            words = [options.bin + "/freeride-worker", "--run-dir", options.run_dir, "--state-dir", f"{folder}/s{index}", "--device", gpu,
                     "--sandbox", "none", "--host-memory-bytes", str(1 << 50), "--log-level", "debug"]
            workers.append(start(f"worker{index}", words))
        job = {"what": "timed", "schedule": "1F1B", "size": hook_gpu.BIG, "blocks": 1, "iterations": options.iterations, "warm_up": 25,
               "alternate": False, "watchdog_s": 150}
        ranks = hook_gpu.Ranks(options, job)
        ready = {}
        for _ in range(900):
            for rank in range(2):
                for line in ranks.text(rank, "out").splitlines():
                    words = line.split()
                    if len(words) == 4 and words[1] == "READY":
                        ready[rank] = words[2]
            if len(ready) == 2 or ranks.processes[0].poll() is not None:
                break
            time.sleep(0.1)
        print("ready", ready, flush=True)
        for stage in range(2):
            ctl("load", options.plugins + "/gpu_task.so", "--name", f"t{stage}", "--stage", str(stage), "--memory", "4GiB", "--param", "how=work",
                "--param", f"step_us={options.step_us}", "--param", "after=0")
        for _ in range(300):
            states = [counters(f"t{stage}") for stage in range(2)]
            if all(state["counters"]["steps"] > 100 for state in states):
                break
            if any(state["verdict"].get("kind") for state in states):
                raise RuntimeError(f"a side task has ended: {states}")
            time.sleep(0.1)
        else:
            raise RuntimeError(f"the side tasks do not step: {states}, {ctl('status')}")
        observers = [start(f"observer{rank}", [sys.executable, str(hook_gpu.HERE / "gpu" / "observer.py"), ready[rank], str(workers[rank].pid),
                                               f"{folder}/seen{rank}"]) for rank in range(2)]
        time.sleep(0.5)
        time.sleep(options.seconds)
        for observer in observers:
            observer.terminate()
            observer.wait(30)
        record["status"] = ctl("status")
        counters_at_end = [counters(f"t{stage}") for stage in range(2)]
        results, codes = ranks.wait()
        print("ranks", codes, hook_gpu.said(ranks), flush=True)
        for rank in range(2):
            with open(f"{folder}/seen{rank}") as file:
                seen = json.load(file)
            row = {"side_task": f"gpu_task work, steps of {options.step_us} us", "stage": rank,
                   **analyse(seen, results[rank]["iteration_ms"])}

            record["rows"].append(row)
            record.setdefault("tasks", []).append(counters_at_end[rank])
            print(json.dumps(row), flush=True)
        record["ranks"] = results
    except Exception as error:
        print(f"FAILED: {type(error).__name__}: {error}", flush=True)
        for name, _ in started:
            with open(f"{folder}/{name}.err") as file:
                print(f"-- {name}\n{file.read()[-1500:]}", flush=True)
        if ranks is not None:
            for rank in range(2):
                print(ranks.text(rank, "out"), ranks.text(rank), flush=True)
    finally:
        if ranks is not None:
            ranks.end()
        for _, process in reversed(started):
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
        with open(options.out, "w") as file:
            json.dump(record, file)


if __name__ == "__main__":
    main()

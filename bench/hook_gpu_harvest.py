#!/usr/bin/env python3
"""Bubbles that a GPU marks, harvested: manager, a worker for each GPU, a 1F1B training with a stage on each, and a side task on each.

    hook_gpu_harvest.py --bin DIR --plugins DIR --python DIR --out FILE      # DIR: folders of make dist's tree
    hook_gpu_harvest.py --summary FILE                                       # recomputes the summary from the samples

One training goes through all of it: first hooked and unhooked blocks by turns, without side tasks (what the hook costs); then each side
task for a while, half of the time held out in blocks (iterations there are what the others are compared with); then the control: the same
side task in leases of the same lengths at random times. What a side task costs in bubbles is less than what it costs at random times by
what comes from its timing; clocks and power are sampled beside, in bubbles and in training's own time. NAME:PCT is a side task that may have so many percent of a
GPU's multiprocessors; the workers are started anew for it, and training goes on. Last, training asks on each GPU for
more memory than a side task leaves (hold). An observer that does not sleep sees marks and leases, so that the way from the GPU's mark to the
lease is measured from the mark itself. Each row is in FILE as soon as it is known, what the observers saw in FILE.raw.json.gz.
"""
import argparse
import bisect
import datetime
import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import hook_gpu
from rig.statistics import interval, quantile

ORKUT = ["vertices=3072441", "edges=117185083", "tolerance=1e-15", "max_iterations=1000000"]
# Name of the row, plugin, its memory, parameters, whether it needs this Python's torch.
TASKS = {"spin": ("gpu_task", "2GiB", ["how=work", "after=0", "step_us=500"], False),
         "pagerank": ("pagerank", "8GiB", ORKUT, False),
         "resnet18": ("resnet18", "16GiB", ["batch=64"], True),
         "hold": ("gpu_task", "48GiB", ["how=work", "after=0", "step_us=500", "hold_mb=46000"], False)}


def cpu_of(pid):
    """A process's time on a core so far, s."""
    with open(f"/proc/{pid}/stat") as file:
        words = file.read().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


# ---- what an observer saw, and what follows from it

def bubbles_of(edges):
    """(begin, end, word) of each marked wait."""
    return [(begin, end, word) for (begin, word), (end, _) in zip(edges, edges[1:]) if word & 0xFFFF]


def iterations_of(edges):
    """iteration -> (begin, ms), where its begin and the next one's were seen."""
    begins = {}
    for at, word in edges:
        begins.setdefault(word >> 16, at)
    first = min(begins)  # the observer came in the middle of it
    return {i: (at, (begins[i + 1] - at) / 1e6) for i, at in begins.items() if i + 1 in begins and i != first}


def leases_of(seen, bubbles):
    """Of bubbles with a lease, by their number: how long after the mark the first one was there, and when on this way the hook had seen the
    mark and the first step began, in us, and whether the hook had said that the mark might come; and the iterations that had any."""
    starts, ways, leased = [bubble[0] for bubble in bubbles], {}, set()
    steps, awake = sorted(seen["stepped"]), seen["awake"]
    marks = [one[0] for one in awake]
    for _, lease, opened, begin, _ in seen["leases"]:
        at = bisect.bisect_right(starts, opened + 20_000) - 1  # the worker may have seen the mark before the observer
        # Of the first one only the end was seen.
        if lease == 0 or at < 0 or opened > bubbles[at][1] or starts[at] == seen["edges"][0][0]:
            continue
        leased.add(bubbles[at][2] >> 16)
        step = bisect.bisect_left(steps, opened)
        first = steps[step] if step < len(steps) and steps[step] < bubbles[at][1] else None
        said = bisect.bisect_right(marks, starts[at]) - 1
        ways.setdefault(at, [round((opened - starts[at]) / 1e3, 2), round((begin - starts[at]) / 1e3, 2),
                             None if first is None else round((first - starts[at]) / 1e3, 2), said >= 0 and awake[said][1] > starts[at]])
    return ways, leased


def hops_of(ways):
    """Quantiles of the way from the mark: to the hook's look, from there to the lease, from there to the first step."""
    whole = [way for way in ways if way[1] > -5]  # else the observer read the lease page while it was written, and has the begin before
    hops = {"mark_to_look_us": [way[1] for way in whole], "look_to_lease_us": [way[0] - way[1] for way in whole],
            "lease_to_step_us": [way[2] - way[0] for way in ways if way[2] is not None]}
    result = {name: {f"p{percent}": round(quantile(of, percent / 100), 2) for percent in (50, 90, 99)} for name, of in hops.items() if of}
    result["expected_pct"] = round(100 * statistics.fmean(way[3] for way in ways), 1)
    return result


def overruns_of(seen, bubbles, leased):
    """Of each leased bubble: from its end to the last pause before the next bubble, in us; 0 where the task was paused in time."""
    paused, result = sorted(seen["paused"]), []
    for at in sorted(leased):
        end = bubbles[at][1]
        until = bubbles[at + 1][0] if at + 1 < len(bubbles) else end + 50_000_000
        last = bisect.bisect_left(paused, until) - 1
        result.append(round(max(0, paused[last] - end) / 1e3, 1) if last >= 0 else 0)
    return result


def flags(iterations, kind_of):
    """The iterations in order and whether each had side tasks; None where that changes, for it has some of both."""
    order = sorted(iterations)
    kinds = [kind_of(i) for i in order]
    return [iterations[i][1] for i in order], kinds


def time_increase(iteration_ms, kinds):
    values = hook_gpu.increases({"iteration_ms": iteration_ms, "hooked": kinds})
    if len(values) < 2:
        return {}
    mean, half = interval(values)
    of = {kind: [ms for ms, one in zip(iteration_ms, kinds) if one is kind] for kind in (True, False)}
    if not of[True] or not of[False]:
        return {}
    return {"time_increase_pct": round(mean, 3), "time_increase_ci95_half_pct": round(half, 3), "pairs_of_blocks": len(values),
            "iterations_with": len(of[True]), "iterations_without": len(of[False]), "unleased_iteration_ms": round(statistics.fmean(of[False]), 3)}


def row_of(sample):
    """One side task's row, of all GPUs, from its samples."""
    row = {"side_task": sample["side_task"], **time_increase(sample["iteration_ms"], sample["leased"])}
    if "thread_pct" in sample:
        # Of time in which there are leases: half of it is held out.
        with_ms = sum(ms for ms, leased in zip(sample["iteration_ms"], sample["leased"]) if leased)
        row.update(thread_pct=sample["thread_pct"], steps_per_s=round(1e3 * sum(sample["steps"]) / with_ms, 2) if with_ms else None,
                   worker_cpu_pct=[round(value, 2) for value in sample["worker_cpu_pct"]])
    work, inside = sum(sample["in_steps_ns"]), sum(sample["bubble_ns"])
    row["harvested_share_pct"] = round(100 * work / inside, 2) if inside else None
    row["harvested_share_by_stage_pct"] = [round(100 * w / b, 2) if b else None for w, b in zip(sample["in_steps_ns"], sample["bubble_ns"])]
    overruns, ways = sum(sample["overrun_us"], []), sum(sample.get("ways_us", []), [])
    delays = sum(sample.get("edge_to_lease_us", []), []) + [way[0] for way in ways]
    row.update(overrun_p50_us=quantile(overruns, 0.5), overrun_p99_us=quantile(overruns, 0.99), overrun_max_us=max(overruns, default=None),
               leased_bubbles=len(overruns), edge_to_lease_p50_us=quantile(delays, 0.5), edge_to_lease_p99_us=quantile(delays, 0.99))
    if ways:
        row["hops"] = hops_of(ways)
    if sample.get("compute_ms"):
        row["compute_increase_pct"] = [compute_increase(of_gpu, sample["leased"]) for of_gpu in sample["compute_ms"]]
    if sample.get("clocks"):
        row["clocks"] = sample["clocks"]
    if sample.get("before"):
        row["before"] = sample["before"]
    return row


def weighted_quantile(weighted, q):
    """Of (value, weight)."""
    left = q * sum(weight for _, weight in weighted)
    for value, weight in sorted(weighted):
        left -= weight
        if left < 0:
            return value
    return max(weighted)[0]


def settled(values, kinds, kind):
    """Of iterations of this kind behind one of the same, without those that are far off: four times the spread from the median."""
    found = [value for value, one, before in zip(values, kinds, [None, *kinds]) if value and one is kind and before is kind]
    if len(found) < 2:
        return []
    middle = statistics.median(found)
    most = 4 * 1.4826 * statistics.median(abs(value - middle) for value in found)
    return [value for value in found if abs(value - middle) <= most]


def own_work(samples):
    """By how much the stage's own work takes longer in iterations with each side task, over all runs with it."""
    found = {}
    for sample in samples:
        on, off = (settled(sample["compute_ms"][0], sample["leased"], kind) for kind in (True, False))
        if min(len(on), len(off)) < 8:
            continue
        mean = statistics.fmean(off)
        error = (statistics.variance(on) / len(on) + statistics.variance(off) / len(off)) ** 0.5
        found.setdefault((sample["side_task"], sample["thread_pct"]), []).append((100 * (statistics.fmean(on) / mean - 1), 100 * error / mean, row_of(sample)))
    result = []
    for (name, thread_pct), of in found.items():
        weights = [1 / error**2 for _, error, _ in of]
        result.append({"side_task": name, "thread_pct": thread_pct, "runs": len(of),
                       "own_work_increase_pct": round(sum(weight * value for weight, (value, _, _) in zip(weights, of)) / sum(weights), 2),
                       "ci95_half_pct": round(1.96 / sum(weights) ** 0.5, 2), "steps_per_s": round(statistics.fmean(row["steps_per_s"] for *_, row in of), 1),
                       "harvested_share_pct": round(statistics.fmean(row["harvested_share_pct"] for *_, row in of), 1)})
    return result


def difference(on, off):
    """Of the means, and its variance; a twenty-fifth at either end left out."""
    on, off = (sorted(values)[len(values) // 25:len(values) - len(values) // 25] for values in (on, off))
    return statistics.fmean(on) - statistics.fmean(off), statistics.variance(on) / len(on) + statistics.variance(off) / len(off)


def by_kind_of_lease(runs):
    """What leases of each kind cost a stage's own work, in all and outside of its chunks (gpu/parts.py), ms an iteration, beside iterations without, over all runs
    that had them; and how much of the bubbles lies between a first step and a last pause. Rows: kind (None: no leases), own work, chunks, bubbles, that."""
    found = {}
    for run in runs:
        off = [row for row in run["rows"] if row[0] is None]
        for kind in sorted({row[0] for row in run["rows"]} - {None}):
            on = [row for row in run["rows"] if row[0] == kind]
            outside = [[own - chunks for _, own, chunks, *_ in rows if chunks] for rows in (on, off)]
            found.setdefault(kind, []).append((difference([row[1] for row in on], [row[1] for row in off]), difference(*outside), on))
    result = []
    for kind, of in found.items():
        one = {"leases": kind, "iterations": sum(len(on) for *_, on in of)}
        for name, at in (("own_work_ms", 0), ("outside_chunks_ms", 1)):
            weights = [1 / each[at][1] for each in of]
            one[name] = round(sum(weight * each[at][0] for weight, each in zip(weights, of)) / sum(weights), 3)
            one[name.replace("_ms", "_ci95_half_ms")] = round(1.96 / sum(weights) ** 0.5, 3)
        one["iteration_ms"] = round(statistics.fmean(row[1] + row[3] for *_, on in of for row in on), 1)
        one["time_increase_pct"] = round(100 * one["own_work_ms"] / one["iteration_ms"], 2)
        one["ci95_half_pct"] = round(100 * one["own_work_ci95_half_ms"] / one["iteration_ms"], 2)
        one["stepping_share_pct"] = round(100 * sum(row[4] for *_, on in of for row in on) / sum(row[3] for *_, on in of for row in on), 1)
        result.append(one)
    return result


def of_the_same_leases(kinds, same):
    """What the kinds named in `same`, the same leases under several names, cost together: weighted by their variance, ms and percent of an iteration."""
    of = [kind for kind in kinds if kind["leases"] in same]
    if not of:
        return None
    weights = [kind["own_work_ci95_half_ms"] ** -2 for kind in of]
    own, half = sum(weight * kind["own_work_ms"] for weight, kind in zip(weights, of)) / sum(weights), sum(weights) ** -0.5
    iteration = statistics.fmean(kind["iteration_ms"] for kind in of)
    return {"leases": same, "own_work_ms": round(own, 3), "own_work_ci95_half_ms": round(half, 3), "time_increase_pct": round(100 * own / iteration, 3),
            "ci95_half_pct": round(100 * half / iteration, 3)}


def summarise_replays(record):
    """Of the stages of a recorded pipeline, each for a while: as many iterations of each make the pipeline's bubbles."""
    kinds = by_kind_of_lease(record.get("by_iteration", ()))
    of_stage, delays, by_stage = {}, [], {}
    for run in record["runs"]:
        of_stage.setdefault(run["replayed"]["stage"], []).append(run)
    for stage, runs in sorted(of_stage.items()):
        samples = [sample for run in runs for sample in run["samples"]]
        ways = [way[0] for sample in samples for way in sample["ways_us"][0]]
        iterations = sum(sum(map(bool, sample["leased"])) for sample in samples)
        delays += [(delay, 1 / iterations) for delay in ways]
        by_stage[stage] = {"hook_cpu_pct": round(statistics.fmean(cpu for run in runs for cpu in run["replayed"]["hook_cpu_pct"]), 2),
                           "edge_to_lease_p50_us": quantile(ways, 0.5), "edge_to_lease_p99_us": quantile(ways, 0.99), "bubbles": len(ways),
                           "rows": [row_of(sample) for sample in samples]}
    return {"stages": by_stage, "edge_to_lease_p50_us": weighted_quantile(delays, 0.5), "edge_to_lease_p99_us": weighted_quantile(delays, 0.99),
            "edge_to_lease_samples": len(delays), "hook_cpu_pct": max(stage["hook_cpu_pct"] for stage in by_stage.values()),
            "own_work": own_work([sample for run in record["runs"] for sample in run["samples"]]),
            "by_kind_of_lease": kinds, "present_form": of_the_same_leases(kinds, record.get("same_leases", ())),
            "summary_before": summarise_replays(record["before"]) if "before" in record else None}


def summarise(record):
    if "runs" in record:
        return summarise_replays(record)
    rows = [row_of(sample) for sample in record["samples"]]
    summary = {"rows": rows}
    # A recorded sample of older code says so in "before".
    delays = [delay for sample in record["samples"] if not sample.get("before")
              for delay in sum(sample.get("edge_to_lease_us", []), []) + [way[0] for way in sum(sample.get("ways_us", []), [])]]
    if delays:
        summary.update(edge_to_lease_p50_us=quantile(delays, 0.5), edge_to_lease_p99_us=quantile(delays, 0.99), edge_to_lease_samples=len(delays))
    summary.update(hook_gpu.summarise({"times": record.get("times", {}), "more_times": record.get("more_times", ())}))
    return summary


def compute_increase(compute_ms, kinds):
    """By how much a GPU's own work, without its waits, takes longer in iterations with side tasks: mean and half of the 95 % interval, percent."""
    values = hook_gpu.increases({"iteration_ms": compute_ms, "hooked": kinds})
    return [round(value, 3) for value in interval(values)] if len(values) > 1 else None


def compute_of(edges, iterations):
    """What is left of each iteration without its waits, ms; None where its begin or end was not seen."""
    waits = {}
    for begin, end, word in bubbles_of(edges):
        waits[word >> 16] = waits.get(word >> 16, 0) + end - begin
    own = iterations_of(edges)
    return [round(own[i][1] - waits.get(i, 0) / 1e6, 4) if i in own else None for i in sorted(iterations)]


REASONS = {"sw_power_cap": 0x4, "hw_slowdown": 0x8, "sw_thermal": 0x20, "hw_thermal": 0x40, "hw_power_brake": 0x80}


def clocks_of(samples, edges_of_gpu, iterations, kinds):
    """SM clock and power of each GPU, in its bubbles and in training's own time, in iterations with and without side tasks, and how often the
    driver named which reason for a lower clock."""
    order = sorted(iterations)
    begins = [iterations[i][0] for i in order]
    times = [[at for at, _ in edges] for edges in edges_of_gpu]
    found = {}
    for at, gpu, sm_mhz, power_w, instant_w, reasons in samples:
        i = bisect.bisect_right(begins, at) - 1
        edge = bisect.bisect_right(times[gpu], at) - 1
        if i < 0 or edge < 0 or at > begins[i] + iterations[order[i]][1] * 1e6 or kinds[i] is None:
            continue
        phase = "bubble" if edges_of_gpu[gpu][edge][1] & 0xFFFF else "training"
        found.setdefault((gpu, phase, kinds[i]), []).append((sm_mhz, power_w, instant_w, reasons))
    return [{"gpu": gpu, "in": phase, "side_task": kind, "samples": len(values), "sm_mhz": round(statistics.fmean(v[0] for v in values), 1),
             "power_w": round(statistics.fmean(v[1] for v in values), 1), "instant_w": round(statistics.fmean(v[2] for v in values), 1),
             **{name + "_pct": round(100 * statistics.fmean(bool(v[3] & bit) for v in values), 1) for name, bit in REASONS.items()}}
            for (gpu, phase, kind), values in sorted(found.items())]


class Clocks:
    """Samples of all GPUs' clocks, twenty a second."""

    def __init__(self, gpus, first=0):
        self.samples, self.stopped = [], threading.Event()
        try:
            import pynvml
            pynvml.nvmlInit()
            self.nvml, self.handles = pynvml, [pynvml.nvmlDeviceGetHandleByIndex(first + i) for i in range(gpus)]
        except Exception as error:
            print(f"no clocks: {error}", flush=True)
            return
        threading.Thread(target=self.run, daemon=True).start()

    def instant_w(self, handle):
        """The driver's other figure is an average over a second."""
        try:
            return self.nvml.nvmlDeviceGetFieldValues(handle, [186])[0].value.uiVal / 1e3  # NVML_FI_DEV_POWER_INSTANT
        except Exception:
            return 0.0

    def run(self):
        while not self.stopped.wait(0.05):
            for gpu, handle in enumerate(self.handles):
                try:
                    at = time.monotonic_ns()
                    self.samples.append((at, gpu, self.nvml.nvmlDeviceGetClockInfo(handle, self.nvml.NVML_CLOCK_SM),
                                         self.nvml.nvmlDeviceGetPowerUsage(handle) / 1e3, self.instant_w(handle),
                                         self.nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)))
                except Exception as error:
                    print(f"clocks end: {error}", flush=True)
                    return


# ---- the run

class Run:
    def __init__(self, options):
        self.options = options
        self.folder = tempfile.mkdtemp(prefix="fr-", dir="/run")
        os.chmod(self.folder, 0o755)
        options.run_dir = self.folder + "/r"
        os.mkdir(options.run_dir)
        self.started, self.ranks, self.named = [], None, 0
        self.workers, self.thread_pct, self.shared = [], None, None
        self.count, self.raw = options.ranks, {}
        self.record = {"date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), "command": " ".join(sys.argv),
                       "samples": [], "times": {}, "failures": []}

    def save(self):
        try:
            summary = summarise(self.record)
        except Exception as error:  # the samples are worth more than it
            summary = {"summary_failed": f"{type(error).__name__}: {error}"}
        with open(self.options.out + ".part", "w") as file:
            json.dump({**self.record, **summary}, file)
        os.replace(self.options.out + ".part", self.options.out)

    def start(self, name, words, **more):
        more.setdefault("stdout", open(f"{self.folder}/{name}.out", "w"))
        process = subprocess.Popen([str(word) for word in words], stderr=open(f"{self.folder}/{name}.err", "w"), **more)
        self.started.append((name, process))
        return process

    def text(self, name, most=1500):
        with open(f"{self.folder}/{name}") as file:
            return file.read()[-most:]

    def ctl(self, *words):
        done = subprocess.run([self.options.bin + "/freeride-ctl", "--run-dir", self.options.run_dir, "--format", "json", *words],
                              capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            raise RuntimeError(f"ctl {' '.join(words)}: {done.stderr or done.stdout}")
        return json.loads(done.stdout) if done.stdout.strip() else {}

    def task(self, name):
        found = self.ctl("task", name)
        return found.get("task", found)

    def wait(self, what, done, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            result = done()
            if result:
                return result
            if self.ranks is not None and any(process.poll() is not None for process in self.ranks.processes):
                raise RuntimeError(f"{what}: a rank has ended")
            time.sleep(0.1)
        raise RuntimeError(f"{what}: not within {seconds} s")

    def up(self):
        options = self.options
        common = ["--run-dir", options.run_dir]
        self.start("manager", [options.bin + "/freeride-manager", *common, "--state-dir", self.folder + "/s", "--holdout-pct", options.holdout_pct, "--holdout-block-ms",
                               options.block_ms, "--budget-pct", "100"])
        self.start_workers(100)
        self.until = self.folder + "/until"
        job = {"what": "timed", "schedule": "1F1B", "size": hook_gpu.sized(hook_gpu.SMALL if options.small else hook_gpu.BIG, self.count), "blocks": options.blocks,
               "iterations": options.iterations, "warm_up": options.warm_up, "ways": options.ways.split(","), "until": self.until, "watchdog_s": options.watchdog, "synchronise": options.synchronise}
        if options.replay:
            with open(options.replay) as file:
                recorded = json.load(file)["stages"]
            job.update(stage=options.stage, parts=options.parts, lengths_us=recorded[options.stage], size=hook_gpu.sized(hook_gpu.SMALL if options.small else hook_gpu.BIG, len(recorded)))
            self.shared = tempfile.mkdtemp(prefix="fr-", dir="/dev/shm")  # replays beside each other are no ranks of one training
            self.ranks = hook_gpu.Ranks(options, job, program=(str(hook_gpu.HERE / "gpu" / "replay.py"),), CUDA_VISIBLE_DEVICES=str(options.gpu),
                                        FREERIDE_SHM_DIR=self.shared)
            return
        self.ranks = hook_gpu.Ranks(options, job)

    def start_workers(self, thread_pct):
        """Ends those there are, if theirs is another share."""
        options = self.options
        if self.workers and self.thread_pct == thread_pct:
            return
        for worker in self.workers:
            worker.terminate()
        for worker in self.workers:
            worker.wait(20)
        libraries = os.path.join(os.path.dirname(options.bin), "lib")
        more = ["--library-dir", libraries] if os.path.exists(libraries + "/libzmq.so.5") else []
        self.workers = [self.start(f"worker{i}-{thread_pct}", [options.bin + "/freeride-worker", "--run-dir", options.run_dir, "--state-dir", f"{self.folder}/s{i}",
                                                               "--device", device, "--sandbox", options.sandbox, "--host-memory-bytes", 64 << 30, "--init-ms", 90000,
                                                               "--profile-ms", 90000, "--thread-pct", thread_pct, "--log-level", "debug", *more])
                        for i, device in enumerate(self.devices())]
        self.thread_pct = thread_pct

        def connected():
            states = [worker["state"] for worker in self.ctl("workers").get("workers", ())]
            return len(states) == self.count and all(state["state"] == "up" and (self.ranks is None or state["stage"] >= 0) for state in states)
        self.wait("the workers", connected, 30)

    def devices(self):
        names = subprocess.run(["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"], capture_output=True, text=True).stdout.split()
        return names[self.options.gpu:self.options.gpu + self.count]

    def ready(self):
        """All ranks are past their blocks: their pages and how many iterations the hook has not counted."""
        found = {}

        def look():
            for rank in range(self.count):
                for line in self.ranks.text(rank, "out", 100000).splitlines():
                    words = line.split()
                    if len(words) == 4 and words[1] == "READY":
                        found[rank] = (words[2], int(words[3]))
            return len(found) == self.count
        self.wait("the ranks' blocks", look, self.options.watchdog)
        self.pages = [found[rank][0] for rank in range(self.count)]
        self.uncounted = found[0][1] - self.hook_iteration()
        results = []
        for rank in range(self.count):
            with open(f"{self.ranks.job['out']}.{rank}") as file:
                results.append(json.load(file))
        if self.options.replay:
            self.record["replayed"] = results[0]
        else:
            self.record["times"] = hook_gpu.by_way(results)
        self.record["versions"] = {name: results[0][name] for name in ("torch", "nccl", "cuda")}
        self.save()
        print("blocks", {key: value for key, value in summarise(self.record).items() if key != "rows"}, *(result["page"] for result in results), flush=True)

    def hook_iteration(self):
        with open(self.pages[0], "rb") as file:
            return int.from_bytes(os.pread(file.fileno(), 8, 280), "little")

    def end_training(self):
        with open(self.until + ".part", "w") as file:
            file.write(str(self.hook_iteration() + self.uncounted + 20))
        os.replace(self.until + ".part", self.until)
        _, codes = self.ranks.wait()
        print("ranks", codes, hook_gpu.said(self.ranks), flush=True)
        self.record["ranks_ended"] = codes
        if self.options.parts:
            self.record["parts"] = self.ranks.results()[0]["parts"]

    def observe(self, name, seconds, workers=None):
        clocks, workers = Clocks(self.count, self.options.gpu), workers or [0] * self.count
        processes = [self.start(f"observer{rank}", [sys.executable, hook_gpu.HERE / "gpu" / "observer.py", self.pages[rank], workers[rank],
                                                    f"{self.folder}/seen{rank}"]) for rank in range(self.count)]
        time.sleep(seconds + 0.7)
        for process in processes:
            process.terminate()
        seen = []
        for rank, process in enumerate(processes):
            process.wait(30)
            with open(f"{self.folder}/seen{rank}") as file:
                seen.append(json.load(file))
        clocks.stopped.set()
        self.raw[name] = {"seen": seen, "clocks": clocks.samples}
        with gzip.open(self.options.out + ".raw.json.gz", "wt", compresslevel=3) as file:
            json.dump(self.raw, file)
        return seen, clocks.samples

    def keep(self, sample, seen):
        sample["observer_longest_gap_us"] = [one["longest_gap_ns"] / 1e3 for one in seen]
        self.record["samples"].append(sample)
        self.save()
        print(json.dumps(row_of(sample)), flush=True)

    def harvest(self, wanted):
        name, _, share = wanted.partition(":")
        plugin, memory, params, python = TASKS[name]
        thread_pct = int(share or 100)
        self.start_workers(thread_pct)
        self.named += 1
        names = [f"{name}{self.named}s{stage}" for stage in range(self.count)]
        words = ["--memory", memory, *(word for param in params for word in ("--param", param)), *(["--python", sys.executable] if python else [])]
        self.wait("the plugin", lambda: os.path.exists(f"{self.options.plugins}/{plugin}.so"), 60)
        begin = time.monotonic()
        for stage in range(self.count):
            self.ctl("load", f"{self.options.plugins}/{plugin}.so", "--name", names[stage], "--stage", str(stage + self.options.stage), *words)

        def step():
            states = [self.task(one)["state"] for one in names]
            if any(state["verdict"].get("kind") for state in states):
                raise RuntimeError(f"a side task has ended: {states}")
            return all(state["counters"]["steps"] > 8 for state in states)
        try:
            self.wait(f"steps of {name}", step, 90)
            print(f"{name} steps after {time.monotonic() - begin:.1f} s", flush=True)
            cpu_s, begin = [cpu_of(worker.pid) for worker in self.workers], time.monotonic()
            seen, clocks = self.observe(wanted, self.options.seconds[wanted], [worker.pid for worker in self.workers])
            cpu_pct = [100 * (cpu_of(worker.pid) - before) / (time.monotonic() - begin) for worker, before in zip(self.workers, cpu_s)]
            tasks = [self.task(one) for one in names]
        finally:
            self.stop(names)
        sides = []
        for one in seen:
            bubbles = bubbles_of(one["edges"])
            sides.append((bubbles, *leases_of(one, bubbles)))
        leased = set().union(*(side[2] for side in sides))  # they wait for each other: a lease on one is in the time of all
        iterations = iterations_of(seen[0]["edges"])
        ms, kinds = flags(iterations, lambda i: i in leased)
        sample = {"side_task": " ".join([plugin, *params]), "name": name, "thread_pct": thread_pct, "worker_cpu_pct": cpu_pct, "iteration_ms": ms, "leased": kinds,
                  "ways_us": [], "overrun_us": [], "in_steps_ns": [], "bubble_ns": [], "steps": [], "lengths_ms": [], "tasks": tasks}
        for one, (bubbles, delays, _) in zip(seen, sides):
            sample["ways_us"].append(list(delays.values()))
            sample["overrun_us"].append(overruns_of(one, bubbles, delays))
            sample["in_steps_ns"].append(sum(work[2] for work in one["work"]))
            sample["steps"].append(sum(work[0] for work in one["work"]))
            sample["bubble_ns"].append(sum(end - begin for begin, end, word in bubbles if word >> 16 in leased))
            by_wait = {}
            for at in delays:
                by_wait.setdefault(bubbles[at][2] & 0xFFFF, []).append((bubbles[at][1] - bubbles[at][0]) / 1e6)
            sample["lengths_ms"].append([round(statistics.median(by_wait[wait])) for wait in sorted(by_wait)])
        sample["clocks"] = clocks_of(clocks, [one["edges"] for one in seen], iterations, kinds)
        sample["compute_ms"] = [compute_of(one["edges"], iterations) for one in seen]
        self.keep(sample, seen)

    def control(self, name):
        """The side task that `name` ran, in leases as long as its bubbles were, at random times."""
        plugin, _, params, _ = TASKS[name]
        before = next(sample for sample in self.record["samples"] if sample["name"] == name)
        period = round(row_of(before)["unleased_iteration_ms"])
        seconds = self.options.seconds["control"]
        outs = []
        for stage in range(self.count):
            lengths = ",".join(map(str, before["lengths_ms"][stage]))
            device = self.devices()[stage]
            environment = dict(os.environ, CUDA_VISIBLE_DEVICES=device)
            self.start(f"control{stage}", [self.options.bin + "/bench-leases", self.options.bin + "/freeride-runner", f"{self.options.plugins}/{plugin}.so",
                                           device, f"random:{period}:{self.options.control_block_ms}:{seconds + 15:.0f}:{lengths}", "0", *params], env=environment)
            outs.append(f"control{stage}.out")
        processes = [process for one, process in self.started[-self.count:]]

        def begun():
            for stage, process in enumerate(processes):
                if process.poll() is not None:
                    raise RuntimeError(f"the control has ended: {self.text(f'control{stage}.err')}")
            return all(self.text(out) for out in outs)
        try:
            self.wait("the control", begun, 90)
            seen, clocks = self.observe("control", seconds)
        finally:
            for process in processes:
                process.terminate()
        work, blocks = [], []
        for out in outs:
            lines = [json.loads(line) for line in self.text(out, 1 << 20).splitlines() if line.endswith("}")]
            blocks.append([line for line in lines if "steps" in line])
            work.append(sum(line["in_steps_ns"] for line in blocks[-1]))
        iterations = iterations_of(seen[0]["edges"])
        block_ns = self.options.control_block_ms * 1_000_000
        by_block = [{line["begin_ns"] // block_ns: line for line in of} for of in blocks]
        in_all = [[of[block] for of in by_block] for block in by_block[0] if all(block in of for of in by_block)]
        all_of_them = [(max(line["begin_ns"] for line in lines), min(line["end_ns"] for line in lines)) for lines in in_all]

        def kind(i):
            begin, ms = iterations[i]
            end = begin + ms * 1e6
            if any(b <= begin and end <= e for b, e in all_of_them):
                return True
            return False if begin // block_ns % 2 == 1 and end // block_ns == begin // block_ns else None
        ms, kinds = flags(iterations, kind)
        sample = {"side_task": " ".join([plugin, *params]) + ", at random times", "name": "control", "iteration_ms": ms, "leased": kinds,
                  "overrun_us": [], "in_steps_ns": [], "bubble_ns": [], "blocks": blocks,
                  "duty_pct": [100 * w / max(1, sum(line["end_ns"] - line["begin_ns"] for line in of)) for w, of in zip(work, blocks)],
                  "clocks": clocks_of(clocks, [one["edges"] for one in seen], iterations, kinds),
                  "compute_ms": [compute_of(one["edges"], iterations) for one in seen]}
        self.keep(sample, seen)
        print("duty of the control, %:", sample["duty_pct"], flush=True)

    def hold(self, name):
        """A side task holds memory on each GPU, and training asks for more than is left: once as it is, and once with the hook in between."""
        plugin, memory, params, _ = TASKS[name]
        names = [f"{name}s{stage}" for stage in range(self.count)]
        for stage in range(self.count):
            self.ctl("load", f"{self.options.plugins}/{plugin}.so", "--name", names[stage], "--stage", str(stage), "--memory", memory,
                     *(word for param in params for word in ("--param", param)))
        try:
            self.wait(f"steps of {name}", lambda: all(self.task(one)["state"]["counters"]["steps"] > 8 for one in names), 60)
            open(self.until + ".grow", "w").close()
            outs = [f"{self.ranks.job['out']}.{rank}.grown" for rank in range(self.count)]
            self.wait("the ranks' growth", lambda: all(map(os.path.exists, outs)), 60)
            verdicts = [self.task(one)["state"]["verdict"] for one in names]
        finally:
            self.stop(names)
        grown = []
        for out in outs:
            with open(out) as file:
                grown.append(json.load(file))
        self.record["memory"] = {"side_task": " ".join([plugin, *params]), "training": grown, "verdicts": verdicts}
        self.save()
        print(json.dumps(self.record["memory"]), flush=True)

    def stop(self, names):
        for name in names:
            try:
                self.ctl("stop", name)
            except RuntimeError as error:
                print(error, flush=True)
        try:
            self.wait("the side tasks' end", lambda: all(self.task(name)["state"]["verdict"].get("kind") for name in names), 30)
        except RuntimeError as error:
            print(error, flush=True)

    def down(self):
        if self.ranks is not None:
            self.ranks.end()
        for _, process in reversed(self.started):
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    process.kill()
        if self.shared:
            shutil.rmtree(self.shared, ignore_errors=True)
        if not self.record["failures"]:
            shutil.rmtree(self.folder, ignore_errors=True)

    def failed(self, what, error):
        print(f"FAILED: {what}: {type(error).__name__}: {error}", flush=True)
        self.record["failures"].append(f"{what}: {error}")
        for name, _ in self.started:
            if not name.startswith("observer"):
                print(f"-- {name}\n{self.text(name + '.err', 1000)}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", help="with bench-leases")
    parser.add_argument("--plugins")
    parser.add_argument("--python")
    parser.add_argument("--out")
    parser.add_argument("--summary", metavar="FILE")
    parser.add_argument("--sandbox", default="bubblewrap")
    parser.add_argument("--seconds", default="spin=30,pagerank=45,resnet18=60,control=45,hold=1", help="which side tasks, or NAME:PCT, in which order, and for how long")
    parser.add_argument("--replay", metavar="FILE", help="no pipeline: on one GPU, a stage with the recorded lengths of FILE")
    parser.add_argument("--gpu", type=int, default=0, help="on which one; several may be at it, each with a stage")
    parser.add_argument("--stage", type=int, default=0, help="which one")
    parser.add_argument("--parts", action="store_true", help="of a replay: where the time of its own work goes (gpu/parts.py)")
    parser.add_argument("--holdout-pct", type=int, default=50)
    parser.add_argument("--block-ms", type=int, default=1000, help="of the holdout")
    parser.add_argument("--control-block-ms", type=int, default=1500)
    parser.add_argument("--blocks", type=int, default=48, help="hooked and unhooked, before side tasks")
    parser.add_argument("--iterations", type=int, default=8, help="of such a block")
    parser.add_argument("--ways", default="two_phase,stream_wait", help="of waiting, in these blocks")
    parser.add_argument("--warm-up", type=int, default=25)
    parser.add_argument("--synchronise", action="store_true", help="the host waits for its GPU after each iteration, as a training does that logs its loss")
    parser.add_argument("--watchdog", type=int, default=420)
    parser.add_argument("--ranks", type=int, default=0, help="default: one on each GPU")
    parser.add_argument("--small", action="store_true", help="a small model: to try out this script")
    options = parser.parse_args()
    if options.replay:
        options.ranks = 1
    if options.summary:
        with open(options.summary) as file:
            print(json.dumps(summarise(json.load(file)), indent=1))
        return
    options.seconds = {one.partition("=")[0]: float(one.partition("=")[2]) for one in options.seconds.split(",")}
    options.ranks = options.ranks or hook_gpu.gpus()
    options.bin, options.plugins = os.path.abspath(options.bin), os.path.abspath(options.plugins)
    run = Run(options)
    smi = subprocess.run(["nvidia-smi", *(["-i", str(options.gpu)] if options.replay else []), "--query-gpu=name,driver_version", "--format=csv,noheader"], capture_output=True, text=True).stdout
    run.record["machine"] = smi.strip().splitlines()
    begin = time.monotonic()
    try:
        run.up()
        run.ready()
        for name in options.seconds:
            try:
                run.control("pagerank") if name == "control" else run.hold(name) if name == "hold" else run.harvest(name)
            except Exception as error:
                run.failed(name, error)
            print(f"-- {name}: {time.monotonic() - begin:.0f} s since the start", flush=True)
        run.record["report"] = run.ctl("report")
        run.end_training()
    except Exception as error:
        run.failed("the run", error)
        if run.ranks is not None:
            for rank in range(run.count):
                print(run.ranks.text(rank, "out"), run.ranks.text(rank), flush=True)
    finally:
        run.save()
        run.down()


if __name__ == "__main__":
    main()

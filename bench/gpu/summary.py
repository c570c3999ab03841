"""What recorded samples of harvested bubbles come to."""

import statistics

import blocks
from blocks import increases
from rig.statistics import interval, quantile


def hops_of(ways):
    """Quantiles of the way from the mark: to the hook's look, from there to the lease, from there to the first step."""
    # Of the others the observer read the lease page while it was written, and has the begin before.
    whole = [way for way in ways if way[1] > -5]
    hops = {
        "mark_to_look_us": [way[1] for way in whole],
        "look_to_lease_us": [way[0] - way[1] for way in whole],
        "lease_to_step_us": [way[2] - way[0] for way in ways if way[2] is not None],
    }
    result = {
        name: {f"p{percent}": round(quantile(of, percent / 100), 2) for percent in (50, 90, 99)}
        for name, of in hops.items()
        if of
    }
    result["expected_pct"] = round(100 * statistics.fmean(way[3] for way in ways), 1)
    return result


def usual(values):
    """The median, and how far from it a value may be: four times the spread."""
    middle = statistics.median(values)
    return middle, 4 * 1.4826 * statistics.median(abs(value - middle) for value in values)


def without_far_off(iteration_ms, kinds):
    """The time increase without iterations that are far longer than the median of their kind, which hosts have whether
    there are side tasks or not; and how many of each kind those were, with side tasks and without, to see that."""
    of = {kind: [ms for ms, one in zip(iteration_ms, kinds) if one is kind] for kind in (True, False)}
    most = {kind: sum(usual(values)) for kind, values in of.items()}
    near = [(ms, kind) for ms, kind in zip(iteration_ms, kinds) if kind is not None and ms <= most[kind]]
    values = increases(*zip(*near))
    if len(values) < 2:
        return {}
    mean, half = interval(values)
    return {
        "settled_increase_pct": round(mean, 3),
        "settled_increase_ci95_half_pct": round(half, 3),
        "far_off_pct": [round(100 * statistics.fmean(ms > most[kind] for ms in of[kind]), 1) for kind in (True, False)],
    }


def time_increase(iteration_ms, kinds):
    values = increases(iteration_ms, kinds)
    of = {kind: [ms for ms, one in zip(iteration_ms, kinds) if one is kind] for kind in (True, False)}
    if len(values) < 2 or not of[True] or not of[False]:
        return {}
    mean, half = interval(values)
    return {
        "time_increase_pct": round(mean, 3),
        "time_increase_ci95_half_pct": round(half, 3),
        "pairs_of_blocks": len(values),
        **without_far_off(iteration_ms, kinds),
        "iterations_with": len(of[True]),
        "iterations_without": len(of[False]),
        "unleased_iteration_ms": round(statistics.fmean(of[False]), 3),
    }


def row_of(sample):
    """One side task's row, of all GPUs, from its samples."""
    row = {"side_task": sample["side_task"], **time_increase(sample["iteration_ms"], sample["leased"])}
    if "thread_pct" in sample:
        # Of time in which there are leases: half of it is held out.
        with_ms = sum(ms for ms, leased in zip(sample["iteration_ms"], sample["leased"]) if leased)
        row.update(
            thread_pct=sample["thread_pct"],
            steps_per_s=round(1e3 * sum(sample["steps"]) / with_ms, 2) if with_ms else None,
            worker_cpu_pct=[round(value, 2) for value in sample["worker_cpu_pct"]],
        )
    work, inside = sum(sample["in_steps_ns"]), sum(sample["bubble_ns"])
    row["harvested_share_pct"] = round(100 * work / inside, 2) if inside else None
    row["harvested_share_by_stage_pct"] = [
        round(100 * w / b, 2) if b else None for w, b in zip(sample["in_steps_ns"], sample["bubble_ns"])
    ]
    overruns, ways = sum(sample["overrun_us"], []), sum(sample.get("ways_us", []), [])
    delays = sum(sample.get("edge_to_lease_us", []), []) + [way[0] for way in ways]
    row.update(
        overrun_p50_us=quantile(overruns, 0.5),
        overrun_p99_us=quantile(overruns, 0.99),
        overrun_max_us=max(overruns, default=None),
        leased_bubbles=len(overruns),
        edge_to_lease_p50_us=quantile(delays, 0.5),
        edge_to_lease_p99_us=quantile(delays, 0.99),
    )
    if ways:
        row["hops"] = hops_of(ways)
    if sample.get("compute_ms"):
        row["compute_increase_pct"] = [paired_change(of_gpu, sample["leased"]) for of_gpu in sample["compute_ms"]]
    if sample.get("sm_mhz"):
        row["sm_clock_change_pct"] = [paired_change(of_gpu, sample["leased"]) for of_gpu in sample["sm_mhz"]]
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
    """Of iterations of this kind behind one of the same, without those that are far off: four times the spread from the
    median."""
    found = [
        value for value, one, before in zip(values, kinds, [None, *kinds]) if value and one is kind and before is kind
    ]
    if len(found) < 2:
        return []
    middle, most = usual(found)
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
        found.setdefault((sample["side_task"], sample["thread_pct"]), []).append(
            (100 * (statistics.fmean(on) / mean - 1), 100 * error / mean, row_of(sample))
        )
    result = []
    for (name, thread_pct), of in found.items():
        weights = [1 / error**2 for _, error, _ in of]
        result.append(
            {
                "side_task": name,
                "thread_pct": thread_pct,
                "runs": len(of),
                "own_work_increase_pct": round(
                    sum(weight * value for weight, (value, _, _) in zip(weights, of)) / sum(weights), 2
                ),
                "ci95_half_pct": round(1.96 / sum(weights) ** 0.5, 2),
                "steps_per_s": round(statistics.fmean(row["steps_per_s"] for *_, row in of), 1),
                "harvested_share_pct": round(statistics.fmean(row["harvested_share_pct"] for *_, row in of), 1),
            }
        )
    return result


def difference(on, off):
    """Of the means, and its variance; a twenty-fifth at either end left out."""
    on, off = (sorted(values)[len(values) // 25 : len(values) - len(values) // 25] for values in (on, off))
    return statistics.fmean(on) - statistics.fmean(off), statistics.variance(on) / len(on) + statistics.variance(
        off
    ) / len(off)


def by_kind_of_lease(runs):
    """What leases of each kind cost a stage's own work, in all and outside of its chunks (gpu/parts.py), ms an
    iteration, beside iterations without, over all runs that had them; and how much of the bubbles lies between a first
    step and a last pause. Rows: kind (None: no leases), own work, chunks, bubbles, that."""
    found = {}
    for run in runs:
        off = [row for row in run["rows"] if row[0] is None]
        for kind in sorted({row[0] for row in run["rows"]} - {None}):
            on = [row for row in run["rows"] if row[0] == kind]
            outside = [[own - chunks for _, own, chunks, *_ in rows if chunks] for rows in (on, off)]
            found.setdefault(kind, []).append(
                (difference([row[1] for row in on], [row[1] for row in off]), difference(*outside), on)
            )
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
        one["stepping_share_pct"] = round(
            100 * sum(row[4] for *_, on in of for row in on) / sum(row[3] for *_, on in of for row in on), 1
        )
        result.append(one)
    return result


def of_the_same_leases(kinds, same):
    """What the kinds named in `same`, the same leases under several names, cost together: weighted by their variance,
    ms and percent of an iteration."""
    of = [kind for kind in kinds if kind["leases"] in same]
    if not of:
        return None
    weights = [kind["own_work_ci95_half_ms"] ** -2 for kind in of]
    own, half = (
        sum(weight * kind["own_work_ms"] for weight, kind in zip(weights, of)) / sum(weights),
        sum(weights) ** -0.5,
    )
    iteration = statistics.fmean(kind["iteration_ms"] for kind in of)
    return {
        "leases": same,
        "own_work_ms": round(own, 3),
        "own_work_ci95_half_ms": round(half, 3),
        "time_increase_pct": round(100 * own / iteration, 3),
        "ci95_half_pct": round(100 * half / iteration, 3),
    }


def summarise_replays(record):
    """Of the stages of a recorded pipeline, each for a while: as many iterations of each make the pipeline's
    bubbles."""
    kinds = by_kind_of_lease(record.get("by_iteration", ()))
    of_stage, delays, by_stage = {}, [], {}
    for run in record["runs"]:
        of_stage.setdefault(run["replayed"]["stage"], []).append(run)
    for stage, runs in sorted(of_stage.items()):
        samples = [sample for run in runs for sample in run["samples"]]
        ways = [way[0] for sample in samples for way in sample["ways_us"][0]]
        iterations = sum(sum(map(bool, sample["leased"])) for sample in samples)
        delays += [(delay, 1 / iterations) for delay in ways]
        by_stage[stage] = {
            "hook_cpu_pct": round(statistics.fmean(cpu for run in runs for cpu in run["replayed"]["hook_cpu_pct"]), 2),
            "edge_to_lease_p50_us": quantile(ways, 0.5),
            "edge_to_lease_p99_us": quantile(ways, 0.99),
            "bubbles": len(ways),
            "rows": [row_of(sample) for sample in samples],
        }
    return {
        "stages": by_stage,
        "edge_to_lease_p50_us": weighted_quantile(delays, 0.5),
        "edge_to_lease_p99_us": weighted_quantile(delays, 0.99),
        "edge_to_lease_samples": len(delays),
        "hook_cpu_pct": max(stage["hook_cpu_pct"] for stage in by_stage.values()),
        "own_work": own_work([sample for run in record["runs"] for sample in run["samples"]]),
        "by_kind_of_lease": kinds,
        "present_form": of_the_same_leases(kinds, record.get("same_leases", ())),
        "summary_before": summarise_replays(record["before"]) if "before" in record else None,
    }


def real_pipeline(summary):
    """Of a pipeline whose hosts wait for their GPUs after each iteration: what the hook and each side task cost, and
    where that lies. Each part is the difference of neighbouring blocks with its 95 % interval, in percent of an
    iteration; stages' own work and clocks in percent of their own."""
    named = {
        name: next(
            (row for row in summary["rows"] if row["side_task"].split()[0] == name and "time_increase_pct" in row), None
        )
        for name in ("resnet18", "pagerank", "gpu_task")
    }
    parts, result = [], {}
    if way := blocks.way_of(summary):
        parts = [
            {
                "part": "the hook alone",
                "pct": round(summary[f"hook_{way}_time_increase_pct"], 3),
                "ci95_half_pct": round(summary[f"hook_{way}_ci95_half_pct"], 3),
                "pairs": summary[f"hook_{way}_pairs"],
            }
        ]
        result = {
            "hook_alone_ci95_upper_pct": summary[f"hook_{way}_ci95_upper_pct"],
            "unhooked_iteration_ms": summary[f"{way}_unhooked_iteration_ms"],
        }
    for name, row in named.items():
        if row is None:
            continue
        what = f"{name}, which computes nothing" if name == "gpu_task" else name
        parts.append(
            {
                "part": f"{what}: time increase beyond the hook's",
                "pct": row["time_increase_pct"],
                "ci95_half_pct": row["time_increase_ci95_half_pct"],
                "pairs": row["pairs_of_blocks"],
            }
        )
        for title, key in (
            ("own work of stage", "compute_increase_pct"),
            ("SM clock in the own work of stage", "sm_clock_change_pct"),
        ):
            parts += [
                {"part": f"{what}: {title} {stage}", "pct": value[0], "ci95_half_pct": value[1]}
                for stage, value in enumerate(row.get(key, ()))
                if value
            ]
    if named["resnet18"]:
        row = named["resnet18"]
        result.update(
            resnet18_time_increase_pct=row["time_increase_pct"],
            resnet18_ci95_half_pct=row["time_increase_ci95_half_pct"],
            resnet18_harvested_by_stage_pct=row["harvested_share_by_stage_pct"],
            overrun_p99_us=row["overrun_p99_us"],
        )
    return {**result, "explained": parts}


def summarise(record):
    if "runs" in record:
        return summarise_replays(record)
    rows = [row_of(sample) for sample in record["samples"]]
    summary = {"rows": rows}
    # A recorded sample of older code says so in "before".
    delays = [
        delay
        for sample in record["samples"]
        if not sample.get("before")
        for delay in sum(sample.get("edge_to_lease_us", []), [])
        + [way[0] for way in sum(sample.get("ways_us", []), [])]
    ]
    # Apart: the marks that the hook had said would come, and those for which the worker had to be woken.
    for name, told in (("expected", True), ("unexpected", False)):
        us = [
            way[0]
            for sample in record["samples"]
            if not sample.get("before")
            for way in sum(sample.get("ways_us", []), [])
            if bool(way[3]) is told
        ]
        if us:
            summary[f"{name}_marks"] = {
                "samples": len(us),
                **{f"to_lease_p{p}_us": round(quantile(us, p / 100), 2) for p in (50, 90, 99)},
            }
    if delays:
        summary.update(
            edge_to_lease_p50_us=quantile(delays, 0.5),
            edge_to_lease_p99_us=quantile(delays, 0.99),
            edge_to_lease_samples=len(delays),
        )
    summary.update(blocks.summarise({"times": record.get("times", {}), "more_times": record.get("more_times", ())}))
    if record.get("synchronise") and blocks.way_of(summary):
        summary["real_pipeline"] = real_pipeline(summary)
    elif "samples" in record.get("real_pipeline", {}):  # the record of such a run beside others
        summary["real_pipeline"] = real_pipeline(summarise(record["real_pipeline"]))
    return summary


def paired_change(values_of, kinds):
    """By how much a figure of each iteration, a GPU's own work or its clock, is greater in iterations with side tasks:
    mean and half of the 95 % interval, percent."""
    values = increases(values_of, kinds)
    return [round(value, 3) for value in interval(values)] if len(values) > 1 else None

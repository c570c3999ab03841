"""Turns recorded runs into the tables' rows.

Formulae of section 6 of the FreeRide paper (Middleware '25): time increase I = (T_with - T_without) / T_without; cost
savings S = (C_side - (C_with - C_without)) / C_without, where C is price times time and C_side what the side work would
have cost on the low-tier GPU."""

import itertools
import pathlib
import tomllib

import numpy
from scipy import stats

import cells

HERE = pathlib.Path(__file__).resolve().parent


def prices():
    return tomllib.loads((HERE / "prices.toml").read_text())


def blocks_of(samples, block_iterations=None):
    """[(with side tasks, its middle's place among the samples, mean ms, iterations), …] from samples [ms, with side
    tasks: True, False, or None where blocks meet]. Blocks of one kind that follow each other are one, or several of
    block_iterations."""
    blocks, first = [], 0
    for kind, group in itertools.groupby(samples, key=lambda sample: sample[1]):
        lengths = [sample[0] for sample in group]
        count = max(1, round(len(lengths) / block_iterations)) if block_iterations else 1
        edges = [round(part * len(lengths) / count) for part in range(count + 1)]
        if kind is not None:
            blocks += [
                (kind, first + (begin + end) / 2, numpy.mean(lengths[begin:end]), end - begin)
                for begin, end in zip(edges, edges[1:])
            ]
        first += len(lengths)
    return blocks


def time_increase_pct(samples, block_iterations=None):
    """(I, half of its 95 % interval) in percent: least squares over blocks, each of them a level, a drift of the
    machine that is a straight line, and what side tasks add. (None, None): fewer than five blocks, or than two of a
    kind. The block is what is counted, not the iteration: iterations of one are alike in noise."""
    blocks = blocks_of(samples, block_iterations)
    if len(blocks) < 5 or min(sum(block[0] is kind for block in blocks) for kind in (True, False)) < 2:
        return None, None
    kind, place, mean, weight = (numpy.array(column, float) for column in zip(*blocks))
    of = numpy.column_stack([numpy.ones(len(blocks)), place - place[0], kind])
    inverse = numpy.linalg.inv(of.T @ (weight[:, None] * of))
    level, drift, added = inverse @ of.T @ (weight * mean)
    free, rest = len(blocks) - 3, weight @ (mean - of @ [level, drift, added]) ** 2
    without = numpy.mean(level + drift * of[:, 1])
    half = stats.t.ppf(0.975, free) * numpy.sqrt(max(0.0, rest / free * inverse[2, 2]))
    return float(100 * added / without), float(100 * half / without)


def cost_savings_pct(increase_pct, side_gpus, price):
    """S in percent. side_gpus: how many low-tier GPUs would do the side work in the same time."""
    slower = increase_pct / 100
    # Of an hour of training as it would be without
    worth = price["low_tier"]["dollars_per_hour"] * side_gpus * (1 + slower)
    return 100 * (worth / price["training"]["dollars_per_hour"] - slower)


def units_per_s(name, work, seconds, price):
    return work / price["side_task"][name]["per"] / seconds if seconds > 0 else 0.0


def power(samples):
    """By GPU what iterations with and without side tasks take: mean J, W, SM MHz, percent of the time at the power cap.
    samples: [ms, with side tasks, [J, MHz, share at the cap] of each GPU]; empty where nothing was read."""
    read = [sample for sample in samples if len(sample) > 2]
    found = []
    for gpu in range(len(read[0][2]) if read else 0):
        of = {}
        for kind, name in ((True, "with"), (False, "without")):
            values = [(sample[0], *sample[2][gpu]) for sample in read if sample[1] is kind]
            if values:
                ms, joules, mhz, capped = map(float, numpy.mean(values, axis=0))
                of[name] = {"joules": round(joules, 2), "watts": round(1e3 * joules / ms, 1)}
                of[name] |= {"sm_mhz": round(mhz, 1), "power_capped_pct": round(100 * capped, 1)}
        if len(of) == 2:
            found.append(of)
    return found


def is_counted(task, method):
    """Whether a task's work is what it did. Under the imperative interface a lease is one step, so that of what is
    counted in steps nothing is known."""
    by = task.get("counted_by", "steps" if task["side_task"] in cells.TRAIN else None)
    return method != "imperative" or by != "steps"


def rounded(value, digits=3):
    return None if value is None else round(float(value), digits)


def increase_of(samples, block_iterations, name=""):
    increase, half = time_increase_pct(samples, block_iterations)
    bounds = None if half is None else [rounded(increase - half), rounded(increase + half)]
    return {f"{name}time_increase_pct": rounded(increase), f"{name}time_increase_ci95_pct": bounds}


def row(run, record, price):
    """One run's row. `run` is an element of record["runs"] as run.py writes them."""
    cell, samples, watts = run["cell"], run["samples"], run.get("power") or []
    with_ms = [sample[0] for sample in samples if sample[1]]
    base_ms = [sample[0] for sample in samples if sample[1] is False]
    with_s = sum(with_ms) / 1e3
    side_gpus, best_gpus, rates = 0.0, 0.0, []
    sharing = [task["stage"] for task in run["tasks"]]
    for task in run["tasks"]:
        name, stage = task["side_task"], task["stage"]
        key = name + (f"@{task['batch']}" if task.get("batch") else "")
        work, seconds, joules = ((record["alone"].get(key) or []) + [None] * 3)[:3]
        alone = units_per_s(name, work, seconds, price) if work else 0.0  # 0: could not be measured
        rate = units_per_s(name, task["work"], task["seconds"], price)
        low_tier = alone if record["low_tier"] == "alone" else price["side_task"][name]["low_tier"]
        share = run["bubbles"].get(str(stage), {}).get("share_pct", 0) / 100 / sharing.count(stage)
        side_gpus += rate / low_tier if low_tier else 0
        best_gpus += alone * share / low_tier if low_tier else 0
        of = {"side_task": name, "stage": stage, "unit": price["side_task"][name]["unit"]}
        of |= {"counted": is_counted(task, cell["method"]), "in_bubbles_per_s": round(rate, 4)}
        of["alone_per_s"] = round(alone, 4)
        if watts and rate > 0 and sharing.count(stage) == 1:
            # What an iteration takes more, over the work done in it; alone, the whole device's energy is the work's.
            extra = watts[stage]["with"]["joules"] - watts[stage]["without"]["joules"]
            of["joules_per_unit"] = round(extra * len(with_ms) / (rate * with_s), 4) if with_s else None
            of["alone_joules_per_unit"] = round(joules / (alone * seconds), 4) if joules and alone else None
        rates.append(of)
    bubble_ns = sum(stage["offered_ns"] for stage in run["bubbles"].values())
    harvested_ns = sum(stage["running_ns"] for stage in run["bubbles"].values())
    increase, _ = time_increase_pct(samples, run.get("block_iterations"))
    most = 100 * price["low_tier"]["dollars_per_hour"] * best_gpus / price["training"]["dollars_per_hour"]
    found = {
        **cell,
        **increase_of(samples, run.get("block_iterations")),
        "cost_savings_pct": None if increase is None else rounded(cost_savings_pct(increase, side_gpus, price)),
        "most_savings_pct": rounded(most) if bubble_ns and best_gpus else None,
        "harvested_share_pct": rounded(100 * harvested_ns / bubble_ns, 2) if bubble_ns else None,
        "duty_pct": rounded(run.get("measures", {}).get("duty_pct") if cell["budget_pct"] is not None else None, 1),
        "iteration_ms": rounded(numpy.mean(base_ms)) if base_ms else None,
        "iterations": len(samples),
        "open": len(with_ms),
        "baseline": len(base_ms),
        "blocks": len(blocks_of(samples, run.get("block_iterations"))),
        "seconds_with": round(with_s, 2),
        "rates": rates,
        "power": watts,
        "commit": run.get("commit") or record.get("commit"),
    }
    if "ramp" in run:  # before the run, while the budget got to know its side tasks
        found |= increase_of(run["ramp"]["samples"], run.get("block_iterations"), "ramp_")
        found["ramp_duty_pct"] = rounded(run["ramp"]["duty_pct"], 1)
    return found


def rows(record, price):
    return [row(run, record, price) for run in record["runs"]]

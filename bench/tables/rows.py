#!/usr/bin/env python3
"""Turns recorded runs into the tables' rows.

    bench/tables/rows.py bench/results/tables-h200.json            # the rows again, from the samples; exit code 1 if they are not those recorded
    bench/tables/rows.py bench/results/tables-h200.json --write    # and keeps them in the file

Formulae of section 6 of the FreeRide paper (Middleware '25): time increase I = (T_with - T_without) / T_without; cost
savings S = (C_side - (C_with - C_without)) / C_without, where C is price times time and C_side what the side work would
have cost on the low-tier GPU."""

import itertools
import json
import math
import pathlib
import statistics
import sys
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parents[1] / "tests"))
import cells
from rig.statistics import t975


def prices():
    return tomllib.loads((HERE / "prices.toml").read_text())


def blocks_of(samples, block_iterations=None):
    """[(with side tasks, its middle's place among the samples, mean ms, iterations), …] from samples [ms, with side
    tasks: True, False, or None where blocks meet, …]. Blocks of one kind that follow each other are one, or several of
    block_iterations."""
    blocks, first = [], 0
    for kind, group in itertools.groupby(samples, key=lambda sample: sample[1]):
        lengths = [sample[0] for sample in group]
        count = max(1, round(len(lengths) / block_iterations)) if block_iterations else 1
        edges = [round(part * len(lengths) / count) for part in range(count + 1)]
        if kind is not None:
            blocks += [
                (kind, first + (begin + end) / 2, statistics.fmean(lengths[begin:end]), end - begin)
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
    of = [(1.0, place - blocks[0][1], float(kind)) for kind, place, _, _ in blocks]
    normal = [[sum(block[3] * x[i] * x[j] for x, block in zip(of, blocks)) for j in range(3)] for i in range(3)]
    right = [sum(block[3] * x[i] * block[2] for x, block in zip(of, blocks)) for i in range(3)]
    inverse = inverted(normal)
    level, drift, added = (sum(inverse[i][j] * right[j] for j in range(3)) for i in range(3))
    rest = sum(block[3] * (block[2] - level * x[0] - drift * x[1] - added * x[2]) ** 2 for x, block in zip(of, blocks))
    free = len(blocks) - 3
    without = statistics.fmean(level + drift * x[1] for x in of)
    return 100 * added / without, 100 * t975(free) * math.sqrt(max(0.0, rest / free * inverse[2][2])) / without


def inverted(matrix):
    """Of a small regular matrix, by Gauss and Jordan."""
    size = len(matrix)
    rows_ = [list(row) + [float(i == j) for j in range(size)] for i, row in enumerate(matrix)]
    for i in range(size):
        pivot = max(range(i, size), key=lambda row: abs(rows_[row][i]))
        rows_[i], rows_[pivot] = rows_[pivot], rows_[i]
        rows_[i] = [value / rows_[i][i] for value in rows_[i]]
        for other in range(size):
            if other != i:
                rows_[other] = [value - rows_[other][i] * own for value, own in zip(rows_[other], rows_[i])]
    return [row[size:] for row in rows_]


def cost_savings_pct(increase_pct, side_gpus, price):
    """S in percent. side_gpus: how many low-tier GPUs would do the side work in the same time."""
    slower = increase_pct / 100
    # Of an hour of training as it would be without
    worth = price["low_tier"]["dollars_per_hour"] * side_gpus * (1 + slower)
    return 100 * (worth / price["training"]["dollars_per_hour"] - slower)


def units_per_s(name, work, seconds, price):
    return work / price["side_task"][name]["per"] / seconds if seconds > 0 else 0.0


def power(samples):
    """By GPU what iterations with and without side tasks take: mean J, SM MHz, percent of the time at the power cap.
    Empty where nothing was read."""
    read = [sample for sample in samples if len(sample) > 2]
    found = []
    for gpu in range(len(read[0][2]) if read else 0):
        of = {}
        for kind in (True, False):
            values = [sample[2][gpu] for sample in read if sample[1] is kind]
            if values:
                joules, mhz, capped = (statistics.fmean(value[part] for value in values) for part in range(3))
                ms = statistics.fmean(sample[0] for sample in read if sample[1] is kind)
                of["with" if kind else "without"] = {
                    "joules": round(joules, 2),
                    "watts": round(1e3 * joules / ms, 1),
                    "sm_mhz": round(mhz, 1),
                    "power_capped_pct": round(100 * capped, 1),
                }
        if len(of) == 2:
            found.append(of)
    return found


def is_counted(task, method):
    """Whether a task's work is what it did. Under the imperative interface a lease is one step, so that of what is
    counted in steps nothing is known."""
    by = task.get("counted_by", "steps" if task["side_task"] in cells.TRAIN else None)
    return method != "imperative" or by != "steps"


def row(run, record, price):
    """One run's row. `run` is an element of record["runs"] as run.py writes them."""
    cell = run["cell"]
    increase, half = time_increase_pct(run["samples"], run.get("block_iterations"))
    iterations = sum(1 for sample in run["samples"] if sample[1])
    with_s = sum(sample[0] for sample in run["samples"] if sample[1]) / 1e3
    watts = power(run["samples"])
    side_gpus, best_gpus, rates = 0.0, 0.0, []
    sharing = [task["stage"] for task in run["tasks"]]
    for task in run["tasks"]:
        name = task["side_task"]
        work, seconds, joules = (
            (record["alone"].get(name + (f"@{task['batch']}" if task.get("batch") else "")) or []) + [None] * 3
        )[:3]
        alone = units_per_s(name, work, seconds, price) if work else 0.0  # 0: could not be measured
        rate = units_per_s(name, task["work"], task["seconds"], price)
        low_tier = alone if record["low_tier"] == "alone" else price["side_task"][name]["low_tier"]
        share = run["bubbles"].get(str(task["stage"]), {}).get("share_pct", 0) / 100 / sharing.count(task["stage"])
        side_gpus += rate / low_tier if low_tier else 0
        best_gpus += alone * share / low_tier if low_tier else 0
        of = {
            "side_task": name,
            "stage": task["stage"],
            "unit": price["side_task"][name]["unit"],
            "counted": is_counted(task, cell["method"]),
            "in_bubbles_per_s": round(rate, 4),
            "alone_per_s": round(alone, 4),
        }
        if watts and rate > 0 and sharing.count(task["stage"]) == 1:
            # What an iteration takes more, over the work done in it; alone, the whole device's energy is the work's.
            extra = watts[task["stage"]]["with"]["joules"] - watts[task["stage"]]["without"]["joules"]
            of["joules_per_unit"] = round(extra * iterations / (rate * with_s), 4) if with_s else None
            of["alone_joules_per_unit"] = round(joules / (alone * seconds), 4) if joules and alone else None
        rates.append(of)
    bubble_ns = sum(stage["offered_ns"] for stage in run["bubbles"].values())
    harvested_ns = sum(stage["running_ns"] for stage in run["bubbles"].values())
    savings = cost_savings_pct(increase, side_gpus, price) if increase is not None else None
    most = 100 * price["low_tier"]["dollars_per_hour"] * best_gpus / price["training"]["dollars_per_hour"]

    def rounded(value, digits=3):
        return None if value is None else round(value, digits)

    return {
        **{key: value for key, value in cell.items() if key != "method"},
        "method": cell["method"],
        "time_increase_pct": rounded(increase),
        "time_increase_ci95_pct": None if half is None else [rounded(increase - half), rounded(increase + half)],
        "cost_savings_pct": rounded(savings),
        "most_savings_pct": rounded(most) if bubble_ns and best_gpus else None,
        "harvested_share_pct": rounded(100 * harvested_ns / bubble_ns, 2) if bubble_ns else None,
        "duty_pct": rounded(run.get("measures", {}).get("duty_pct") if cell["budget_pct"] is not None else None, 1),
        **ramp(run),
        "iteration_ms": rounded(mean_ms(run["samples"], False)),
        "iterations": len(run["samples"]),
        "seconds_with": round(with_s, 2),
        "rates": rates,
        "power": watts,
    }


def ramp(run):
    """What training lost before the run, while the budget got to know its side tasks, and the duty at the end of
    that."""
    if "ramp" not in run:
        return {}
    increase, half = time_increase_pct(run["ramp"]["samples"], run.get("block_iterations"))
    return {
        "ramp_time_increase_pct": None if increase is None else round(increase, 3),
        "ramp_time_increase_ci95_pct": None if half is None else [round(increase - half, 3), round(increase + half, 3)],
        "ramp_duty_pct": None if run["ramp"]["duty_pct"] is None else round(run["ramp"]["duty_pct"], 1),
    }


def mean_ms(samples, kind):
    values = [sample[0] for sample in samples if sample[1] is kind]
    return statistics.fmean(values) if values else None


def rows(record, price):
    return [row(run, record, price) for run in record["runs"]]


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--write"]):
        sys.exit("usage: rows.py RECORDED.json [--write]")
    path = pathlib.Path(sys.argv[1])
    record = json.loads(path.read_text())
    again = rows(record, prices())
    print(json.dumps(again, indent=1))
    if sys.argv[2:]:
        path.write_text(json.dumps(dict(record, rows=again)) + "\n")
    elif again != record["rows"]:
        sys.exit(
            f"rows.py: the rows recorded in {path} are not those of its samples and prices.toml; --write keeps these instead"
        )


if __name__ == "__main__":
    main()

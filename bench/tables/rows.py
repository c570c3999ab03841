#!/usr/bin/env python3
"""Turns recorded runs into the tables' rows.

    bench/tables/rows.py bench/results/tables-h200.json        # the rows again, from the samples; exit code 1 if they are not those recorded

Formulae of section 6 of the FreeRide paper (Middleware '25): time increase I = (T_with - T_without) / T_without; cost savings
S = (C_side - (C_with - C_without)) / C_without, where C is price times time and C_side what the side work would have cost on the low-tier GPU.
"""
import itertools
import json
import math
import pathlib
import statistics
import sys
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
# Two-sided 95 % quantiles of Student's t by degrees of freedom; past the table the normal one.
T95 = [0, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09, 2.09]


def prices():
    return tomllib.loads((HERE / "prices.toml").read_text())


def time_increase_pct(samples):
    """(I, half of its 95 % interval) in percent from [[ms, with side tasks: True, False, or None where blocks meet], …]. Blocks with and without are
    compared in neighbouring pairs, since a machine's speed drifts. (None, None): fewer than three pairs."""
    blocks = []
    for kind, group in itertools.groupby(samples, key=lambda sample: sample[1]):
        if kind is not None:
            blocks.append((kind, statistics.fmean(ms for ms, _ in group)))
    pairs, index = [], 0
    while index + 1 < len(blocks):
        (kind, one), (other_kind, other) = blocks[index], blocks[index + 1]
        if kind == other_kind:  # nothing to compare with: the block between was too short
            index += 1
            continue
        pairs.append(100 * (one / other - 1) if kind else 100 * (other / one - 1))
        index += 2
    if len(pairs) < 3:
        return None, None
    t = T95[len(pairs) - 1] if len(pairs) <= len(T95) else 1.96
    return statistics.fmean(pairs), t * statistics.stdev(pairs) / math.sqrt(len(pairs))


def cost_savings_pct(increase_pct, side_gpus, price):
    """S in percent. side_gpus: how many low-tier GPUs would do the side work in the same time."""
    slower = increase_pct / 100
    worth = price["low_tier"]["dollars_per_hour"] * side_gpus * (1 + slower)  # of an hour of training as it would be without
    return 100 * (worth / price["training"]["dollars_per_hour"] - slower)


def units_per_s(name, work, seconds, price):
    return work / price["side_task"][name]["per"] / seconds if seconds > 0 else 0.0


def row(run, record, price):
    """One run's row. `run` is an element of record["runs"] as run.py writes them."""
    cell = run["cell"]
    increase, half = time_increase_pct(run["samples"])
    with_s = sum(ms for ms, kind in run["samples"] if kind) / 1e3
    side_gpus, best_gpus, rates = 0.0, 0.0, []
    for task in run["tasks"]:
        alone = units_per_s(task["side_task"], *record["alone"].get(task["side_task"], (0, 0)), price)  # 0: could not be measured
        rate = units_per_s(task["side_task"], task["work"], task["seconds"], price)
        low_tier = alone if record["low_tier"] == "alone" else price["side_task"][task["side_task"]]["low_tier"]
        share = run["bubbles"].get(str(task["stage"]), {}).get("share_pct", 0) / 100
        side_gpus += rate / low_tier if low_tier else 0
        best_gpus += alone * share / low_tier if low_tier else 0
        rates.append({"side_task": task["side_task"], "stage": task["stage"], "unit": price["side_task"][task["side_task"]]["unit"],
                      "in_bubbles_per_s": round(rate, 4), "alone_per_s": round(alone, 4)})
    bubble_ns = sum(stage["offered_ns"] for stage in run["bubbles"].values())
    harvested_ns = sum(stage["running_ns"] for stage in run["bubbles"].values())
    savings = cost_savings_pct(increase, side_gpus, price) if increase is not None else None
    most = 100 * price["low_tier"]["dollars_per_hour"] * best_gpus / price["training"]["dollars_per_hour"]

    def rounded(value, digits=3):
        return None if value is None else round(value, digits)

    return {"side_task": cell["side_task"] or None, "method": cell["method"] or None, "micro_batches": cell["micro_batches"], "schedule": cell["schedule"],
            "budget_pct": cell["budget_pct"], "time_increase_pct": rounded(increase),
            "time_increase_ci95_pct": None if half is None else [rounded(increase - half), rounded(increase + half)],
            "cost_savings_pct": rounded(savings), "most_savings_pct": rounded(most) if bubble_ns else None,
            "harvested_share_pct": rounded(100 * harvested_ns / bubble_ns, 2) if bubble_ns else None,
            "iterations": len(run["samples"]), "seconds_with": round(with_s, 2), "rates": rates}


def rows(record, price):
    return [row(run, record, price) for run in record["runs"]]


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: rows.py RECORDED.json")
    record = json.loads(pathlib.Path(sys.argv[1]).read_text())
    again = rows(record, prices())
    print(json.dumps(again, indent=1))
    if again != record["rows"]:
        sys.exit(f"rows.py: the rows recorded in {sys.argv[1]} are not those of its samples and prices.toml")


if __name__ == "__main__":
    main()

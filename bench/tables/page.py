#!/usr/bin/env python3
"""Puts the tables of a recorded file into documents, and its pictures beside the first of them.

    bench/tables/page.py bench/results/tables-h200.json docs/results.md bench/tables/details.md
    bench/tables/page.py build/tables/tables.json                        # prints all tables

A document has its tables between lines `<!-- table: NAME -->` and `<!-- end -->`; NAME is one of TABLES."""

import json
import pathlib
import re
import sys

import pandas

import pictures
import rows as rows_of
from labels import METHODS, budget_name, counts_work, increase, markdown, number, plain, schedule, task_name, trainings

RESULTS = pathlib.Path(__file__).resolve().parents[1] / "results"
MARKED = re.compile(r"(<!-- table: (\w+) -->\n).*?(?=<!-- end -->)", re.S)
# At a glance: method, budget, what it is called there.
GLANCE = [
    ("iterative", 0.5, "FreeRide iterative, budget 0.5 %"),
    ("imperative", 1.0, "FreeRide imperative, budget 1 %"),
    ("mps", None, "MPS"),
    ("naive", None, "naive"),
]
LATER = {  # runs of later versions, each a file of its own that bench/harvest.py has written
    "holds-planned-h200": "a pipeline of four stages",
    "parallel-data-h200": "data parallelism, two pipelines of two stages",
    "parallel-tensor-h200": "tensor parallelism, two stages of two GPUs",
}


class Tables:
    """Each table is a method; `rows` as rows.py makes them."""

    def __init__(self, record, price):
        self.record, self.paper, self.rows = record, price["paper"], rows_of.rows(record, price)
        self.usual, self.others = ([row for row in self.rows if plain(row) is kind] for kind in (True, False))

    def in_order(self):
        order = list(METHODS)
        return sorted(
            self.usual,
            key=lambda row: (order.index(row["method"]), row["budget_pct"] is not None, str(row["budget_pct"])),
        )

    def of_paper(self, row, which):
        found = self.paper.get(row["method"], {}).get(row["side_task"])
        return f"{found[which]:g}" if found else "–"

    def glance(self):
        found = {(row["method"], row["budget_pct"], row["side_task"]): row for row in self.usual}
        wanted = [
            (method, budget, name)
            for method, budget, name in GLANCE
            if any(key[:2] == (method, budget) for key in found)
        ]
        tasks = dict.fromkeys(
            task for method, budget, _ in wanted for key in found for task in key[2:] if key[:2] == (method, budget)
        )
        paper = self.paper.get("iterative", {})
        return [
            {
                "slowdown, %, by": task,
                **{name: increase(found.get((method, budget, task), {})) for method, budget, name in wanted},
                "the paper's FreeRide, iterative": f"{paper[task][0]:g}" if task in paper else "–",
            }
            for task in tasks
        ]  # fmt: skip

    def later(self):
        return [
            {
                "side task, no budget": row["side_task"].split()[0],
                "training": training,
                "open / baseline iterations": f"{row['iterations_with']} / {row['iterations_without']}",
                # Halves are rounded up
                "slowdown, %": f"{row['time_increase_pct']:+.2f} ± {row['time_increase_ci95_half_pct'] + 1e-9:.2f}",
                "harvested share, %": f"{row['harvested_share_pct']:.1f}",
                "record in `bench/results`": f"`{name}.json`",
            }
            for name, training in LATER.items()
            for row in json.loads((RESULTS / f"{name}.json").read_text())["rows"]
        ]

    def main(self):
        return [
            {
                "method": METHODS[row["method"]],
                "budget": budget_name(row),
                "side task": task_name(row),
                **self.samples(row),
                "slowdown, %": increase(row),
                "harvested share, %": number(row["harvested_share_pct"], 1),
                "duty, %": number(row.get("duty_pct"), 0),
                "paper's slowdown, %": self.of_paper(row, 0),
            }
            for row in self.in_order()
        ]

    @staticmethod
    def samples(row):
        return {"open / baseline iterations (blocks)": f"{row['open']} / {row['baseline']} ({row['blocks']})"}

    def budget(self):
        free = {(row["side_task"], row["method"]): row for row in self.usual if row["budget_pct"] is None}
        return [
            {
                "side task": task_name(row),
                "method": METHODS[row["method"]],
                "budget": budget_name(row),
                "slowdown without a budget, %": increase(free.get((row["side_task"], row["method"]), {})),
                "slowdown before, %": increase(row, "ramp_"),
                "duty before, %": number(row.get("ramp_duty_pct"), 0),
                "slowdown measured, %": increase(row),
                "duty at the end, %": number(row.get("duty_pct"), 0),
            }
            for row in self.usual
            if row["budget_pct"] is not None
        ]

    def sensitivity(self):
        like = {row["side_task"].split("+")[0] for row in self.others}
        base = [
            row
            for row in self.usual
            if row["method"] == "iterative" and row["budget_pct"] is None and row["side_task"] in like
        ]
        return [
            {
                "model": row["size"],
                "schedule, micro-batches": schedule(row),
                "side task": task_name(row),
                "budget": budget_name(row),
                "iteration, ms": number(row["iteration_ms"], 1),
                **self.samples(row),
                "slowdown, %": increase(row),
                "harvested share, %": number(row["harvested_share_pct"], 1),
            }
            for row in base + self.others
            if self.others
        ]  # fmt: skip

    def shapes(self):
        """A line for each training, values of its stages in order."""
        ms = {(row["size"], schedule(row)): row["iteration_ms"] for row in self.rows if row["method"] == "iterative"}
        lines = []
        for phase, run in trainings(self.record).items():
            stages = [seen for _, seen in sorted(run["bubbles"].items())]
            lengths = [[length for _, _, length in seen["waits_ms"]] for seen in stages]
            lines.append(
                {
                    "model": phase[0],
                    "schedule, micro-batches": phase[1],
                    "iteration, ms": number(ms.get(phase), 1),
                    "bubble share by stage, %": ", ".join(number(seen["share_pct"], 1) for seen in stages),
                    "bubbles an iteration": ", ".join(str(len(one)) for one in lengths),
                    "the longest, ms": ", ".join(number(max(one, default=None), 0) for one in lengths),
                }
            )
        return lines

    def power(self):
        lines = []
        for row in self.usual:
            if row["method"] != "iterative" or row["budget_pct"] is not None or not row["power"]:
                continue
            on, off = (pandas.DataFrame([gpu[kind] for gpu in row["power"]]) for kind in ("with", "without"))
            clock, before, after = 100 * (on.sm_mhz / off.sm_mhz - 1), off.mean(), on.mean()
            both = {key: f"{before[key]:.0f} → {after[key]:.0f}" for key in ("watts", "sm_mhz", "power_capped_pct")}
            lines.append(
                {
                    "side task": task_name(row),
                    "power of a GPU, W": both["watts"],
                    "SM clock, MHz": both["sm_mhz"],
                    "clock, % (GPUs)": f"{clock.mean():+.1f} ({clock.min():+.1f} to {clock.max():+.1f})",
                    "at the power cap, % of samples": both["power_capped_pct"],
                    "slowdown, %": increase(row),
                }
            )
        return lines

    def savings(self):
        """What the side work of each row was worth."""
        free = {
            (row["side_task"], row["method"]): row["cost_savings_pct"]
            for row in self.usual
            if row["budget_pct"] is None
        }
        lines = []
        for row in self.in_order():
            off = free.get((row["side_task"], row["method"])) if row["budget_pct"] is not None else None
            mine = row["cost_savings_pct"]
            lines.append(
                {
                    "method": METHODS[row["method"]],
                    "budget": budget_name(row),
                    "side task": task_name(row),
                    "*S*, %": number(mine if counts_work(row) else None),
                    "possible *S*, %": number(row["most_savings_pct"]),
                    "*S*, % of that without a budget": number(
                        100 * mine / off if off and mine is not None else None, 0
                    ),
                    "paper's *S*, %": self.of_paper(row, 1),
                }
            )
        return lines

    def throughput(self):
        lines = []
        for row in self.usual:
            if row["budget_pct"] is not None and row["method"] == "iterative":
                continue
            rates = pandas.DataFrame([rate for rate in row["rates"] if rate["counted"]])
            for name, of in rates.groupby("side_task", sort=False) if len(rates) else ():
                beside, alone = of.in_bubbles_per_s.mean(), of.alone_per_s.iloc[0]
                # Where hardly any work was done, its energy is the noise of everything else.
                energy = (
                    of.get("joules_per_unit", pandas.Series(dtype=float))
                    if beside > 0.01 * alone
                    else pandas.Series(dtype=float)
                )
                lines.append(
                    {
                        "side task": name if row["side_task"] == name else f"{name} of {row['side_task']}",
                        "method": METHODS[row["method"]],
                        "with training, units/s": number(beside),
                        "rate alone, units/s": number(alone),
                        "share of the rate alone, %": number(100 * beside / alone if alone else None, 1),
                        "unit": of.unit.iloc[0],
                        "J a unit with training": number(energy.mean(), 3),
                        "J a unit alone": number(
                            of.alone_joules_per_unit.iloc[0] if "alone_joules_per_unit" in of else None, 3
                        ),
                    }
                )
        return lines


TABLES = "glance later main budget sensitivity shapes power savings throughput".split()


def main():
    if len(sys.argv) < 2:
        sys.exit("usage: page.py RECORDED.json [DOCUMENT.md …]")
    record, documents = json.loads(pathlib.Path(sys.argv[1]).read_text()), [pathlib.Path(one) for one in sys.argv[2:]]
    tables = Tables(record, rows_of.prices())
    for path in documents:
        path.write_text(filled(path.read_text(), tables))
    for made in pictures.all_of(tables, str((documents or [pathlib.Path(sys.argv[1])])[0].with_suffix(""))):
        print(made)
    for name in TABLES if not documents else []:
        print(f"\n{name}\n\n{markdown(getattr(tables, name)())}")
    left = dict(record["failed"])
    print("\n".join(f"not measured: {name}: {why}" for name, why in left.items()))


def filled(text, tables):
    return MARKED.sub(lambda match: f"{match[1]}\n{markdown(getattr(tables, match[2])())}\n\n", text)


if __name__ == "__main__":
    main()

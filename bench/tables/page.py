#!/usr/bin/env python3
"""Makes the page of tables and its pictures from a recorded file.

    bench/tables/page.py bench/results/tables-h200.json docs/results.md      # and docs/results-*.png
"""
import json
import pathlib
import sys

import rows as rows_of

METHODS = {"iterative": "FreeRide iterative", "imperative": "FreeRide imperative", "mps": "MPS", "naive": "naive"}
PARTS = [("running_ns", "running", "#2a7f62"), ("until_first_step_ns", "until the first step", "#f2b134"), ("between_steps_ns", "between steps", "#e07a1f"),
         ("after_last_step_ns", "after the last step", "#c44536"), ("no_step_fitted_ns", "no step fitted", "#8d5a97"), ("not_leased_ns", "not leased", "#8a8f98"),
         ("not_learned_ns", "not learned yet", "#c9cdd3")]


def number(value, digits=2, sign=False):
    return "–" if value is None else f"{value:{'+' if sign else ''}.{digits}f}"


def increase(row):
    if row["time_increase_pct"] is None:
        return "–"
    low, high = row["time_increase_ci95_pct"]
    return f"{row['time_increase_pct']:+.2f} ± {(high - low) / 2:.2f}"


def markdown(head, lines):
    return "\n".join(["| " + " | ".join(head) + " |", "|" + "---|" * len(head)] + ["| " + " | ".join(line) + " |" for line in lines])


def main_table(rows, price):
    lines = []
    for row in rows:
        if not row["method"]:
            continue
        paper = price["paper"].get(row["method"], {}).get(row["side_task"])
        budget = "off" if row["budget_pct"] is None else f"{row['budget_pct']:g} %"
        lines.append([row["side_task"], METHODS[row["method"]], f"{row['schedule']}, {row['micro_batches']}", budget if row["method"] in ("iterative", "imperative") else "–",
                      increase(row), number(row["cost_savings_pct"]), number(row["most_savings_pct"]), number(row["harvested_share_pct"], 1),
                      f"{paper[0]:g} / {paper[1]:g}" if paper else "–"])
    return markdown(["side task", "method", "schedule, micro-batches", "budget", "*I*, %", "*S*, %", "most *S* at *I* = 0, %", "harvested, %", "paper's *I* / *S*"], lines)


def throughput_table(rows):
    lines = []
    for row in rows:
        for rate in row["rates"]:
            share = 100 * rate["in_bubbles_per_s"] / rate["alone_per_s"] if rate["alone_per_s"] else None
            lines.append([rate["side_task"], METHODS[row["method"]], str(rate["stage"]), number(rate["in_bubbles_per_s"]), number(rate["alone_per_s"]), number(share, 1),
                          rate["unit"]])
    return markdown(["side task", "method", "stage", "beside training, /s", "alone on the device, /s", "share, %", "unit"], lines)


def bubble_table(record):
    lines = []
    for run in record["runs"]:
        for stage, seen in sorted(run["bubbles"].items()):
            length, overrun, edge = seen["lengths_quantiles_us"], seen["overruns_quantiles_us"], seen["edge_to_step_quantiles_us"]
            lines.append([label(run["cell"]), stage, number(seen["share_pct"], 1), str(seen["bubbles"]),
                          " / ".join(number(value / 1e3, 1) for value in length[:3]) or "–",
                          f"{edge[1]} / {edge[3]}" if edge else "–", f"{overrun[1]} / {overrun[3]}" if overrun else "–"])
    return markdown(["run", "stage", "bubble share, %", "bubbles", "length p5 / p50 / p95, ms", "edge to step p50 / p99, µs", "overrun p50 / p99, µs"], lines)


def label(cell):
    budget = "" if cell["budget_pct"] is None else f", budget {cell['budget_pct']:g} %"
    return f"{cell['side_task'] or 'none'}, {cell['method'] or 'none'}, {cell['schedule']} × {cell['micro_batches']}{budget}"


def pictures(record, rows, stem):
    """Writes the pictures; returns [(path, what it shows)]. None without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    made = []
    measured = [row for row in rows if row["time_increase_pct"] is not None and row["method"]]
    if measured:
        figure, axes = plt.subplots(figsize=(9, 0.7 + 0.34 * len(measured)), layout="constrained")
        colours = {"iterative": "#2a7f62", "imperative": "#5aa9e6", "mps": "#f2b134", "naive": "#c44536"}
        for index, row in enumerate(measured):
            low, high = row["time_increase_ci95_pct"]
            axes.barh(index, row["time_increase_pct"], color=colours[row["method"]], height=0.62)
            axes.plot([low, high], [index, index], color="black", linewidth=1.2)
        names = [f"{row['side_task']}, {METHODS[row['method']]}" + ("" if row["budget_pct"] is None else f", budget {row['budget_pct']:g} %") for row in measured]
        axes.set_yticks(range(len(measured)), names)
        axes.invert_yaxis()
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_xlabel("time increase I, % (line: 95 % interval)")
        axes.spines[["top", "right"]].set_visible(False)
        made.append((f"{stem}-increase.png", "Time increase of each run"))
        figure.savefig(made[-1][0], dpi=110)
    harvested = [run for run in record["runs"] if run["bubbles"]]
    if harvested:
        figure, axes = plt.subplots(figsize=(9, 1.3 + 0.34 * len(harvested)), layout="constrained")
        for index, run in enumerate(harvested):
            whole, left = sum(stage["offered_ns"] for stage in run["bubbles"].values()), 0.0
            for key, name, colour in PARTS:
                share = 100 * sum(stage[key] for stage in run["bubbles"].values()) / max(1, whole)
                axes.barh(index, share, left=left, color=colour, height=0.62, label=name if index == 0 else None)
                left += share
        axes.set_yticks(range(len(harvested)), [label(run["cell"]) for run in harvested])
        axes.invert_yaxis()
        axes.set_xlim(0, 100)
        axes.set_xlabel("share of the bubble time, %")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="lower center", bbox_to_anchor=(0.4, 1.0), ncols=4, frameon=False)
        made.append((f"{stem}-breakdown.png", "Where the bubble time went"))
        figure.savefig(made[-1][0], dpi=110)
    return made


def page(record, rows, price, made):
    about = f"{record['machine']}, {record['stages']} stages" + (f", driver {record['driver']}" if record["driver"] else "")
    versions = ", ".join(f"{name} {value}" for name, value in record["versions"].items() if value and value != "None")
    size = record["size"]
    lines = ["# Results", "", f"Generated by `bench/tables/page.py` from what this command recorded; do not edit.", "", f"    {record['command']}", "",
             f"{about}; {versions}; commit {record['commit']}; {record['date']}. A GPT of {size['layers']} layers, width {size['width']}, sequences of {size['length']}. "
             "*I*: time increase of training; *S*: cost savings (formulae: `bench/tables/rows.py`; prices: `bench/tables/prices.toml`). "
             "Blocks with and without side tasks take turns within one training, so that each *I* is of neighbouring pairs; ± is its 95 % interval.", ""]
    if record["low_tier"] == "alone":
        lines += ["**At this size the figures mean nothing:** it shows that the parts work. *S* counts the side tasks' rate alone on this machine as the low-tier GPU's.", ""]
    lines += ["## Time increase and cost savings", "", main_table(rows, price), ""]
    shown = {pathlib.Path(path).name: text for path, text in made}
    lines += [f"![{text}]({name})" for name, text in shown.items() if "increase" in name]
    lines += ["", "## Throughput of side tasks", "", throughput_table(rows), "", "## Bubbles", "", bubble_table(record), ""]
    lines += [f"![{text}]({name})" for name, text in shown.items() if "breakdown" in name]
    if record["failed"]:
        lines += ["", "## Not measured", ""] + [f"- {name}: {why}" for name, why in record["failed"].items()]
    return "\n".join(lines).rstrip() + "\n"


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: page.py RECORDED.json PAGE.md")
    record, target = json.loads(pathlib.Path(sys.argv[1]).read_text()), pathlib.Path(sys.argv[2])
    target.parent.mkdir(parents=True, exist_ok=True)
    rows, price = record["rows"], rows_of.prices()
    target.write_text(page(record, rows, price, pictures(record, rows, str(target.with_suffix("")))))
    print(target)


if __name__ == "__main__":
    main()

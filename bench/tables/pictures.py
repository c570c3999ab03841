"""The tables' pictures, with matplotlib."""

import pathlib

from labels import label, schedule, trainings

COLOURS = {"iterative": "#2a7f62", "imperative": "#5aa9e6", "mps": "#f2b134", "naive": "#c44536"}
PARTS = [
    ("running_ns", "running", "#2a7f62"),
    ("until_first_step_ns", "until the first step", "#f2b134"),
    ("between_steps_ns", "between steps", "#e07a1f"),
    ("after_last_step_ns", "after the last step", "#c44536"),
    ("no_step_fitted_ns", "no step fitted", "#8d5a97"),
    ("not_leased_ns", "not leased", "#8a8f98"),
    ("not_learned_ns", "not learned yet", "#c9cdd3"),
]


def all_of(tables, stem):
    """Writes the pictures; returns their paths."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "savefig.dpi": 110})
    import matplotlib.pyplot as plt

    made = []
    for draw in (increase, breakdown, shapes):
        figure = draw(plt, tables)
        if figure is not None:
            made.append(pathlib.Path(f"{stem}-{draw.__name__}.png"))
            figure.savefig(made[-1])
            plt.close(figure)
    return made


def increase(plt, tables):
    """The time increase of each run."""
    measured = [row for row in tables.usual if row["time_increase_pct"] is not None]
    groups = [
        sorted(
            (row for row in measured if row["method"] in of), key=lambda row: (row["method"], str(row["budget_pct"]))
        )
        for of in (("iterative", "imperative"), ("mps", "naive"))
    ]
    groups = [group for group in groups if group]
    if not groups:
        return None
    figure, parts = plt.subplots(
        len(groups), figsize=(9, 1.2 + 0.3 * len(measured)), layout="constrained", squeeze=False,
        height_ratios=[len(group) + 1 for group in groups],
    )  # fmt: skip
    for axes, group in zip(parts[:, 0], groups):
        for index, row in enumerate(group):
            axes.barh(index, row["time_increase_pct"], color=COLOURS[row["method"]], height=0.62)
            axes.plot(row["time_increase_ci95_pct"], [index, index], color="black", linewidth=1.2)
        axes.set_yticks(range(len(group)), [label(row) for row in group])
        axes.set_ylim(len(group) - 0.4, -0.6)
        axes.axvline(0, color="black", linewidth=0.8)
    parts[-1, 0].set_xlabel("time increase I, % (line: 95 % interval)")
    return figure


def breakdown(plt, tables):
    """Where the bubble time went."""
    harvested = [run for run in tables.record["runs"] if run["bubbles"]]
    if not harvested:
        return None
    figure, axes = plt.subplots(figsize=(9, 1.3 + 0.3 * len(harvested)), layout="constrained")
    for index, run in enumerate(harvested):
        whole, left = sum(stage["offered_ns"] for stage in run["bubbles"].values()), 0.0
        for key, name, colour in PARTS:
            share = 100 * sum(stage[key] for stage in run["bubbles"].values()) / max(1, whole)
            axes.barh(index, share, left=left, color=colour, height=0.62, label=name if index == 0 else None)
            left += share
    axes.set_yticks(range(len(harvested)), [label(run["cell"]) for run in harvested])
    axes.set(ylim=(len(harvested) - 0.4, -0.6), xlim=(0, 100), xlabel="share of the bubble time, %")
    axes.legend(loc="lower right", bbox_to_anchor=(1.02, 1.0), ncols=4, frameon=False)
    return figure


def shapes(plt, tables):
    """The bubbles of an iteration, of each training."""
    found = trainings(tables.record)
    if not found:
        return None
    size = (9, 0.6 + 1.1 * len(found))
    figure, parts = plt.subplots(len(found), figsize=size, layout="constrained", squeeze=False)
    iteration_ms = {(row["size"], schedule(row)): row["iteration_ms"] for row in tables.rows}
    for axes, (training, run) in zip(parts[:, 0], found.items()):
        for stage, seen in run["bubbles"].items():
            bars = [(begin, length) for _, begin, length in seen["waits_ms"]]
            axes.broken_barh(bars, (int(stage) - 0.35, 0.7), color=COLOURS["iterative"])
        axes.set_yticks(range(len(run["bubbles"])), [f"stage {stage}" for stage in sorted(run["bubbles"])], fontsize=7)
        axes.set_xlim(0, iteration_ms.get(training) or None)
        axes.invert_yaxis()
        axes.set_title(f"{training[0]}: {training[1]} micro-batches", fontsize=8, loc="left")
    parts[-1, 0].set_xlabel("ms since the stage's iteration began (bars: bubbles, medians)")
    return figure

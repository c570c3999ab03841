"""The page's pictures, with matplotlib."""

import labels

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


def all_of(record, rows, stem):
    """Writes the pictures; returns [(path, what it shows)]. None without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "savefig.dpi": 110})
    import matplotlib.pyplot as plt

    made = []
    for name, text, draw in (
        ("glance", "Time increase and cost savings by method", glance),
        ("increase", "Time increase of each run", increase),
        ("frontier", "Time increase and cost savings by budget", frontier),
        ("breakdown", "Where the bubble time went", breakdown),
        ("shapes", "Bubbles of an iteration", shapes),
        ("limits", "The two limits", limits),
    ):
        figure = draw(plt, record, rows)
        if figure is not None:
            made.append((f"{stem}-{name}.png", text))
            figure.savefig(made[-1][0])
            plt.close(figure)
    return made


def glance(plt, record, rows):
    found = labels.glance([row for row in rows if labels.plain(row)])
    methods = [(method, name) for method, _, name in labels.GLANCE if any(key[0] == method for key in found)]
    tasks = list(dict.fromkeys(task for _, task in found))
    if len(methods) < 2:
        return None
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(9.5, 1.6 + 0.42 * len(tasks)), layout="constrained", sharey=True
    )
    for index, (method, name) in enumerate(methods):
        for at, task in enumerate(tasks):
            row = found.get((method, task))
            if row is None:
                continue
            place = at + 0.16 * (index - (len(methods) - 1) / 2)
            low, high = row["time_increase_ci95_pct"]
            left.plot([max(low, 0), max(high, 0)], [place, place], color=COLOURS[method], linewidth=1.4)
            left.plot(
                max(row["time_increase_pct"], 0),
                place,
                "o",
                color=COLOURS[method],
                markersize=5,
                label=name if at == 0 else None,
                clip_on=False,
            )
            if labels.counts_work(row):
                right.plot(row["cost_savings_pct"], place, "o", color=COLOURS[method], markersize=5)
    left.set_xscale("symlog", linthresh=1, linscale=1)
    left.set_xlim(0)
    left.set_xticks([0, 0.5, 1, 10, 100], ["0", "0.5", "1", "10", "100"])
    left.set_xlabel("time increase I, % (line: 95 % interval)")
    right.set_xscale("symlog", linthresh=10, linscale=0.6)
    right.axvline(0, color="black", linewidth=0.8)
    right.set_xticks([-50, -10, 0, 10, 100, 1000], ["-50", "-10", "0", "10", "100", "1000"])
    right.set_xlabel("cost savings S, %")
    left.set_yticks(range(len(tasks)), tasks)
    left.invert_yaxis()
    for axes in (left, right):
        axes.grid(axis="x", linewidth=0.4, alpha=0.5)
        axes.minorticks_off()
    figure.get_layout_engine().set(rect=(0, 0, 1, 0.92))
    figure.legend(loc="upper center", ncols=len(methods), frameon=False)
    return figure


def increase(plt, record, rows):
    measured = [row for row in rows if row["time_increase_pct"] is not None and labels.plain(row)]
    if not measured:
        return None
    groups = [
        [row for row in measured if row["method"] in ("iterative", "imperative")],
        [row for row in measured if row["method"] in ("mps", "naive")],
    ]
    groups = [sorted(group, key=lambda row: (row["method"], str(row["budget_pct"]))) for group in groups if group]
    figure, parts = plt.subplots(
        len(groups),
        figsize=(9, 1.2 + 0.3 * len(measured)),
        layout="constrained",
        squeeze=False,
        height_ratios=[len(group) + 1 for group in groups],
    )
    for axes, group in zip(parts[:, 0], groups):
        for index, row in enumerate(group):
            axes.barh(index, row["time_increase_pct"], color=COLOURS[row["method"]], height=0.62)
            axes.plot(row["time_increase_ci95_pct"], [index, index], color="black", linewidth=1.2)
        axes.set_yticks(
            range(len(group)),
            [
                f"{row['side_task']}, {labels.METHODS[row['method']]}"
                + ("" if row["budget_pct"] is None else f", budget {labels.budget_name(row)}")
                for row in group
            ],
        )
        axes.set_ylim(len(group) - 0.4, -0.6)
        axes.axvline(0, color="black", linewidth=0.8)
    parts[-1, 0].set_xlabel("time increase I, % (line: 95 % interval)")
    return figure


def frontier(plt, record, rows):
    lines = {}
    for row in rows:
        if row["method"] == "iterative" and labels.plain(row) and row["time_increase_pct"] is not None:
            lines.setdefault(row["side_task"], []).append(row)
    lines = {task: points for task, points in lines.items() if len(points) > 1}
    if not lines:
        return None
    figure, axes = plt.subplots(figsize=(9, 5.2), layout="constrained")
    for task, points in lines.items():
        points.sort(key=lambda row: row["time_increase_pct"])
        (line,) = axes.plot(
            [row["time_increase_pct"] for row in points],
            [row["cost_savings_pct"] for row in points],
            marker="o",
            label=task,
        )
        for row in points:
            low, high = row["time_increase_ci95_pct"]
            axes.plot([low, high], [row["cost_savings_pct"]] * 2, color=line.get_color(), linewidth=0.8, alpha=0.5)
            axes.annotate(
                labels.budget_name(row),
                (row["time_increase_pct"], row["cost_savings_pct"]),
                textcoords="offset points",
                xytext=(5, 4),
                fontsize=7,
                color=line.get_color(),
            )
    axes.set_xlabel("time increase I, % (line: 95 % interval)")
    axes.set_ylabel("cost savings S, %")
    if all(row["cost_savings_pct"] > 0 for points in lines.values() for row in points):
        axes.set_yscale("log")
    axes.axvline(0, color="black", linewidth=0.8)
    axes.legend(frameon=False)
    return figure


def breakdown(plt, record, rows):
    harvested = [run for run in record["runs"] if run["bubbles"]]
    if not harvested:
        return None
    figure, axes = plt.subplots(figsize=(9, 1.3 + 0.3 * len(harvested)), layout="constrained")
    for index, run in enumerate(harvested):
        whole, left = sum(stage["offered_ns"] for stage in run["bubbles"].values()), 0.0
        for key, name, colour in PARTS:
            share = 100 * sum(stage[key] for stage in run["bubbles"].values()) / max(1, whole)
            axes.barh(index, share, left=left, color=colour, height=0.62, label=name if index == 0 else None)
            left += share
    axes.set_yticks(range(len(harvested)), [labels.label(run["cell"]) for run in harvested])
    axes.set_ylim(len(harvested) - 0.4, -0.6)
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of the bubble time, %")
    axes.legend(loc="lower right", bbox_to_anchor=(1.02, 1.0), ncols=4, frameon=False)
    return figure


def shapes(plt, record, rows):
    trainings = labels.phases(record)
    if not trainings:
        return None
    figure, parts = plt.subplots(
        len(trainings), figsize=(9, 0.6 + 1.1 * len(trainings)), layout="constrained", squeeze=False
    )
    iteration_ms = {(row["size"], f"{row['schedule']}, {row['micro_batches']}"): row["iteration_ms"] for row in rows}
    for axes, (phase, run) in zip(parts[:, 0], trainings.items()):
        for stage, seen in run["bubbles"].items():
            axes.broken_barh(
                [(begin, length) for _, begin, length in seen["waits_ms"]],
                (int(stage) - 0.35, 0.7),
                color=COLOURS["iterative"],
            )
        axes.set_yticks(range(len(run["bubbles"])), [f"stage {stage}" for stage in sorted(run["bubbles"])], fontsize=7)
        axes.set_xlim(0, iteration_ms.get(phase) or None)
        axes.invert_yaxis()
        axes.set_title(f"{phase[0]}: {phase[1]} micro-batches", fontsize=8, loc="left")
    parts[-1, 0].set_xlabel("ms since the stage's iteration began (bars: bubbles, medians)")
    return figure


def limits(plt, record, rows):
    demos = record.get("demos")
    if not demos:
        return None
    figure, parts = plt.subplots(
        2, len(demos), figsize=(5 * len(demos), 4.6), layout="constrained", squeeze=False, height_ratios=[1, 1.2]
    )
    for (upper, lower), demo in zip(parts.T, demos):

        def seconds(ns, begin=demo["begin_ns"]):
            return (ns - begin) / 1e9

        end = seconds(demo["end_ns"])
        for first, last, leased, side_begin, side_end, overrun in demo["bubbles"]:
            if leased:
                upper.broken_barh(
                    [(seconds(first), seconds(last) - seconds(first))], (0.6, 0.8), color=COLOURS["imperative"]
                )
            if side_begin:
                until = max(side_end, side_begin)
                upper.broken_barh(
                    [(seconds(side_begin), seconds(until) - seconds(side_begin))],
                    (-0.4, 0.8),
                    color=COLOURS["iterative"],
                )
            if overrun:
                upper.broken_barh([(seconds(last), overrun / 1e9)], (-0.4, 0.8), color=COLOURS["naive"])
        upper.set_yticks([0, 1], ["steps, overrun (red)", "leases"])
        upper.set_title(f"{demo['what']}: {demo['verdict']['kind']}", fontsize=9, loc="left")
        lower.plot(
            [seconds(last) for _, last in demo["iterations"]],
            [(last - first) / 1e6 for first, last in demo["iterations"]],
            color="black",
            marker=".",
            linewidth=0.8,
        )
        lower.set_ylabel("training's iteration, ms")
        lower.set_ylim(0)
        if "memory" in demo["what"] and demo["bytes"]:
            right = lower.twinx()
            right.plot(
                [seconds(at) for at, _ in demo["bytes"]],
                [used / 2**30 for _, used in demo["bytes"]],
                color=COLOURS["mps"],
            )
            right.set_ylabel("memory, GiB", color=COLOURS["mps"])
            right.set_ylim(0)
        for axes in (upper, lower):
            axes.axvline(end, color=COLOURS["naive"], linestyle="--", linewidth=1)
        lower.set_xlabel("s (dashed: its verdict)")
        last = seconds(demo["iterations"][-1][1] if demo["iterations"] else demo["end_ns"])
        # All of it where memory grows; else the end, where leases and steps can be told apart.
        upper.set_xlim(0 if "memory" in demo["what"] else max(0, end - 1.5), last)
        lower.set_xlim(upper.get_xlim())
    return figure

"""Draws a profile (JSON on the standard input) into the PNG that the first argument names. With --check in its place: only says whether it could."""

import sys

sys.path[:] = [path for path in sys.path if path]  # no module out of the folder that the user happens to be in
NO_MATPLOTLIB, CANNOT = 3, 4
DARK, LIGHT, ACCENT, GREEN = "#34557a", "#e3e7ec", "#f08c2e", "#3d8f6f"


def unit(values, units):
    """(factor, name) of the largest unit in which the largest value is not below 1."""
    largest = max(values, default=0)
    return next(((factor, name) for factor, name in units if largest >= factor), units[-1])


TIMES = [(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns")]
SIZES = [(2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes")]


def text(value, units):
    factor, name = unit([value], units)
    return f"{value / factor:.3g} {name}"


def quiet(axes):
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def legend(axes, place):
    axes.legend(fontsize=8, loc=place, framealpha=0.9, edgecolor="none").set_zorder(5)


def nothing(axes, why):
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_visible(False)
    axes.text(0.5, 0.5, why, ha="center", va="center", color=DARK, transform=axes.transAxes)


def histogram(axes, profile):
    steps, durations = profile["steps"], profile["step_ns"]
    axes.set_title("how long a step is", loc="left", fontsize=10)
    if not durations:
        return nothing(axes, "no step was made")
    factor, name = unit([steps["p50_ns"]], TIMES)
    shown = [value / factor for value in durations]
    # Without the few outliers that would press the rest into one bar; they are named.
    cut = max(steps["p99_ns"], 3 * steps["p50_ns"]) / factor
    inside = [value for value in shown if value <= cut]
    axes.hist(inside, bins=min(40, max(8, len(inside) // 4)), color=DARK)
    top = axes.get_ylim()[1]
    axes.set_ylim(0, top * 1.22)
    for quantile, colour in (("p50", GREEN), ("p90", ACCENT), ("p99", "#b03a3a")):
        at = steps[f"{quantile}_ns"]
        axes.axvline(at / factor, color=colour, linewidth=1.5, label=f"{quantile} {text(at, TIMES)}")
    outside = len(shown) - len(inside)
    if outside:
        axes.plot([], [], " ", label=f"{outside} beyond, max {text(steps['max_ns'], TIMES)}")
    legend(axes, "upper right")
    axes.set_xlabel(name)
    axes.set_ylabel("steps")
    quiet(axes)


def in_time(axes, profile):
    durations = profile["step_ns"]
    axes.set_title("step after step", loc="left", fontsize=10)
    if not durations:
        return nothing(axes, "no step was made")
    factor, name = unit([profile["steps"]["p50_ns"]], TIMES)
    axes.plot(range(1, len(durations) + 1), [value / factor for value in durations], ".", color=DARK, markersize=4)
    axes.axhline(profile["steps"]["p90_ns"] / factor, color=ACCENT, linewidth=1, label="p90")
    axes.set_ylim(0, max(durations) / factor * 1.15)
    legend(axes, "lower right")
    axes.set_xlabel("step")
    axes.set_ylabel(name)
    quiet(axes)


def memory(axes, profile):
    axes.set_title("memory, and the most of it", loc="left", fontsize=10)
    peaks = profile["peak_bytes"]
    size, name = unit(peaks.values(), SIZES)
    seconds = [t / 1e9 for t in profile["memory_t_ns"]]
    for where, colour in (("host", DARK), ("gpu", ACCENT)):
        if where not in peaks:
            continue
        looks = profile[f"{where}_bytes"]
        if looks:
            axes.plot(
                seconds[: len(looks)],
                [value / size for value in looks],
                color=colour,
                linewidth=1.8,
                marker="o" if len(looks) < 8 else None,
                markersize=3,
            )
        axes.axhline(
            peaks[where] / size,
            color=colour,
            linestyle=":",
            linewidth=1.5,
            label=f"{where}: {text(peaks[where], SIZES)}",
        )
    axes.set_ylim(0, max(list(peaks.values()) + [1]) / size * 1.25)
    axes.set_xlim(left=0)
    legend(axes, "lower right")
    axes.set_xlabel("s since CreateSideTask")
    axes.set_ylabel(name)
    quiet(axes)


def parts(axes, profile):
    """Pieces and transitions: p50 to p99, and the longest."""

    def once(value):
        return {"p50_ns": value, "p90_ns": value, "p99_ns": value, "max_ns": value, "count": 1 if value else 0}

    rows = [
        ("CreateSideTask", once(profile["create_ns"])),
        ("InitSideTask", once(profile["init_ns"])),
        ("StartSideTask", profile["starts"]),
        ("RunNextStep", profile["steps"]),
    ]
    pieces = profile["pieces"]
    shown = pieces[:12]
    rows += [(f"piece {number}", piece) for number, piece in enumerate(shown, 1)]
    rows += [("PauseSideTask", profile["pauses"]), ("StopSideTask", once(profile["stop_ns"]))]
    rows = [(name, spread) for name, spread in rows if spread["count"]]
    more = len(pieces) - len(shown)
    axes.set_title(
        "each part: p50 to p99, its longest" + (f" ({more} more pieces)" if more else ""), loc="left", fontsize=10
    )
    if not rows:
        return nothing(axes, "nothing was measured")
    for row, (name, spread) in enumerate(rows):
        low, middle, high = (max(1, spread[key]) / 1e6 for key in ("p50_ns", "p99_ns", "max_ns"))
        colour = GREEN if name.startswith("piece") else DARK
        axes.plot([low, middle], [row, row], color=colour, linewidth=6, solid_capstyle="butt", alpha=0.55)
        axes.plot([low], [row], "|", color=colour, markersize=11, markeredgewidth=2)
        axes.plot([high], [row], "o", color=ACCENT, markersize=3.5)
        axes.annotate(
            text(spread["p50_ns"], TIMES),
            (high, row),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=DARK,
        )
    axes.set_xscale("log")
    left, right = axes.get_xlim()
    axes.set_xlim(left, right * (right / left) ** 0.16)  # room for the last label
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value * 1e6, TIMES)))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(range(len(rows)))
    axes.set_yticklabels([name for name, _ in rows], fontsize=8)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8)
    axes.grid(axis="x", color=LIGHT)
    axes.set_axisbelow(True)
    quiet(axes)
    axes.spines["left"].set_visible(False)


def draw(path, profile, pyplot):
    figure, grid = pyplot.subplots(2, 2, figsize=(11, 7.2), dpi=120, gridspec_kw={"hspace": 0.42, "wspace": 0.28})
    histogram(grid[0][0], profile)
    in_time(grid[0][1], profile)
    memory(grid[1][0], profile)
    parts(grid[1][1], profile)
    conditions = "on an idle device" if profile["conditions"] == "idle" else "in a training's bubbles"
    params = ", ".join(f"{key}={value}" for key, value in profile["params"].items())
    figure.suptitle(
        f"{profile['plugin']}"
        + (f" ({params[:70]})" if params else "")
        + f": {profile['steps']['count']} steps {conditions}, "
        f"{profile['device_model']}",
        x=0.125,
        y=0.95,
        ha="left",
        fontsize=11,
    )
    figure.savefig(path, bbox_inches="tight")


def main():
    try:
        import matplotlib

        matplotlib.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return NO_MATPLOTLIB
    if sys.argv[1] == "--check":
        return 0
    import json

    try:
        draw(sys.argv[1], json.load(sys.stdin), pyplot)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return CANNOT
    return 0


sys.exit(main())

"""Draws a few iterations of a run: a row per stage, compute, bubbles, and the side tasks inside the bubbles."""

TRAINING, BUBBLES, SIDE_TASKS = range(3)  # tracks of a stage
COMPUTE, BUBBLE, SIDE = "#34557a", "#dfe3e8", "#f08c2e"
WINDOW_ITERATIONS = 4


def spans(events):
    """(stage, track, begin_ns, end_ns, whether it is of a baseline iteration) of everything that lasted."""
    for topic, event in events:
        kind = topic.split("/", 1)[0]
        if kind not in ("training.iteration", "bubble.end"):
            continue
        track = TRAINING if kind == "training.iteration" else BUBBLES
        yield event["stage"], track, event["begin_ns"], event["end_ns"], event["holdout"]
        if track == BUBBLES and event.get("side_begin_ns"):
            yield event["stage"], SIDE_TASKS, event["side_begin_ns"], event["side_end_ns"], event["holdout"]


def choose_window(events):
    """(begin_ns, end_ns) of a few iterations of stage 0: a held-out one and then harvested ones, if there is such a
    place. Where all are harvested best, so that it shows how it is meant to be, and says nothing about how often."""
    iterations = sorted(
        (e for t, e in events if t.startswith("training.iteration/") and e["stage"] == 0), key=lambda e: e["begin_ns"]
    )
    if not iterations:
        return None
    best, best_share = max(0, len(iterations) - WINDOW_ITERATIONS), 0.0
    for first in range(len(iterations) - WINDOW_ITERATIONS + 1):
        window = iterations[first : first + WINDOW_ITERATIONS]
        if [e["holdout"] for e in window] != [True] + [False] * (WINDOW_ITERATIONS - 1):
            continue
        # The share of the one that was harvested least: a picture of a whole window, not of one good bubble.
        share = min(e["harvested_ns"] / max(1, e["bubble_ns"]) for e in window[1:])
        if share >= best_share:
            best, best_share = first, share
    window = iterations[best : best + WINDOW_ITERATIONS]
    return window[0]["begin_ns"], window[-1]["end_ns"]


def draw(path, events):
    """Writes a PNG. Returns False, and writes nothing, when there is nothing to draw."""
    window = choose_window(events)
    if window is None:
        return False
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    begin_ns, end_ns = window
    bars = {TRAINING: [], BUBBLES: [], SIDE_TASKS: []}
    held_out = []
    for stage, track, first, last, holdout in spans(events):
        first, last = max(first, begin_ns), min(last, end_ns)
        if last <= first:
            continue
        bars[track].append((stage, (first - begin_ns) / 1e6, (last - first) / 1e6))
        if track == TRAINING and holdout:
            held_out.append((stage, (first - begin_ns) / 1e6, (last - begin_ns) / 1e6))
    stages = sorted({bar[0] for bar in bars[TRAINING]})
    figure, axes = pyplot.subplots(figsize=(12, 1.0 + 0.75 * len(stages)), dpi=120)
    for track, colour, height in ((TRAINING, COMPUTE, 0.7), (BUBBLES, BUBBLE, 0.7), (SIDE_TASKS, SIDE, 0.45)):
        for stage, left, width in bars[track]:
            axes.barh(stages.index(stage), width, left=left, height=height, color=colour, linewidth=0)
    # Row by row: stages do not begin an iteration at the same time.
    for stage, left, right in held_out:
        axes.barh(
            stages.index(stage),
            right - left,
            left=left,
            height=0.7,
            fill=False,
            hatch="///",
            edgecolor="#c6cdd6",
            alpha=0.5,
            linewidth=0,
        )
        if stage == stages[0]:
            axes.annotate(
                "baseline: no side tasks",
                ((left + right) / 2, -0.45),
                ha="center",
                va="bottom",
                fontsize=8,
                color="#5a6570",
            )
    axes.set_yticks(range(len(stages)))
    axes.set_yticklabels([f"stage {stage}" for stage in stages])
    axes.set_ylim(len(stages) - 0.45, -0.75)
    axes.set_xlim(0, (end_ns - begin_ns) / 1e6)
    axes.set_xlabel("ms")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.legend(
        handles=[
            Patch(color=COMPUTE, label="training"),
            Patch(color=BUBBLE, label="bubble"),
            Patch(color=SIDE, label="side task"),
        ],
        loc="upper center",
        bbox_to_anchor=(0.5, -0.08 - 0.3 / len(stages)),
        ncol=3,
        frameon=False,
    )
    figure.savefig(path, bbox_inches="tight")
    pyplot.close(figure)
    return True

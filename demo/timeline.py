"""Draws a few iterations of a run: a row per stage, compute, bubbles, and the side tasks inside the bubbles."""
import chrome_trace

COMPUTE, BUBBLE, SIDE = "#34557a", "#dfe3e8", "#f08c2e"
WINDOW_ITERATIONS = 4


def choose_window(events):
    """(begin_ns, end_ns) of a few iterations of stage 0: where a held-out one meets harvested ones, late in the run, if there is such a place."""
    iterations = sorted((e for t, e in events if t.startswith("training.iteration/") and e["stage"] == 0), key=lambda e: e["begin_ns"])
    if not iterations:
        return None
    best = max(0, len(iterations) - WINDOW_ITERATIONS)
    for first in range(max(0, len(iterations) - WINDOW_ITERATIONS), -1, -1):
        window = iterations[first:first + WINDOW_ITERATIONS]
        held_out = [e["holdout"] for e in window]
        if held_out[0] and not any(held_out[1:]) and all(e["harvested_ns"] > 0 for e in window[1:]):
            best = first
            break
    window = iterations[best:best + WINDOW_ITERATIONS]
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
    bars = {chrome_trace.TRAINING: [], chrome_trace.BUBBLES: [], chrome_trace.SIDE_TASKS: []}
    held_out = []
    for stage, track, name, first, last, details in chrome_trace.spans(events):
        first, last = max(first, begin_ns), min(last, end_ns)
        if last <= first:
            continue
        bars[track].append((stage, (first - begin_ns) / 1e6, (last - first) / 1e6))
        if track == chrome_trace.TRAINING and details["holdout"] and stage == 0:
            held_out.append(((first - begin_ns) / 1e6, (last - begin_ns) / 1e6))
    stages = sorted({bar[0] for bar in bars[chrome_trace.TRAINING]})
    figure, axes = pyplot.subplots(figsize=(12, 1.0 + 0.75 * len(stages)), dpi=120)
    for track, colour, height in ((chrome_trace.TRAINING, COMPUTE, 0.7), (chrome_trace.BUBBLES, BUBBLE, 0.7),
                                  (chrome_trace.SIDE_TASKS, SIDE, 0.45)):
        for stage, left, width in bars[track]:
            axes.barh(stages.index(stage), width, left=left, height=height, color=colour, linewidth=0)
    for left, right in held_out:
        axes.axvspan(left, right, facecolor="none", hatch="///", edgecolor="#9aa5b1", alpha=0.35, linewidth=0)
        axes.annotate("held out: no side tasks", ((left + right) / 2, -0.52), ha="center", va="bottom", fontsize=8, color="#5a6570")
    axes.set_yticks(range(len(stages)))
    axes.set_yticklabels([f"stage {stage}" for stage in stages])
    axes.set_ylim(len(stages) - 0.45, -0.75)
    axes.set_xlim(0, (end_ns - begin_ns) / 1e6)
    axes.set_xlabel("ms")
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.legend(handles=[Patch(color=COMPUTE, label="training"), Patch(color=BUBBLE, label="bubble"), Patch(color=SIDE, label="side task")],
                loc="upper center", bbox_to_anchor=(0.5, -0.08 - 0.3 / len(stages)), ncol=3, frameon=False)
    figure.savefig(path, bbox_inches="tight")
    pyplot.close(figure)
    return True

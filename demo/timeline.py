"""Draws a few iterations of a run: a row per stage, compute, bubbles, and the side tasks inside the bubbles."""

TRAINING, BUBBLES, SIDE_TASKS = range(3)  # tracks of a stage
COLOURS = ("#34557a", "#dfe3e8", "#f08c2e")  # of the tracks
WINDOW_ITERATIONS = 4
LEFT, TOP, WIDTH, ROW = 70, 30, 1000, 48
PICTURE = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13" fill="#333">
<pattern id="baseline" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
<path d="M0 0V8" stroke="#c6cdd6" stroke-opacity="0.6"/></pattern>
<rect width="100%" height="100%" fill="#fff"/>
{drawn}
</svg>
"""


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
    """Writes an SVG. Returns False, and writes nothing, when there is nothing to draw."""
    window = choose_window(events)
    if window is None:
        return False
    begin_ns, end_ns = window
    shown = sorted(  # a track over the one before it
        (
            (track, stage, max(first, begin_ns), min(last, end_ns), holdout)
            for stage, track, first, last, holdout in spans(events)
            if min(last, end_ns) > max(first, begin_ns)
        )
    )
    rows = {stage: TOP + number * ROW for number, stage in enumerate(sorted({span[1] for span in shown}))}
    bottom = TOP + len(rows) * ROW

    def x_of(ns):
        return LEFT + WIDTH * (ns - begin_ns) / (end_ns - begin_ns)

    def bar(first, last, y, height, look):
        return f'<rect x="{x_of(first):.2f}" y="{y}" width="{x_of(last) - x_of(first):.2f}" height="{height}" {look}/>'

    def text(x, y, said, look=""):
        return f'<text x="{x:.1f}" y="{y}" {look}>{said}</text>'

    drawn = [text(LEFT - 8, y + 29, f"stage {stage}", 'text-anchor="end"') for stage, y in rows.items()]
    for track, stage, first, last, _ in shown:
        margin = 10 if track == SIDE_TASKS else 4
        drawn.append(bar(first, last, rows[stage] + margin, ROW - 2 * margin, f'fill="{COLOURS[track]}"'))
    # Row by row: stages do not begin an iteration at the same time.
    for track, stage, first, last, holdout in shown:
        if track == TRAINING and holdout:
            drawn.append(bar(first, last, rows[stage] + 4, ROW - 8, 'fill="url(#baseline)"'))
            if rows[stage] == TOP:
                middle = (x_of(first) + x_of(last)) / 2
                drawn.append(text(middle, TOP - 6, "baseline: no side tasks", 'text-anchor="middle"'))
    for share in (0, 0.25, 0.5, 0.75, 1):
        ms = share * (end_ns - begin_ns) / 1e6
        drawn.append(text(LEFT + share * WIDTH, bottom + 18, f"{ms:.0f} ms", 'text-anchor="middle"'))
    for number, (colour, name) in enumerate(zip(COLOURS, ("training", "bubble", "side task"))):
        x = LEFT + 130 * number
        drawn.append(f'<rect x="{x}" y="{bottom + 34}" width="12" height="12" fill="{colour}"/>')
        drawn.append(text(x + 18, bottom + 45, name))
    path.write_text(PICTURE.format(width=LEFT + WIDTH + 40, height=bottom + 60, drawn="\n".join(drawn)))
    return True

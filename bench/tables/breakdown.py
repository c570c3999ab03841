"""What the worker's events say of the bubbles of one cell."""

import statistics

SUMS = """bubbles offered_ns running_ns until_first_step_ns after_last_step_ns between_steps_ns no_step_fitted_ns
    not_leased_ns not_learned_ns"""
LISTS = ("lengths_us", "overruns_us", "edge_to_step_us")


def bubble_breakdown(events):
    """By stage: where the bubbles' time went. `events`: bubble.end of iterations that were not held out."""
    stages = {}
    for event in events:
        stage = stages.setdefault(str(event["stage"]), dict.fromkeys(SUMS.split(), 0) | {key: [] for key in LISTS})
        length = event["end_ns"] - event["begin_ns"]
        stage["bubbles"] += 1
        stage["offered_ns"] += length
        stage["lengths_us"].append(length // 1000)
        if not event["leased"]:
            stage["not_leased_ns" if event["learned_ns"] else "not_learned_ns"] += length
            continue
        stage["overruns_us"].append(event["overrun_ns"] // 1000)
        if not event["side_begin_ns"]:
            stage["no_step_fitted_ns"] += length
            continue
        head = min(length, max(0, event["side_begin_ns"] - event["begin_ns"]))
        tail = max(0, event["end_ns"] - event["side_end_ns"])
        running = min(event["harvested_ns"], length)
        stage["edge_to_step_us"].append(head // 1000)
        stage["running_ns"] += running
        stage["until_first_step_ns"] += head
        stage["after_last_step_ns"] += tail
        stage["between_steps_ns"] += max(0, length - running - head - tail)
    for stage in stages.values():
        for key in LISTS:
            values = sorted(stage.pop(key))
            stage[key.replace("_us", "_quantiles_us")] = (
                [values[min(len(values) - 1, int(q * len(values)))] for q in (0.05, 0.5, 0.95, 0.99)] if values else []
            )
    return stages


def shapes(events):
    """By stage: [wait, when in the iteration it begins, how long it is], medians in ms. `events`: bubble.end, with
    iteration_ns, the begin of their iteration."""
    waits = {}
    for event in events:
        if event.get("iteration_ns") and not event.get("phase"):  # of an idle phase, wait is no place
            waits.setdefault((str(event["stage"]), event["wait"]), []).append(
                (event["begin_ns"] - event["iteration_ns"], event["end_ns"] - event["begin_ns"])
            )
    stages = {}
    for (stage, wait), seen in sorted(waits.items()):
        stages.setdefault(stage, []).append(
            [wait] + [round(statistics.median(one[part] for one in seen) / 1e6, 2) for part in (0, 1)]
        )
    return stages


def kinds(events):
    """Iteration number to whether side tasks might run in it: True, False (held out), or None where the stages
    disagree, since a plan comes late somewhere."""
    said = {}
    for event in events:
        said.setdefault(event["iteration"], set()).add(event["holdout"])
    return {number: (not holdout.pop() if len(holdout) == 1 else None) for number, holdout in said.items()}


def shift(lines, events):
    """By how much the workers' numbers of iterations are ahead of the training's, told by when they ended. `events`:
    training.iteration of its rank 0."""
    ends = {event["iteration"]: event["end_ns"] for event in events}

    def distance(by):
        found = [abs(ends[line["iteration"] + by] - line["end_ns"]) for line in lines if line["iteration"] + by in ends]
        return statistics.median(found) if len(found) >= 3 else float("inf")

    return min((0, -1, 1, -2, 2), key=distance)

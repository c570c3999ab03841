"""Makes a Chrome trace (opens in Perfetto) of recorded events: one process a stage, with iterations, bubbles and
side-task spans."""

import json

TRAINING, BUBBLES, SIDE_TASKS = 1, 2, 3  # thread numbers within a stage
TRACKS = {TRAINING: "training", BUBBLES: "bubbles", SIDE_TASKS: "side tasks"}


def spans(events):
    """(stage, track, name, begin_ns, end_ns, details) of everything that lasted."""
    for topic, event in events:
        kind = topic.split("/", 1)[0]
        if kind == "training.iteration":
            name = f"iteration {event['iteration']}" + (" (held out)" if event["holdout"] else "")
            details = {key: event[key] for key in ("iteration", "holdout", "bubble_ns", "harvested_ns")}
            yield event["stage"], TRAINING, name, event["begin_ns"], event["end_ns"], details
        elif kind == "bubble.end":
            name = f"bubble {event['type']}".strip() + (" (held out)" if event["holdout"] else "")
            details = {
                key: event[key] for key in ("iteration", "wait", "learned_ns", "harvested_ns", "overrun_ns", "leased")
            }
            yield event["stage"], BUBBLES, name, event["begin_ns"], event["end_ns"], details
            if event.get("side_begin_ns") and event["side_end_ns"] > event["side_begin_ns"]:
                yield (
                    event["stage"],
                    SIDE_TASKS,
                    event["task"],
                    event["side_begin_ns"],
                    event["side_end_ns"],
                    {"harvested_ns": event["harvested_ns"], "overrun_ns": event["overrun_ns"]},
                )


def build(events, losses=()):
    """The trace as a dict. `losses`: the training's own log lines (iteration, loss, end_ns). Times are µs from the
    first span on."""
    found = [span for span in spans(events) if span[4] > span[3] > 0]
    start_ns = min((span[3] for span in found), default=0)

    def us(ns):
        return (ns - start_ns) / 1000

    out = []
    devices = {event["stage"]: event["device"] for topic, event in events if topic.startswith("training.iteration/")}
    for stage in sorted({span[0] for span in found}):
        label = f"stage {stage}" + (f" on {devices[stage]}" if stage in devices else "")
        out.append({"ph": "M", "name": "process_name", "pid": stage + 1, "tid": 0, "args": {"name": label}})
        out.append({"ph": "M", "name": "process_sort_index", "pid": stage + 1, "tid": 0, "args": {"sort_index": stage}})
        for track, name in TRACKS.items():
            out.append({"ph": "M", "name": "thread_name", "pid": stage + 1, "tid": track, "args": {"name": name}})
            out.append(
                {"ph": "M", "name": "thread_sort_index", "pid": stage + 1, "tid": track, "args": {"sort_index": track}}
            )
    for stage, track, name, begin_ns, end_ns, details in found:
        out.append(
            {
                "ph": "X",
                "name": name,
                "cat": TRACKS[track],
                "pid": stage + 1,
                "tid": track,
                "ts": us(begin_ns),
                "dur": (end_ns - begin_ns) / 1000,
                "args": details,
            }
        )
    for line in losses:
        out.append(
            {"ph": "C", "name": "loss", "pid": 1, "tid": 0, "ts": us(line["end_ns"]), "args": {"loss": line["loss"]}}
        )
    last_state = {}
    for topic, event in events:
        if not topic.startswith("task.state/") or last_state.get(event["task"]) == event["state"]:
            continue
        last_state[event["task"]] = event["state"]
        # Before the first iteration there is nothing to see it against.
        if event["t_ns"] >= start_ns:
            out.append(
                {
                    "ph": "i",
                    "s": "g",
                    "name": f"{event['task']} {event['state']}",
                    "pid": 1,
                    "tid": 0,
                    "ts": us(event["t_ns"]),
                }
            )
    return {"traceEvents": out, "displayTimeUnit": "ms"}


def write(path, events, losses=()):
    with open(path, "w") as file:
        json.dump(build(events, losses), file)

"""What happens to a side task that does not pause, and to one that takes more memory than it may: timelines beside the
training."""

import contextlib
import time

from rig.processes import Failure

STAGE = 1
LEAD_S, TAIL_S, PATIENCE_S = 2, 2, 60
# name, plugin, parameters, memory; on a GPU, and on a CPU. A profile makes 8 steps, which have to be good ones.
GPU = [
    ("does not pause", "gpu_task", ["how=endless", "after=400", "step_us=2000"], "2GiB"),
    ("takes more memory than it may", "gpu_task", ["how=grow", "after=100", "step_us=2000", "mb=64"], "4GiB"),
]
CPU = [
    ("does not pause", "faulty", ["where=step", "how=spin", "after=12"], "256MiB"),
    ("takes more memory than it may", "hog", ["mb=8"], "256MiB"),
]


def run(harvest, folder):
    """[demonstration, …], {what: why not}, as far as the plugins are there; a training goes on under `harvest` and no
    other side task is at work."""
    found, failed = [], {}
    for number, (what, plugin, params, memory) in enumerate(GPU if harvest.machine.gpus else CPU):
        if not (folder / f"{plugin}.so").exists():
            continue
        try:
            found.append(one(harvest, what, folder / f"{plugin}.so", params, memory, f"demo-{number}"))
        except Failure as failure:
            with contextlib.suppress(Failure):  # nothing is there, or has ended
                harvest.system.ok("stop", f"demo-{number}")
            failed[f"a side task that {what}"] = str(failure)
    return found, failed


def one(harvest, what, plugin, params, memory, name):
    system = harvest.system
    words = [word for param in params for word in ("--param", param)]
    first = len(harvest.events.lines)
    system.ok("load", plugin, "--name", name, "--stage", STAGE, "--memory", memory, *words)

    def begun():
        return next((event["begin_ns"] for event in harvest.seen("bubble.end/", first) if event["task"] == name), None)

    def ended():
        states = [event for event in harvest.seen("task.state/", first) if event["task"] == name]
        return next((state for state in states if state["verdict"]["kind"]), None)

    used = []

    def look():
        state = harvest.states().get(name)
        if state is not None and not harvest.machine.gpus:
            used.append([time.monotonic_ns(), state["counters"]["memory_bytes"]])
        if state is not None and state["counters"]["metrics"].get("full"):  # it lives on with what it may have
            refused = {
                "kind": "refused",
                "reason": f"more than {state['counters']['metrics']['mib']:g} MiB, by its MPS server's limit",
            }
            return {"t_ns": time.monotonic_ns(), "verdict": refused}
        return ended()

    end = system.wait(look, f"the end of the task that {what}", PATIENCE_S / 2 if harvest.machine.gpus else PATIENCE_S)
    if not ended():
        system.ok("stop", name)
    time.sleep(TAIL_S)
    begin_ns = (begun() or end["t_ns"]) - LEAD_S * 10**9
    lines = harvest.training.iterations(begin_ns, time.monotonic_ns())
    if harvest.machine.gpus and harvest.tables.power:
        used = [
            [sample["at_ns"], sample["gpus"][STAGE][4]]
            for sample in list(harvest.tables.power.lines)
            if sample["at_ns"] >= begin_ns
        ]
    bubbles = [
        [event[key] for key in ("begin_ns", "end_ns", "leased", "side_begin_ns", "side_end_ns", "overrun_ns")]
        for event in harvest.seen("bubble.end/", first)
        if event["stage"] == STAGE and event["begin_ns"] >= begin_ns
    ]
    return {
        "what": what,
        "plugin": plugin.name,
        "params": params,
        "memory": memory,
        "begin_ns": begin_ns,
        "end_ns": end["t_ns"],
        "verdict": end["verdict"],
        "iterations": [[line["end_ns"] - int(line["ms"] * 1e6), line["end_ns"]] for line in lines],
        "bubbles": bubbles,
        "bytes": used,
    }

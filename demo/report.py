"""Turns a finished run into its report: the figures, what is wrong with them, and a table."""

import statistics

MIN_HARVESTED_SHARE_PCT = 60.0
BUSY_PCT = 5.0  # side tasks take what the machine has left: others' work comes out of their time first
WIDE_PCT = 5.0  # an interval of the time increase that is wider than this gets a word of caution
# The lower end of the interval: a gate on its middle would be a coin flip on two shared cores
MAX_TIME_INCREASE_LOW_PCT = 2.0


def percentile(values, pct):
    """Nearest-rank percentile; 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * pct / 100))] if ordered else 0


def measures_from_events(events):
    """The same measures as the manager's, computed anew from what was published: a check on its arithmetic."""
    bubbles = [e for t, e in events if t.startswith("bubble.end/")]
    iterations = [e for t, e in events if t.startswith("training.iteration/")]
    offered = [b for b in bubbles if not b["holdout"]]
    offered_ns = sum(b["end_ns"] - b["begin_ns"] for b in offered)
    iteration_ns = sum(i["end_ns"] - i["begin_ns"] for i in iterations)
    overruns = [b["overrun_ns"] / 1000 for b in bubbles if b["leased"]]
    return {
        "bubbles": len(bubbles),
        "bubbles_leased": len(overruns),
        "bubble_share_pct": 100 * sum(i["bubble_ns"] for i in iterations) / iteration_ns if iteration_ns else 0.0,
        "harvested_share_pct": 100 * sum(b["harvested_ns"] for b in offered) / offered_ns if offered_ns else 0.0,
        "overrun_p50_us": percentile(overruns, 50),
        "overrun_p99_us": percentile(overruns, 99),
        "overrun_max_us": max(overruns, default=0),
    }


def build(job, tasks, events, losses, reference_losses, events_lost, load):
    """The report as a dict. `job`: the manager's measures; `tasks`: its tasks; `losses`: the training's own log lines,
    with harvesting and (fewer) without; `load`: what else the machine did (machine.py)."""
    harvested = [line["loss"] for line in losses]
    without = [line["loss"] for line in reference_losses]
    figures = (
        "stages measured time_increase_pct bubble_share_pct harvested_share_pct stage_bubble_share_pct "
        "stage_harvested_share_pct overrun_p50_us overrun_p99_us duty_pct"
    )
    report = {
        **{name: job[name] for name in figures.split()},
        "iterations": len(losses),
        "iterations_held_out": job["holdout_iterations"],
        "iteration_ms": statistics.mean((line["end_ns"] - line["begin_ns"]) / 1e6 for line in losses)
        if losses
        else 0.0,
        "time_increase_ci95_pct": [job["time_increase_ci95_low_pct"], job["time_increase_ci95_high_pct"]],
        "loss_first": harvested[0] if harvested else None,
        "loss_last": harvested[-1] if harvested else None,
        "losses_compared": len(without),
        "losses_equal": bool(without) and harvested[: len(without)] == without,
        "events": len(events),
        "events_lost": events_lost,
        "from_events": measures_from_events(events),
        **load,
        "tasks": [],
    }
    for task in tasks:
        state, counters = task["state"], task["state"]["counters"]
        report["tasks"].append(
            {
                "name": state["task"],
                "plugin": state["plugin"],
                "stage": state["stage"],
                "steps": counters["steps"],
                "step_ms": counters["step_ns"] / counters["steps"] / 1e6 if counters["steps"] else 0.0,
                "harvested_s": counters["harvested_ns"] / 1e9,
                "leases": counters["leases"],
                "verdict": state["verdict"]["kind"],
                "reason": state["verdict"]["reason"],
                "metrics": counters["metrics"],
            }
        )
    report["faults"], report["missed"] = faults(report), missed(report)
    report["problems"] = report["faults"] + report["missed"]
    return report


def faults(report):
    """One line for everything that went wrong, whatever the machine's speed."""
    found = []
    if not report["losses_compared"]:
        found.append("no losses to compare: the run without FreeRide made no iteration")
    elif not report["losses_equal"]:
        found.append("losses with and without harvesting differ")
    for task in report["tasks"]:
        if not task["steps"]:
            found.append(f"task {task['name']} made no step")
        if task["verdict"] not in ("stopped", "finished"):
            found.append(f"task {task['name']} ended as '{task['verdict']}': {task['reason']}")
    if report["events_lost"]:
        found.append(f"{report['events_lost']} events were lost between the broker and this program")
    return found


def missed(report):
    """One line for every figure that misses its goal: on a busy machine that can be the machine."""
    found = []
    foreign_pct = report["other_cpu_pct"] + report["stolen_cpu_pct"]
    excuse = (
        f"; the machine was busy: {foreign_pct:.0f} % of its CPU time went to others" if foreign_pct > BUSY_PCT else ""
    )
    if not report["measured"]:
        found.append(
            "the slowdown could not be measured: too few blocks of iterations; give the demo more --seconds" + excuse
        )
    elif report["time_increase_ci95_pct"][0] > MAX_TIME_INCREASE_LOW_PCT:
        found.append(
            f"training slowed down: the interval of the slowdown begins at {report['time_increase_ci95_pct'][0]:+.2f} %, above "
            f"{MAX_TIME_INCREASE_LOW_PCT} %{excuse}"
        )
    if report["harvested_share_pct"] < MIN_HARVESTED_SHARE_PCT:
        found.append(
            f"only {report['harvested_share_pct']:.1f} % of the bubble time was harvested, less than {MIN_HARVESTED_SHARE_PCT:.0f} %{excuse}"
        )
    return found


def table(report):
    """The report for people."""
    low, high = report["time_increase_ci95_pct"]
    wide = "; so wide an interval says little, more --seconds narrow it" if high - low > WIDE_PCT else ""
    increase = (
        f"{report['time_increase_pct']:+.2f} %   (95 %: {low:+.2f} to {high:+.2f} %{wide})"
        if report["measured"]
        else "not measured"
    )
    per_stage = ", ".join(f"stage {s} {v:.1f} %" for s, v in sorted(report["stage_bubble_share_pct"].items()))
    per_stage_harvest = ", ".join(
        f"stage {s} {v:.1f} %" for s, v in sorted(report["stage_harvested_share_pct"].items())
    )
    first, last = report["loss_first"], report["loss_last"]
    rows = [
        (
            "training",
            f"{report['stages']} stages, {report['iterations']} iterations of {report['iteration_ms']:.0f} ms, "
            f"{report['iterations_held_out']} of them baseline iterations",
        ),
        (
            "loss",
            f"{first:.4f} → {last:.4f}; the first {report['losses_compared']} "
            + (
                "equal those without FreeRide, bit for bit"
                if report["losses_equal"]
                else "DIFFER from those without FreeRide"
            )
            if first is not None
            else "none",
        ),
        ("slowdown", increase),
        ("bubble share", f"{report['bubble_share_pct']:.1f} %   ({per_stage})"),
        (
            "harvested share",
            f"{report['harvested_share_pct']:.1f} %   ({per_stage_harvest})"
            + (
                f", throttled to {report['duty_pct']:.0f} % of the iterations at the end"
                if report["duty_pct"] < 100
                else ""
            ),
        ),
        (
            "machine",
            f"{report['other_cpu_pct']:.0f} % of its CPU time went to processes that are not of this run"
            + (
                f", {report['stolen_cpu_pct']:.0f} % to other virtual machines" if report["stolen_cpu_pct"] >= 1 else ""
            ),
        ),
        ("overrun", f"p50 {report['overrun_p50_us']:.0f} µs, p99 {report['overrun_p99_us']:.0f} µs"),
    ]
    lines = [f"  {name:<17}{text}" for name, text in rows]
    lines += ["", f"  {'side task':<17}{'stage':>5} {'steps':>9} {'step':>9} {'harvested':>10}  verdict"]
    for task in report["tasks"]:
        lines.append(
            f"  {task['name']:<17}{task['stage']:>5} {task['steps']:>9} {task['step_ms']:>6.2f} ms {task['harvested_s']:>8.1f} s  "
            f"{task['verdict']}"
        )
    return "\n".join(lines)

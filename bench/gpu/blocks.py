"""What blocks of iterations by turns, hooked and not or with side tasks and without, come to."""

import statistics

from rig.statistics import interval

# How the hook held, the one with leases last: of records of earlier versions, by the stream alone or with a host that slept.
WAYS = ("stream_wait", "two_phase", "held")


def way_of(summary):
    """The way of holding that `summary` has figures of; None if there is none."""
    return next((way for way in reversed(WAYS) if f"hook_{way}_pairs" in summary), None)


def increases(iteration_ms, hooked):
    """Of neighbouring blocks, in percent: the hooked one's mean iteration over the unhooked one's, block by block in
    turn."""
    blocks = []
    for duration, kind in zip(iteration_ms, hooked):
        if kind is None or duration is None:
            continue
        if not blocks or blocks[-1][0] != kind:
            blocks.append((kind, []))
            continue  # the first iteration of a block still has some of the one before
        blocks[-1][1].append(duration)
    means = []
    for kind, values in blocks:
        if values and means and means[-1][0] == kind:  # a block of one iteration lay between
            means[-1] = (kind, statistics.fmean([means[-1][1], statistics.fmean(values)]))
        elif values:
            means.append((kind, statistics.fmean(values)))
    values = []
    for (one_hooked, one), (_, other) in zip(means[::2], means[1::2]):
        on, off = (one, other) if one_hooked else (other, one)
        values.append(100 * (on / off - 1))
    return values


def summarise(record):
    summary = {}
    for name in WAYS:
        runs = record["times"].get(name)
        if not runs:
            continue
        values = increases(runs[0]["iteration_ms"], runs[0]["hooked"])
        for more in record.get("more_times", ()):  # of other runs of the same
            values += increases(more[name][0]["iteration_ms"], more[name][0]["hooked"]) if name in more else []
        if not values:  # of a run without such blocks
            continue
        mean, half = interval(values)
        summary[f"hook_{name}_time_increase_pct"] = round(mean, 4)
        summary[f"hook_{name}_ci95_half_pct"] = round(half, 4)
        summary[f"hook_{name}_ci95_upper_pct"] = round(mean + half, 4)
        summary[f"hook_{name}_pairs"] = len(values)
        summary[f"hook_{name}_cpu_pct"] = round(max(statistics.fmean(run["hook_cpu_pct"]) for run in runs), 2)
        off = [d for d, hooked in zip(runs[0]["iteration_ms"], runs[0]["hooked"]) if d is not None and hooked is False]
        summary[f"{name}_unhooked_iteration_ms"] = round(statistics.fmean(off), 3)
        posting = [
            [ms for ms, hooked in zip(run["host_ms"], run["hooked"]) if hooked is False]
            for run in runs
            if "host_ms" in run
        ]
        if posting:  # of the slowest rank: near the iteration's time, the host is hardly ahead of its GPU
            summary[f"{name}_unhooked_host_ms"] = round(max(map(statistics.fmean, posting)), 3)
    if summary:
        way = way_of(summary)
        summary["hook_time_increase_ci95_upper_pct"] = summary[f"hook_{way}_ci95_upper_pct"]
        summary["hook_cpu_pct"] = max(value for name, value in summary.items() if name.endswith("_cpu_pct"))
    return summary


def by_way(results):
    """What a run's ranks left, for each way of waiting: which iterations were hooked (None: neither that nor
    unhooked)."""
    found = {}
    for way in results[0]["hook_cpu_pct_of"]:
        ways = results[0]["ways"]
        # An unhooked block's first iteration still has some of the one before: behind another way's, nothing else would
        # leave it out.
        hooked = [
            True if one == way else False if one is None and before in (way, None) else None
            for before, one in zip([None, *ways], ways)
        ]
        found[way] = [
            {
                **{key: value for key, value in result.items() if key not in ("ways", "hook_cpu_pct_of")},
                "hooked": hooked,
                "hook_cpu_pct": result["hook_cpu_pct_of"][way],
            }
            for result in results
        ]
    return found

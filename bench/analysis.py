"""What recorded samples come to: an observer's edges, blocks by turns, and the rows of scenarios."""

import bisect

import numpy
import pandas
from scipy import stats

# How the hook held: of earlier versions' records by the stream alone, or with a host that slept.
WAYS = ("stream_wait", "two_phase", "held")
RECORDED = (
    "side_task", "name", "iteration_ms", "leased", "ways_us", "overrun_us", "in_steps_ns", "bubble_ns", "steps",
    "worker_cpu_pct",
)  # fmt: skip


def interval(values):
    """The mean, and half of its 95 % interval by Student's t; of less than two values there is none."""
    values = numpy.asarray(values, float)
    half = stats.t.ppf(0.975, len(values) - 1) * stats.sem(values) if len(values) > 1 else numpy.inf
    return float(values.mean()), float(half)


def quantile(values, share):
    """The value below which `share` of them lie, by nearest rank; None of nothing."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None


def increases(values, kinds):
    """By how much neighbouring blocks with `kinds` true are above those with false, in percent, pair by pair. A block's first
    value does not count: it still has some of the one before. What is None is of neither."""
    frame = pandas.DataFrame({"value": values, "kind": kinds}, dtype=object).dropna()
    frame["block"] = (frame.kind != frame.kind.shift()).cumsum()
    frame = frame[frame.block.duplicated()]
    means = frame.astype({"value": float}).groupby("block").agg(kind=("kind", "first"), mean=("value", "mean"))
    # A block of one iteration may have lain between two of a kind
    means = means.groupby((means.kind != means.kind.shift()).cumsum()).agg(
        kind=("kind", "first"), mean=("mean", "mean")
    )
    pairs = zip(means.to_numpy()[::2], means.to_numpy()[1::2])
    return [100 * (one[1] / other[1] - 1 if one[0] else other[1] / one[1] - 1) for one, other in pairs]


def increase_row(values, kinds, name="time_increase"):
    """The mean of increases() with its interval; {} of less than two pairs."""
    pairs = increases(values, kinds)
    if len(pairs) < 2:
        return {}
    mean, half = interval(pairs)
    figures = {"": mean, "_ci95_half": half, "_ci95_upper": mean + half}
    return {**{f"{name}{key}_pct": round(value, 3) for key, value in figures.items()}, f"{name}_pairs": len(pairs)}


def settled_row(values, kinds):
    """The time increase without iterations that are longer than the median of their kind by four times the spread, which some
    hosts have with side tasks and without; and how many of each kind those were."""
    frame = pandas.DataFrame({"value": values, "kind": kinds}, dtype=object).dropna().astype({"value": float})
    limit = {
        kind: of.median() + 4 * 1.4826 * (of - of.median()).abs().median() for kind, of in frame.groupby("kind").value
    }
    far = frame.value > frame.kind.map(limit).astype(float)
    found = increase_row(frame.value[~far], frame.kind[~far], "settled_increase")
    return {**found, "far_off_pct": [round(100 * far[frame.kind == kind].mean(), 1) for kind in (True, False)]}


# ---- what an observer saw: `edges`, (ns, state word) whenever the page's state word changed


def bubbles_of(edges):
    """(begin, end, word) of each marked wait."""
    return [(begin, end, word) for (begin, word), (end, _) in zip(edges, edges[1:]) if word & 0xFFFF]


def iterations_of(edges):
    """iteration -> (begin, ms), where its begin and the next one's were seen."""
    begins = {}
    for at, word in edges:
        begins.setdefault(word >> 16, at)
    first = min(begins, default=None)  # the observer came in the middle of it
    return {i: (at, (begins[i + 1] - at) / 1e6) for i, at in begins.items() if i + 1 in begins and i != first}


def leases_of(seen, bubbles):
    """Of bubbles with a lease, by their number: how long after the mark the first one was there, when on this way the hook had
    seen the mark and the first step began, in us, and whether the hook had said that the mark might come; and the iterations
    that had any."""
    starts, ways, leased = [bubble[0] for bubble in bubbles], {}, set()
    steps, awake = sorted(seen["stepped"]), seen["awake"]
    marks = [one[0] for one in awake]
    for _, lease, opened, begin, _ in seen["leases"]:
        at = bisect.bisect_right(starts, opened + 20_000) - 1  # the worker may have seen the mark before the observer
        # Of the first one only the end was seen.
        if lease == 0 or at < 0 or opened > bubbles[at][1] or starts[at] == seen["edges"][0][0]:
            continue
        leased.add(bubbles[at][2] >> 16)
        step = bisect.bisect_left(steps, opened)
        first = steps[step] if step < len(steps) and steps[step] < bubbles[at][1] else None
        said = bisect.bisect_right(marks, starts[at]) - 1
        way = [None if ns is None else round((ns - starts[at]) / 1e3, 2) for ns in (opened, begin, first)]
        ways.setdefault(at, [*way, said >= 0 and awake[said][1] > starts[at]])
    return ways, leased


def overruns_of(seen, bubbles, leased):
    """Of each leased bubble: from its end to the last pause before the next bubble, in us; 0 where the task was paused in
    time."""
    paused, result = sorted(seen["paused"]), []
    for at in sorted(leased):
        end = bubbles[at][1]
        until = bubbles[at + 1][0] if at + 1 < len(bubbles) else end + 50_000_000
        last = bisect.bisect_left(paused, until) - 1
        result.append(round(max(0, paused[last] - end) / 1e3, 1) if last >= 0 else 0)
    return result


def own_work_of(edges, iterations):
    """What is left of each iteration without its waits, ms; None where its begin or end was not seen."""
    waits = {}
    for begin, end, word in bubbles_of(edges):
        waits[word >> 16] = waits.get(word >> 16, 0) + end - begin
    own = iterations_of(edges)
    return [round(own[i][1] - waits.get(i, 0) / 1e6, 4) if i in own else None for i in sorted(iterations)]


def sample_of(seen):
    """One side task's sample, from what the observer of each stage saw."""
    sides = []
    for one in seen:
        bubbles = bubbles_of(one["edges"])
        sides.append((bubbles, *leases_of(one, bubbles)))
    leased = set().union(
        *(side[2] for side in sides)
    )  # stages wait for each other: a lease on one is in the time of all
    iterations = iterations_of(seen[0]["edges"])
    return {
        "iteration_ms": [iterations[i][1] for i in sorted(iterations)],
        "leased": [i in leased for i in sorted(iterations)],
        "ways_us": [list(ways.values()) for _, ways, _ in sides],
        "overrun_us": [overruns_of(one, bubbles, ways) for one, (bubbles, ways, _) in zip(seen, sides)],
        "in_steps_ns": [sum(work[2] for work in one["work"]) for one in seen],
        "steps": [sum(work[0] for work in one["work"]) for one in seen],
        "bubble_ns": [sum(end - begin for begin, end, word in side[0] if word >> 16 in leased) for side in sides],
        "own_work_ms": [own_work_of(one["edges"], iterations) for one in seen],
        "observer_longest_gap_us": [one["longest_gap_ns"] / 1e3 for one in seen],
    }


# ---- rows


def row_of(sample):
    """One side task's row, of all stages."""
    kinds, ms = sample["leased"], numpy.asarray(sample["iteration_ms"], float)
    row = {"side_task": sample["side_task"], **increase_row(ms, kinds)}
    if row.get("time_increase_pct") is not None:
        on = numpy.array(kinds, dtype=object)
        row |= settled_row(ms, kinds)
        row["iterations_with"], row["iterations_without"] = int((on == True).sum()), int((on == False).sum())  # noqa: E712
        row["unleased_iteration_ms"] = round(float(ms[on == False].mean()), 3)  # noqa: E712
        if sample.get("steps"):
            row["steps_per_s"] = round(1e3 * sum(sample["steps"]) / float(ms[on == True].sum()), 2)  # noqa: E712
    work, inside = sample["in_steps_ns"], sample["bubble_ns"]
    row["harvested_share_pct"] = round(100 * sum(work) / sum(inside), 2) if sum(inside) else None
    row["harvested_share_by_stage_pct"] = [round(100 * a / b, 2) if b else None for a, b in zip(work, inside)]
    ways, overruns = sum(sample.get("ways_us", []), []), sum(sample["overrun_us"], [])
    row["leased_bubbles"], row["overrun_max_us"] = len(overruns), max(overruns, default=None)
    to_look = [way[1] for way in ways if way[1] > -5]  # of the others the lease page was read while it was written
    for name, values in (
        ("overrun", overruns),
        ("edge_to_lease", [way[0] for way in ways]),
        ("mark_to_look", to_look),
        ("lease_to_step", [round(way[2] - way[0], 2) for way in ways if way[2] is not None]),
    ):
        row |= {f"{name}_p50_us": quantile(values, 0.5), f"{name}_p99_us": quantile(values, 0.99)}
    row["expected_marks_pct"] = round(100 * float(numpy.mean([way[3] for way in ways])), 1) if ways else None
    if sample.get("own_work_ms"):
        row["own_work_increase_pct"] = [
            increase_row(of_stage, kinds).get("time_increase_pct") for of_stage in sample["own_work_ms"]
        ]
    return row


def by_way(results):
    """What the ranks of a run with hooked and unhooked blocks left, for each way of holding: which iterations were hooked
    (None: neither that nor unhooked)."""
    found, ways = {}, results[0]["ways"]
    for way in results[0]["hook_cpu_pct_of"]:
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


def hook_row(times):
    """What the hook alone costs, by `times`, which is by_way()'s: of the last way that there is; {} of none."""
    way = next((way for way in reversed(WAYS) if times.get(way)), None)
    found = increase_row(times[way][0]["iteration_ms"], times[way][0]["hooked"], "hook") if way else {}
    if not found:
        return {}
    runs = times[way]
    off = [ms for ms, hooked in zip(runs[0]["iteration_ms"], runs[0]["hooked"]) if ms is not None and hooked is False]
    posting = [
        numpy.mean([ms for ms, hooked in zip(run["host_ms"], run["hooked"]) if hooked is False])
        for run in runs
        if "host_ms" in run
    ]
    return {
        **found,
        "hook_cpu_pct": round(max(float(numpy.mean(run["hook_cpu_pct"])) for run in runs), 2),
        "unhooked_iteration_ms": round(float(numpy.mean(off)), 3),
        # Of the slowest rank: near the iteration's time, the host is hardly ahead of its GPU
        "unhooked_host_ms": round(float(max(posting)), 3) if posting else None,
    }


def summarise(record):
    return {"rows": [row_of(sample) for sample in record["samples"]], **hook_row(record.get("times", {}))}

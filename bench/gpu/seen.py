"""What an observer saw, and what follows from it: `edges`, (time in ns, state word) whenever the page's state word
changed; and the driver's samples of clocks and power."""

import bisect
import statistics


def bubbles_of(edges):
    """(begin, end, word) of each marked wait."""
    return [(begin, end, word) for (begin, word), (end, _) in zip(edges, edges[1:]) if word & 0xFFFF]


def iterations_of(edges):
    """iteration -> (begin, ms), where its begin and the next one's were seen."""
    begins = {}
    for at, word in edges:
        begins.setdefault(word >> 16, at)
    first = min(begins)  # the observer came in the middle of it
    return {i: (at, (begins[i + 1] - at) / 1e6) for i, at in begins.items() if i + 1 in begins and i != first}


def leases_of(seen, bubbles):
    """Of bubbles with a lease, by their number: how long after the mark the first one was there, and when on this way
    the hook had seen the mark and the first step began, in us, and whether the hook had said that the mark might come;
    and the iterations that had any."""
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
        ways.setdefault(
            at,
            [
                round((opened - starts[at]) / 1e3, 2),
                round((begin - starts[at]) / 1e3, 2),
                None if first is None else round((first - starts[at]) / 1e3, 2),
                said >= 0 and awake[said][1] > starts[at],
            ],
        )
    return ways, leased


def overruns_of(seen, bubbles, leased):
    """Of each leased bubble: from its end to the last pause before the next bubble, in us; 0 where the task was paused
    in time."""
    paused, result = sorted(seen["paused"]), []
    for at in sorted(leased):
        end = bubbles[at][1]
        until = bubbles[at + 1][0] if at + 1 < len(bubbles) else end + 50_000_000
        last = bisect.bisect_left(paused, until) - 1
        result.append(round(max(0, paused[last] - end) / 1e3, 1) if last >= 0 else 0)
    return result


def used_of(seen, bubbles, leased):
    """Of each bubble: its iteration and wait, ms, and by how much the last pause in it came before its end, ms; None
    where it had no lease, 0 where it was none until then."""
    paused, result = sorted(seen["paused"]), []
    for at, (begin, end, word) in enumerate(bubbles):
        last, gap = bisect.bisect_left(paused, end) - 1, None
        if at in leased:
            gap = round((end - paused[last]) / 1e6, 3) if last >= 0 and paused[last] > begin else 0
        result.append([word >> 16, word & 0xFFFF, round((end - begin) / 1e6, 3), gap])
    return result


def in_order(iterations, kind_of):
    """The iterations in order and whether each had side tasks; None where that changes, for it has some of both."""
    order = sorted(iterations)
    kinds = [kind_of(i) for i in order]
    return [iterations[i][1] for i in order], kinds


def compute_of(edges, iterations):
    """What is left of each iteration without its waits, ms; None where its begin or end was not seen."""
    waits = {}
    for begin, end, word in bubbles_of(edges):
        waits[word >> 16] = waits.get(word >> 16, 0) + end - begin
    own = iterations_of(edges)
    return [round(own[i][1] - waits.get(i, 0) / 1e6, 4) if i in own else None for i in sorted(iterations)]


def clock_of(samples, gpu, edges, iterations):
    """The GPU's mean SM clock in training's own time of each iteration, MHz; None where it was not looked at."""
    order = sorted(iterations)
    begins, times = [iterations[i][0] for i in order], [at for at, _ in edges]
    found = {}
    for at, of, sm_mhz, *_ in samples:
        i, edge = bisect.bisect_right(begins, at) - 1, bisect.bisect_right(times, at) - 1
        if (
            of == gpu
            and i >= 0
            and edge >= 0
            and at <= begins[i] + iterations[order[i]][1] * 1e6
            and not edges[edge][1] & 0xFFFF
        ):
            found.setdefault(order[i], []).append(sm_mhz)
    return [round(statistics.fmean(found[i]), 2) if i in found else None for i in order]


REASONS = {"sw_power_cap": 0x4, "hw_slowdown": 0x8, "sw_thermal": 0x20, "hw_thermal": 0x40, "hw_power_brake": 0x80}


def clocks_of(samples, edges_of_gpu, iterations, kinds):
    """SM clock and power of each GPU, in its bubbles and in training's own time, in iterations with and without side
    tasks, and how often the driver named which reason for a lower clock."""
    order = sorted(iterations)
    begins = [iterations[i][0] for i in order]
    times = [[at for at, _ in edges] for edges in edges_of_gpu]
    found = {}
    for at, gpu, sm_mhz, power_w, instant_w, reasons in samples:
        i = bisect.bisect_right(begins, at) - 1
        edge = bisect.bisect_right(times[gpu], at) - 1
        if i < 0 or edge < 0 or at > begins[i] + iterations[order[i]][1] * 1e6 or kinds[i] is None:
            continue
        phase = "bubble" if edges_of_gpu[gpu][edge][1] & 0xFFFF else "training"
        found.setdefault((gpu, phase, kinds[i]), []).append((sm_mhz, power_w, instant_w, reasons))
    return [
        {
            "gpu": gpu,
            "in": phase,
            "side_task": kind,
            "samples": len(values),
            "sm_mhz": round(statistics.fmean(v[0] for v in values), 1),
            "power_w": round(statistics.fmean(v[1] for v in values), 1),
            "instant_w": round(statistics.fmean(v[2] for v in values), 1),
            **{
                name + "_pct": round(100 * statistics.fmean(bool(v[3] & bit) for v in values), 1)
                for name, bit in REASONS.items()
            },
        }
        for (gpu, phase, kind), values in sorted(found.items())
    ]

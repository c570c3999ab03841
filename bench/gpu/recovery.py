#!/usr/bin/env python3
"""How long training's clock remembers a lease: the SM clock of each layer of a stage's own work by the time since the bubble
before it, in iterations with a side task and without. From records of hook_gpu_harvest.py --replay FILE --parts of stages
in the middle, where each chunk has a wait before it.

    recovery.py RECORD …

If the clock came back within milliseconds, leases that end earlier would save more than they give up."""

import json
import math
import pathlib
import statistics
import sys

BOUNDS_MS = (0, 3, 6, 10, 15, 20, 30, 40, 60)
SHORT_MS = 1.0  # a shorter bubble gives the GPU no rest
LEAST = 8  # layers of a kind, for a mean


def layers_of(record):
    """(side task, place: chunk and layer, ms since the bubble's end, gap or None, MHz, us) of each layer
    that was measured, where what came before it is known."""
    for sample in record["samples"]:
        bubbles = {}
        for iteration, wait, ms, gap in sample["bubbles"]:
            bubbles.setdefault(iteration, {})[wait] = (ms, gap)
        used = {i: any(gap is not None for _, gap in of.values()) for i, of in bubbles.items()}
        since, gap, known = None, None, False
        for iteration, chunk, _, times, clocks in record["parts"]:
            at = iteration - record["uncounted"]
            if at not in used or at - 1 not in used or used[at] != used[at - 1]:
                known = False
                continue
            bubble = bubbles[at].get(chunk + 1)
            if bubble and bubble[0] >= SHORT_MS:
                since, gap = 0.0, bubble[1]
                known = (gap is not None) == used[at]  # a bubble without a lease between others is neither
            since = None if since is None else since + times[0] / 1e3
            for layer, (us, mhz) in enumerate(zip(times[1:], clocks)):
                if known and since is not None and mhz is not None:
                    yield sample["name"], (chunk, layer), since, gap, mhz, us
                since = None if since is None else since + us / 1e3


def middle(values):
    """The median and its variance, both unmoved by what is far off: a host that holds up a launch is no GPU's clock."""
    median = statistics.median(values)
    spread = 1.4826 * statistics.median(abs(value - median) for value in values)
    return median, (1.2533 * spread) ** 2 / len(values)


def change(on, off):
    """Percent by which the median is higher, and its variance."""
    (with_it, variance), (without, other) = middle(on), middle(off)
    return 100 * (with_it / without - 1), (variance + other) * (100 / without) ** 2


def together(changes):
    """The mean of the places, each as heavy as the other, with half of its 95 % interval."""
    mean = statistics.fmean(value for value, _ in changes)
    return mean, 1.96 * math.sqrt(sum(variance for _, variance in changes)) / len(changes)


def within(bounds, value):
    return next((i for i, (low, high) in enumerate(zip(bounds, bounds[1:])) if low <= value < high), None)


def table(records):
    """Rows of the side task, a range of time since the bubble, and by how much clock and time of a layer are higher with
    the side task. A layer is in the range where it usually is: else what was slow would always be late."""
    found = {}
    for record in records:
        places = {}
        for name, place, *layer in layers_of(record):
            places.setdefault((name, place), []).append(layer)
        for (name, _place), layers in places.items():
            usual = statistics.median(layer[0] for layer in layers)
            on, off = ([layer for layer in layers if (layer[1] is not None) == used] for used in (True, False))
            where = within(BOUNDS_MS, usual)
            if where is not None and min(len(on), len(off)) >= LEAST:
                found.setdefault((name, where), []).append(
                    [change([layer[i] for layer in on], [layer[i] for layer in off]) for i in (2, 3)]
                )
    return [
        {
            "side_task": name,
            "ms_since_the_bubble": [BOUNDS_MS[where], BOUNDS_MS[where + 1]],
            "places": len(changes),
            **{
                f"{what}_change_pct": [round(value, 3) for value in together([one[i] for one in changes])]
                for i, what in enumerate(("sm_clock", "layer_time"))
            },
        }
        for (name, where), changes in sorted(found.items())
    ]


def main():
    records = []
    for path in sys.argv[1:]:
        record = json.loads(pathlib.Path(path).read_text())
        records += record.get("runs", [record])
    for row in table(records):
        print(json.dumps(row))


if __name__ == "__main__":
    main()

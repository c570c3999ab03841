#!/usr/bin/env python3
"""How long training's clock remembers a lease: the SM clock of each layer of a stage's own work by the time since the bubble
before it, in iterations with a side task and without. From records of hook_gpu_harvest.py --replay FILE --parts of stages
in the middle, where each chunk has a wait before it.

    recovery.py RECORD …

If the clock came back within milliseconds, leases that end earlier would save more than they give up."""

import json
import pathlib
import statistics
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
from rig.statistics import interval

BOUNDS_MS = (0, 3, 6, 10, 15, 20, 30, 40, 60)
SHORT_MS = 1.0  # a shorter bubble gives the GPU no rest


def layers_of(record):
    """(side task, place: chunk and layer, iteration, ms since the bubble's end, whether that had a lease, MHz, us) of each
    layer that was measured, where what came before it is known."""
    for sample in record["samples"]:
        bubbles = {}
        for iteration, wait, ms, gap in sample["bubbles"]:
            bubbles.setdefault(iteration, {})[wait] = (ms, gap is not None)
        used = {i: any(leased for _, leased in of.values()) for i, of in bubbles.items()}
        since, known = None, False
        for iteration, chunk, _, times, clocks in record["parts"]:
            at = iteration - record["uncounted"]
            if at not in used or at - 1 not in used or used[at] != used[at - 1]:
                known = False
                continue
            bubble = bubbles[at].get(chunk + 1)
            if bubble and bubble[0] >= SHORT_MS:
                since, known = 0.0, bubble[1] == used[at]  # a bubble without a lease between others is neither
            since = None if since is None else since + times[0] / 1e3
            for layer, (us, mhz) in enumerate(zip(times[1:], clocks)):
                if known and since is not None and mhz is not None:
                    yield sample["name"], (chunk, layer), at, since, used[at], mhz, us
                since = None if since is None else since + us / 1e3


def changes_of(record):
    """{(side task, range of BOUNDS_MS): {iteration: (whether it had leases, [percent of MHz and of us, of each layer])}},
    against the layer's median without leases. A layer is in the range where it usually is: else what was slow would
    always be late."""
    places, found = {}, {}
    for name, place, *layer in layers_of(record):
        places.setdefault((name, place), []).append(layer)
    for (name, _), layers in places.items():
        usual = statistics.median(since for _, since, *_ in layers)
        where = next((i for i, (low, high) in enumerate(zip(BOUNDS_MS, BOUNDS_MS[1:])) if low <= usual < high), None)
        off = [layer for layer in layers if not layer[2]]
        if where is None or not off:
            continue
        middle = [statistics.median(layer[i] for layer in off) for i in (3, 4)]
        for iteration, _, leased, mhz, us in layers:
            of = found.setdefault((name, where), {}).setdefault(iteration, (leased, []))
            of[1].append((100 * (mhz / middle[0] - 1), 100 * (us / middle[1] - 1)))
    return found


def pairs_of(iterations, i):
    """Neighbouring blocks of the holdout: by how much the one with leases is higher, by its iterations' medians. (A host
    that holds up a launch moves a mean, and is no GPU's clock.)"""
    blocks = []
    for _, (leased, layers) in sorted(iterations.items()):
        if not blocks or blocks[-1][0] != leased:
            blocks.append((leased, []))
        blocks[-1][1].append(statistics.median(layer[i] for layer in layers))
    means = [(leased, statistics.median(values)) for leased, values in blocks]
    return [one[1] - other[1] if one[0] else other[1] - one[1] for one, other in zip(means[::2], means[1::2])]


def table(records):
    """Rows of the side task, a range of time since the bubble, and by how much clock and time of a layer are higher with
    the side task: mean and half of the 95 % interval over pairs of blocks."""
    found = {}
    for record in records:
        for key, iterations in changes_of(record).items():
            for i in (0, 1):
                found.setdefault(key, ([], []))[i].extend(pairs_of(iterations, i))
    return [
        {
            "side_task": name,
            "ms_since_the_bubble": [BOUNDS_MS[where], BOUNDS_MS[where + 1]],
            "pairs_of_blocks": len(values[0]),
            **{
                f"{what}_change_pct": [round(value, 3) for value in interval(values[i])]
                for i, what in enumerate(("sm_clock", "layer_time"))
            },
        }
        for (name, where), values in sorted(found.items())
        if len(values[0]) > 1
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

"""Recorders that are killed at random beside a manager, and what is left of their recordings."""

import collections
import itertools
import json
import random
import signal
import subprocess
import time

from .processes import Failure, until

OLD_S = 5  # what is older must be on the disk
LIVES_S = (OLD_S + 1, OLD_S + 6)  # how long a recorder lives, at random


def view(ctl, folder, env):
    """The events of a recording, as freeride-ctl reads them."""
    done = subprocess.run(
        [ctl, "recording", "view", "--recording", folder, "--format", "json"],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Failure(f"freeride-ctl cannot read {folder}: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def missing(events, killed_ns):
    """How many events, published more than OLD_S before the kill, are not there though the recorder was given them; -1:
    there are none at all. What the bus dropped, since the recorder got no processor, is in a gap and does not count. A
    begin may be left out where its end is there: of two ends that follow each other there are at most 2 numbers (an
    iteration, a begin) between."""
    by_source, dropped = collections.defaultdict(list), collections.Counter()
    for event in events:
        if event["topic"].startswith("recording.gap/"):
            dropped[event["publisher"]] += event["lost"]
        elif event["topic"].startswith(("bubble.", "training.iteration/")):
            by_source[event["source"]].append((event["seq"], event["t_ns"], event["topic"]))
    lost = 0
    for source, found in by_source.items():
        found.sort()
        ends = [seq for seq, _, topic in found if topic.startswith("bubble.end/")]
        absent = sum(max(0, after - before - 3) for before, after in itertools.pairwise(ends))
        lost += max(0, absent - dropped[source])
        if found[-1][1] < killed_ns - OLD_S * 1_000_000_000:
            lost += 1
    return lost if by_source else -1


def round_of_kills(system, count, seed, publisher_alive):
    """Starts `count` recorders, kills each at a random age. Returns the lost events of each; -1: it had none at all."""
    dice = random.Random(seed)
    program = system.tree.program("freeride-recorder")
    folders = [system.root / f"recording-{seed}-{number}" for number in range(count)]
    running = []
    for number, folder in enumerate(folders):
        process = system.start(f"recorder-{seed}-{number}", [program, "--recordings", folder, "--keep-free", 0])
        running.append((process, folder, number))
    # Their lives begin with their first chunk: how long they take to start is the machine's affair.
    until(
        lambda: all(any(f.stat().st_size > 1000 for f in folder.glob("*.mcap")) for folder in folders), "first chunks"
    )
    begin = time.monotonic()
    ends = sorted((begin + dice.uniform(*LIVES_S), entry) for entry in running)
    results = []
    for end, (process, folder, _) in ends:
        time.sleep(max(0.0, end - time.monotonic()))
        killed_ns = time.monotonic_ns()
        process.send_signal(signal.SIGKILL)
        process.wait()
        results.append((folder, killed_ns))
    if not publisher_alive():
        raise Failure("the publisher of the bubbles has ended")
    ctl = system.tree.program("freeride-ctl")
    return [missing(view(ctl, folder, system.env), killed_ns) for folder, killed_ns in results]

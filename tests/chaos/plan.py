"""What is done to whom, and when: all of it from one seed, before anything happens."""

import dataclasses
import random

# kind: (how often, whom it can strike). A rank of the training is never killed, since that ends a training by itself.
DEVICES = ("worker-0", "worker-1")
TASKS = ("supervisor", "runner")
KINDS = {
    "kill": (8, ("manager", "recorder", *DEVICES, *TASKS)),
    "freeze": (8, ("manager", "recorder", *DEVICES, *TASKS, "rank-0", "rank-1")),
    "cut": (5, ("manager", *DEVICES, "hook-0", "hook-1")),
    "unlink": (2, ("commands", "publish", "events", *DEVICES)),
    "run-folder": (2, ("run",)),
    "usr": (3, ("manager", *DEVICES, *TASKS)),
    "disk-frozen": (2, ("disk",)),
    "disk-slow": (2, ("disk",)),
    "disk-full": (3, ("disk",)),
    "shm-full": (2, ("shm",)),
    "clock": (3, ("clock",)),
    "ctl": (5, ("kill", "freeze")),
    "descriptors": (3, ("manager", "recorder", *DEVICES)),
    "bulk": (2, ("load",)),
    "trainer": (2, ("kill", "finish")),
}
CTL = ("load", "stop", "pause", "resume", "tasks", "top", "report")
LONGEST_S = 8.0  # of what lasts: past the 5 s after which a silent worker is lost


@dataclasses.dataclass(frozen=True)
class Blow:
    kind: str
    target: str
    after_s: float  # from the round's begin
    lasts_s: float  # of what ends by itself
    pick: float  # which of several, as a share of how many there are
    word: str = ""  # the ctl command in whose middle it comes
    step_s: int = 0  # of the clock


def rounds(seed, only=()):
    """Without end: lists of one to three blows that come together. Each kind comes once before any comes twice. `only`:
    no other kinds come."""
    kinds = {kind: what for kind, what in KINDS.items() if not only or kind in only}
    draw = random.Random(seed)
    unseen = []
    while True:
        blows = []
        for _ in range(draw.choice((1, 1, 2, 3))):
            if not unseen:
                unseen = [kind for kind, (weight, _) in kinds.items() for _ in range(weight)]
                first = list(kinds)
                draw.shuffle(first)
                for kind in first:
                    unseen.remove(kind)
                draw.shuffle(unseen)
                unseen += first  # taken from the end
            kind = unseen.pop()
            blows.append(
                Blow(
                    kind,
                    draw.choice(KINDS[kind][1]),
                    round(draw.uniform(0, 1.5), 3),
                    round(min(LONGEST_S, 0.05 * (LONGEST_S / 0.05) ** draw.random()), 3),
                    draw.random(),
                    draw.choice(CTL) if kind == "ctl" else "",
                    draw.choice((-1, 1)) * draw.choice((5, 3600, 86400, 400 * 86400)) if kind == "clock" else 0,
                )
            )
        yield blows

"""What is no fault and what is one: plain functions of what was recorded."""

import bisect
import collections
import re
import signal

# Of a message that was not written for people.
UNREADABLE = re.compile(
    r"std::|terminate called|Assertion|Sanitizer|basic_string|what\(\)|Unknown error|bad_alloc|nullptr|Traceback"
    r"|0x[0-9a-f]{6,}|\[json\.exception|SQLITE_|\bE[A-Z]{4,}\b"
)


def is_sentence(text):
    """Says what happened to what: some words, nothing of the program's inside, nothing left open at the end."""
    text = text.strip()
    return (
        len(re.findall(r"[A-Za-z]{2,}", text)) >= 3
        and not UNREADABLE.search(text)
        and not text.endswith((":", ": ", "()", ","))
        and text.isprintable()
    )


def is_crash(code):
    """Of an exit code as Popen has it: ended by a signal that a process sends itself, or a sanitizer's exit."""
    return code in (
        -signal.SIGABRT,
        -signal.SIGSEGV,
        -signal.SIGBUS,
        -signal.SIGILL,
        -signal.SIGFPE,
        -signal.SIGSYS,
        -signal.SIGTRAP,
    )


def other_losses(seen, alone):
    """Iterations of `seen` whose loss is not, to the bit, that of its place in `alone`, which repeats without end."""
    return [
        one["iteration"]
        for one in seen
        if not alone or one["loss"] != alone[(one["iteration"] - 1) % len(alone)]["loss"]
    ]


def count_apart(iterations):
    """Of the iterations that ranks have ended, read one after the other while they train: a pipeline's may be one apart, and are read within one."""
    return max(iterations) - min(iterations) > 2


def deleted_recordings(seen, there):
    """Of the names in `seen`, which gets those that are `there`: the ones that are gone, though they were not the newest.
    The newest one has nothing yet where its recorder is killed at once, and then the next recorder deletes it."""
    gone = sorted(seen - set(there))
    seen.difference_update(gone)
    seen.update(sorted(there)[:-1])
    return gone


class Bubbles:
    """Of one rank: when they began and ended, and until when a lease opened in one may last at most. In order."""

    KEEP_NS = 120_000_000_000

    def __init__(self):
        self.begins, self.ends, self.deadlines = [], [], []

    def add(self, begin_ns, end_ns, longest_ns):
        self.begins.append(begin_ns)
        self.ends.append(end_ns)
        self.deadlines.append(begin_ns + longest_ns)
        if len(self.begins) > 200_000 and self.begins[100_000] < begin_ns - self.KEEP_NS:
            del self.begins[:100_000], self.ends[:100_000], self.deadlines[:100_000]

    def where(self, at_ns):
        """("inside", None), ("late", ns past the end) before the lease's deadline, ("after", the bubble's begin), or
        ("unknown", None) before the first one."""
        index = bisect.bisect_right(self.begins, at_ns) - 1
        if index < 0:
            return "unknown", None
        if at_ns <= self.ends[index]:
            return "inside", None
        if at_ns <= self.deadlines[index]:
            return "late", at_ns - self.ends[index]
        return "after", self.begins[index]


class Steps:
    """Steps of all side tasks against the bubbles of the rank whose device they were on. What a worker that cannot act
    leaves open is bounded by the lease's deadline, and by then no step begins. One step of a task may: it was let in
    before, and had to wait for the processor before its first instruction. A second one in the same gap between two
    bubbles is a fault."""

    def __init__(self):
        self.counts = {"inside": 0, "late": 0, "after": 0, "unknown": 0}
        self.latest_ns = 0  # past a bubble's end, under a lease that was still open
        self._after = {}  # (task, device): the bubble behind which its last such step was

    def judge(self, task, device, begin_ns, bubbles):
        """A fault's sentence, or None."""
        where, what = bubbles.where(begin_ns)
        self.counts[where] += 1
        if where == "late":
            self.latest_ns = max(self.latest_ns, what)
        elif where == "after":
            if self._after.get((task, device)) == what:
                return f"{task} on {device} began a second step, at {begin_ns}, after the lease of the bubble of {what}"
            self._after[task, device] = what
        return None


class Runs:
    """The steps of one task, over all its processes, wherever they were: never two at the same time."""

    KEPT = 20_000  # steps of one process

    def __init__(self):
        self._of = {}  # task: {who: its steps, as (begin, end)}

    def judge(self, task, who, begin_ns, end_ns):
        """A fault's sentence, or None. Steps of one process come in order, those of several in any."""
        processes = self._of.setdefault(task, {})
        processes.setdefault(who, collections.deque(maxlen=self.KEPT)).append((begin_ns, end_ns))
        for other, steps in processes.items():
            if other == who or begin_ns >= steps[-1][1] or end_ns <= steps[0][0]:
                continue
            for begin, end in steps:
                if begin < end_ns and begin_ns < end:
                    return (
                        f"{task} ran twice: in {other} from {begin} to {end}, and in {who} from {begin_ns} to {end_ns}"
                    )
        return None


def explains(verdict, struck, most_restarts=3):
    """Whether what was done to a task is a cause of its end. `struck`: how often, by kind of blow (a worker's, too)."""
    kind = verdict["kind"]
    if kind in ("finished", "stopped"):
        return True
    if kind == "crashed":
        return struck.get("kill runner", 0) > 0 and verdict.get("signal") == signal.SIGKILL
    if kind == "overran":
        return any(struck.get(what, 0) for what in ("freeze runner", "freeze supervisor"))
    if kind == "lost":
        lives = sum(
            struck.get(what, 0) for what in ("kill worker", "freeze worker", "kill supervisor", "freeze manager")
        )
        # A full disk takes the first start and the restart that follows at once; the later ones wait longer than it lasts.
        if "No space left" in (verdict.get("reason") or ""):
            lives += 2 * struck.get("full disk", 0)
        return lives >= most_restarts  # the manager starts it anew so often
    return False

"""Looks at everything from outside while it runs: the training's own pages, each side task's own record of its steps,
processes, memory and descriptors. Believes nothing that manager or workers say."""

import contextlib
import os
import pathlib
import re
import threading
import time

from chaos import judge
from freeride import pages

LOOK_S = 0.05
AFTER_BULK_S = 15.0  # until its task has ended and its content is dropped
LIVE = 1 << 62  # the end of what has not ended
PROC = pathlib.Path("/proc")


def read(path, default=b""):
    try:
        return pathlib.Path(path).read_bytes()
    except OSError:
        return default


def parent_of(pid):
    stat = read(PROC / str(pid) / "stat").decode(errors="replace")
    return int(stat.rsplit(")", 1)[1].split()[1]) if ")" in stat else 0


def state_of(pid):
    stat = read(PROC / str(pid) / "stat").decode(errors="replace")
    return stat.rsplit(")", 1)[1].split()[0] if ")" in stat else ""


def children(pid):
    return [int(word) for word in read(PROC / str(pid) / "task" / str(pid) / "children").split()]


class Rank:
    """One rank's bubble page, read through its process's own descriptor."""

    def __init__(self, pid, fd_path):
        fd = os.open(fd_path, os.O_RDONLY)
        try:
            self.page = pages.map_page(pages.BubblePage, fd)
        finally:
            os.close(fd)
        self.pid, self.bubbles, self._seen = pid, judge.Bubbles(), 0
        self._longest = {}  # of a wait: the longest that has been learned, for a while
        self.device = self.page.copy().device.decode()
        self.missed = 0

    def look(self):
        view = self.page.view
        count = view.bubbles
        for index in range(min(int(view.waits), pages.MAX_WAITS)):
            slot = view.learned[index]
            self._longest[index + 1] = max(
                slot.low_ns, slot.mid_ns, slot.high_ns, self._longest.get(index + 1, 0) * 999 // 1000
            )
        if count - self._seen > pages.HISTORY - 16:
            self.missed += count - self._seen - (pages.HISTORY - 16)
            self._seen = count - (pages.HISTORY - 16)
        for number in range(self._seen, count):
            record = view.history[number % pages.HISTORY]
            wait = pages.state_wait(record.state_word)
            longest = max(self._longest.get(wait, 0), record.learned_low_ns)
            self.bubbles.add(record.begin_ns, record.end_ns, longest)
        self._seen = count

    def open_since(self):
        """When the present bubble began, or None."""
        view = self.page.view
        return view.begin_ns if pages.state_wait(view.state_word) else None


class SideProcess:
    """A supervisor or a plugin's process of ours."""

    def __init__(self, pid, role, words):
        self.pid, self.role = pid, role
        ticks = int(read(PROC / str(pid) / "stat").decode(errors="replace").rsplit(")", 1)[1].split()[19])
        self.born_ns = (
            ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
        )  # since boot, as CLOCK_MONOTONIC where it never slept
        self.task, self.device, self.purpose = (words.get(key, "") for key in ("name", "device", "purpose"))
        self.trace, self.rest = None, b""


def words_of(pid):
    """The --KEY=VALUE of its command line."""
    return dict(
        word[2:].split("=", 1)
        for word in read(PROC / str(pid) / "cmdline").decode(errors="replace").split("\0")
        if word.startswith("--") and "=" in word
    )


class Watch:
    def __init__(self, system, keeper, fault):
        self.system, self.keeper, self._fault = system, keeper, fault
        self.ranks, self.sides = {}, {}  # by device; by pid
        self.steps, self.runs = judge.Steps(), judge.Runs()
        self.most, self.twice = {}, 0  # figures of the daemons; two supervisors of one task at once
        self.lengths = {}  # of a daemon: (pid, offset of its log that was looked at)
        self.messages = 0
        self.recordings = set()  # that were ended
        self._bulks, self._bulk_ended = 0, -AFTER_BULK_S  # that are on their way; when the last one has come
        self._waiting = []  # steps that no bubble is known for yet
        self._known, self._stop = {}, threading.Event()
        self._lock = threading.Lock()
        self.all_pids = set()  # of every worker there has been
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def begin(self):
        self._thread.start()

    def end(self):
        self._stop.set()
        self._thread.join()
        self._look()
        self._judge(everything=True)

    # ---- what there is
    def side(self, role, pick):
        """The pid and task of one supervisor or runner that is alive."""
        with self._lock:
            live = [one for one in self.sides.values() if one.role == role and one.purpose == "run"]
        live = [one for one in sorted(live, key=lambda one: one.pid) if state_of(one.pid) not in ("", "Z", "X")]
        return live[int(pick * len(live))] if live else None

    def alive(self):
        with self._lock:
            return [one.pid for one in self.sides.values() if state_of(one.pid) not in ("", "Z", "X")]

    def _loop(self):
        looks = 0
        while not self._stop.wait(LOOK_S):
            try:
                self._look()
                if looks % 10 == 0:
                    self._judge()
                    self._grow()
                    self._read_logs()
                    self._list_recordings()
            except Exception as error:  # a watch that has died sees nothing, and says nothing
                self._fault(f"the watch itself failed: {type(error).__name__}: {error}")
                raise
            looks += 1

    def find_ranks(self, training_pid):
        """By the memfd that each rank keeps open."""
        found = {}
        for pid in children(training_pid):
            with contextlib.suppress(OSError, pages.PageError):
                for fd in (PROC / str(pid) / "fd").iterdir():
                    if "memfd:bubble page" in os.readlink(fd):
                        rank = Rank(pid, fd)
                        found[rank.device] = rank
        with self._lock:
            self.ranks = found
        return found

    def _look(self):
        with self._lock:
            ranks = list(self.ranks.values())
        for rank in ranks:
            rank.look()
        self._find_sides()
        for side in list(self.sides.values()):
            if side.role == "runner" and side.purpose == "run":
                self._read_trace(side)
            if state_of(side.pid) in ("", "Z", "X"):
                if side.trace is not None:
                    self._read_trace(side)
                    os.close(side.trace)
                with self._lock:
                    del self.sides[side.pid]

    def _find_sides(self):
        now = time.monotonic()
        present = {int(name) for name in os.listdir(PROC) if name.isdigit()}
        for pid in list(self._known):
            if pid not in present:
                del self._known[pid]
        disk = os.stat(self.system.state_dir).st_dev  # what their plugin lies on, which no other system has
        disk = f" {os.major(disk)}:{os.minor(disk)} ".encode()
        for pid in present:
            first = self._known.setdefault(pid, now)
            if first is None or now - first > 2.0 and pid not in self.sides:  # it has become what it is going to be
                self._known[pid] = None
                continue
            if pid in self.sides:
                continue
            # A supervisor has its program's name, and its child, where the plugin is, the task's.
            parent = read(PROC / str(parent_of(pid)) / "comm")
            if b"freeride-runner\n" not in (read(PROC / str(pid) / "comm"), parent):
                continue
            if disk not in read(PROC / str(pid) / "mountinfo"):
                continue
            words = words_of(pid)
            if "name" not in words:
                continue
            # What a task is for it is not told, so its own command line says no more. Its sandbox's does.
            above = pid
            while "purpose" not in words and above > 1:
                above = parent_of(above)
                words |= {key: value for key, value in words_of(above).items() if key == "purpose"}
            if "purpose" not in words:
                continue  # it has just ended
            try:
                side = SideProcess(pid, "runner" if parent == b"freeride-runner\n" else "supervisor", words)
            except IndexError:
                continue  # it has just ended
            with self._lock:
                self.sides[pid] = side
                same = [
                    one
                    for one in self.sides.values()
                    if side.role == one.role == "supervisor" and one.purpose == side.purpose == "run"
                    if one.task == side.task and state_of(one.pid) not in ("", "Z", "X")
                ]
            self.twice += len(same) > 1

    def _read_trace(self, side):
        if side.trace is None:
            with contextlib.suppress(OSError):
                side.trace = os.open(PROC / str(side.pid) / "root/scratch/trace", os.O_RDONLY | os.O_NOFOLLOW)
        if side.trace is None:
            return
        while True:
            data = os.read(side.trace, 1 << 20)
            if not data:
                return
            lines = (side.rest + data).split(b"\n")
            side.rest = lines.pop()
            for line in lines:
                words = line.split()
                if len(words) == 3 and words[0] == b"step":
                    begin_ns, end_ns = int(words[1]), int(words[2])
                    if begin_ns > side.born_ns:  # else restored from an earlier incarnation's folder
                        self._waiting.append((begin_ns, side.task, side.device))
                        fault = self.runs.judge(side.task, f"process {side.pid} on {side.device}", begin_ns, end_ns)
                        if fault:
                            self._fault(fault)

    def _judge(self, everything=False):
        """Steps of whose time all bubbles are known."""
        with self._lock:
            ranks = dict(self.ranks)
        later = []
        for step in sorted(self._waiting):
            begin_ns, task, device = step
            rank = ranks.get(device)
            if rank is None:
                continue
            bubbles = rank.bubbles
            known_until = bubbles.ends[-1] if bubbles.ends else 0
            since = rank.open_since()
            if begin_ns > known_until:
                if since is not None and begin_ns >= since and not everything:
                    later.append(step)
                    continue
                if not everything and time.monotonic_ns() - begin_ns < 15_000_000_000:
                    later.append(step)
                    continue
            fault = self.steps.judge(task, device, begin_ns, bubbles)
            if fault:
                self._fault(fault)
        self._waiting = later

    @contextlib.contextmanager
    def bulk(self):
        """While plugins of hundreds of megabytes are on their way, what daemons have in memory is another figure."""
        with self._lock:
            self._bulks += 1
        try:
            yield
        finally:
            self._bulk_ended = time.monotonic()
            with self._lock:
                self._bulks -= 1

    def _grow(self):
        bulk = self._bulks > 0 or time.monotonic() - self._bulk_ended < AFTER_BULK_S
        for name in self.keeper.words:
            pid = self.keeper.pid(name)
            kind = name.split("-")[0]
            if kind == "worker":
                self.all_pids.add(pid)
            with contextlib.suppress(OSError, ValueError):
                status = read(PROC / str(pid) / "status").decode()
                resident = re.search(r"VmRSS:\s+(\d+)", status)
                if resident is None or not (PROC / str(pid) / "comm").read_text().startswith("freeride-"):
                    continue
                figures = {
                    f"{kind} KiB{' with bulk' if bulk else ''}": int(resident[1]),
                    f"{kind} descriptors": len(os.listdir(PROC / str(pid) / "fd")),
                    f"{kind} threads": int(re.search(r"Threads:\s+(\d+)", status)[1]),
                }
                for key, value in figures.items():
                    self.most[key] = max(self.most.get(key, 0), value)

    def _list_recordings(self):
        there = [path.name for path in (self.system.state_dir / "recordings").glob("*.mcap")]
        gone = judge.deleted_recordings(self.recordings, there)
        if gone:
            self._fault(f"recordings of this run were deleted: {gone}")

    def _read_logs(self):
        """Every warning and error is a sentence, and there is nothing that is no log line."""
        for name in self.keeper.words:
            path = self.system.folder / f"{name}.log"
            offset = self.lengths.get(name, 0)
            with contextlib.suppress(OSError), open(path, "rb") as file:
                file.seek(offset)
                whole, end, _ = file.read().rpartition(b"\n")
                self.lengths[name] = offset + len(whole) + len(end)
                for line in whole.decode(errors="replace").split("\n"):
                    self._judge_line(name, line)

    def _judge_line(self, name, line):
        if not line.strip():
            return
        found = re.match(r"\S+ (\w+) \[freeride-\w+\] (.*)", line)
        if found and found[1] in ("info", "debug"):
            return
        self.messages += 1
        text = found[2] if found else line
        if not judge.is_sentence(text):
            self._fault(f"{name} said what is no sentence: {line!r}")

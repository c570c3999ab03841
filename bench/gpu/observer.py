"""Watches a rank's bubble page and its worker's lease and answer pages without sleeping, for measurements: it sees a
GPU's mark within a microsecond. observer.py BUBBLE_PAGE WORKER_PID OUT; ends with SIGTERM or its stdin's end."""

import glob
import json
import mmap
import os
import signal
import struct
import sys
import time

from freeride.pages import AnswerPage, BubblePage, LeasePage

STATE, EXPECTED = BubblePage.state_word.offset, BubblePage.expected_ns.offset
LEASE, DEADLINE, OPENED, BEGIN = (
    getattr(LeasePage, name).offset for name in ("lease_id", "deadline_ns", "opened_ns", "begin_ns")
)
FIRST_STEP, PAUSED = AnswerPage.first_step_ns.offset, AnswerPage.last_paused_ns.offset
WORK = [getattr(AnswerPage, name).offset for name in ("steps", "step_ns", "lease_step_ns")]


def parent_of(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return 0


def pages_of(worker, title):
    """The pages of the worker's runners, which keep their descriptors."""
    found = {}
    for path in glob.glob("/proc/[0-9]*/fd/*"):
        try:
            link = os.readlink(path)
            if title not in link and not (title == LeasePage.TITLE and link.endswith(".lease")):
                continue
            pid = int(path.split("/")[2])
            while pid > 1 and pid != worker:
                pid = parent_of(pid)
            if pid != worker:
                continue
            fd = os.open(path, os.O_RDONLY)
            inode = os.fstat(fd).st_ino
            if inode not in found:
                found[inode] = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
            os.close(fd)
        except OSError:
            pass
    return list(found.values())


def main():
    path, worker, out = sys.argv[1:4]
    fd = os.open(path, os.O_RDONLY)
    bubble = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
    leases, answers = pages_of(int(worker), LeasePage.TITLE), pages_of(int(worker), AnswerPage.TITLE)
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
    u64 = struct.Struct("<Q").unpack_from
    edges, opened, paused, awake, stepped = [], [], [], [], []
    word = None
    firsts = [u64(page, FIRST_STEP)[0] for page in answers]
    ids, pauses = [u64(page, LEASE)[0] for page in leases], [u64(page, PAUSED)[0] for page in answers]
    begin_ns, work = time.monotonic_ns(), [[u64(page, at)[0] for at in WORK] for page in answers]
    longest = 0
    before = time.monotonic_ns()
    while not stopped:
        now = time.monotonic_ns()
        longest, before = max(longest, now - before), now
        seen = u64(bubble, STATE)[0]
        if seen != word:
            edges.append((now, seen))
            word = seen
            if seen & 0xFFFF:
                awake.append((now, u64(bubble, EXPECTED)[0]))
        for i, page in enumerate(leases):
            lease = u64(page, LEASE)[0]
            if lease != ids[i]:
                ids[i] = lease
                opened.append((now, lease, u64(page, OPENED)[0], u64(page, BEGIN)[0], u64(page, DEADLINE)[0]))
        for i, page in enumerate(answers):
            at = u64(page, PAUSED)[0]
            if at != pauses[i]:
                pauses[i] = at
                paused.append(at)
            first = u64(page, FIRST_STEP)[0]
            if first != firsts[i]:
                firsts[i] = first
                stepped.append(first)
    # Of each side task: steps, time in steps, the part of it before the deadlines of its leases.
    work = [[u64(page, at)[0] - start for at, start in zip(WORK, of_page)] for page, of_page in zip(answers, work)]
    with open(out, "w") as file:
        json.dump(
            {
                "begin_ns": begin_ns,
                "end_ns": time.monotonic_ns(),
                "work": work,
                "edges": edges,
                "leases": opened,
                "paused": paused,
                "awake": awake,
                "stepped": stepped,
                "longest_gap_ns": longest,
            },
            file,
        )


if __name__ == "__main__":
    main()

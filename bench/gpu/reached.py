"""Sees, without sleeping, when streams come to messages for other hosts (freeride_hook_remote_faults, `show`): reached.py
OUT SENT_PAGE:LOCAL_RANK …; ends with SIGTERM. OUT: of each page, [count, ns] as soon as the count was seen."""

import json
import mmap
import os
import signal
import struct
import sys
import time

from freeride.pages import SentPage


def main():
    out, *wanted = sys.argv[1:]
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
    u32 = struct.Struct("<I").unpack_from
    watched = []
    for one in wanted:
        path, _, local = one.rpartition(":")
        fd = os.open(path, os.O_RDONLY)
        page = mmap.mmap(fd, 0, mmap.MAP_SHARED, mmap.PROT_READ)
        ranks = SentPage.sent.size // 4
        side = int(ranks**0.5)
        at = SentPage.sent.offset + 4 * (side + 1) * int(local)
        watched.append([page, at, u32(page, at)[0], []])
    longest, before = 0, time.monotonic_ns()
    while not stopped:
        now = time.monotonic_ns()
        longest, before = max(longest, now - before), now
        for one in watched:
            count = u32(one[0], one[1])[0]
            if count != one[2]:
                one[2] = count
                one[3].append((count, now))
    with open(out, "w") as file:
        json.dump({"reached": [one[3] for one in watched], "longest_gap_ns": longest}, file)


if __name__ == "__main__":
    main()

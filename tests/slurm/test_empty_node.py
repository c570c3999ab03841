"""containers/slurm/empty-node on a node of its own, which is a namespace: what it removes of ranks' pages."""

import pathlib
import subprocess
import sys
import textwrap

SCRIPT = pathlib.Path(__file__).resolve().parent.parent.parent / "containers/slurm/empty-node"
PAGE = "/dev/shm/freeride-sent-gpt"
WATCHDOG_S = 60

# A rank that joins, as hooks/src/sent.cpp: it says each step, and waits for a line before the next.
RANK = """
    import fcntl, mmap, os, struct, sys
    def said(what):
        print(what, flush=True)
        sys.stdin.readline()
    folder = os.open("/dev/shm", os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    page = os.open(PAGE, os.O_RDWR)
    said("opened")
    mapped = mmap.mmap(page, 65536)
    started = int(open("/proc/self/stat").read().rsplit(")", 1)[1].split()[19])
    mapped[64:80] = struct.pack("<IIQ", 1, os.getpid(), started)
    fcntl.flock(folder, fcntl.LOCK_UN)
    said("joined")
    mapped.close()
    said("unmapped")
"""

NODE = """
    import os, subprocess, sys
    def empty():
        done = subprocess.run([SCRIPT], capture_output=True, text=True, env={**os.environ, "FREERIDE_EMPTY_S": "0",
            "FREERIDE_RUN_DIR": "/nowhere", "FREERIDE_CGROUPS": "/nowhere", "FREERIDE_SLURM_ENV": "/nowhere"})
        return done.returncode, done.stdout.strip()
    with open(PAGE, "wb") as file:
        file.truncate(65536)
    rank = subprocess.Popen([sys.executable, "-c", RANK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    def step(word):
        assert rank.stdout.readline() == word + "\\n", word
    in_use = (1, f"shared memory {PAGE} is in use")
    step("opened")
    assert empty() == (0, "") and os.path.exists(PAGE), "removed between a rank's open and its mapping"
    print("", file=rank.stdin, flush=True)
    step("joined")
    assert empty() == in_use, empty()
    print("", file=rank.stdin, flush=True)
    step("unmapped")
    assert empty() == in_use, "its rank lives"
    rank.kill()
    rank.wait()
    assert empty() == (0, "") and not os.path.exists(PAGE), "what killed ranks have left stays"
"""


def test_a_page_that_a_rank_has_opened_and_not_mapped_yet_stays():
    names = f"SCRIPT, PAGE, RANK = {str(SCRIPT)!r}, {PAGE!r}, {f'PAGE = {PAGE!r}' + textwrap.dedent(RANK)!r}"
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "sh", "-c"]
        + ['mount -t tmpfs none /dev/shm && exec "$@"', "sh", sys.executable, "-c", names + textwrap.dedent(NODE)],
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr

"""What may happen to a hooked training, in real trainings: the losses stay the same, and it ends as it would have without the hook."""

import subprocess
import sys

import pytest

import launch
from support import environment


def both(folder, plan, **env):
    plain = launch.run("train_odd.py", 2, plan, folder / "plain", hooked=False)
    hooked = launch.run("train_odd.py", 2, plan, folder / "hooked", hooked=True, **env)
    assert [rank["losses"] for rank in hooked] == [rank["losses"] for rank in plain]
    assert len(plain[1]["losses"][0]) > 1
    return hooked


def hook_said(folder, rank):
    return [line for line in launch.said(folder / "hooked", rank).splitlines() if line.startswith("freeride: ")]


def test_attached_twice(tmp_path):
    ranks = both(tmp_path, {"iterations": 6, "attach_twice": True}, FREERIDE_JOB="the job")
    assert [(rank["state"], rank["job"], rank["stage"], rank["iterations"], rank["waits"]) for rank in ranks] == [
        ("active", "the job", 0, 6, 4),
        ("active", "the job", 1, 6, 4),
    ]


def test_forked_data_loader(tmp_path):
    ranks = both(tmp_path, {"iterations": 8, "loader": True})
    assert [(rank["state"], rank["iterations"]) for rank in ranks] == [("active", 8)] * 2
    assert hook_said(tmp_path, 0) == hook_said(tmp_path, 1) == []


def test_profiler(tmp_path):
    ranks = both(tmp_path, {"iterations": 6, "profiler": True})
    assert all(rank["profiled"] for rank in ranks)
    assert [(rank["state"], rank["waits"]) for rank in ranks] == [("active", 4)] * 2


@pytest.mark.parametrize(
    "how,states,line",
    [
        ("disable_at", ["disabled", "active"], "a test"),
        ("fail_at", ["disabled", "active"], "RuntimeError: a test's failure"),
    ],
)
def test_hook_goes_off_on_one_rank(tmp_path, how, states, line):
    ranks = both(tmp_path, {"iterations": 12, how: 5})
    assert [rank["state"] for rank in ranks] == states
    assert hook_said(tmp_path, 0) == [f"freeride: the hook is switched off: {line}; training goes on without"]
    assert hook_said(tmp_path, 1) == []
    assert max(bubble[0] for bubble in ranks[0]["bubbles"]) < 5 <= max(bubble[0] for bubble in ranks[1]["bubbles"])


def test_one_rank_unhooked(tmp_path):
    """FREERIDE_HOOK=0 for one rank only, in whose process nothing of FreeRide is then."""
    plan = {"iterations": 6}
    plain = launch.run("train_odd.py", 2, plan, tmp_path / "plain", hooked=False)
    mixed = launch.run("train_odd.py", 2, plan, tmp_path / "hooked", hooked=True, off=[1])
    assert [rank["losses"] for rank in mixed] == [rank["losses"] for rank in plain]
    assert mixed[0]["state"] == "active" and "state" not in mixed[1]


def test_killed_rank_ends_the_others_as_without_the_hook(tmp_path):
    ended = []
    for hooked in (False, True):
        folder = tmp_path / str(hooked)
        ranks = launch.start("train_odd.py", 2, {"iterations": 1000, "kill_at": 7}, folder, hooked)
        codes = [rank.wait(timeout=240) for rank in ranks]
        assert codes[1] == -9
        ended.append((codes[0], [line for line in launch.said(folder, 0).splitlines() if line.startswith("ENDED")]))
    assert ended[0] == ended[1]
    assert ended[0][0] == 3 and ended[0][1] in (["ENDED 7 RuntimeError"], ["ENDED 7 DistBackendError"])


def test_relearned_after_a_change_of_the_micro_batch_count(tmp_path):
    for rank in both(tmp_path, {"iterations": 30, "micro_batches": 3, "then_micro_batches": 5, "change_at": 15}):
        assert rank["waits"] == 5
        known = {iteration for iteration, _, _, learned in rank["bubbles"] if learned > 0}
        # The first iteration with another schedule object learns shapes, and has more waits: it is odd by itself.
        assert 14 in known and 15 + 1 + 5 in known
        assert all(learned > 0 for iteration, _, _, learned in rank["bubbles"] if iteration > 15 + 1 + 5)


def test_relearned_after_a_change_of_the_lengths(tmp_path):
    """Longer sequences: every computation takes five times as long."""
    ranks = both(tmp_path, {"iterations": 30, "delay_ms": 4, "then_delay_ms": 20, "change_at": 15})
    # Rank 0's first wait is for rank 1's forward of the last micro-batch.
    learned = {iteration: low for iteration, wait, _, low in ranks[0]["bubbles"] if wait == 1}
    # Some iterations after the change; on a machine that others use, too, rank 0 may be late in any one of them.
    assert 0 < 1.5 * learned[14] < max(low for iteration, low in learned.items() if iteration >= 15 + 5)


def test_full_shared_memory(tmp_path):
    """A hook that wants sent counters, where their folder is full: it is attached without, says so once, and marks as ever."""
    code = f"""
import ctypes, os, sys
folder = {str(tmp_path)!r} + "/shm"
os.makedirs(folder)
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x00020000) != 0 or libc.mount(b"tmpfs", folder.encode(), b"tmpfs", 0, b"size=4k") != 0:
    print("cannot mount"); sys.exit(0)
with open(folder + "/full", "wb") as full:
    full.write(bytes(4096))
os.environ["FREERIDE_SHM_DIR"] = folder
from freeride import _library
library = _library.Library()
config = _library.Config(struct_size=ctypes.sizeof(_library.Config), flags=_library.SENT, job=b"full", device=b"cpu-0", stages=1, replicas=1)
handle = library.attach(ctypes.byref(config))
assert handle and library.sent_path(handle) == b"", library.sent_path(handle)
for _ in range(3):
    library.mark_begin(handle); library.mark_end(handle); library.iteration_end(handle)
from freeride import pages
page = pages.BubblePage.from_address(library.page(handle))
print(page.iteration, page.waits, library.produce(handle, 0), library.wait_sent(handle, 0, 1, 0))
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if done.stdout == "cannot mount\n":
        pytest.skip("this user may not mount a tmpfs")
    assert done.stdout == "3 1 0 -2\n"
    assert done.stderr.startswith("freeride: no sent counters: ") and done.stderr.count("freeride: ") == 1

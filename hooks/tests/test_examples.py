"""The example that shows the pages between processes survives the death of any of them."""

import re
import subprocess
import sys

import pytest

from support import SMALL, SOURCE, TRAIN, WATCHDOG, environment


@pytest.mark.parametrize("victim", [None, "rank0", "rank1", "watcher", "all"])
def test_two_ranks_survive(tmp_path, victim):
    arguments = ["--kill", victim] if victim else []
    done = subprocess.run(
        [sys.executable, SOURCE / "hooks/examples/two_ranks.py", *arguments],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    out = done.stdout
    assert "all who lived did their work" in out
    for rank in range(2):
        killed = victim in (f"rank{rank}", "all")
        assert (f"rank {rank}: iteration 39" in out) == (not killed)
        other_killed = victim == f"rank{1 - rank}"
        released = re.findall(rf"rank {rank}: the other one is gone; released in iteration (\d+)", out)
        if other_killed and not killed:
            assert released
        elif not other_killed and victim != "all":
            assert all(int(at) >= 38 for at in released)  # the other one may be through a little earlier
        if victim in (f"rank{rank}",):
            assert f"watcher: rank {rank} died" in out
        elif victim != "all":
            assert f"watcher: rank {rank} detached after 40 iterations, 40 bubbles" in out
    if victim == "watcher":
        assert out.count("watcher: has the page of rank") >= 2  # again, from the new one


def test_train_gpt_says_what_it_does_and_how_far_it_is(tmp_path):
    done = subprocess.run(
        [sys.executable, TRAIN, "--hook", "on", *SMALL, "--iterations", "5"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
    )
    assert done.returncode == 0 and done.stdout == ""
    said = done.stderr.splitlines()
    assert re.fullmatch(
        r"train_gpt: a GPT of 4 layers .* 2 stages, .*; 5 iterations, the time left is said after the second", said[0]
    )
    lines = [line for line in said if " ms an iteration" in line]
    assert re.fullmatch(r"train_gpt: iteration 2, loss \d\.\d{3}, \d+ ms an iteration, about \d+ s left", lines[0])
    assert lines[-1].startswith("train_gpt: iteration 5,")
    assert sum("no worker has this rank's page" in line for line in said) == 1
    assert not any(line.startswith("freeride: ") for line in said)


def test_train_gpt_run_through_the_hook_is_hooked(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "freeride.run", TRAIN, *SMALL, "--iterations", "3"],
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        env=environment(tmp_path, FREERIDE_HOOK_LIBRARY="/nowhere.so"),
        check=False,
    )
    assert done.returncode == 0
    assert done.stderr.count("not attached: OSError") == 2  # both ranks

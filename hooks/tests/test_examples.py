"""The example that shows the pages between processes survives the death of any of them."""
import re
import subprocess
import sys

import pytest

from support import SOURCE, WATCHDOG, environment


@pytest.mark.parametrize("victim", [None, "rank0", "rank1", "watcher", "all"])
def test_two_ranks_survive(tmp_path, victim):
    arguments = ["--kill", victim] if victim else []
    done = subprocess.run([sys.executable, SOURCE / "hooks/examples/two_ranks.py", *arguments], env=environment(tmp_path), capture_output=True,
                          text=True, timeout=WATCHDOG, check=False)
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

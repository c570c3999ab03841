"""The example that shows the pages between processes survives the death of any of them."""

import json
import re
import subprocess
import sys

import pytest

from freeride import pages
from support import SMALL, SOURCE, TRAIN, WATCHDOG, Worker, environment


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


def start(tmp_path, script, *words, **env):
    return subprocess.Popen(
        [sys.executable, SOURCE / "hooks/examples" / script, *map(str, words)],
        env=environment(tmp_path, **env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process):
    out, err = process.communicate(timeout=WATCHDOG)
    assert process.returncode == 0, err
    return [json.loads(line) for line in out.splitlines()], err


def phases_of(page):
    """The names of the phases that have ended, in order."""
    waits = [pages.state_wait(record.state_word) for _, record in pages.finished_bubbles(page)]
    names = [bytes(phase.name).rstrip(b"\0").decode() for phase in page.copy().phases]
    return [names[wait - pages.phase_wait(0)] for wait in waits if wait >= pages.phase_wait(0)]


def test_grpo_marks_its_rollouts_and_has_the_same_losses(tmp_path):
    words = ["grpo.py", "--iterations", 4, "--size", "tiny", "--rollout-s", "0.01,0.05"]
    plain, said = ended(start(tmp_path, *words, "--hook", "off"))
    assert said == ""
    worker = Worker(tmp_path, "cpu-0")
    hooked = start(tmp_path, *words)
    page = worker.take()
    lines, said = ended(hooked)
    worker.close()
    assert lines == plain and said == ""
    assert phases_of(page) == ["rollout"] * 4
    assert [line["rollout_s"] for line in lines] == [0.01, 0.05] * 2
    assert len({line["loss"] for line in lines}) == 4


def test_train_gpt_saves_are_phases_and_losses_the_same(tmp_path):
    words = ["train_gpt.py", *SMALL, "--iterations", 6, "--save-every", 2]
    losses = []
    for hook in ("off", "on"):
        workers = [Worker(tmp_path, f"cpu-{rank}") for rank in range(2)]
        folder = tmp_path / hook
        folder.mkdir()
        log = folder / "log"
        more = ["--hook", hook, "--save-folder", folder, "--log-json", log]
        training = start(tmp_path, *words, *more, FREERIDE_IDLE="save")
        seen = [worker.take() for worker in workers] if hook == "on" else []
        _, said = ended(training)
        assert not any(line.startswith("freeride: ") for line in said.splitlines())
        losses.append([json.loads(line)["loss"] for line in open(log)])
        for page in seen:
            assert phases_of(page) == ["save"] * 3 and page.copy().iteration == 6
        for worker in workers:
            worker.close()
        assert sorted(path.name for path in folder.glob("rank*")) == ["rank0.pt", "rank1.pt"]
    assert losses[0] == losses[1] and len(losses[0]) == 6

"""Launchers of other people's trainings, each with `-m freeride.run` where it is documented: every rank is hooked as who it is, and the losses are
those of the script alone. What is not installed is represented by the environment that it makes."""

import base64
import importlib.util
import json
import shutil
import subprocess
import sys

import pytest

from launch import HERE
from support import WATCHDOG, environment, free_port

SCRIPT = str(HERE / "train_launched.py")
THROUGH = ["-m", "freeride.run"]


def start(words, folder, **env):
    given = environment(folder, MASTER_ADDR="127.0.0.1", MASTER_PORT=free_port(), DS_ACCELERATOR="cpu")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        given.pop(name, None)
    given.update(env)
    with open(folder / "said", "ab") as said:
        return subprocess.Popen(
            [str(word) for word in words], env=given, cwd=folder, stdout=said, stderr=subprocess.STDOUT
        )


def finish(processes, folder):
    try:
        for process in processes:
            assert process.wait(timeout=4 * WATCHDOG) == 0, (folder / "said").read_text(errors="replace")[-4000:]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    return [json.loads((folder / f"out.{rank}").read_text()) for rank in range(2)]


def by_environment(ranks, folder, through=THROUGH, how=()):
    """A process each, with this in its environment."""
    port = str(free_port())
    words = [sys.executable, *through, SCRIPT, folder / "out", *how]
    return finish([start(words, folder, MASTER_PORT=port, **rank) for rank in ranks], folder)


def by_hand(folder, through=THROUGH, how=()):
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"} for rank in range(2)]
    return by_environment(ranks, folder, through, how)


def torchrun(folder, *options):
    return [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", *options]


@pytest.fixture(name="alone", scope="module")
def _alone(tmp_path_factory):
    """The losses of the script without the hook."""
    ranks = by_hand(tmp_path_factory.mktemp("alone"), through=())
    assert [rank["state"] for rank in ranks] == [None, None] and len(ranks[1]["losses"]) == 12
    return ranks[1]["losses"]


def check(ranks, alone, devices=("cpu-0", "cpu-1")):
    assert ranks[1]["losses"] == alone
    for number, rank in enumerate(ranks):
        place = [rank[name] for name in ("state", "rank", "stage", "stages", "device", "waits")]
        assert place == ["active", number, number, 2, devices[number], 2]
        assert rank["file"] == SCRIPT
    assert ranks[0]["job"] == ranks[1]["job"]


def test_torchrun(tmp_path, alone):
    ranks = finish([start([*torchrun(tmp_path, "--standalone"), *THROUGH, SCRIPT, "out", "a"], tmp_path)], tmp_path)
    check(ranks, alone)
    assert ranks[0]["argv"] == ["out", "a"]
    script, digits = ranks[0]["job"].rsplit("-", 1)  # --standalone makes a name up
    assert script == "train_launched.py" and len(digits) == 8


def test_a_restart_by_torchrun(tmp_path, alone):
    words = [*torchrun(tmp_path, "--standalone", "--max-restarts", "1"), *THROUGH, SCRIPT, "out", "fail"]
    check(finish([start(words, tmp_path)], tmp_path), alone)
    assert "a test's failure" in (tmp_path / "said").read_text(errors="replace")


def test_deepspeeds_launcher(tmp_path, alone):
    """Which puts an argument right behind the module's name."""
    hosts = base64.urlsafe_b64encode(json.dumps({"localhost": [0, 1]}).encode()).decode()
    words = [sys.executable, "-m", "deepspeed.launcher.launch", f"--world_info={hosts}", "--master_addr=127.0.0.1"]
    words += [f"--master_port={free_port()}", "--module", "freeride.run", SCRIPT, "out"]
    ranks = finish([start(words, tmp_path)], tmp_path)
    check(ranks, alone)
    assert [rank["argv"] for rank in ranks] == [["--local_rank=0", "out"], ["--local_rank=1", "out"]]


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="accelerate is not installed")
def test_accelerates_launcher(tmp_path, alone):
    words = [sys.executable, "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "--num_machines", "1"]
    words += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", free_port()]
    check(finish([start([*words, "-m", "freeride.run", SCRIPT, "out"], tmp_path)], tmp_path), alone)


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="there is no mpirun")
def test_mpirun(tmp_path, alone):
    words = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable, *THROUGH, SCRIPT, "out"]
    check(finish([start(words, tmp_path)], tmp_path), alone)


def test_sruns_environment(tmp_path, alone):
    """A node with other ranks before these, of which Slurm alone tells the places."""
    ranks = [{"SLURM_PROCID": str(n), "SLURM_LOCALID": str(n + 4), "SLURM_JOB_ID": "7"} for n in range(2)]
    found = by_environment(ranks, tmp_path)
    check(found, alone, ("cpu-4", "cpu-5"))
    assert found[0]["job"].startswith("train_launched.py-slurm-7-")


def test_pods_of_kubeflow(tmp_path, alone):
    """One rank a pod, each of which has but one device."""
    check(by_environment([{"RANK": str(n), "WORLD_SIZE": "2", "LOCAL_RANK": "0"} for n in range(2)], tmp_path), alone, ("cpu-0", "cpu-0"))  # fmt: skip


@pytest.mark.parametrize("how", ["spawn", "actors"])
def test_a_script_that_starts_its_ranks_in_processes(tmp_path, alone, how):
    check(finish([start([sys.executable, *THROUGH, SCRIPT, "out", how], tmp_path)], tmp_path), alone)
    assert "freeride: " not in (tmp_path / "said").read_text(errors="replace")


def test_a_restart_within_the_process(tmp_path):
    """The same processes as other ranks, in a default group made anew; three iterations in each."""
    (tmp_path / "alone").mkdir()
    (tmp_path / "hooked").mkdir()
    alone = by_hand(tmp_path / "alone", through=(), how=["again"])
    ranks = by_hand(tmp_path / "hooked", how=["again"])
    assert [rank["losses"] for rank in ranks] == [rank["losses"] for rank in alone]
    places = [[rank[name] for name in ("state", "rank", "stage", "stages", "waits")] for rank in ranks]
    assert places == [["active", 0, 0, 2, 2], ["active", 1, 1, 2, 2]]

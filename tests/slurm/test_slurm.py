"""Slurm's real daemons, a training whose stages are on two nodes, and side tasks in its bubbles. make test-slurm."""

import os
import shutil
import signal

import pytest
from cluster import Cluster

from rig.hosts import Wires
from rig.testing import until

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces"),
    pytest.mark.skipif(not shutil.which("slurmctld"), reason="Slurm is not installed"),
]


@pytest.fixture(scope="module")
def slurm():
    """Slurm without FreeRide on its nodes."""
    with Wires() as wires, Cluster(wires) as cluster:
        cluster.boot()
        cluster.start_slurm()
        yield cluster


@pytest.fixture(scope="module")
def cluster(slurm):
    slurm.wait_idle()  # else the Epilog of the job before finds new nodes, and takes them for what it left
    slurm.start_manager_there()
    for host in "ab":
        slurm.start_node(host)
    slurm.wait_workers(2)
    return slurm


def one_line(text, *words):
    lines = [line for line in text.splitlines() if "freeride" in line]
    assert len(lines) == 1, text
    for word in words:
        assert word in text, text


def said(cluster, host, *words):
    return cluster.on(host, *cluster.user_words(words)).stdout.strip()


def test_steps_run_and_are_hooked_only_where_the_job_says_so(slurm):
    show = [
        "sh",
        "-c",
        'echo "$FREERIDE_JOB ${FREERIDE_HOOK:-unset} $(python3 -c "import freeride; print(1)" 2>&1 | tail -n 1)"',
    ]
    assert len(said(slurm, "a", "srun", "-N2", "hostname").split()) == 2
    for flags, hooked in ((["--freeride"], True), (["--freeride=on"], True), ([], False), (["--freeride=off"], False)):
        line = said(slurm, "a", "srun", "-N1", *flags, *show)
        assert line.startswith("slurm-") == hooked and line.endswith(" 1") == hooked, line
        assert (line.split()[0] == "0") == (flags == ["--freeride=off"]), line
    wrong = slurm.on("a", "srun", "-N1", "--freeride=0.3", "true", check=False)
    assert wrong.returncode != 0
    assert "--freeride takes on or off, not '0.3'" in wrong.stderr, wrong
    for flag in ("--freeride", "--freeride=off"):
        assert (
            slurm.on("a", *slurm.user_words(["srun", "-N1", flag, "sh", "-c", "exit 7"]), check=False).returncode == 7
        )
    # A script's own line holds for its steps; arrays are told apart.
    script = slurm.write("names.sh", "#!/bin/sh\n#SBATCH -N1\n#SBATCH --freeride\n#SBATCH -D {root}\n#SBATCH -o n-%A-%a\n"
                         "echo $FREERIDE_JOB\nsrun printenv FREERIDE_JOB\n", root=slurm.root)  # fmt: skip
    number = said(slurm, "a", "sbatch", "--wait", "--parsable", "--array=3-4", script)
    for task in (3, 4):
        assert (slurm.root / f"n-{number}-{task}").read_text().split() == [f"slurm-{number}_{task}"] * 2
    assert (
        said(slurm, "a", "env", "FREERIDE_JOB=mine", "srun", "-N1", "--freeride", "printenv", "FREERIDE_JOB") == "mine"
    )


def test_a_job_runs_where_freeride_is_missing(slurm):
    slurm.plugstack(python=slurm.root / "none")
    try:
        done = slurm.on("a", *slurm.user_words(["srun", "-N1", "--freeride", "echo", "trained"]))
    finally:
        slurm.plugstack()
    assert done.stdout == "trained\n"
    one_line(done.stderr, "cannot be read", "goes on without side tasks")


def test_a_training_on_two_nodes_is_harvested_and_loses_nothing(cluster):
    cluster.wait_idle()
    training = cluster.train("training", "--freeride", iterations=100)
    job = cluster.job()
    for stage, name in enumerate(("count-a", "count-b")):
        cluster.counter(name, stage)
    cluster.wait_trainers(job)
    for rank in "01":
        seen = cluster.ok("events", "--topic", f"bubble.end/slurm-{job}/{rank}", "--count", 1)
        assert seen["rank"] == int(rank), seen
    for name in ("count-a", "count-b"):
        cluster.wait_steps(name, 5)
    assert training.wait(300) == 0, cluster.log("training")
    cluster.processes.pop("training")
    cluster.wait_idle()
    assert {verdict["kind"] for verdict in cluster.stop_tasks("count-a", "count-b")} == {"stopped"}
    assert cluster.train("plain", "--freeride=off", iterations=100).wait(300) == 0, cluster.log("plain")
    cluster.processes.pop("plain")
    assert len(cluster.losses()) == 100 and cluster.losses() == cluster.losses("plain")


def test_a_cancelled_job_leaves_empty_nodes_and_its_side_tasks_go_on_with_the_next(cluster):
    cluster.counter("left-a", 0)
    cluster.counter("left-b", 1)
    job = cluster.begin("first")
    for name in ("left-a", "left-b"):
        cluster.wait_steps(name, 20)
    assert cluster.left("a") and cluster.left("b")
    assert cluster.cancel("first", job) != 0
    cluster.wait_idle()
    assert not cluster.left("a") and not cluster.left("b")
    steps = {name: cluster.steps(name) for name in ("left-a", "left-b")}
    # A job that does not ask for them has none.
    said(cluster, "a", "srun", "-N2", "sleep", "1")
    assert not cluster.left("a") and not cluster.left("b")
    assert {name: cluster.steps(name) for name in steps} == steps
    job = cluster.begin("second")
    for name in steps:
        assert cluster.wait_steps(name, 5) > steps[name]
        assert not cluster.task(name)["verdict"]["kind"]
    cluster.cancel("second", job)
    cluster.wait_idle()
    cluster.stop_tasks(*steps)


def test_a_node_that_is_not_empty_is_drained_with_the_reason(cluster):
    page = "/dev/shm/freeride-sent-left"
    hold = "import mmap, sys; f = open(sys.argv[1], 'w+b'); f.write(b'x'); f.flush(); m = mmap.mmap(f.fileno(), 1); print(input())"
    cluster.start("holder", cluster.enter("a", ["/usr/bin/python3", "-c", hold, page]), stdin=-1)
    until((cluster.root / "a/shm/freeride-sent-left").exists, "what is left")
    said(cluster, "a", "srun", "-N2", "--freeride", "true")
    until(lambda: cluster.states() == {"a": "drained", "b": "idle"}, "one node is drained")
    assert cluster.reason("a") == f"freeride: shared memory {page} is in use"
    cluster.signal("holder", 9)
    cluster.processes.pop("holder")
    said(cluster, "a", "scontrol", "update", "nodename=a", "state=resume")
    said(cluster, "a", "srun", "-N2", "--freeride", "true")
    cluster.wait_idle()
    assert not cluster.left("a")  # its last user has gone


def test_slurms_daemons_are_killed_and_come_back(cluster):
    job = cluster.begin("long")
    cluster.counter("through", 1)
    cluster.wait_steps("through", 5)
    for name in ("slurmctld", "slurmd-b"):
        cluster.signal(name, signal.SIGKILL)
        cluster.processes.pop(name).wait(20)
    cluster.wait_iterations(3, "long")
    cluster.wait_steps("through", 5)
    cluster.start_ctld()
    cluster.start_slurmd("b")
    cluster.wait(lambda: cluster.states() == {"a": "allocated", "b": "allocated"}, "the nodes are known again")
    assert cluster.jobs() == [job]
    cluster.wait_steps("through", 5)
    assert cluster.info("through")["restarts"] == 0
    assert cluster.cancel("long", job) != 0
    cluster.wait_idle()
    assert not cluster.left("a") and not cluster.left("b")
    cluster.stop_tasks("through")


def test_without_a_manager_nodes_are_emptied_all_the_same(cluster):
    """Last: the nodes' daemons are stopped for it."""
    job = cluster.begin("alone")
    cluster.counter("orphan", 0)
    cluster.wait_steps("orphan", 5)
    cluster.signal("manager", signal.SIGKILL)
    cluster.processes.pop("manager").wait(20)
    cluster.wait_iterations(3, "alone")
    for host in "ab":
        cluster.processes.pop(f"node-{host}")  # is to end
    assert cluster.cancel("alone", job) != 0
    cluster.wait_idle()
    assert not cluster.left("a") and not cluster.left("b")
    assert cluster.worker_pid("a") is None and cluster.worker_pid("b") is None
    # The next jobs: one trains without FreeRide, and once there is a manager Prolog's nodes find it.
    assert said(cluster, "a", "srun", "-N2", "--freeride", "echo", "trained").split() == ["trained"] * 2
    cluster.wait_idle()
    assert cluster.worker_pid("a") is None and cluster.worker_pid("b") is None
    cluster.start_manager_there()
    (cluster.root / "may-start").touch()  # before, nodes are the fixture's
    job = cluster.begin("again")
    cluster.wait_steps("orphan", 5)
    assert cluster.cancel("again", job) != 0
    cluster.wait_idle()
    assert not cluster.left("a") and not cluster.left("b")

"""Slurm's real daemons, a training whose stages are on two nodes, and side tasks in its bubbles. make test-slurm."""

import os
import shlex
import shutil
import signal

import pytest
from cluster import USERS, Cluster

from conftest import FAILED
from rig.hosts import Wires
from rig.testing import find_plugin, until

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


@pytest.fixture(autouse=True)
def nothing_for_the_next(request):
    """What a test that has failed leaves is not the next one's."""
    yield
    failed = request.node.stash.get(FAILED, False)
    if failed and "slurm" in request.fixturenames:
        request.getfixturevalue("slurm").clear()


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
    for flags, why in (
        (["--freeride=0.3"], "--freeride takes on or off, not '0.3'"),
        (["--freeride-budget=0.3%"], "--freeride-budget takes a percentage from 0 to 100, such as 0.3, and not '0.3%'"),
        (["--freeride-budget=-1"], "--freeride-budget takes a percentage from 0 to 100, such as 0.3, and not '-1'"),
        (["--freeride=off", "--freeride-budget=1"], "--freeride=off has none"),
    ):
        wrong = slurm.on("a", "srun", "-N1", *flags, "true", check=False)
        assert wrong.returncode != 0 and why in wrong.stderr, wrong
    wrong = slurm.on("a", "env", "SLURM_FREERIDE_BUDGET=much", "srun", "-N1", "--freeride", *show)
    assert "SLURM_FREERIDE_BUDGET is a percentage from 0 to 100, not 'much'" in wrong.stderr, wrong
    assert wrong.stdout.split()[0] == "0", wrong
    for flag in ("--freeride", "--freeride=off"):
        assert (
            slurm.on("a", *slurm.user_words(["srun", "-N1", flag, "sh", "-c", "exit 7"]), check=False).returncode == 7
        )
    # A script's own line holds for its steps; arrays are told apart.
    names = "FREERIDE_JOB FREERIDE_JOB_BUDGET_PCT"
    script = slurm.write("names.sh", "#!/bin/sh\n#SBATCH -N1\n#SBATCH --freeride-budget=0.3\n#SBATCH -D {root}\n"
                         "#SBATCH -o n-%A-%a\nprintenv {names}\nsrun printenv {names}\n"
                         "srun --freeride-budget=2 printenv {names}\n", root=slurm.root, names=names)  # fmt: skip
    number = said(slurm, "a", "sbatch", "--wait", "--parsable", "--array=3-4", script)
    for task in (3, 4):
        name = f"slurm-{number}_{task}"
        said_there = (slurm.root / f"n-{number}-{task}").read_text().split()
        assert said_there == [name, "0.3", name, "0.3", name, "2"]
    assert said(slurm, "a", "srun", "-N1", "--freeride", "sh", "-c", "echo ${FREERIDE_JOB_BUDGET_PCT:-none}") == "none"
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
    cluster.set_node("a", FREERIDE_EMPTY_S=5)  # it is not going to be
    cluster.start("holder", cluster.enter("a", ["/usr/bin/python3", "-c", hold, page]), stdin=-1)
    until((cluster.root / "a/shm/freeride-sent-left").exists, "what is left")
    said(cluster, "a", "srun", "-N2", "--freeride", "true")
    until(lambda: cluster.states() == {"a": "drained", "b": "idle"}, "one node is drained")
    assert cluster.reason("a") == f"freeride: shared memory {page} is in use"
    cluster.signal("holder", 9)
    cluster.processes.pop("holder")
    cluster.set_node("a", FREERIDE_EMPTY_S=60)
    said(cluster, "a", "scontrol", "update", "nodename=a", "state=resume")
    said(cluster, "a", "srun", "-N2", "--freeride", "true")
    cluster.wait_idle()
    assert not cluster.left("a")  # its last user has gone


def test_a_job_that_is_requeued_or_preempted_goes_on_and_so_does_its_side_task(cluster):
    cluster.wait_idle()
    job = cluster.submit("again", "--freeride", "--requeue")
    cluster.keeper("kept", 1)
    # By its user; and by a job of more priority, which runs without side tasks.
    urgent = ["srun", "-N2", "-p", "urgent", "sh", "-c", "pgrep -f '[f]reeride-runner' || echo none"]
    for restarts, command in enumerate((["scontrol", "requeue", job], urgent), 1):
        cluster.wait_steps("kept", 20)
        output = said(cluster, "a", *command)
        assert command is not urgent or output.split() == ["none", "none"], output
        cluster.wait_off(job)
        assert cluster.job_state(job)["JobState"] == "PENDING"
        cluster.wait_idle()
        assert not cluster.left("a") and not cluster.left("b")
        had = cluster.metrics("kept")["n"]
        cluster.wait_trainers(job)
        assert cluster.job_state(job)["Restarts"] == str(restarts)
        cluster.wait_steps("kept", 5)
        assert cluster.metrics("kept")["restored"] >= had, cluster.metrics("kept")
    cluster.cancel_batch(job)
    cluster.wait_idle()
    assert not cluster.left("a") and not cluster.left("b")
    cluster.stop_tasks("kept")


def test_a_job_whose_time_is_over_leaves_empty_nodes(cluster):
    job = cluster.begin("short")
    cluster.keeper("over", 0)
    cluster.wait_steps("over", 5)
    said(cluster, "a", "scontrol", "update", f"jobid={job}", "endtime=now+5")
    assert cluster.processes.pop("short").wait(180) != 0
    cluster.wait_idle()
    assert cluster.job_state(job)["JobState"] == "TIMEOUT"
    assert not cluster.left("a") and not cluster.left("b")
    had = cluster.metrics("over")["n"]
    job = cluster.begin("longer")
    cluster.wait_steps("over", 5)
    assert cluster.metrics("over")["restored"] >= had > 0, cluster.metrics("over")
    cluster.cancel("longer", job)
    cluster.wait_idle()
    cluster.stop_tasks("over")


def test_an_ordinary_users_job_is_harvested_within_its_budget_and_charged_to_its_account(cluster):
    cluster.wait_idle()
    # The job loads its own side task, over its node's socket: SLURM_JOB_ACCOUNT says what it is charged to, and the
    # operator's list that alice of host a may.
    load = shlex.join(map(str, cluster.load_words(find_plugin("keeper.so"), "hers", "--stage", 1)))
    budget = ["--freeride-budget=0.3", "--account=vision"]
    job = cluster.submit(
        "of-alice", *budget, user="alice", before=f"export FREERIDE_RUN_DIR={cluster.root}/run\n{load}\n"
    )
    cluster.wait_steps("hers", 5)
    info = cluster.info("hers")["load"]
    assert (info["user"], info["account"]) == ("alice@a", "vision")
    name = f"{USERS['alice']}/slurm-{job}"
    seen = next(one for one in cluster.ok("report")["jobs"] if one["job"] == name)
    assert seen["budget_pct"] == seen["asked_budget_pct"] == 0.3, seen
    assert cluster.cancel_batch(job, "alice") == "CANCELLED"
    cluster.wait_idle()
    assert not cluster.left("a") and not cluster.left("b")
    kept = cluster.ok("report", "--since", "1h", "--by", "account")
    rows = {row["name"]: row for row in kept["rows"]}
    assert rows["vision"]["harvested_ns"] > 0 and rows["vision"]["tasks"] == 1, rows
    cluster.stop_tasks("hers")


def test_an_account_is_refused_where_only_the_client_names_it(cluster):
    plugin = find_plugin("keeper.so")
    there = cluster.root / "run"  # a node's socket; the manager's own is only on host a
    for user, host, folder, account, why in (
        ("alice", "a", cluster.run_dir, "vision", None),  # a member of this host's group
        ("bob", "a", cluster.run_dir, "vision", "no operator has listed bob for it, and no group vision of this host"),
        ("bob", "a", there, "vision", "no operator has listed bob@a for it"),
        ("alice", "b", there, "vision", "no operator has listed alice@b for it"),
        ("alice", "b", there, "freeride", "no operator has listed alice@b for it"),  # though she is in that group
        ("alice", "b", there, None, None),
    ):
        words = cluster.load_words(plugin, "charged", "--when-idle", *(["--account", account] if account else []))
        done = cluster.on(host, *cluster.as_user(user, ["env", f"FREERIDE_RUN_DIR={folder}", *words]), check=False)
        assert (done.returncode == 0) == (why is None) and (why or "") in done.stderr, (user, host, account, done)
        if why is None:
            load = cluster.info("charged")["load"]
            assert load["account"] == (account or "alice@b"), load
            cluster.stop_tasks("charged")


def test_slurms_daemons_are_killed_and_come_back(cluster):
    job = cluster.begin("long")
    cluster.counter("through", 1)
    cluster.wait_steps("through", 5)
    cluster.wait_saved(job)
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


def test_a_node_that_fails_loses_no_job_and_no_side_task(cluster):
    """Slurm finds by itself that it is down, and the job waits for it. Before the last: nodes and workers are others
    afterwards."""
    cluster.wait_idle()
    cluster.write_conf(silence=15)
    said(cluster, "a", "scontrol", "reconfigure")
    job = cluster.submit("fails", "--freeride", "--requeue")
    for stage, name in enumerate(("stays", "falls")):
        cluster.keeper(name, stage)
        cluster.wait_steps(name, 10)
    cluster.cut_power("b")
    until(lambda: cluster.states()["b"].startswith("down"), "a node is down")
    cluster.wait(lambda: cluster.job_state(job)["JobState"] == "PENDING", "the job is in the queue again")
    until(lambda: cluster.states()["a"] == "idle", "the other node is idle")
    assert not cluster.left("a")
    had = cluster.metrics("stays")["n"]
    cluster.write_conf()
    cluster.boot_host("b")
    cluster.start_slurmd("b")
    cluster.start_node("b")
    said(cluster, "a", "scontrol", "reconfigure")
    cluster.wait_trainers(job)
    cluster.wait_steps("stays", 5)
    assert cluster.metrics("stays")["restored"] >= had > 0, cluster.metrics("stays")
    cluster.wait_steps("falls", 5)  # from its beginning: what it had was in memory
    assert cluster.info("falls")["restarts"] == 1
    cluster.cancel_batch(job)
    cluster.wait_idle()
    assert not cluster.left("a") and not cluster.left("b")
    cluster.stop_tasks("stays", "falls")


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

"""The misbehaving suite beside a running training: verdicts, what is left behind, and the training's pace."""

import pathlib
import re
import socket
import statistics
import time

import pytest

import suite
from rig.statistics import interval
from rig.testing import BUILD, System, find_plugin, until

PLUGINS = BUILD / "test-plugins"
# Of the training's time increase while tasks misbehave: the interval's lower end has to lie below. Not a target: the 2
# cores are shared with the suite itself; a task that got past its limits would take half of one.
MOST_INCREASE_PCT = 10
QUIET_S = 5


def groups_of(worker):
    return [
        folder
        for folder in pathlib.Path("/sys/fs/cgroup").glob("**/freeride-*/")
        if re.search(rf"freeride-cpu-\d+-{worker}-", folder.name)
    ]


def pace(system, since, until_time):
    """Seconds of the iterations that ended in a stretch of time, without its slowest tenth (other users of this
    machine)."""
    times = sorted(
        (line["end_ns"] - line["begin_ns"]) / 1e9
        for line in system.iterations()
        if since <= line["end_ns"] / 1e9 <= until_time
    )
    return statistics.fmean(times[: max(1, len(times) * 9 // 10)]) if len(times) >= 5 else None


@pytest.fixture(scope="module")
def system():
    with System() as one:
        one.start_manager()
        flags = suite.FLAGS
        for device in ("cpu-0", "cpu-1"):
            one.start_worker(device, *flags)
        one.start_training(stages=2, hook="on", cores="0,1", dim=128, seq=128, micro_batches=2)
        one.wait_iterations(20)
        yield one


def our_mounts():
    """All but those of network namespaces and containers, which others on this host may make and remove meanwhile."""
    lines = pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if " - nsfs " not in line and " - overlay " not in line]


def test_misbehaving_suite(system):
    ctl = system.calls
    system.listen("task.")
    worker = system.processes["worker-cpu-1"]
    # A task that behaves, on the other worker and on this one: whose file nobody may read, and which goes on.
    for stage in (0, 1):
        ctl(
            "load",
            find_plugin("counter.so"),
            "--name",
            f"good-{stage}",
            "--stage",
            stage,
            "--memory",
            "64MiB",
            "--param",
            "step_us=300",
        )
        system.wait_steps(f"good-{stage}")
    others = system.state_dir / "tasks" / "good-0" / "log"
    assert others.exists()
    mounts = our_mounts()
    wrong, pairs = [], []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        for batch in suite.batches(suite.cases(listening.getsockname()[1], worker.pid, others)):
            quiet = time.monotonic()
            time.sleep(QUIET_S)
            begin = time.monotonic()
            wrong += suite.run(ctl, PLUGINS, batch, "--stage", 1)
            end = time.monotonic()
            pairs.append(((quiet, begin), (begin, end)))
    assert not wrong, "\n".join(wrong)

    # Worker and well-behaved tasks.
    assert worker.poll() is None
    for stage in (0, 1):
        system.wait_steps(f"good-{stage}")
    # Every verdict went over the bus, with the log's tail where there was a log.
    told = {
        event["task"]: event["verdict"] for event in system.seen("task.state") if event.get("verdict", {}).get("kind")
    }
    assert {case.name for case in suite.cases()} <= set(told)
    assert told["flood-stdout"]["log_tail"]
    # Nothing is left behind: processes of two good tasks, their groups, no mount.
    until(lambda: len(system.runners()) == 4, "only the good tasks' processes are there")
    assert len({folder.name for folder in groups_of(worker.pid)}) <= 1, groups_of(worker.pid)
    assert our_mounts() == mounts
    assert all(
        not (system.state_dir / "tasks" / case.name / f"scratch{end}").exists()
        for case in suite.cases()
        for end in (".new", ".old")
    )

    paces = [(pace(system, *quiet), pace(system, *busy)) for quiet, busy in pairs]
    ratios = [busy / quiet for quiet, busy in paces if quiet and busy]
    assert len(ratios) >= 3, paces
    mean, half = interval([100 * (ratio - 1) for ratio in ratios])
    print(f"training's iterations while tasks misbehaved: {mean:+.2f} ± {half:.2f} % ({len(ratios)} pairs of blocks)")
    assert mean - half < MOST_INCREASE_PCT


def test_the_sandbox_is_named(system):
    text = system.ok("task", "good-1")["task"]["sandbox"]
    assert text.startswith("bubblewrap (uid "), text
    assert "scratch 16 MiB" in text and "no network" in text
    assert "cgroup v" in text or "rlimits" in text
    assert all(worker["sandbox"] == "bubblewrap" for worker in system.ok("workers")["workers"])


def test_network_only_when_asked_for(system):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        case = suite.Case(
            "with-network",
            "use_network.so",
            "failed",
            says="was allowed to: ",
            params={"pid": listening.getsockname()[1]},
            flags=("--network",),
        )
        assert not suite.run(system.calls, PLUGINS, [case], "--stage", 1)


def test_scratch_is_one_task_s(system):
    """What a task leaves in its scratch folder can be read when it has ended, and is not another's of its name."""
    for _ in range(2):
        system.ok(
            "load",
            find_plugin("counter.so"),
            "--name",
            "keeps",
            "--stage",
            1,
            "--memory",
            "64MiB",
            "--param",
            "trace=1",
            "--param",
            "finish=5",
        )
        assert system.wait_verdict("keeps")["kind"] == "finished"
    trace = system.state_dir / "tasks" / "keeps" / "scratch" / "trace"
    assert trace.read_text().count("create ") == 1  # the second one's own


def test_a_full_scratch_folder_holds_nobody_up(system):
    """While a dead task's many files are put away, its worker answers: trainers and a GPU's memory wait for nobody's
    files."""
    system.ok("load", find_plugin("many_files.so"), "--name", "many", "--stage", 1, "--memory", "256MiB")
    fresh = system.state_dir / "tasks" / "many" / "scratch.new"
    until(fresh.exists, "the task's files are being put away")
    log = system.ok("task", "many")["task"]["log_tail"]  # comes from the worker
    assert fresh.exists() and "leaves many files" in log, f"the worker answered only when all was done: {log}"
    assert system.wait_verdict("many")["kind"] == "finished"
    assert len(list((system.state_dir / "tasks" / "many" / "scratch").iterdir())) == 4000

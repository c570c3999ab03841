"""Moving a running side task to another content of its plugin, with real programs: its steps are counted over it, every
process is killed in the middle of it, and 60 in a row leave nothing behind."""

import os
import signal
import threading
import time

import pytest

from rig.processes import resident_mib
from rig.testing import System, find_plugin, until

KIB_PER_REPLACEMENT = 4  # growth of the manager's and of the worker's resident memory, at most
KIB_OF_CACHES = 2048  # of SQLite's pages: the state file's fill some 400 replacements long


@pytest.fixture
def system():
    """Manager, one worker, no training: side tasks run because they may when nobody trains."""
    with System() as running:
        running.start_manager()
        running.start_worker("cpu-0")
        until(lambda: running.ok("workers")["workers"], "the worker registers")
        yield running


def variant(system, number, name="keeper.so"):
    """A plugin with a content of its own that does the same: what follows an ELF file's end is not looked at."""
    path = system.root / f"variant-{number}-{name}"
    path.write_bytes(find_plugin(name).read_bytes() + str(number).encode())
    return path


def load(system, *flags, plugin="keeper.so"):
    system.ok("load", find_plugin(plugin), "--name", "t", "--when-idle", *flags)
    system.wait_steps("t", 5)


def shown(system):
    return system.ok("task", "t")["task"]


def count(system):
    return shown(system)["state"]["counters"]["metrics"].get("n", -1)


def check_counts(system):
    """What the task says itself and what was counted of it over all its contents are the same."""
    system.wait_steps("t", 5)

    def same():
        counters = shown(system)["state"]["counters"]
        return counters["metrics"].get("n") == counters["steps"]

    until(same, "the task's own count is the number of its steps")


def fds(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def stored(system):
    return sorted(p.stem for p in (system.state_dir / "store").glob("*.so"))


def test_a_counter_keeps_its_count(system):
    load(system)
    answer = system.ok("load", variant(system, 1), "--yes", "--replace", "t")
    task = answer["task"]
    assert task["revision"] == 1 and task["replacement"]["state"] == "done"
    assert "continues from its state" in task["replacement"]["reason"]
    assert [old["verdict"]["kind"] for old in task["incarnations"]] == ["replaced"]
    assert task["incarnations"][0]["steps"] >= 5
    check_counts(system)
    assert len(system.ok("tasks")["tasks"]) == 1
    # By itself, and by name from the drop folder.
    system.ok("load", variant(system, 1), "--yes", "--replace", "t")
    check_counts(system)
    dropped = system.state_dir / "plugins" / "dropped.so"
    dropped.write_bytes(variant(system, 2).read_bytes())
    until(lambda: any(p["name"] == "dropped.so" for p in system.ok("plugins")["plugins"]), "the drop folder is seen")
    system.ok("load", "dropped.so", "--yes", "--replace", "t")
    check_counts(system)
    assert shown(system)["state"]["plugin"] == "dropped.so"
    # Paused by the user, it stays so.
    system.ok("pause", "t")
    system.wait_state("t", "PAUSED")
    system.ok("load", variant(system, 3), "--yes", "--replace", "t", "--param", "step_us=500", "--priority", 2)
    steps = system.steps("t")
    assert shown(system)["state"]["paused_by_user"] and shown(system)["load"]["params"] == {"step_us": "500"}
    time.sleep(1)
    assert system.steps("t") == steps
    system.ok("resume", "t")
    check_counts(system)
    # Without a state it begins at 0; its steps go on.
    steps = system.steps("t")
    system.ok("load", find_plugin("counter.so"), "--yes", "--replace", "t", "--param", "step_us=300")
    system.wait_steps("t", 5)
    counters = shown(system)["state"]["counters"]
    assert counters["metrics"]["count"] < counters["steps"] and counters["steps"] > steps


def test_what_cannot_be_replaced_says_why(system):
    assert system.ctl("load", variant(system, 1), "--yes", "--replace", "t").code == 4
    load(system)
    broken = [
        (("--param", "fail_in=create"), 5, "failed as told in create"),
        (("--param", "fail_in=init"), 5, "failed as told in init"),
        (("--param", "fail_in=restore"), 5, "failed as told in restore"),
        (("--param", "fail_in=restore", "--param", "fail_how=abort"), 5, "crashed in RestoreState"),
        (("--param", "no_such=1"), 5, "no parameter 'no_such'"),
        (("--memory", "900TiB"), 5, "does not fit"),
        (("--stage", "1"), 2, "--stage"),
        (("--name", "u"), 2, "--name"),
    ]
    for flags, code, words in broken:
        answer = system.ctl("load", variant(system, 1), "--yes", "--replace", "t", *flags)
        assert answer.code == code and words in answer.err, f"{flags}: {answer}"
        assert shown(system)["revision"] == 0
        check_counts(system)
    text = system.root / "text.so"
    text.write_text("no plugin")
    assert system.ctl("load", text, "--yes", "--replace", "t").code == 2
    answer = system.ctl("load", find_plugin("abi_99.so"), "--yes", "--replace", "t")
    assert answer.code == 5 and "99" in answer.err, answer
    check_counts(system)
    # Both its processes, and no others.
    until(lambda: len(system.runners()) == 2, "one content is left")
    system.ok("load", variant(system, 2), "--yes", "--replace", "t")
    check_counts(system)


def test_a_task_that_waits_simply_is_the_new_one(system):
    system.ok("load", find_plugin("counter.so"), "--name", "t", "--stage", 0)
    assert system.task("t")["state"] == "SUBMITTED"
    answer = system.ok("load", find_plugin("keeper.so"), "--yes", "--replace", "t")
    assert answer["task"]["state"]["plugin"] == "keeper.so" and answer["task"]["state"]["state"] == "SUBMITTED"
    system.ok("stop", "t")


def in_background(system, *args):
    answers = []
    thread = threading.Thread(target=lambda: answers.append(system.ctl(*args)))
    thread.start()
    return thread, answers


@pytest.mark.parametrize("delay_ms", [0, 30, 80, 150, 300])
def test_a_manager_killed_in_the_middle_costs_no_step(system, delay_ms):
    load(system)
    thread, answers = in_background(system, "load", variant(system, 1), "--yes", "--replace", "t")
    time.sleep(0.02 + delay_ms / 1000)  # ctl takes a moment to start: from before the request to after the answer
    system.kill("manager")
    system.start_manager()
    thread.join(60)
    assert answers and answers[0].code == 0, answers
    task = until(
        lambda: (lambda t: t if t["replacement"]["state"] == "done" else None)(shown(system)), "it is replaced"
    )
    assert task["revision"] == 1 and task["restarts"] == 0
    check_counts(system)
    assert len([t for t in system.ok("tasks")["tasks"] if t["state"]["state"] != "STOPPED"]) == 1
    until(lambda: len(system.runners()) == 2, "one content is left")


@pytest.mark.parametrize("delay_ms", [0, 60, 120, 250])
def test_a_worker_killed_in_the_middle_leaves_one_task(system, delay_ms):
    load(system)
    system.ok("load", variant(system, 9), "--yes", "--replace", "t")  # from here on a state is on disk
    saved = shown(system)["incarnations"][0]["steps"]
    check_counts(system)
    thread, answers = in_background(system, "load", variant(system, 1), "--yes", "--replace", "t")
    time.sleep(0.02 + delay_ms / 1000)
    system.kill("worker-cpu-0")
    system.start_worker("cpu-0")
    thread.join(60)
    assert answers and answers[0].code in (0, 1), answers
    system.wait_steps("t", 5)
    assert len([t for t in system.ok("tasks")["tasks"] if t["state"]["state"] != "STOPPED"]) == 1
    until(lambda: len(system.runners()) == 2, "one content is left")
    assert shown(system)["replacement"]["state"] in ("done", "failed")
    assert count(system) > saved  # never from nothing again


def test_60_replacements_in_a_row_leave_nothing_behind(system):
    load(system, "--param", "step_us=100")
    programs = {name: system.processes[name].pid for name in ("manager", "worker-cpu-0")}

    def replace(number):
        path = variant(system, number)
        assert system.ctl("load", path, "--yes", "--replace", "t").code == 0
        path.unlink()

    for number in range(20):  # until allocators and caches have their size
        replace(number)
    mounts = len(open(f"/proc/{programs['worker-cpu-0']}/mounts", encoding="ascii").readlines())
    cgroup = open(f"/proc/{programs['worker-cpu-0']}/cgroup", encoding="ascii").read()
    before = {name: (fds(pid), 1024 * resident_mib(pid)) for name, pid in programs.items()}
    files = sorted(os.listdir(system.state_dir / "tasks" / "t"))
    for number in range(20, 80):
        replace(number)
    until(lambda: len(system.runners()) == 2, "two processes are left")
    until(lambda: len(stored(system)) == 1, "one content is left in the store")
    assert stored(system) == [shown(system)["state"]["sha256"]]
    assert len(open(f"/proc/{programs['worker-cpu-0']}/mounts", encoding="ascii").readlines()) == mounts
    assert open(f"/proc/{programs['worker-cpu-0']}/cgroup", encoding="ascii").read() == cgroup
    assert sorted(os.listdir(system.state_dir / "tasks" / "t")) == files
    for name, pid in programs.items():
        until(lambda pid=pid, name=name: fds(pid) <= before[name][0], f"{name} has closed its descriptors")
        grown = 1024 * resident_mib(pid) - before[name][1]
        print(f"{name}: {before[name][1]} KiB resident, grown by {grown} KiB in 60 replacements")
        assert grown <= 60 * KIB_PER_REPLACEMENT + KIB_OF_CACHES, f"{name} grew by {grown} KiB"
    task = shown(system)
    assert task["revision"] == 80 and len(task["incarnations"]) == 8
    assert len(system.ok("tasks")["tasks"]) == 1
    check_counts(system)
    assert system.processes["manager"].poll() is None
    system.kill("manager", signal.SIGTERM)
    system.processes["manager"].wait(30)
    system.start_manager()
    check_counts(system)

"""The misbehaving suite with worker and side tasks in a container: the same cases, the same verdicts but for two
(REFUSED_OUTSIDE), and nothing left behind outside of it.

Without a training: that containers leave it alone is the main job's to show, and bubbles would only make this
longer."""

import contextlib
import dataclasses
import pathlib
import sys

TESTS = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS / "sandbox")]
import suite
from rig.testing import System, until

DEVICE = "cpu-1"
# Calls that the container's own filter refuses, whose answer goes before the sandbox's: they fail, and the task is not
# ended for them.
REFUSED_OUTSIDE = ("trace-supervisor", "set-clock")


def groups():
    return sorted(pathlib.Path("/sys/fs/cgroup").glob(f"**/freeride/freeride-{DEVICE}-*/"))


@contextlib.contextmanager
def the_group_first():
    """prepare-cgroups.sh's group is idle, for a training's sake. There is none, and a busy machine would starve what is
    in it: meanwhile it has the most weight there is."""
    group = next(
        pathlib.Path("/sys/fs/cgroup" + mount) / "freeride"
        for mount in ("/cpu", "/cpu,cpuacct", "")
        if (pathlib.Path("/sys/fs/cgroup" + mount) / "freeride/cpu.idle").exists()
    )
    (group / "cpu.idle").write_text("0")
    weight = next(group / name for name in ("cpu.shares", "cpu.weight") if (group / name).exists())
    weight.write_text("262144" if weight.name == "cpu.shares" else "10000")
    try:
        yield
    finally:
        (group / "cpu.idle").write_text("1")


def run(tree, plugins, env):
    """`tree`: as in_container.make_tree() makes it, manager and worker in containers; `env` for them. Returns what was
    wrong."""
    mounts = pathlib.Path("/proc/self/mountinfo").read_text()
    with System(tree, the_group_first, env) as system:
        ctl = system.calls
        system.start_manager()
        system.start_worker(DEVICE, *suite.FLAGS)
        worker = system.processes[f"worker-{DEVICE}"]
        until(lambda: ctl("workers")["workers"] or worker.poll() is not None, "the worker registers")
        ctl(
            "load",
            plugins / "counter.so",
            "--name",
            "good",
            "--memory",
            "64MiB",
            "--param",
            "step_us=300",
            "--when-idle",
        )
        system.wait_steps("good")
        (there,) = ctl("workers")["workers"]
        # Seen from where they are: the worker's number in its container, another task's log.
        listed = suite.cases(pid=there["pid"], others_file="/var/lib/freeride/tasks/good/log")
        listed = [
            dataclasses.replace(case, kind="finished", says="", limit="", signal=0)
            if case.name in REFUSED_OUTSIDE
            else case
            for case in listed
        ]
        wrong = []
        for batch in suite.batches(listed):
            wrong += suite.run(ctl, plugins, batch, "--when-idle")
        system.wait_steps("good")
        now = ctl("workers")["workers"]
        if worker.poll() is not None or [one["pid"] for one in now] != [there["pid"]]:
            wrong.append(f"the worker has not lived through it: {now}")
        until(lambda: len(system.runners()) == 2, "only the good task's processes are there")
        until(lambda: len({folder.name for folder in groups()}) <= 1, "only the good task's control groups are there")
        left = [
            end
            for case in listed
            for end in (".new", ".old")
            if (system.state_dir / "tasks" / case.name / f"scratch{end}").exists()
        ]
        if left:
            wrong.append(f"scratch folders were left behind: {left}")
        ctl("stop", "good")
        system.wait_verdict("good")
    after = pathlib.Path("/proc/self/mountinfo").read_text()
    return wrong + ([] if after == mounts else ["mounts were left behind"])

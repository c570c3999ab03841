"""Upgrades beside a training, with a drain and without: programs, hook and plugins are a tree of their own, whose folder is moved aside for that of the next version, of which no file is the same."""

import contextlib
import pathlib
import shutil
import time

import pytest

from rig.system import new_folder
from rig.testing import BUILD, System, find_plugin, until

PROGRAMS = ("freeride-ctl", "freeride-manager", "freeride-runner", "freeride-worker")
PERIOD = 20  # iterations, after which the training begins again: so many of it alone tell all of its losses
# Short orders: what is fenced after a start waits for them.
ORDERS = ("--order-pause-ms", 1500, "--order-stop-ms", 60_000, "--order-margin-ms", 2500)
TASKS = {"keeps": "keeper.so", "forgets": "counter.so"}  # of stage 0 and 1
IDLE = "idle"  # would execute on a device without a training


def mark(version):
    return f"\nversion {version}\n".encode()


def install(folder, version):
    """Linkers and loaders look at nothing behind what an ELF file says of itself."""
    for name in ("bin", "lib", "plugins"):
        (folder / name).mkdir(parents=True)
    files = [(BUILD / "bin" / name, "bin") for name in PROGRAMS]
    files += [(path, "lib") for path in (BUILD / "lib").glob("libfreeride_*.so")]
    files += [(find_plugin(name), "plugins") for name in TASKS.values()]
    for source, place in files:
        shutil.copy(source, folder / place)
        with open(folder / place / source.name, "ab") as file:
            file.write(mark(version))


class Host(System):
    """`gpu7` with two workers, whose training and side tasks begin under version 1."""

    def __init__(self, folder):
        self.installed = folder / "freeride"
        self.version = 1
        install(self.installed, self.version)
        super().__init__(self.installed)

    def start_manager_there(self, most_restarts=0):
        """A task that is restarted more often ends."""
        self.start_manager(*ORDERS, "--baseline-pct", 0, "--max-restarts", most_restarts)

    def start_workers(self):
        for stage in range(2):
            self.start_worker(f"cpu-{stage}", "--host-id", "gpu7")

    def begin(self):
        self.listen("bubble.")
        self.start_manager_there()
        self.start_workers()
        self.start_training(stages=2, again_after=PERIOD, pass_ms=3)
        self.wait_workers(2, trained=True)
        own = {"keeps": {}, "forgets": {"step_us": 300, "sleep": 1}}
        for stage, (name, plugin) in enumerate(TASKS.items()):
            self.load(self.installed / "plugins" / plugin, name, "--stage", stage, "--no-profile", params=own[name])
        self.load(self.installed / "plugins/keeper.so", IDLE, "--when-idle", "--no-profile")
        for name in (*TASKS, IDLE):
            self.wait_steps(name, 20)
        self.ranks = self.attached()
        self.contents = {name: self.task(name)["sha256"] for name in TASKS}

    def attached(self):
        """The training's processes."""
        launcher = self.processes["training"].pid
        return pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()

    def metric(self, task, name):
        return self.task(task)["counters"]["metrics"].get(name, -1)

    def counted_once(self, name):
        counters = self.task(name)["counters"]
        return counters["metrics"].get("n") == counters["steps"]

    def saved(self):
        """What the tasks had done when they were stopped."""
        for name in TASKS:
            assert self.wait_state(name, "SUBMITTED", "STOPPED")["state"] == "SUBMITTED", self.task(name)
        assert not self.runners()
        assert self.counted_once("keeps"), self.task("keeps")
        return {name: self.steps(name) for name in TASKS}

    def stop_workers(self):
        for stage in range(2):
            self.end(f"worker-cpu-{stage}")

    def put_next_version(self):
        self.installed.rename(self.installed.with_name(f"version-{self.version}"))
        self.version += 1
        install(self.installed, self.version)

    def put_back(self):
        self.installed.rename(self.installed.with_name(f"version-{self.version}"))
        self.version = 1
        self.installed.with_name("version-1").rename(self.installed)

    def upgrade(self):
        """As the package's restart of its units: workers, which need the manager, end before it and start after it."""
        self.end("manager")
        self.put_next_version()
        self.start_manager_there()
        self.start_workers()

    def check_programs(self):
        """Daemons and side tasks are of the version that is installed."""
        daemons = [self.processes[name].pid for name in ("manager", "worker-cpu-0", "worker-cpu-1")]
        for pid in (*daemons, *self.runners()):
            assert pathlib.Path(f"/proc/{pid}/exe").read_bytes().endswith(mark(self.version)), pid

    def check_hook(self):
        """The training has the hook of version 1."""
        for pid in self.ranks:
            mapped = pathlib.Path(f"/proc/{pid}/maps").read_text()
            assert f"{self.installed.parent}/version-1/lib/libfreeride_hook.so" in mapped
            assert f"{self.installed}/lib" not in mapped

    def check_tasks(self, stopped):
        """They are back, with what they had: `stopped` has the steps that each had made."""
        for name in TASKS:
            self.wait_steps(name, 20)
            info = self.info(name)
            assert (info["restarts"], info["failures"], info["state"]["verdict"]["kind"]) == (0, 0, ""), info
            assert info["state"]["sha256"] == self.contents[name], "it goes on with the content that was loaded"
        assert self.metric("keeps", "restored") == stopped["keeps"]
        until(lambda: self.counted_once("keeps"), "no step is lost or counted twice")
        until(
            lambda: self.steps("forgets") - self.metric("forgets", "count") == stopped["forgets"],
            "it begins at zero, and its steps of before are counted still",
        )

    def check_leases(self, since_ns):
        """The new workers know each rank's bubbles at once, and these are harvested again."""
        for stage in range(2):
            self.wait(
                lambda stage=stage: any(
                    event["stage"] == stage and event["leased"] and event["harvested_ns"] > 0
                    for event in self.bubbles("end", since_ns)
                ),
                f"leases of stage {stage}",
            )
            first = next(event for event in self.bubbles("begin", since_ns) if event["stage"] == stage)
            assert first["learned_ns"] > 0, "the hook keeps what it has learned on its page"

    def bubbles(self, topic, since_ns):
        return [event for event in self.seen(f"bubble.{topic}") if event["begin_ns"] > since_ns]

    def check_training(self, alone):
        """It has gone on, with all of its ranks and without a word, and its losses are those of a training alone."""
        self.wait_iterations(PERIOD)
        self.check()
        assert self.attached() == self.ranks
        assert "freeride:" not in self.log("training")
        iterations = self.iterations()
        assert [one["iteration"] for one in iterations] == list(range(1, len(iterations) + 1))
        assert [one["loss"] for one in iterations] == [alone[at % PERIOD] for at in range(len(iterations))]


@pytest.fixture(scope="module")
def alone():
    """Losses of the training without FreeRide."""
    with System() as system:
        system.start_training(stages=2, name="alone", hook="off", iterations=PERIOD)
        system.finish("alone")
        losses = [one["loss"] for one in system.iterations("alone")]
    assert len(set(losses)) == PERIOD
    return losses


@pytest.fixture
def host():
    folder = new_folder()
    with contextlib.ExitStack() as kept:
        kept.callback(shutil.rmtree, folder, ignore_errors=True)
        running = kept.enter_context(Host(folder))
        running.begin()
        yield running


def test_a_drained_host_is_upgraded_and_goes_back_beside_a_training(host, alone):
    # Step 0. A manager that is back soon disturbs nobody.
    before = {name: host.info(name)["epoch"] for name in TASKS}
    runners = sorted(host.runners())
    host.end("manager")
    copy = host.root / "copy"
    copy.mkdir()
    for path in host.state_dir.glob("freeride.db*"):
        shutil.copy2(path, copy)
    shutil.copytree(host.state_dir / "store", copy / "store")
    host.start_manager_there()
    host.wait_workers(2)
    for name in TASKS:
        host.wait_steps(name)
        assert host.info(name)["epoch"] == before[name]
        assert (copy / f"store/{host.contents[name]}.so").exists()
    assert sorted(host.runners()) == runners

    # Step 1. From the drain on until its end no side task executes beside the training.
    drained = host.ok("drain", "host:gpu7", timeout=60)
    since_ns = time.monotonic_ns()
    assert {one["worker"]: one["state"] for one in drained["workers"]} == {"gpu7:cpu-0": "empty", "gpu7:cpu-1": "empty"}
    stopped, idle = host.saved(), host.steps(IDLE)
    host.stop_workers()
    new_ns = time.monotonic_ns()
    host.upgrade()
    host.wait_workers(2, trained=True)
    assert all(worker["drained"] for worker in host.ok("workers")["workers"])
    host.wait(lambda: {one["stage"] for one in host.bubbles("end", new_ns)} == {0, 1}, "bubbles of both stages")
    host.wait_iterations(5)
    assert not [one for one in host.bubbles("end", since_ns) if one["leased"]]
    for name in (*TASKS, IDLE):
        until(lambda name=name: host.task(name)["why"] == "drained", f"{name} is kept off")
    assert not host.runners() and host.steps(IDLE) == idle
    host.ok("uncordon", "host:gpu7")
    host.check_tasks(stopped)
    host.wait_steps(IDLE)
    host.check_leases(new_ns)
    host.check_programs()
    host.check_hook()

    # Back to the version before, with the copy.
    host.load(host.installed / "plugins/keeper.so", "later", "--stage", 0, "--no-profile")
    host.wait_steps("later")
    host.ok("drain", "all", timeout=60)
    stopped = host.saved()
    host.end("manager")
    host.stop_workers()
    host.put_back()
    host.start_workers()
    for path in host.state_dir.glob("freeride.db*"):
        path.unlink()
    shutil.copytree(copy, host.state_dir, dirs_exist_ok=True)
    host.start_manager_there(most_restarts=1)
    host.ok("drain", "all", timeout=60)
    host.wait_workers(2, trained=True)
    host.ok("uncordon", "all")
    for name in TASKS:
        host.wait_steps(name)
        assert host.info(name)["restarts"] == 1, "the copy has it on a worker that has ended since"
    assert host.metric("keeps", "restored") == stopped["keeps"], "the worker keeps what was saved last"
    assert not host.info("later"), "the copy does not know it, and no worker has it"
    host.check_programs()
    host.check_training(alone)


def test_without_a_drain_an_upgrade_saves_the_side_tasks_and_they_continue(host, alone):
    host.stop_workers()
    new_ns = time.monotonic_ns()
    stopped = host.saved()
    host.upgrade()
    host.wait_workers(2, trained=True)
    host.check_tasks(stopped)
    host.check_leases(new_ns)
    host.check_programs()
    host.check_hook()
    # A plugin of the new version is another content.
    host.load(host.installed / "plugins/keeper.so", "new", "--stage", 0, "--no-profile")
    host.wait_steps("new")
    assert host.task("new")["sha256"] not in host.contents.values()
    host.check_training(alone)

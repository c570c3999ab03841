"""Partitions: a worker that is cut off, a manager that stands still or comes back with yesterday's state file. Two
workers with folders of their own, as two hosts have them; each reaches the manager through a relay that can be stopped.
FENCE_CUTS: how many cuts there are (6)."""

import os
import random
import signal
import sys
import time

import pytest

from rig.testing import SOURCE, System, find_plugin, until

PAUSE_S, STOP_S, MARGIN_S = 1.5, 5.0, 2.5  # a worker is lost before such a task may be placed again
MANAGER = [
    *("--order-pause-ms", int(PAUSE_S * 1000), "--order-stop-ms", int(STOP_S * 1000)),
    *("--order-margin-ms", int(MARGIN_S * 1000), "--worker-timeout-ms", 2000),
    *("--max-restarts", 1000, "--restart-interval-s", 1),
]
CUTS = int(os.environ.get("FENCE_CUTS", "6"))


def cmdline(pid):
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
            return file.read().replace("\0", " ")
    except OSError:
        return ""


class Hosts(System):
    """`cpu-0` and `cpu-1`, each with run and state folder of its own."""

    def host(self, device):
        folder = self.root / device
        return {"FREERIDE_RUN_DIR": str(folder / "r"), "FREERIDE_STATE_DIR": str(folder / "s")}

    def start_host(self, device):
        env = self.host(device)
        for folder in env.values():
            os.makedirs(folder, exist_ok=True)
        self.start(
            f"relay-{device}",
            [
                sys.executable,
                "-m",
                "rig.relay",
                f"{env['FREERIDE_RUN_DIR']}/commands.sock",
                self.run_dir / "commands.sock",
            ],
            env={"PYTHONPATH": str(SOURCE / "tests")},
        )
        # No sandbox: its record of what it does stays where one can read it, whatever becomes of it. A step that is
        # under way when a lease ends has less time than the manager's margin.
        own = ("--sandbox", "none", "--hang-ms", 1000, "--grace-ms", 100)
        self.start_worker(device, *own, name=f"worker-{device}", env=env, wait=False)

    def trace(self, device, task="t"):
        """What the task did there, run by run: [[(what, begin, end), …], …]."""
        path = self.root / device / "s" / "tasks" / task / "scratch" / "trace"
        runs = []
        for line in path.read_text().split("\n")[:-1] if path.exists() else ():
            what, begin, end = line.split()
            if what == "create":
                runs.append([])
            runs[-1].append((what, int(begin), int(end)))
        return runs

    def double_runs(self):
        """Placements that began before the one before had done its last."""
        runs = sorted((run for device in ("cpu-0", "cpu-1") for run in self.trace(device)), key=lambda run: run[0][1])
        return [
            (before[-1], after[0])
            for before, after in zip(runs, runs[1:])
            if max(end for _, _, end in before) >= after[0][1]
        ]

    def placed(self, but=None):
        """The device that the task is on, once it makes steps there."""

        def there():
            worker = self.task("t").get("worker", "")
            device = worker.split(":")[-1]
            return device if device and device != but else None

        device = until(there, f"the task is placed{f' elsewhere than on {but}' if but else ''}")
        self.wait_steps("t", 20)
        return device

    def wait_gone(self, device):
        until(lambda: not [pid for pid in self.runners() if device in cmdline(pid)], f"what was on {device} is ended")

    def say(self, number, name):
        os.kill(self.processes[name].pid, number)


@pytest.fixture
def hosts():
    with Hosts() as running:
        running.start_manager(*MANAGER)
        for device in ("cpu-0", "cpu-1"):
            running.start_host(device)
        running.wait_workers(2)
        yield running


def load(hosts, name="t"):
    hosts.load(find_plugin("counter.so"), name, "--when-idle", params={"step_us": 2000, "sleep": 1, "trace": 1})


def test_a_task_never_runs_twice_however_often_its_worker_is_cut_off(hosts):
    load(hosts)
    draw = random.Random(11)
    device, epochs = hosts.placed(), [hosts.info("t")["epoch"]]
    for cut in range(CUTS):
        # The link stands still, with what is on its way in it; or the worker does, and its supervisors are alone.
        stopped = f"{'worker' if cut % 3 == 2 else 'relay'}-{device}"
        hosts.say(signal.SIGSTOP, stopped)
        other = hosts.placed(but=device)
        epochs.append(hosts.info("t")["epoch"])
        time.sleep(draw.choice((0, 0.3, STOP_S)))
        done = hosts.trace(device)
        steps = hosts.steps("t")
        hosts.say(signal.SIGCONT, stopped)
        # It is told, ends what it has, and nothing of that is believed.
        hosts.wait_gone(device)
        hosts.wait_workers(2)
        assert hosts.trace(device) == done, "the copy that was cut off did something after it was placed elsewhere"
        info = hosts.info("t")
        assert info["state"]["worker"].endswith(other) and info["epoch"] == epochs[-1]
        assert hosts.wait_steps("t", 20) > steps
        device = other
    assert epochs == sorted(set(epochs)), "an epoch was given twice"
    assert not hosts.task("t")["verdict"]["kind"]
    fenced_double_runs = len(hosts.double_runs())
    print(f"{CUTS} cuts, {sum(len(hosts.trace(d)) for d in ('cpu-0', 'cpu-1'))} placements, {fenced_double_runs=}")
    assert fenced_double_runs == 0, hosts.double_runs()


def test_a_short_cut_costs_nothing_but_time(hosts):
    load(hosts)
    device = hosts.placed()
    info = hosts.info("t")
    for seconds in (0.5, PAUSE_S + 0.7):  # within the term, and past it but not past the margin
        hosts.say(signal.SIGSTOP, f"relay-{device}")
        time.sleep(seconds)
        hosts.say(signal.SIGCONT, f"relay-{device}")
        hosts.wait_steps("t", 20)
    after = hosts.info("t")
    assert after["epoch"] == info["epoch"] and after["restarts"] == 0
    assert len(hosts.trace(device)) == 1


def test_while_the_manager_stands_still_tasks_pause_and_then_go_on(hosts):
    load(hosts)
    device = hosts.placed()
    stopped_ns = time.monotonic_ns()
    hosts.say(signal.SIGSTOP, "manager")
    time.sleep(2.5 * PAUSE_S)
    continued_ns = time.monotonic_ns()
    hosts.say(signal.SIGCONT, "manager")
    hosts.wait_steps("t", 50)
    (run,) = hosts.trace(device)
    # Whatever was renewed had been asked for before the manager was stopped.
    until_ns = stopped_ns + PAUSE_S * 1e9
    assert not [begin for what, begin, _ in run if what == "step" and until_ns < begin < continued_ns]
    assert [begin for what, begin, _ in run if what == "step" and begin > continued_ns]


def test_without_a_manager_for_long_the_processes_end_and_the_task_comes_back(hosts):
    load(hosts)
    device = hosts.placed()
    assert hosts.runners()
    hosts.kill("manager")
    until(lambda: not hosts.runners(), "the task's processes end")
    assert (hosts.root / device / "s" / "tasks" / "t").exists()
    hosts.start_manager(*MANAGER)
    hosts.wait_workers(2)
    hosts.placed()
    assert not hosts.task("t")["verdict"]["kind"]
    assert not hosts.double_runs()


def test_on_yesterdays_state_file_nothing_is_lost(hosts):
    load(hosts, "old")
    hosts.wait_steps("old", 20)
    yesterday, today = hosts.root / "yesterday.db", hosts.root / "today.db"

    def swap(keep, use=None):
        """Ends the manager, keeps its state file and starts it again, perhaps on another."""
        hosts.end_manager_on(keep, use)
        hosts.start_manager(*MANAGER)
        hosts.wait_workers(2)

    swap(yesterday)
    load(hosts)
    device = hosts.placed()
    info = hosts.info("t")
    steps = hosts.steps("old")
    runners = sorted(hosts.runners())

    swap(today, use=yesterday)
    shown = until(lambda: hosts.task("t") if hosts.task("t").get("why") == "not_recorded" else None, "t is shown")
    assert device in shown["worker"] and "no record" in shown["reason"]
    assert "t" in [task["state"]["task"] for task in hosts.ok("tasks")["tasks"]]
    hosts.wait_steps("old", 20)  # which it knows
    time.sleep(STOP_S + 1)  # longer than anything expires
    kept = len(hosts.trace(device)[0])
    time.sleep(1)
    assert len(hosts.trace(device)[0]) == kept, "what the manager does not know is paused"
    assert sorted(hosts.runners()) == runners
    assert hosts.ctl("load", find_plugin("counter.so"), "--name", "t").code != 0

    swap(hosts.root / "other.db", use=today)
    hosts.wait_steps("t", 20)
    assert hosts.info("t")["epoch"] == info["epoch"] and hosts.info("t")["restarts"] == 0
    assert hosts.steps("old") > steps
    assert sorted(hosts.runners()) == runners, "the same processes go on"
    assert len(hosts.trace(device)) == 1
    for verdict in hosts.stop_tasks("t", "old"):
        assert verdict["kind"] == "stopped"


def test_what_nobody_knows_can_be_stopped_and_then_has_a_verdict(hosts):
    load(hosts)
    hosts.placed()
    hosts.end("manager")
    for file in hosts.state_dir.glob("freeride.db*"):
        file.unlink()
    hosts.start_manager(*MANAGER)
    hosts.wait_workers(2)
    until(lambda: hosts.task("t").get("why") == "not_recorded", "t is shown")
    (verdict,) = hosts.stop_tasks("t")
    assert verdict["kind"] == "stopped"
    until(lambda: not hosts.runners(), "its processes have ended")

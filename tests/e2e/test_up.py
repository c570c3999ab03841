"""freeride-ctl up: all of one user's FreeRide in the foreground, from its start to its end; and freeride demo on it."""

import contextlib
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import subprocess
import urllib.request

import pytest

from rig.ctl import Ctl
from rig.processes import bound_to, until
from rig.processors import first_on_the_processors
from rig.system import new_folder
from rig.testing import BUILD
from rig.tree import PYTHON, SOURCE, environment

CTL = BUILD / "bin/freeride-ctl"
WATCHDOG_S = 120


@pytest.fixture
def folder():
    folder = new_folder()
    yield folder
    for pid in living(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)


def env(folder):
    return {**environment(), "FREERIDE_RUN_DIR": f"{folder}/r", "FREERIDE_STATE_DIR": f"{folder}/s"}


def living(folder, variable="FREERIDE_RUN_DIR="):
    """Pids of the processes that have this folder, or one in it, in their environment."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (
                f"{variable}{folder}".encode() in (process / "environ").read_bytes()
                and (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
            ):
                found.append(int(process.name))
    return found


class Up:
    """`freeride-ctl up`, and what it has said."""

    def __init__(self, folder, *words):
        self.folder, self.said = folder, folder / "up.out"
        with open(self.said, "wb") as out:
            self.process = subprocess.Popen(
                [
                    *bound_to(os.getpid()),
                    CTL,
                    "up",
                    "--cpus",
                    "2",
                    "--listen",
                    "127.0.0.1:0",
                    "--format",
                    "json",
                    *words,
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=env(folder),
            )

    def events(self, kind):
        lines = self.said.read_text().split("\n")[:-1]
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def wait(self, kind):
        def told():
            assert self.process.poll() is None, f"ended before it said {kind}:\n{self.said.read_text()}"
            return self.events(kind)

        return until(told, f"up says {kind}")

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(WATCHDOG_S)


def test_all_come_up_answer_are_told_of_and_end(folder):
    up = Up(folder)
    up.wait("up")
    started = {event["program"]: event for event in up.events("started")}
    assert set(started) == {"manager", "worker cpu-0", "worker cpu-1", "page"}
    assert all(pathlib.Path(event["log"]).parent == folder / "s/logs" for event in started.values())
    ctl = Ctl(CTL, env(folder))  # no option says where
    assert [worker["state"]["state"] for worker in ctl("workers")["workers"]] == ["up", "up"]
    with urllib.request.urlopen(started["page"]["where"], timeout=WATCHDOG_S) as page:
        assert page.status == 200

    second = subprocess.run([CTL, "up"], env=env(folder), capture_output=True, text=True, timeout=WATCHDOG_S)
    assert (second.returncode, second.stdout) == (1, "")
    assert f"a manager runs already in {folder}/r (process {started['manager']['pid']} of user" in second.stderr
    assert up.process.poll() is None and ctl("status")["pid"] == started["manager"]["pid"]

    ctl("load", str(BUILD / "plugins/pagerank.so"), "--when-idle", "--name", "idle", "--no-profile")
    until(lambda: ctl("task", "idle")["task"]["state"]["counters"]["steps"] > 0, "steps of the task")

    os.kill(started["worker cpu-1"]["pid"], signal.SIGKILL)
    ended = up.wait("ended")
    assert [event["program"] for event in ended] == ["worker cpu-1"]
    assert "by signal 9" in ended[0]["what"] and any("registered" in line for line in ended[0]["last_lines"])
    assert up.process.poll() is None and ctl("status")["pid"] == started["manager"]["pid"]

    os.kill(started["worker cpu-0"]["pid"], signal.SIGSTOP)  # one that hangs
    assert up.end() == 0
    assert up.events("down") and not living(folder)


def test_a_killed_up_leaves_no_process(folder):
    up = Up(folder)
    up.wait("up")
    assert len(living(folder)) >= 5
    up.end(signal.SIGKILL)
    until(lambda: not living(folder), "the end of all")


def test_a_signal_that_is_sent_twice_at_once_kills_nobody(folder):
    """As by timeout(1), which tells a process and its group."""
    up = Up(folder)
    up.wait("up")
    for _ in range(2):
        up.process.send_signal(signal.SIGTERM)
        until(lambda: up.events("ending"), "the end's beginning")
    assert up.process.wait(WATCHDOG_S) == 0
    assert up.events("down") and not up.events("killed") and not living(folder)


def test_what_cannot_start_says_why(folder):
    up = Up(folder, "--", "--bwrap", "/nowhere")
    assert up.process.wait(WATCHDOG_S) == 1
    ended = {event["program"]: event["last_lines"] for event in up.events("ended")}
    assert set(ended) == {"worker cpu-0", "worker cpu-1"}
    assert all("there is no program /nowhere; install bubblewrap" in lines[0] for lines in ended.values())
    assert "no worker is left" in up.events("failed")[0]["what"] and not living(folder)


@pytest.mark.parametrize("keys", [b"q", b"\x03"])
def test_a_key_ends_all(folder, keys):
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(CTL, [CTL, "up", "--cpus", "1", "--no-page"], env(folder))
    said = b""
    with contextlib.suppress(OSError):  # the terminal's end
        while more := os.read(terminal, 4096):
            pressed = b"ends all" in said
            said += more
            if not pressed and b"ends all" in said:
                os.write(terminal, keys)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, said
    assert re.search(rb"manager .*worker cpu-0 .*q or Ctrl-C ends all.*all have ended", said, re.DOTALL), said
    assert not living(folder)


def test_the_demo_harvests_from_an_installed_tree(folder):
    subprocess.run(["cmake", "--install", BUILD, "--prefix", folder / "usr"], check=True, stdout=subprocess.DEVNULL)
    library = next((folder / "usr").rglob("libfreeride_hook.so")).parent
    mine = {**environment(), "HOME": str(folder), "TMPDIR": str(folder), "LD_LIBRARY_PATH": str(library)}
    command = [folder / "usr/bin/freeride", "demo", "--seconds", "15", "--compare-iterations", "4"]
    with first_on_the_processors():
        done = subprocess.run(
            [*command, "--keep", folder / "kept"], env=mine, capture_output=True, text=True, timeout=280, check=False
        )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert re.search(r"steps of pagerank +[1-9]", said) and "equal, bit for bit" in said, said
    assert (folder / "kept/with.jsonl").exists() and not list(folder.glob("freeride-demo-*"))
    assert not living(folder, "TMPDIR=")


def test_the_demo_says_that_torch_is_missing(folder):
    (folder / "python").write_text("#!/bin/sh\nexit 1\n")
    (folder / "python").chmod(0o755)
    mine = {**environment(), "TMPDIR": str(folder), "PYTHONPATH": str(SOURCE / "hooks/python")}
    mine["PATH"] = f"{BUILD / 'bin'}:{mine['PATH']}"
    command = [PYTHON, "-m", "freeride", "demo", "--python", folder / "python"]
    done = subprocess.run(command, env=mine, capture_output=True, text=True, timeout=WATCHDOG_S, check=False)
    assert done.returncode == 1 and "has no torch to train with" in done.stderr, done.stdout + done.stderr
    assert done.stderr.count("\n") == 1 and not living(folder, "TMPDIR=")

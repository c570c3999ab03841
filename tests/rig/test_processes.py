"""Processes that never outlive whoever started them, and failures that say what became of whom."""

import json
import os
import signal
import subprocess
import sys

import pytest

from rig.ctl import Ctl
from rig.processes import Failure, Lines, Processes, free_port, until
from rig.system import System
from rig.tree import Tree

PRINT_AND_FAIL = [sys.executable, "-c", "print('the reason'); raise SystemExit(3)"]


@pytest.fixture
def processes(tmp_path):
    made = Processes(tmp_path, dict(os.environ))
    yield made
    made.end_all(1)


def test_end_all_ends_whoever_ignores_it_and_check_explains_who_ended(processes):
    good = processes.start("good", ["sleep", "1000"])
    processes.start("bad", PRINT_AND_FAIL).wait()
    with pytest.raises(Failure, match="bad ended with 3(.|\n)*the reason"):
        processes.check()
    with pytest.raises(Failure, match="bad ended with 3"):
        processes.wait(lambda: False, "what never comes")
    stubborn = processes.start("stubborn", ["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 1; done"])
    until(lambda: "ready" in processes.log("stubborn"), "its first word")
    processes.end_all(1)
    assert good.poll() is not None and stubborn.poll() is not None and not processes.processes


def test_a_process_that_ends_badly_or_not_at_all_is_a_failure(processes):
    processes.start("bad", PRINT_AND_FAIL)
    with pytest.raises(Failure, match="bad failed with 3(.|\n)*the reason"):
        processes.finish("bad")
    process = processes.start("slow", ["sleep", "1000"])
    with pytest.raises(Failure, match="slow did not end within 0.1 s"):
        processes.finish("slow", 0.1)
    assert process.poll() is not None
    processes.start("good", ["sh", "-c", "trap 'exit 0' TERM; echo ready; while :; do sleep 0.05; done"])
    until(lambda: "ready" in processes.log("good"), "its first word")
    processes.end("good")
    assert not processes.processes


def test_no_process_outlives_one_that_is_killed(tmp_path):
    code = (
        f"import sys, time; sys.path.append({str(os.path.dirname(os.path.dirname(__file__)))!r})\n"
        f"from rig.processes import Processes\nprint(Processes({str(tmp_path)!r}, {{}}).start('one', ['sleep', '1000']).pid, flush=True)\ntime.sleep(1000)"
    )
    starter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(starter.stdout.readline())
    starter.kill()
    starter.wait()

    def gone():
        try:
            with open(f"/proc/{pid}/stat") as file:
                return file.read().rsplit(")", 1)[1].split()[0] in "ZX"
        except (FileNotFoundError, ProcessLookupError):
            return True

    until(gone, "the end of its process")


def test_ranks_know_each_other_and_no_two_trainings_meet(processes):
    code = "import json, os; print(json.dumps([os.environ[k] for k in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_PORT', 'MORE')]))"
    for name in ("first", "second"):
        for process in processes.start_ranks(
            [sys.executable, "-c", code], 2, {"MORE": "all"}, {1: {"MORE": "one"}}, name=name
        ):
            assert process.wait() == 0
    said = {name: json.loads(processes.log(name)) for name in processes.processes}
    assert said["first-0"][:3] == ["0", "0", "2"] and said["first-1"][:3] == ["1", "1", "2"]
    assert [said[f"first-{rank}"][4] for rank in (0, 1)] == ["all", "one"]
    assert said["first-0"][3] == said["first-1"][3] != said["second-0"][3]
    assert 20000 <= free_port() < 32000  # the kernel gives away those above


def test_lines_are_what_is_json(processes):
    process = processes.start(
        "one", ["printf", '{"a": 1}\\nfor people\\n{"b": 2}\\n'], stdout=subprocess.PIPE, text=True
    )
    lines = Lines(process.stdout)
    lines.join()
    assert lines.lines == [{"a": 1}, {"b": 2}]


def program(folder, text):
    path = folder / "freeride-ctl"
    path.write_text("#!/bin/sh\n" + text + "\n")
    path.chmod(0o755)
    return path


def test_ctl_returns_json_or_says_what_was_called(tmp_path):
    ctl = Ctl(program(tmp_path, """echo "{\\"words\\": \\"$*\\"}" """))
    assert ctl("task", 3)["words"] == "task 3 --format json --timeout 20"
    ctl = Ctl(program(tmp_path, "echo nobody answers >&2; exit 3"))
    assert ctl.ask("status").code == 3
    with pytest.raises(Failure, match="freeride-ctl status: exit 3: nobody answers"):
        ctl("status")


def test_a_tree_says_what_is_not_built(tmp_path):
    (tmp_path / "bin").mkdir()
    tree = Tree.of_build(tmp_path)
    assert tree.libraries() == []
    for what in (lambda: tree.program("freeride-manager"), lambda: tree.plugin("image.so"), tree.hook_library):
        with pytest.raises(Failure, match="build it first"):
            what()
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/libzmq.so.5").touch()
    assert tree.libraries() == ["--library-dir", tmp_path / "lib"]  # a packed tree's


def test_a_system_hides_what_would_decide_for_its_programs(tmp_path, monkeypatch):
    monkeypatch.setenv("FREERIDE_CONFIG", "/nowhere")
    (tmp_path / "bin").mkdir()
    with System(Tree.of_build(tmp_path), job="j", env={"MORE": "1"}) as system:
        assert "FREERIDE_CONFIG" not in system.env and system.env["FREERIDE_JOB"] == "j" and system.env["MORE"] == "1"
        with pytest.raises(Failure, match="freeride-manager is not there"):
            system.start_manager()
        sleeping = system.start("other", ["sleep", "1000"])
        root = system.root
    assert not root.exists() and sleeping.returncode == -signal.SIGTERM

"""freeride.client with a real manager: results in order while the manager is killed, errors with message and hint."""

import json
import os
import shutil
import subprocess
import textwrap

import pytest

from rig.testing import BUILD, System, find_plugin, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files under another user's rights")

ALICE, ALICES_GROUP = 1, 1  # "daemon": a real user of every host, who is nobody special
SCORE = """
import time
def process(items):
    for item in items:
        if item.get("bad"):
            raise ValueError("no such label: " + item["bad"])
        time.sleep(item.get("s", 0))
    return [item["n"] ** 2 for item in items]
"""
MANAGER = ("--group", "daemon", "--default-memory-mib", "256")


@pytest.fixture
def place(opened):
    """A folder that the operator has opened, with one of Alice's in it."""
    (opened / "alice").mkdir(mode=0o700)
    os.chown(opened / "alice", ALICE, ALICES_GROUP)
    (opened / "score.py").write_text(SCORE)
    return opened


@pytest.fixture
def system(place):
    with System() as running:
        running.start_manager(*MANAGER)
        for device in ("cpu-0", "cpu-1"):
            running.start_worker(device, "--data", place, "--scratch-bytes", 16 << 20)
        running.wait_workers(2)
        yield running


def notebook(system, place, text):
    """Alice's program; its output is lines of JSON by say()."""
    script = "import json\nfrom freeride import client\nsay = lambda value: print(json.dumps(value), flush=True)\n"
    env = {**system.env, "FREERIDE_CTL": str(BUILD / "bin/freeride-ctl"), "FREERIDE_DATA": str(place / "alice")}
    user = ["setpriv", f"--reuid={ALICE}", f"--regid={ALICES_GROUP}", f"--groups={ALICES_GROUP}"]
    return subprocess.Popen(
        [*user, "/usr/bin/python3", "-c", script + textwrap.dedent(text)],
        env=env, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def said(process):
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return [json.loads(line) for line in out.splitlines()]


def test_results_come_in_order_while_the_manager_is_killed(system, place):
    count = 600
    process = notebook(
        system,
        place,
        f"""
        say("begins")
        items = [{{"n": n, "s": 0.01}} for n in range({count})]
        results = client.map("{place}/score.py", items, name="score", when_idle=True)
        say(list(results))
        """,
    )

    def done():
        found = system.ctl("batch", "ls").json.get("batches", [])
        return found[0]["done"] if found else 0

    until(lambda: done() > 20, "some are done")
    system.processes["manager"].kill()
    system.processes["manager"].wait()
    system.start_manager(*MANAGER)
    assert said(process) == ["begins", [n**2 for n in range(count)]]
    assert list((place / "alice").iterdir()) == []
    assert system.ok("batch", "ls")["batches"] == []


def test_failed_items_tasks_and_errors(system, place):
    shutil.copy(find_plugin("canary.so"), place)
    process = notebook(
        system,
        place,
        f"""
        items = [{{"n": 1}}, {{"n": 2, "bad": "x"}}, {{"n": 3}}]
        results = list(client.map("{place}/score.py", items, failed="return", retries=1, when_idle=True))
        say([results[0], results[1].reason, results[2]])
        try:
            client.map("{place}/nothing.py", items)
        except client.FreeRideError as error:
            say([type(error).__name__, error.message, error.hint])
        task = client.submit("{place}/canary.so", params={{"memory_mib": 1}}, steps=20, when_idle=True)
        verdict, = client.wait(task)
        say([verdict.kind, task.status().steps])
        try:
            client.task("nobody")
        except client.NotFound as error:
            say([error.message, error.hint])
        say([len(client.status().workers), client.status().workers[0].state])
        """,
    )
    results, missing, task, nobody, status = said(process)
    assert results == [1, "ValueError: no such label: x", 9]
    assert missing[0] in ("NotFound", "InvalidArgument") and "nothing.py" in missing[1]
    assert task == ["finished", 20]
    assert "nobody" in nobody[0] and "freeride-ctl tasks" in nobody[1]
    assert status == [2, "up"]


def test_no_manager(place):
    with System() as system:
        process = notebook(
            system,
            place,
            """
            try:
                client.Client(patience_s=0).status()
            except client.Unavailable as error:
                say([error.message, error.hint])
            """,
        )
        ((message, hint),) = said(process)
        assert "no manager answers" in message and "start freeride-manager" in hint

"""Batches: a list of items over side tasks, whatever is killed meanwhile."""

import collections
import json
import os
import signal
import subprocess
import time

import pytest

from rig.testing import BUILD, System, until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files under another user's rights")

ALICE, ALICES_GROUP = 1, 1  # "daemon": a real user of every host, who is nobody special
SCORE = """
import os, time
def process(items):
    results = []
    for item in items:
        if item.get("poison"):
            os.abort()
        if item.get("bad"):
            raise ValueError("no such label: " + item["bad"])
        time.sleep(item.get("s", 0))
        results.append({"n": item["n"], "square": item["n"] ** 2})
    return results
"""
UPPER = """
from freeride_plugin import Batch
class Upper(Batch):
    most_at_once = 7
    def process(self, items):
        assert len(items) <= 7
        return [item.upper() for item in items]
"""
SIZES = "import os\ndef process(items):\n    return [os.path.getsize(item) for item in items]\n"
BROKEN = "import nothing_of_that_name\ndef process(items):\n    return items\n"
SHORT = "def process(items):\n    return items[1:]\n"


@pytest.fixture
def place(opened):
    """A folder that the operator has opened, with one of Alice's in it that nobody else may enter."""
    for name, text in {"score": SCORE, "upper": UPPER, "sizes": SIZES, "broken": BROKEN, "short": SHORT}.items():
        (opened / f"{name}.py").write_text(text)
    (opened / "alice").mkdir(mode=0o700)
    os.chown(opened / "alice", ALICE, ALICES_GROUP)
    return opened


@pytest.fixture
def system(place):
    with System() as running:
        start(running, place)
        yield running


def start(system, place, devices=("cpu-0", "cpu-1")):
    system.start_manager("--group", "daemon", "--default-memory-mib", "256")
    for device in devices:
        system.start_worker(device, "--data", place, "--scratch-bytes", 16 << 20)
    system.wait_workers(len(devices))


def words_of(*words, uid=ALICE):
    group = ["setpriv", f"--reuid={uid}", f"--regid={uid}", f"--groups={ALICES_GROUP}"] if uid else []
    return [*group, str(BUILD / "bin/freeride-ctl"), *map(str, words)]


def ctl(system, *words, uid=ALICE, timeout=120):
    return subprocess.run(
        words_of(*words, uid=uid), env=system.env, capture_output=True, text=True, timeout=timeout, check=False
    )


def write(place, name, text):
    path = place / "alice" / name
    path.write_text(text)
    os.chown(path, ALICE, ALICES_GROUP)
    return path


def prompts(place, items):
    return write(place, "prompts.jsonl", "".join(json.dumps(item) + "\n" for item in items))


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def check(results, count, without=()):
    """Each item once, with its own result."""
    counted = collections.Counter(one["index"] for one in results)
    assert [index for index, times in counted.items() if times > 1] == []
    assert sorted(counted) == [index for index in range(count) if index not in without]
    assert all(one["result"] == {"n": one["index"], "square": one["index"] ** 2} for one in results)


def info(system, name):
    done = ctl(system, "--format", "json", "batch", "ls", uid=None)
    return next((one for one in json.loads(done.stdout)["batches"] if one["name"] == name), {}) if done.stdout else {}


def test_each_item_has_its_result_in_order_and_the_parts_are_gone(system, place):
    items = prompts(place, [{"n": n} for n in range(5000)])
    out = place / "alice/scores.jsonl"
    done = ctl(system, "batch", place / "score.py", "--input", items, "--output", out, "--in-order", "--when-idle")
    assert done.returncode == 0, done.stderr
    assert "5 000 results" in done.stdout
    results = lines(out)
    check(results, 5000)
    assert [one["index"] for one in results] == list(range(5000))
    assert (out.stat().st_uid, out.stat().st_gid) == (ALICE, ALICES_GROUP)
    assert sorted(path.name for path in (place / "alice").iterdir()) == ["prompts.jsonl", "scores.jsonl"]
    assert info(system, "score")["state"] == "finished"
    until(lambda: info(system, "score")["members"] == 0, "its members are stopped")
    again = ctl(system, "batch", place / "score.py", "--input", items, "--output", out, "--when-idle")
    assert again.returncode != 0 and "is there already" in again.stderr


def test_text_files_and_nothing(system, place):
    text = write(place, "words.txt", "one\n\ntwo\r\n  \nthree")
    out = place / "alice/upper.jsonl"
    done = ctl(system, "batch", place / "upper.py", "--input", text, "--output", out, "--in-order", "--when-idle")
    assert done.returncode == 0, done.stderr
    assert [one["result"] for one in lines(out)] == ["ONE", "TWO", "THREE"]
    folder = place / "alice/files"
    folder.mkdir()
    for n in range(20):
        (folder / f"{n:02}.bin").write_bytes(b"x" * n)
    (folder / "nested").mkdir()
    out = place / "alice/sizes.jsonl"
    done = ctl(system, "batch", place / "sizes.py", "--input", folder, "--output", out, "--in-order", "--when-idle")
    assert done.returncode == 0, done.stderr
    assert [(one["item"], one["result"]) for one in lines(out)] == [(f"{n:02}.bin", n) for n in range(20)]
    empty = write(place, "empty.txt", "\n\n")
    out = place / "alice/none.jsonl"
    done = ctl(system, "batch", place / "upper.py", "--input", empty, "--output", out, "--name", "none")
    assert done.returncode == 0 and out.read_text() == "" and "no items" in done.stdout, done.stderr
    missing = ctl(system, "batch", place / "upper.py", "--input", place / "alice/no.txt", "--output", out)
    assert missing.returncode == 4 and "no.txt" in missing.stderr


def test_items_in_one_long_workload(system, place):
    items = prompts(
        place, [{"n": n, "s": 0.02 * (n % 10 == 0), **({"poison": 1} if n == 77 else {})} for n in range(300)]
    )
    out = place / "alice/scores.jsonl"
    words = ["--interface", "imperative", "--retries", 2, "--when-idle"]
    done = ctl(system, "batch", place / "score.py", "--input", items, "--output", out, *words)
    assert done.returncode == 1, done.stderr
    check(lines(out), 300, without={77})
    assert [one["index"] for one in lines(place / "alice/scores.failed.jsonl")] == [77]


def test_items_that_always_fail_are_set_aside_with_their_reason(system, place):
    bad, poison = {7, 300}, {100, 101, 555}
    items = prompts(
        place, [{"n": n, **({"bad": f"x{n}"} if n in bad else {}), "poison": n in poison} for n in range(1000)]
    )
    out = place / "alice/scores.jsonl"
    done = ctl(system, "batch", place / "score.py", "--input", items, "--output", out, "--retries", 2, "--when-idle")
    assert done.returncode == 1 and "5 failed" in done.stdout, done.stderr
    check(lines(out), 1000, without=bad | poison)
    failed = {one["index"]: one for one in lines(place / "alice/scores.failed.jsonl")}
    assert set(failed) == bad | poison
    assert all(failed[n]["reason"] == f"ValueError: no such label: x{n}" and failed[n]["tries"] == 2 for n in bad)
    assert all("crashed" in failed[n]["reason"] and failed[n]["tries"] == 2 for n in poison)


def test_a_plugin_that_cannot_do_anything_fails_its_batch(system, place):
    items = prompts(place, [{"n": n} for n in range(10)])
    for name, said in (("broken", "nothing_of_that_name"), ("short", "a list of as many results")):
        out = place / f"alice/{name}.jsonl"
        done = ctl(system, "batch", place / f"{name}.py", "--input", items, "--output", out, "--when-idle")
        assert done.returncode == 1 and said in done.stderr, done.stderr + done.stdout
        assert not out.exists()
        assert ctl(system, "batch", "rm", name).returncode == 0
    assert ctl(system, "batch", "attach", "broken").returncode == 4


def test_nothing_is_lost_or_doubled_when_everything_is_killed_at_once(place):
    count = 1500
    items = prompts(place, [{"n": n, "s": 0.004} for n in range(count)])
    out = place / "alice/scores.jsonl"
    with System() as system:
        start(system, place)
        system.start_training(stages=2, micro_batches=4)
        system.wait_workers(2, trained=True)
        watching = subprocess.Popen(
            words_of("batch", place / "score.py", "--input", items, "--output", out, "--job", "gpt"),
            env=system.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        until(lambda: info(system, "score").get("done", 0) > 200, "some are done")
        for process in (watching, *system.processes.values()):
            process.send_signal(signal.SIGKILL)
        watching.communicate()
        system.end_all()
        assert not out.exists()
        start(system, place)
        before = info(system, "score")
        assert 200 < before["done"] < count and before["state"] == "running"
        system.start_training(stages=2, micro_batches=4, name="again")
        done = ctl(system, "batch", "attach", "score", timeout=600)
        assert done.returncode == 0, done.stderr
    check(lines(out), count)
    assert not (place / "alice/scores.jsonl.parts").exists()


def test_each_program_is_killed_and_the_batch_goes_on(system, place):
    count = 4000
    items = prompts(place, [{"n": n, "s": 0.002} for n in range(count)])
    out = place / "alice/scores.jsonl"
    done = ctl(
        system, "batch", place / "score.py", "--input", items, "--output", out, "--when-idle", "--detach"
    )  # fmt: skip
    assert done.returncode == 0 and "batch score" in done.stdout, done.stderr

    def progress(more):
        begin = info(system, "score").get("done", 0)
        until(lambda: info(system, "score").get("done", 0) >= begin + more, f"{more} more items")

    progress(50)
    for pid in system.runners():
        os.kill(pid, signal.SIGKILL)
    progress(50)
    system.processes["worker-cpu-1"].kill()
    system.processes["worker-cpu-1"].wait()
    system.start_worker("cpu-1", "--data", place, "--scratch-bytes", 16 << 20)
    system.processes["manager"].kill()
    system.processes["manager"].wait()
    system.start_manager("--group", "daemon", "--default-memory-mib", "256")
    progress(50)
    # Whoever watches may go.
    watching = subprocess.Popen(
        words_of("batch", "attach", "score"), env=system.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    time.sleep(1)
    watching.send_signal(signal.SIGINT)
    said = watching.communicate(timeout=30)
    assert watching.returncode == 0 and "batch attach score" in said[1]
    assert ctl(system, "batch", "attach", "score", timeout=600).returncode == 0
    check(lines(out), count)

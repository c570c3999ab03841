"""freeride-ctl profile with the real manager, worker, sandbox and runner: what it measures, what it keeps, and
everything that goes wrong."""

import json
import signal
import subprocess

import pytest

from rig.testing import BUILD, System, find_plugin, until

CTL = BUILD / "bin/freeride-ctl"


def started(system, *args):
    """A freeride-ctl profile that runs on."""
    return subprocess.Popen(
        [str(CTL), "profile", *[str(a) for a in args]],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=system.env,
    )


def ctl(system, *args):
    process = started(system, *args)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def idle():
    with System() as system:
        system.start_manager()
        system.start_worker("cpu-0", "--profile-ms", "4000", "--hang-ms", "2000")
        until(lambda: system.ok("workers")["workers"], "the worker is known")
        yield system


def test_table_and_json(idle):
    code, out, err = ctl(
        idle, find_plugin("yielding.so"), "--param", "pieces=3", "--param", "piece_us=400", "--steps", "20"
    )
    assert code == 0, err
    for words in ("host memory", "InitSideTask", "a step", "  piece 3", "StopSideTask", "cpu-0, idle"):
        assert words in out, out
    assert "GPU" not in out
    assert "profiling yielding.so on" in err
    code, out, err = ctl(
        idle, find_plugin("yielding.so"), "--param", "pieces=3", "--param", "piece_us=400", "--format", "json"
    )
    assert code == 0 and err == ""  # known: nothing ran
    profile = json.loads(out)["profiles"][0]
    steady = profile["steps"]["count"]  # a busy machine's first steps may be slower than the rest
    assert steady + profile["warm_up_steps"] == len(profile["step_ns"]) == 20 and steady > 10
    assert profile["steps"]["p50_ns"] >= 1_200_000
    assert [piece["count"] for piece in profile["pieces"]] == [steady] * 3
    assert set(profile["peak_bytes"]) == {"host"} and profile["peak_bytes"]["host"] > 1 << 20
    assert idle.runners() == []


def test_memory_is_the_task_s_own_high_water_mark(idle):
    megabytes = {}
    for steps in (1, 5):  # of 16 MiB each
        code, out, err = ctl(
            idle, find_plugin("hog.so"), "--steps", steps, "--again", "--format", "json", "--memory", "512MiB"
        )
        assert code == 0, err
        megabytes[steps] = json.loads(out)["profiles"][0]["peak_bytes"]["host"] / 2**20
    assert 62 < megabytes[5] - megabytes[1] < 68, megabytes


def test_a_load_does_not_profile_again(idle):
    idle.listen("task.progress/profile-")
    args = (find_plugin("counter.so"), "--param", "step_us=900")
    code, _, err = ctl(idle, *args)
    assert code == 0, err
    first = len({event["task"] for event in idle.seen("task.progress/profile-")})
    idle.ok("load", *args, "--name", "quick", "--when-idle", "--steps", "5")
    assert idle.wait_verdict("quick")["kind"] == "finished"
    assert len({event["task"] for event in idle.seen("task.progress/profile-")}) == first
    assert idle.ctl("stop", "quick").code == 2


@pytest.mark.parametrize(
    "params, code, words",
    [
        (["where=step", "how=segv", "after=2"], 5, "crashed (signal 11 in RunNextStep)"),
        (["where=init", "how=fail"], 5, "failed (in InitSideTask): told to fail"),
        (["where=init", "how=hang"], 5, "overran (in InitSideTask)"),
        (["where=step", "how=finished", "after=3"], 0, "its work is done"),
        (["where=start", "how=oom"], 5, "out_of_memory (in StartSideTask)"),
    ],
)
def test_a_task_that_fails_or_ends(idle, params, code, words):
    flags = [word for param in params for word in ("--param", param)]
    got, out, err = ctl(idle, find_plugin("faulty.so"), *flags)
    assert got == code, (out, err)
    assert words in out + err
    if code:
        assert [line for line in err.splitlines() if line.startswith("freeride-ctl: ")] == [err.splitlines()[-1]]
    until(lambda: not idle.runners(), "nothing is left")


def test_interrupted_and_killed(idle):
    for number, how in ((1, signal.SIGINT), (2, signal.SIGKILL)):
        process = started(
            idle,
            find_plugin("counter.so"),
            "--param",
            "step_us=20000",
            "--param",
            f"finish={1000 + number}",
            "--steps",
            "2000",
        )
        until(lambda: idle.runners(), "it runs")
        process.send_signal(how)
        _, err = process.communicate(timeout=60)
        if how == signal.SIGINT:
            assert process.returncode == 1
            assert (
                err.splitlines()[-1] == "freeride-ctl: interrupted: the profile was given up, and nothing is kept of it"
            )
        until(lambda: not idle.runners(), "nothing is left")
    listed = json.loads(ctl(idle, "list", "--format", "json")[1])["profiles"]
    assert not [
        p for p in listed if p["params"].get("finish") == "1001"
    ]  # the other may have come to its end meanwhile


def test_wrong_wishes(idle):
    plugin = find_plugin("counter.so")
    for args, code, words in (
        ((plugin, "--worker", "nobody"), 4, "there is no worker 'nobody'; up: "),
        ((plugin, "--device", "cpu-9"), 4, "no worker that is up has device 'cpu-9'"),
        ((plugin, "--stage", "7"), 4, "no worker that is up has stage 7"),
        ((plugin, "--steps", "0"), 2, "--steps"),
        ((plugin, "--memory", "lots"), 2, "--memory"),
        ((plugin, "--memory", "100000GiB"), 1, "cannot profile counter.so now: needs"),
        (("none.so",), 4, "no plugin 'none.so' in the drop folder"),
        (("/dev/null",), 2, "is not a file"),
        ((), 2, "no plugin is named"),
    ):
        got, out, err = ctl(idle, *args)
        assert got == code and words in err, (args, got, out, err)
        assert sum(line.startswith("freeride-ctl: ") for line in err.splitlines()) == 1, err


def test_busy_device_and_parts_that_go_away():
    with System() as system:
        code, _, err = ctl(system, find_plugin("counter.so"), "--timeout", "1")
        assert code == 3 and "no manager answers" in err
        system.start_manager()
        code, _, err = ctl(system, find_plugin("counter.so"))
        assert code == 3 and "no worker is up to profile on" in err and err.count("\n") == 1
        system.start_worker("cpu-0")
        until(lambda: system.ok("workers")["workers"], "the worker is known")
        long = (find_plugin("counter.so"), "--param", "step_us=20000", "--steps", "2000")
        process = started(system, *long)
        until(lambda: system.runners(), "it runs")
        code, _, err = ctl(system, find_plugin("counter.so"))
        assert code == 1 and "another profile is being taken on " in err
        system.kill("worker-cpu-0")
        _, err = process.communicate(timeout=60)
        assert process.returncode == 1 and "lost: " in err.splitlines()[-1], err
        until(lambda: not system.runners(), "nothing is left")
        # The manager goes away under it.
        system.start_worker("cpu-0", name="again")
        until(
            lambda: [w for w in system.ok("workers")["workers"] if w["state"]["state"] == "up"],
            "the worker is up again",
        )
        process = started(system, *long, "--timeout", "2")
        until(lambda: system.runners(), "it runs")
        system.kill("manager")
        _, err = process.communicate(timeout=60)
        assert process.returncode == 3 and "no manager answers" in err.splitlines()[-1], err
        system.start_manager()
        until(lambda: not system.runners(), "the manager's plan does not name it, so its worker stops it")


def test_beside_a_training():
    with System() as system:
        system.start_manager()
        for stage in range(2):
            system.start_worker(f"cpu-{stage}")
        system.start_training(stages=2)
        until(
            lambda: any(r["state"] == "active" for w in system.ok("workers")["workers"] for r in w["ranks"]),
            "training is attached",
        )
        code, out, err = ctl(
            system,
            find_plugin("counter.so"),
            "--param",
            "step_us=200",
            "--stage",
            "0",
            "--steps",
            "15",
            "--format",
            "json",
        )
        assert code == 0, err
        profile = json.loads(out)["profiles"][0]
        assert profile["conditions"] == "bubbles" and profile["steps"]["count"] + profile["warm_up_steps"] == 15
        code, _, err = ctl(system, find_plugin("counter.so"), "--stage", "5")
        assert code == 2 and "its stages are 0-1" in err
        system.wait_iterations(3)  # training goes on

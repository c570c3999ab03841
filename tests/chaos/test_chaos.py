"""What chaos takes for a fault, and that a seed is a plan."""

import itertools
import os
import signal
import socket
import subprocess
import time

import pytest

from chaos import judge, links, plan
from rig.testing import find_plugin

MS = 1_000_000


def first(seed, count):
    return list(itertools.islice(plan.rounds(seed), count))


def test_a_seed_repeats_its_plan_and_every_kind_comes():
    assert first(7, 50) == first(7, 50) != first(8, 50)
    kinds = [blow.kind for blows in first(7, 200) for blow in blows]
    assert set(kinds[: len(plan.KINDS)]) == set(plan.KINDS)
    only = itertools.islice(plan.rounds(7, ["descriptors", "bulk"]), 50)
    assert {blow.kind for blows in only for blow in blows} == {"descriptors", "bulk"}
    assert all(
        blow.lasts_s <= plan.LONGEST_S and blow.target in plan.KINDS[blow.kind][1] for blow in sum(first(7, 99), [])
    )


def test_a_loss_that_differs_is_found_in_every_period():
    alone = [{"iteration": 1 + at, "loss": 5.0 - at} for at in range(3)]
    seen = [{"iteration": 1 + at, "loss": 5.0 - at % 3} for at in range(8)]
    assert judge.other_losses(seen, alone) == []
    seen[6]["loss"] = 5.0000001
    assert judge.other_losses(seen, alone) == [7]
    assert judge.other_losses(seen, []) == list(range(1, 9))


def test_ranks_that_come_apart_are_found():
    assert not judge.count_apart([50, 51]) and not judge.count_apart([51, 50, 52])
    assert judge.count_apart([100, 98, 96])


def test_no_recording_but_the_newest_may_be_deleted():
    seen = set()
    assert judge.deleted_recordings(seen, ["2_b", "1_a"]) == []
    assert judge.deleted_recordings(seen, ["1_a", "3_c", "4_d"]) == []  # 2_b had nothing
    assert judge.deleted_recordings(seen, ["4_d", "5_e"]) == ["1_a", "3_c"]
    assert judge.deleted_recordings(seen, ["4_d", "5_e"]) == []


@pytest.fixture
def bubbles():
    """Two of 10 ms, whose leases end after 12 ms at the latest."""
    made = judge.Bubbles()
    made.add(100 * MS, 110 * MS, 12 * MS)
    made.add(200 * MS, 210 * MS, 12 * MS)
    return made


def test_a_step_in_a_bubble_or_under_a_lease_that_was_left_open_is_no_fault(bubbles):
    steps = judge.Steps()
    for at in (100, 105, 110, 111, 112, 200, 205):
        assert steps.judge("t", "cpu-0", at * MS, bubbles) is None
    assert steps.counts == {"inside": 5, "late": 2, "after": 0, "unknown": 0} and steps.latest_ns == 2 * MS


def test_one_step_may_be_late_behind_a_bubble_and_a_second_is_a_fault(bubbles):
    steps = judge.Steps()
    assert steps.judge("t", "cpu-0", 150 * MS, bubbles) is None
    assert steps.judge("other", "cpu-0", 150 * MS, bubbles) is None
    assert steps.judge("t", "cpu-0", 250 * MS, bubbles) is None
    assert "began a second step" in steps.judge("t", "cpu-0", 251 * MS, bubbles)


def test_steps_of_two_processes_of_one_task_never_overlap():
    runs = judge.Runs()
    assert runs.judge("t", "one", 10, 20) is None
    assert runs.judge("t", "two", 20, 30) is None
    assert runs.judge("other", "three", 25, 40) is None
    assert runs.judge("t", "one", 5, 8) is None  # read later than what came after it
    assert "ran twice" in runs.judge("t", "one", 29, 35)


@pytest.mark.parametrize(
    "text",
    [
        "cannot write /var/lib/freeride/freeride.db: no space left on the device",
        "rank 1 of job gpt is lost",
        "the acting thread runs at a raised priority only: real-time scheduling needs CAP_SYS_NICE",
    ],
)
def test_what_is_written_for_people_is_a_sentence(text):
    assert judge.is_sentence(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "failed",
        "cannot write freeride.db:",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "cannot save the task t: SQLITE_FULL",
        "the request failed with ENOSPC",
        "==1==ERROR: AddressSanitizer: heap-use-after-free on address 0x602000000010",
    ],
)
def test_what_is_written_for_programmers_is_none(text):
    assert not judge.is_sentence(text)


def test_an_end_is_explained_by_a_blow_of_its_kind_alone():
    def crashed(number):
        return {"kind": "crashed", "signal": number}

    assert judge.explains({"kind": "stopped"}, {})
    assert judge.explains(crashed(signal.SIGKILL), {"kill runner": 1})
    assert not judge.explains(crashed(signal.SIGKILL), {"kill worker": 1})
    assert not judge.explains(crashed(signal.SIGSEGV), {"kill runner": 1})
    assert judge.explains({"kind": "overran"}, {"freeze runner": 1})
    assert not judge.explains({"kind": "overran"}, {"freeze worker": 1})
    assert not judge.explains({"kind": "lost"}, {"kill worker": 2})
    assert judge.explains({"kind": "lost"}, {"kill worker": 2, "freeze worker": 1})
    assert not judge.explains({"kind": "failed"}, {"full disk": 3})
    full = {"kind": "lost", "reason": "cannot make a folder: No space left on device"}
    assert judge.explains(full, {"full disk": 2})
    assert not judge.explains(full, {"full disk": 1})
    assert not judge.explains({"kind": "lost"}, {"full disk": 9})


def test_a_crash_is_a_signal_that_nobody_sent():
    assert judge.is_crash(-signal.SIGSEGV) and judge.is_crash(-signal.SIGABRT)
    assert not judge.is_crash(-signal.SIGKILL) and not judge.is_crash(1)


def test_a_cut_link_ends_for_both_and_its_listener_goes_on(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, socket.socket(socket.AF_UNIX) as client:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        client.connect(str(tmp_path / "s"))
        server, _ = listener.accept()
        with server:
            assert len(links.sockets_of(os.getpid(), socket.SOCK_STREAM)) >= 2
            assert links.cut(os.getpid(), socket.SOCK_STREAM, 0.0)
            assert server.recv(1) == b"" == client.recv(1) and links.listens(tmp_path / "s")
    assert not links.listens(tmp_path / "s")


def test_the_wall_clock_is_stepped_and_no_other_one(tmp_path):
    library = find_plugin("chaos_wall_clock.so")
    clock = tmp_path / "clock"
    clock.write_bytes((86400).to_bytes(8, "little", signed=True))
    code = "import time; print(time.time(), time.monotonic())"
    environment = {"LD_PRELOAD": str(library), "CHAOS_CLOCK": str(clock)}
    said = subprocess.run(["/usr/bin/python3", "-c", code], env=environment, capture_output=True, check=True).stdout
    wall, steady = map(float, said.split())
    assert 86000 < wall - time.time() < 86800 and steady <= time.monotonic()

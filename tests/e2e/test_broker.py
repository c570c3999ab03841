"""The wire from Python: golden files, the example, and the manager's broker of events."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import msgpack
import pytest
import zmq

BUS = pathlib.Path(os.environ["FREERIDE_SOURCE_DIR"]) / "bus"
PROGRAM = pathlib.Path(os.environ["FREERIDE_BUILD_DIR"]) / "bin" / "freeride-manager"
WATCHDOG_S = 60


def envelope(seq, **fields):
    return msgpack.packb({"v": 1, "source": "python", "seq": seq, "t_ns": time.monotonic_ns(), **fields})


@pytest.fixture
def run_dir(tmp_path):
    # pytest's own paths can be too long for a UNIX socket.
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="freeride-broker-")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def bus(run_dir):
    process = start(run_dir)
    yield process
    process.kill()
    process.wait()


def command(run_dir):
    return [PROGRAM, "--run-dir", run_dir, "--state-dir", run_dir + "/state"]


def start(run_dir):
    process = subprocess.Popen(command(run_dir), stderr=subprocess.PIPE, text=True)
    lines = []
    while not lines or (lines[-1] and "ready: " not in lines[-1]):
        lines.append(process.stderr.readline())
    assert lines[-1], lines
    return process


def sockets(run_dir, *prefixes):
    context = zmq.Context.instance()
    publish, events = context.socket(zmq.PUB), context.socket(zmq.SUB)
    for s in (publish, events):
        s.linger = 0
    publish.connect(f"ipc://{run_dir}/publish.sock")
    for prefix in prefixes:
        events.subscribe(prefix)
    events.connect(f"ipc://{run_dir}/events.sock")
    return publish, events


def test_golden_files():
    expected = json.loads((BUS / "golden" / "expected.json").read_text())
    files = sorted((BUS / "golden").glob("*.msgpack"))
    assert {f.stem for f in files} == set(expected)
    for file in files:
        assert msgpack.unpackb(file.read_bytes()) == expected[file.stem], file.name


def test_example_prints_every_bubble(run_dir, bus):
    assert len((BUS / "examples" / "print_bubbles.py").read_text().splitlines()) < 15
    golden = (BUS / "golden" / "BubbleEnd.msgpack").read_bytes()
    example = subprocess.Popen(
        [sys.executable, BUS / "examples" / "print_bubbles.py"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "FREERIDE_RUN_DIR": run_dir},
    )
    try:
        publish, _ = sockets(run_dir)
        import select

        deadline = time.monotonic() + WATCHDOG_S
        while not select.select([example.stdout], [], [], 0.05)[0]:
            assert example.poll() is None and time.monotonic() < deadline
            publish.send_multipart([b"bubble.end/gpt/0", golden])
        want = msgpack.unpackb(golden)
        line = example.stdout.readline()
        assert line.startswith("%s stage %d: " % (want["job"], want["stage"]))
    finally:
        example.kill()
        example.wait()


def test_it_forwards_keeps_and_ends_in_good_order(run_dir, bus):
    publish, events = sockets(run_dir, "task.state/")
    deadline = time.monotonic() + WATCHDOG_S
    seq = 0
    while not events.poll(20):
        assert time.monotonic() < deadline
        seq += 1
        publish.send_multipart([b"task.state/a", envelope(seq, task="a", state="RUNNING")])
    topic, payload = events.recv_multipart()
    assert topic == b"task.state/a" and msgpack.unpackb(payload)["state"] == "RUNNING"
    _, late = sockets(run_dir, "task.")
    assert late.poll(WATCHDOG_S * 1000)
    kept = msgpack.unpackb(late.recv_multipart()[1])
    assert kept["task"] == "a" and kept["kept"] is True

    second = subprocess.run(command(run_dir), stderr=subprocess.PIPE, text=True, timeout=WATCHDOG_S)
    assert second.returncode == 1
    assert "process %d" % bus.pid in second.stderr and len(second.stderr.splitlines()) == 1
    bus.send_signal(signal.SIGTERM)
    assert bus.wait(WATCHDOG_S) == 0
    assert not os.path.exists(run_dir + "/events.sock")


def test_a_killed_broker_is_replaced_and_its_clients_come_back(run_dir, bus):
    publish, events = sockets(run_dir, "")
    bus.kill()
    bus.wait()
    assert os.path.exists(run_dir + "/events.sock")  # left behind
    again = start(run_dir)
    try:
        deadline = time.monotonic() + WATCHDOG_S
        seq = 0
        while not events.poll(20):
            assert time.monotonic() < deadline
            seq += 1
            publish.send_multipart([b"bubble.begin/gpt/0", envelope(seq)])
    finally:
        again.terminate()
        assert again.wait(WATCHDOG_S) == 0


def test_somebody_elses_socket_is_not_taken(run_dir):
    other = socket.socket(socket.AF_UNIX)
    other.bind(run_dir + "/publish.sock")
    other.listen()
    done = subprocess.run(command(run_dir), stderr=subprocess.PIPE, text=True, timeout=WATCHDOG_S)
    assert done.returncode == 1 and "another program" in done.stderr
    other.close()


def test_idle_broker_sleeps(run_dir, bus):
    def wakeups():
        total = 0
        for task in pathlib.Path("/proc/%d/task" % bus.pid).iterdir():
            for line in (task / "status").read_text().splitlines():
                if line.startswith("voluntary_ctxt_switches"):
                    total += int(line.split()[1])
        return total

    _, events = sockets(run_dir, "")
    time.sleep(0.5)
    before = wakeups()
    time.sleep(2)
    assert wakeups() - before <= 20  # ten a second
    del events

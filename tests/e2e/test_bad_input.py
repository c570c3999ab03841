"""Bad input, each kind: one clear line, a non-zero exit or a typed verdict, and everything else goes on."""

import array
import ctypes
import os
import shutil
import socket
import subprocess

import pytest
import zmq

from rig.testing import BUILD, System, find_plugin, until

REJECTED = (1, 2, 4, 5)


@pytest.fixture
def system():
    with System() as running:
        yield running


@pytest.fixture(scope="module")
def shared():
    """One system with a two-stage training for all tests that must leave it unharmed."""
    with System() as running:
        running.start_manager()
        for stage in range(2):
            running.start_worker(f"cpu-{stage}", "--grace-ms", "200", "--hang-ms", "2000", "--init-ms", "2000")
        running.start_training(stages=2)
        until(lambda: len(running.iterations()) >= 8, "training has begun")
        yield running
        for name, process in running.processes.items():
            assert process.poll() is None, f"{name} has died:\n{running.log(name)}"
        running.wait_iterations(3)


def one_line(answer, *words):
    assert answer.code in REJECTED, answer
    lines = answer.err.strip().split("\n")
    assert len(lines) == 1, answer
    for word in words:
        assert word in lines[0], answer


def file_with(tmp_path, name, content):
    path = tmp_path / name
    path.write_bytes(content)
    return path


def test_not_an_elf(shared, tmp_path):
    one_line(shared.ctl("load", file_with(tmp_path, "a.so", b"#!/bin/sh\n"), "--stage", 0), "a.so", "not an ELF")


def test_empty_missing_and_folder(shared, tmp_path):
    one_line(shared.ctl("load", file_with(tmp_path, "a.so", b""), "--stage", 0), "empty")
    one_line(shared.ctl("load", tmp_path / "nothing.so", "--stage", 0), "nothing.so")
    one_line(shared.ctl("load", str(tmp_path) + "/", "--stage", 0), str(tmp_path))
    one_line(shared.ctl("load", "never-dropped.so", "--stage", 0), "never-dropped.so")


def test_wrong_machine(shared, tmp_path):
    content = bytearray(find_plugin("pagerank.so").read_bytes())
    content[18] = 0xB7  # EM_AARCH64
    one_line(shared.ctl("load", file_with(tmp_path, "arm.so", bytes(content)), "--stage", 0), "another machine")


def test_no_entry_symbol(shared):
    one_line(shared.ctl("load", find_plugin("libfreeride_hook.so"), "--stage", 0), "freeride_plugin_v1")


def test_truncated_plugin(shared, tmp_path):
    content = find_plugin("pagerank.so").read_bytes()
    one_line(shared.ctl("load", file_with(tmp_path, "half.so", content[: len(content) // 2]), "--stage", 0), "half.so")


def test_unknown_stage_names_those_there_are(shared):
    one_line(shared.ctl("load", find_plugin("pagerank.so"), "--stage", 7), "no stage 7", "0-1")


def test_unknown_job(shared):
    one_line(shared.ctl("load", find_plugin("pagerank.so"), "--stage", 0, "--job", "bert"), "bert", "gpt")


def test_name_taken(shared):
    shared.ok("load", find_plugin("pagerank.so"), "--stage", 0, "--name", "twice", "--param", "scale=10")
    one_line(shared.ctl("load", find_plugin("pagerank.so"), "--stage", 0, "--name", "twice"), "twice")
    shared.ok("stop", "twice")


def test_bad_name(shared):
    one_line(shared.ctl("load", find_plugin("pagerank.so"), "--stage", 0, "--name", "../../etc/passwd"), "name")


def test_unknown_parameter_lists_the_known_ones(shared):
    shared.ctl("load", find_plugin("pagerank.so"), "--stage", 0, "--name", "param", "--param", "colour=red")
    verdict = shared.wait_verdict("param")
    assert verdict["kind"] == "rejected"
    assert "colour" in verdict["reason"] and "scale" in verdict["reason"]


def test_bad_parameter_value(shared):
    shared.ctl("load", find_plugin("pagerank.so"), "--stage", 0, "--name", "value", "--param", "scale=many")
    verdict = shared.wait_verdict("value")
    assert verdict["kind"] == "rejected" and "scale" in verdict["reason"]


def test_more_memory_than_any_worker(shared):
    one_line(shared.ctl("load", find_plugin("pagerank.so"), "--stage", 0, "--memory", "900TiB"), "memory")


def test_unknown_task(shared):
    for verb in ("task", "stop", "pause", "resume"):
        answer = shared.ctl(verb, "nobody")
        assert answer.code == 4 and "nobody" in answer.err


@pytest.mark.parametrize("what", ["status", "tasks", "workers", "plugins"])
def test_manager_down(system, what):
    answer = system.ctl(what, timeout=1)
    assert answer.code == 3 and "freeride-manager" in answer.err and len(answer.err.strip().split("\n")) == 1


def test_second_manager(shared):
    done = subprocess.run(
        [str(BUILD / "bin/freeride-manager")], env=shared.env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "is served by process" in done.stderr
    shared.ok("status")


def test_second_worker_on_the_same_device(shared):
    done = subprocess.run(
        [str(BUILD / "bin/freeride-worker"), "--device", "cpu-0"],
        env=shared.env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "cpu-0" in done.stderr


def test_garbage_on_every_zmq_socket(shared):
    context = zmq.Context.instance()
    junk = [
        b"",
        b"\x00",
        b"\xc1" * 10,
        b"\xdf\xff\xff\xff\xff",
        os.urandom(4096),
        b"\x81\xa1v\xce\xff\xff\xff\xff",
        b"\x91" * 100000,
        b"\xdb\xff\xff\xff\xff" + b"a" * 100,
        b"x" * (1 << 20),
    ]
    for name, kind in (
        ("commands", zmq.DEALER),
        ("commands", zmq.REQ),
        ("publish", zmq.PUB),
        ("publish", zmq.XPUB),
        ("events", zmq.XSUB),
    ):
        sock = context.socket(kind)
        sock.setsockopt(zmq.LINGER, 200)
        sock.connect(f"ipc://{shared.run_dir}/{name}.sock")
        for message in junk:
            for frames in ([message], [b"task.state/x", message], [b"", message], [message] * 20):
                try:
                    sock.send_multipart(frames, zmq.NOBLOCK)
                except zmq.ZMQError:
                    break
        sock.close()
    # Raw bytes on the same UNIX sockets, not even ZMTP.
    for name in ("commands", "publish", "events"):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(str(shared.run_dir / f"{name}.sock"))
            raw.sendall(os.urandom(1000))
    for _ in range(3):
        shared.ok("status")
    shared.wait_iterations(2)


def attach(system, fds, data=b"FRHELLO1"):
    """Hands descriptors to worker cpu-0 as a trainer would; returns its answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(30)
        sock.connect(str(system.run_dir / "worker-cpu-0.sock"))
        if fds:
            sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
        else:
            sock.send(data)
        return sock.recv(1000)


def page(size, content=b"", seal=True):
    fd = os.memfd_create("page", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    os.pwrite(fd, content, 0)
    if seal:
        import fcntl

        fcntl.fcntl(fd, 1033, 1 | 2 | 4)  # F_ADD_SEALS: seal, shrink, grow
    return fd


def header(magic=0x454C424255425246, major=1, size=74240):
    return (
        magic.to_bytes(8, "little")
        + major.to_bytes(4, "little")
        + (0).to_bytes(4, "little")
        + size.to_bytes(8, "little")
        + (1).to_bytes(8, "little")
    )


@pytest.mark.parametrize(
    "case, word",
    [
        ("nothing", ""),
        ("garbage", ""),
        ("short", "short"),
        ("unsealed", "seal"),
        ("magic", "bubble page"),
        ("version", "version"),
        ("lies", ""),
    ],
)
def test_bad_pages(shared, case, word):
    size = 74240
    if case in ("nothing", "garbage"):
        answer = attach(shared, [], b"FRHELLO1" if case == "nothing" else b"\xff" * 500)
    else:
        content = {"magic": header(magic=1), "version": header(major=99)}.get(case, header())
        if case == "lies":
            content = header() + b"\xff" * (size - 32)
        fd = page(
            100 if case == "short" else size, content[:100] if case == "short" else content, seal=case != "unsealed"
        )
        try:
            answer = attach(shared, [fd])
        finally:
            os.close(fd)
    assert answer.startswith(b"ERR"), answer
    assert word.lower() in answer.decode().lower(), answer


@pytest.mark.parametrize(
    "where, how, kind, words",
    [
        ("step", "abort", "crashed", "RunNextStep"),
        ("step", "segv", "crashed", "RunNextStep"),
        ("step", "throw", "failed", "thrown on purpose"),
        ("step", "exit0", "failed", "RunNextStep"),
        ("create", "fail", "failed", "told to fail"),
        ("init", "fail", "failed", "told to fail"),
        ("start", "fail", "failed", "told to fail"),
        ("step", "fail", "failed", "told to fail"),
        ("pause", "fail", "failed", "told to fail"),
        ("init", "oom", "out_of_memory", "no memory"),
        ("init", "hang", "overran", "InitSideTask"),
        ("step", "hang", "overran", "RunNextStep"),
        ("step", "spin", "overran", "RunNextStep"),
    ],
)
def test_a_misbehaving_task_gets_its_verdict(shared, where, how, kind, words):
    name = f"{where}-{how}"
    shared.ok(
        "load",
        find_plugin("faulty.so"),
        "--stage",
        1,
        "--name",
        name,
        "--param",
        f"where={where}",
        "--param",
        f"how={how}",
    )
    verdict = shared.wait_verdict(name)
    assert verdict["kind"] == kind, verdict
    assert words in verdict["reason"] + verdict["transition"], verdict
    until(lambda: not shared.runners(), "nothing is left behind")


def test_a_newer_abi_is_told_with_both_versions(shared):
    one_line(shared.ctl("load", find_plugin("abi_newer.so"), "--stage", 1), "freeride_plugin_v2", "freeride_plugin_v1")
    shared.ok("load", find_plugin("abi_99.so"), "--stage", 1, "--name", "abi-99")
    verdict = shared.wait_verdict("abi-99")
    assert verdict["kind"] == "rejected" and "99" in verdict["reason"] and "1" in verdict["reason"], verdict


def test_unreadable_drop_folder(system):
    shutil.rmtree(system.state_dir / "plugins")
    (system.state_dir / "plugins").write_text("not a folder")
    system.start_manager()
    worker = system.start_worker("cpu-0")
    until(lambda: str(system.state_dir / "plugins") in system.log("worker-cpu-0"), "the worker names the folder")
    assert worker.poll() is None
    system.ok("status")


def test_state_directory_that_cannot_be_written(system):
    shutil.rmtree(system.state_dir)
    system.state_dir.write_text("a file")
    done = subprocess.run(
        [str(BUILD / "bin/freeride-manager")], env=system.env, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert str(system.state_dir) in done.stderr
    system.state_dir.unlink()
    system.state_dir.mkdir()


def in_full_file_system(system):
    """Puts a 1 MiB tmpfs over the state folder; False where mounting is not allowed."""
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.mount(b"tmpfs", str(system.state_dir).encode(), b"tmpfs", 0, b"size=1m") == 0


def test_full_state_directory_loses_no_task(system):
    if not in_full_file_system(system):
        pytest.fail("this test mounts a tmpfs: run it as root")
    try:
        (system.state_dir / "plugins").mkdir()
        system.start_manager()
        (system.state_dir / "fill").write_bytes(b"x" * 600 * 1024)
        answers = [system.ctl("load", find_plugin("pagerank.so"), "--name", f"t{i}", "--stage", 0) for i in range(3)]
        accepted = [f"t{i}" for i, answer in enumerate(answers) if answer.code == 0]
        for answer in answers:
            if answer.code:
                assert len(answer.err.strip().split("\n")) == 1
        assert system.processes["manager"].poll() is None
        names = [t["state"]["task"] for t in system.ok("tasks")["tasks"]]
        assert sorted(names) == sorted(accepted)
        system.kill("manager")
        (system.state_dir / "fill").unlink()
        system.start_manager()
        assert sorted(t["state"]["task"] for t in system.ok("tasks")["tasks"]) == sorted(accepted)
    finally:
        for name in list(system.processes):
            system.kill(name)
        ctypes.CDLL(None).umount2(str(system.state_dir).encode(), 2)


@pytest.mark.parametrize(
    ("program", "words", "setting"),
    [
        ("manager", (), {"FREERIDE_LISTEN": "tcp:/*:7420"}),
        ("worker", ("--device", "cpu-0"), {"FREERIDE_SANDBOX": "bublewrap"}),
        ("worker", ("--device", "cpu 0"), {}),
        ("node", (), {"FREERIDE_MANAGER": "tcp://head:7420"}),
        ("web", (), {"FREERIDE_WEB_LISTEN": "nowhere"}),
        ("manager", (), {"FREERIDE_PUBLISH_ENDPOINT": "tcp://*:1"}),
        ("recorder", (), {"FREERIDE_KEEP_HOURS": "long"}),
    ],
)
def test_a_wrong_setting_ends_a_daemon_with_2_so_that_its_unit_does_not_start_it_for_ever(
    system, program, words, setting
):
    done = subprocess.run(
        [str(BUILD / f"bin/freeride-{program}"), *words],
        env=dict(system.env, **setting),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2, done


def test_bad_configuration_file(system, tmp_path):
    config = tmp_path / "freeride.toml"
    config.write_text("[manager]\nbaseline = 5\n")
    done = subprocess.run(
        [str(BUILD / "bin/freeride-manager")],
        env=dict(system.env, FREERIDE_CONFIG=str(config)),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "baseline_pct" in done.stderr and "'baseline'" in done.stderr

"""The manager on the network: each role's rights, who is refused and what they are told, and two real hosts."""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess

import msgpack
import pytest
import zmq

from rig.ctl import Answer, Ctl
from rig.processes import free_port
from rig.testing import System, find_plugin, until


def free_ports():
    """A port whose next two are free as well."""
    while True:
        port = free_port()
        with socket.socket() as one, socket.socket() as other, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port + 1))
            other.bind(("127.0.0.1", port + 2))
            return port


class Listening(System):
    """A manager that takes commands over TCP, and the keys of its users."""

    def __init__(self):
        super().__init__()
        self.port = free_ports()
        self.address = f"tcp://127.0.0.1:{self.port}"

    def key(self, name, role, *words):
        """A new key's file. As its operator would make it on the manager's host."""
        file = self.root / f"{name}.key"
        self.ok("keys", "make", name, "--role", role, "--out", file, *words)
        return file

    def listen(self, *flags):
        return self.start_manager("--listen", self.address, *flags)

    def far(self, key, *words, address=None, timeout=20):
        """freeride-ctl as on another host: it knows an address and a key, and no folder of the manager's."""
        env = {**self.env, "FREERIDE_RUN_DIR": "/nowhere", "FREERIDE_STATE_DIR": "/nowhere"}
        key = ["--key", key] if key else []
        return Ctl(self.calls.program, env).ask(*words, "--manager", address or self.address, *key, timeout=timeout)

    def audit(self):
        """Its lines, once the manager has ended: nobody waits for that log's disk."""
        if "manager" in self.processes:
            self.end("manager")
        return [json.loads(line) for line in (self.state_dir / "audit.jsonl").read_text().splitlines()]


@pytest.fixture
def system():
    with Listening() as running:
        yield running


def good(answer):
    assert answer.code == 0, answer
    return answer.json


def one_line(answer, code, *words):
    assert answer.code == code, answer
    assert len(answer.err.strip().split("\n")) == 1, answer
    for word in words:
        assert word in answer.err, answer


def test_each_role_has_its_rights_and_the_audit_log_says_who(system):
    keys = {role: system.key(f"{role}-key", role) for role in ("monitor", "user", "operator")}
    bob = system.key("bob-key", "user", "--account", "bob")
    assert keys["user"].stat().st_mode & 0o777 == 0o600
    system.listen()
    plugin = find_plugin("counter.so")

    status = good(system.far(keys["operator"], "status"))
    assert status["network"] == f"{system.address}, by key"
    # From a host that is not the manager's: the plugin's bytes come along.
    task = good(system.far(keys["user"], "load", plugin, "--name", "hers"))["task"]
    assert task["load"]["user"] == "user-key"
    good(system.far(bob, "load", plugin, "--name", "his"))
    assert system.info("his")["load"]["user"] == "bob"
    assert {task["load"]["name"] for task in good(system.far(bob, "tasks"))["tasks"]} == {"hers", "his"}

    # A user steers its own tasks, and nobody else's.
    for words in (["stop", "hers"], ["pause", "hers"], ["resume", "hers"], ["task", "hers"]):
        one_line(system.far(bob, *words), 1, "the key bob-key (role user)", "user-key's")
    one_line(system.far(bob, "load", plugin, "--replace", "hers"), 1, "user-key's")
    one_line(system.far(bob, "faults", "--lift", "user=bob"), 1, "operator")
    good(system.far(bob, "pause", "his"))
    assert system.task("hers")["verdict"]["kind"] == ""
    good(system.far(keys["operator"], "stop", "hers"))
    good(system.far(bob, "stop", "his"))

    # A monitor hears, and commands nothing.
    for words in (["status"], ["tasks"], ["stop", "his"], ["load", plugin]):
        one_line(system.far(keys["monitor"], *words), 1, "the key monitor-key (role monitor)", "hears events")
    events = system.far(keys["monitor"], "events", "--topic", "task.state/his", "--count", 1)
    assert good(events)["topic"] == "task.state/his"

    system.ok("load", plugin, "--name", "local")
    everything = system.audit()
    lines = [line for line in everything if "key" in line]
    assert [
        (line["key"], line["role"], line["user"], line["outcome"]) for line in lines if line["command"] == "load"
    ] == [
        ("user-key", "user", "user-key", "ok"),
        ("bob-key", "user", "bob", "ok"),
        ("monitor-key", "monitor", "monitor-key", "permission"),
    ]
    assert all(line["address"] == "127.0.0.1" and "uid" not in line for line in lines)
    refused = [line for line in lines if line["command"] == "stop" and line["outcome"] == "permission"]
    assert [line["key"] for line in refused] == ["bob-key", "monitor-key"]
    # Over the host's socket the kernel says who it is, as ever.
    assert [(line["uid"], line["role"]) for line in everything if line not in lines] == [(os.getuid(), "operator")]


def test_who_is_refused_is_told_in_one_line_and_at_once(system, tmp_path):
    mine = system.key("mine", "operator")
    system.listen()
    good(system.far(mine, "status"))
    with Listening() as other:
        strange = pathlib.Path(shutil.copy(other.key("strange", "operator"), tmp_path))
    one_line(system.far(None, "status", timeout=600), 1, system.address, "wants a key", "--key")
    one_line(system.far(strange, "status", timeout=600), 1, "is not the one that", "strange.key")
    # For this manager, and never authorised here.
    text = strange.read_text().splitlines()
    manager = next(line for line in mine.read_text().splitlines() if line.startswith("manager "))
    wrong = tmp_path / "wrong.key"
    wrong.write_text("\n".join([line for line in text if not line.startswith("manager ")] + [manager, ""]))
    wrong.chmod(0o600)
    for words in (["status"], ["events"], ["top"]):
        one_line(system.far(wrong, *words, timeout=600), 1, "refused this key", "wrong.key")
    assert "is refused: the key" in system.log("manager")

    mine.chmod(0o644)
    one_line(system.far(mine, "status"), 1, "other users may read it", "chmod 600")
    mine.chmod(0o600)
    garbage = tmp_path / "garbage.key"
    garbage.write_bytes(b"\x7fELF" + bytes(100))
    garbage.chmod(0o600)
    one_line(system.far(garbage, "status"), 2, "is no key file")
    one_line(system.far(tmp_path / "none.key", "status"), 4, "none.key")
    one_line(system.far(tmp_path / "none.key", "events"), 4, "none.key")
    good(system.far(tmp_path / "none.key", "keys", "list", "--keys-dir", system.state_dir / "keys"))  # needs no manager
    one_line(system.far(system.state_dir / "keys/manager.key", "status"), 2, "which manager it is for")
    one_line(system.far(mine, "status", address="tcp://no-such-host.invalid:7420"), 2, "no-such-host.invalid")
    one_line(system.far(mine, "status", address="head:7420"), 2, "tcp://HOST:PORT")
    one_line(system.far(mine, "status", address=f"tcp://127.0.0.1:{free_ports()}", timeout=1), 3, "Connection refused")
    one_line(system.far(mine, "events", address=f"tcp://127.0.0.1:{free_ports()}", timeout=1), 3, "Connection refused")


def test_a_key_that_is_revoked_has_no_rights_from_that_moment_on(system):
    alice, bob = system.key("alice", "user"), system.key("bob", "monitor")
    system.listen()
    key = {line.split(" ")[0]: line.split(" ")[1] for line in alice.read_text().splitlines()[1:]}
    context = zmq.Context()
    with contextlib.closing(context.socket(zmq.DEALER)) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.RCVTIMEO, 60_000)
        dealer.curve_serverkey, dealer.curve_publickey = key["manager"].encode(), key["public"].encode()
        dealer.curve_secretkey = key["secret"].encode()
        dealer.connect(system.address)

        def status(number):
            request = {"v": 1, "kind": "request", "id": f"mine-{number}", "command": "status", "body": {}}
            dealer.send(msgpack.packb(request))
            return msgpack.unpackb(dealer.recv())

        assert status(1)["ok"]
        for name, file in (("alice", alice), ("bob", bob)):
            words = ["events", "--manager", system.address, "--key", file]
            system.start(f"events-{name}", [system.tree.program("freeride-ctl"), *words], stdout=True)
        system.ok("load", find_plugin("counter.so"), "--name", "a", "--paused")
        for name in ("alice", "bob"):
            until(lambda name=name: "task.state/a" in system.log(f"events-{name}", kind="out"), "the first event")

        assert system.ok("keys", "revoke", "alice")["revoked"] == ["alice"]
        answers = [status(2), status(1)]  # on the connection that exists; also for what was answered before
        assert [(answer["ok"], answer["code"]) for answer in answers] == [(False, "permission")] * 2
    context.term()
    assert system.processes.pop("events-alice").wait(60) == 1
    assert "refused this key" in system.log("events-alice")
    system.ok("stop", "a")
    until(lambda: '"' not in system.log("events-bob") and "STOPPED" in system.log("events-bob", kind="out"), "bob's")
    assert "STOPPED" not in system.log("events-alice", kind="out")
    one_line(system.far(alice, "status", timeout=600), 1, "refused this key")
    one_line(system.ctl("keys", "revoke", "alice"), 4, "no key alice")
    assert [key["name"] for key in system.ok("keys", "list")["keys"]] == ["bob"]
    # And what it may is changed without a restart as well.
    listed = system.state_dir / "keys/authorized/bob.key"
    listed.write_text(listed.read_text().replace("role monitor", "role operator"))
    good(system.far(bob, "status"))


def test_a_node_speaks_for_its_own_hosts_users_and_for_nobody_else(system):
    node = system.key("gpu7-node", "node", "--host", "gpu7")
    system.ok("keys", "make", "x", "--role", "user", "--out", system.root / "x.key")
    one_line(system.ctl("keys", "make", "y", "--role", "node", "--out", system.root / "y.key"), 2, "--host")
    system.listen()
    system.ok("load", find_plugin("counter.so"), "--name", "roots", "--paused")
    one_line(system.far(node, "status"), 1, "the key gpu7-node (role node)", "for which user it speaks")
    key = {line.split(" ")[0]: line.split(" ")[1] for line in node.read_text().splitlines()[1:]}
    context = zmq.Context()
    with contextlib.closing(context.socket(zmq.DEALER)) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.RCVTIMEO, 60_000)
        dealer.curve_serverkey, dealer.curve_publickey = key["manager"].encode(), key["public"].encode()
        dealer.curve_secretkey = key["secret"].encode()
        dealer.connect(system.address)
        count = iter(range(1000))

        def ask(uid, command, body, attachment=None, id=None):
            request = {"v": 1, "kind": "request", "id": id or f"node-{next(count)}", "command": command, "uid": uid}
            dealer.send_multipart([msgpack.packb({**request, "body": body}), *([attachment] if attachment else [])])
            return msgpack.unpackb(dealer.recv_multipart()[0])

        plugin = find_plugin("counter.so").read_bytes()
        load = {
            "plugin": "counter.so",
            "name": "hers",
            "user": "root",
            "start_paused": True,
            "stage": -1,
            "replica": -1,
        }
        loaded = ask(4242, "load", load, plugin)
        assert loaded["ok"], loaded
        assert loaded["body"]["task"]["load"]["user"] == "uid 4242@gpu7"
        assert ask(4242, "tasks", {})["ok"]
        for uid, command, body in (
            (0, "stop", {"task": "hers"}),  # another user of that host, though it is root there
            (0, "stop", {"task": "roots"}),  # the manager's own root is somebody else
            (4242, "stop", {"task": "roots"}),
            (0, "faults.lift", {"scope": "user", "name": "root"}),
            (0, "worker.register", {"worker": "gpu7:cpu-0"}),
            (0, "plugin.fetch", {"sha256": "0" * 64}),
        ):
            answer = ask(uid, command, body)
            assert not answer["ok"] and answer["code"] == "permission", (uid, command, answer)
        assert not ask(-1, "tasks", {})["ok"] and not ask("0", "tasks", {})["ok"]
        # For nobody it is its workers; of its own host.
        worker = {"worker": "gpu8:cpu-0", "incarnation": "x"}
        for command in ("worker.register", "worker.report"):
            answer = ask(None, command, worker)
            assert answer["code"] == "permission" and "gpu8:cpu-0" in answer["message"], answer
        assert ask(None, "worker.register", {**worker, "worker": "gpu7:cpu-0"})["ok"]
        assert ask(None, "stop", {"task": "hers"})["code"] == "permission"
        # An answer is not another user's, though the id is the same.
        assert ask(4242, "task", {"task": "hers"}, id="same")["ok"]
        assert ask(0, "task", {"task": "hers"}, id="same")["code"] == "permission"
        assert ask(4242, "stop", {"task": "hers"})["ok"]
    context.term()
    stops = [line for line in system.audit() if line["command"] == "stop"]
    assert [(line["key"], line["user"], line["role"], line["outcome"]) for line in stops] == [
        ("gpu7-node", "root@gpu7", "user", "permission"),
        ("gpu7-node", "root@gpu7", "user", "permission"),
        ("gpu7-node", "uid 4242@gpu7", "user", "permission"),
        ("gpu7-node", "gpu7-node", "node", "permission"),
        ("gpu7-node", "uid 4242@gpu7", "user", "ok"),
    ]


def test_strangers_disturb_nobody(system):
    """Garbage, half-open connections and a flood, over and over, while somebody with a key works."""
    mine = system.key("mine", "operator")
    system.listen()
    noise = [b"", b"GET / HTTP/1.0\r\n\r\n", b"\xff" + bytes(8) + b"\x7f\x03\x01CURVE" + bytes(48) + os.urandom(3000)]
    with contextlib.ExitStack() as open_ones:
        for round in range(100):
            for port in (system.port, system.port + 1):
                one = open_ones.enter_context(socket.create_connection(("127.0.0.1", port)))
                with contextlib.suppress(OSError):
                    one.sendall(noise[round % len(noise)])
        assert system.ctl("status").code == 0
        descriptors = len(os.listdir(f"/proc/{system.processes['manager'].pid}/fd"))
        assert descriptors < 150, descriptors
        system.check()
    # Where they are gone there is room again.
    until(lambda: system.far(mine, "status", timeout=5).code == 0, "an answer by TCP")


def test_a_port_without_keys(system):
    """Refused where others could reach it, told where only this host can."""
    open_to_all = f"tcp://0.0.0.0:{system.port}"
    process = system.start("refused", [system.tree.program("freeride-manager"), "--listen", open_to_all])
    assert process.wait(60) == 2
    system.processes.pop("refused")
    assert len(system.log("refused").strip().split("\n")) == 1
    assert "it would be everybody's" in system.log("refused") and "freeride-ctl keys make" in system.log("refused")
    system.listen()
    assert "without keys" in system.log("manager")
    assert "without keys" in system.ok("status")["network"]
    one_line(system.far(None, "status"), 1, "hears events")
    system.ok("load", find_plugin("counter.so"), "--name", "a", "--paused")
    assert good(system.far(None, "events", "--count", 1, "--topic", "task.state"))["topic"] == "task.state/a"
    # A key that is made now is taken after the next start, as whoever uses it is told.
    mine = system.key("mine", "operator")
    for _ in range(3):
        one_line(system.far(mine, "status"), 1, "first key was made after its start")
    system.end("manager")
    # A folder of keys that others may write is no folder of keys.
    (system.state_dir / "keys/authorized").chmod(0o777)
    process = system.start("refused", [system.tree.program("freeride-manager"), "--listen", system.address])
    assert process.wait(60) == 1
    system.processes.pop("refused")
    assert "others than root and this user may write there" in system.log("refused")


def test_keys_are_made_once_and_read_by_nobody_else(system):
    file = system.key("mine", "user")
    one_line(
        system.ctl("keys", "make", "mine", "--role", "user", "--out", system.root / "b.key"), 1, "a key mine already"
    )
    assert not (system.root / "b.key").exists()
    one_line(system.ctl("keys", "make", "other", "--role", "user", "--out", file), 1, "choose another name")
    one_line(system.ctl("keys", "make", "../up", "--role", "user"), 2, "cannot be a key's name")
    one_line(system.ctl("keys", "make", "a", "--role", "root"), 2, "--role")
    assert file.stat().st_mode & 0o777 == 0o600
    assert (system.state_dir / "keys/manager.key").stat().st_mode & 0o777 == 0o600
    assert (system.state_dir / "keys").stat().st_mode & 0o777 == 0o700
    listed = (system.state_dir / "keys/authorized/mine.key").read_text()
    assert "secret" not in listed.replace("# A FreeRide key. Whoever has its secret is who it names.", "")


def run(*words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)


@pytest.fixture
def two_hosts():
    """Two network namespaces and a wire between them: their names, and the first one's address."""
    names = [f"fr{os.getpid()}{letter}" for letter in "ab"]
    made = [run("ip", "netns", "add", name) for name in names]
    try:
        if any(done.returncode for done in made):
            pytest.skip(f"no network namespace can be made here: {made[0].stderr.strip()}")
        wired = run("ip", "link", "add", "fr0", "netns", names[0], "type", "veth", "peer", "fr0", "netns", names[1])
        if wired.returncode:
            pytest.skip(f"no veth can be made here: {wired.stderr.strip()}")
        for number, name in enumerate(names, 1):
            for words in (
                ["addr", "add", f"10.77.0.{number}/24", "dev", "fr0"],
                ["link", "set", "fr0", "up"],
                ["link", "set", "lo", "up"],
            ):
                done = run("ip", "-n", name, *words)
                assert done.returncode == 0, done
        yield names, "10.77.0.1"
    finally:
        for name in names:
            run("ip", "netns", "delete", name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make network namespaces")
def test_two_hosts(system, two_hosts):
    """A manager and a worker on one host; load, watch, stop and revoke from the other."""
    (here, there), address = two_hosts
    key = system.key("alice", "user")
    enter = ["ip", "netns", "exec", here]
    manager = system.start(
        "manager", [*enter, system.tree.program("freeride-manager"), "--listen", f"tcp://*:{system.port}"]
    )
    until(lambda: system.ctl("status").code == 0 or manager.poll() is not None, "the manager's first answer")
    system.check()
    system.start_worker("cpu-0")
    system.wait_workers(1)

    def far(*words):
        env = {**system.env, "FREERIDE_RUN_DIR": "/nowhere", "FREERIDE_STATE_DIR": "/nowhere"}
        env |= {"FREERIDE_MANAGER": f"tcp://{address}:{system.port}", "FREERIDE_KEY": str(key)}
        words = ["ip", "netns", "exec", there, system.tree.program("freeride-ctl"), *words, "--format", "json"]
        done = subprocess.run(
            [str(word) for word in words], env=env, capture_output=True, text=True, timeout=120, check=False
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    assert good(far("workers"))["workers"]
    good(far("load", find_plugin("counter.so"), "--name", "a", "--when-idle"))
    system.wait_steps("a", 3)
    assert good(far("events", "--topic", "task.state/a", "--count", 1))["state"]
    assert good(far("task", "a"))["task"]["load"]["user"] == "alice"
    good(far("stop", "a"))
    system.wait_verdict("a")
    system.ok("keys", "revoke", "alice")
    one_line(far("status"), 1, "refused this key")
    assert {line["address"] for line in system.audit() if "key" in line} <= {"10.77.0.2", "::ffff:10.77.0.2"}

"""Several hosts on one machine: each is a network namespace with wires to the others, and processes that see a name,
a /dev/shm and folders of its own. Root only."""

import contextlib
import os
import signal
import subprocess

from .ctl import Ctl
from .processes import ENDING_S, Failure, until
from .system import read_lines
from .testing import System
from .tree import PYTHON, SOURCE

# All hosts have one name, as disks that were copied have: only their keys tell them apart.
HOSTNAME = "twin"


def ip(*words):
    done = subprocess.run(["ip", *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failure(f"ip {' '.join(map(str, words))}: {done.stderr.strip()}")


def number_of(host):
    return "abc".index(host)


class Wires:
    """Two network namespaces, `a` and `b`, or three, with two wires between them: `data`, over which ranks of a training
    talk, and `ctl`, over which FreeRide does, so that either can be cut alone."""

    NETS = {"data": "10.78.0", "ctl": "10.79.0"}
    NOBODY = "02:00:00:00:00:99"

    def __init__(self, hosts="ab"):
        self.names = {host: f"fr{os.getpid()}{host}" for host in hosts}
        self.switch = f"fr{os.getpid()}s" if len(hosts) > 2 else None

    def __enter__(self):
        try:
            for name in self.names.values():
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
            if self.switch:
                ip("netns", "add", self.switch)
            for wire, net in self.NETS.items():
                self.connect(wire)
                for host, name in self.names.items():
                    ip("-n", name, "addr", "add", f"{net}.{number_of(host) + 1}/24", "dev", wire)
                    ip("-n", name, "link", "set", wire, "up")
        except Failure:
            self.__exit__()
            raise
        return self

    def connect(self, wire):
        ends = list(self.names.values())
        if not self.switch:
            ip("link", "add", wire, "netns", ends[0], "type", "veth", "peer", wire, "netns", ends[1])
            return
        ip("-n", self.switch, "link", "add", wire, "type", "bridge")
        ip("-n", self.switch, "link", "set", wire, "up")
        for host, name in self.names.items():
            port = f"{wire}-{host}"
            ip("link", "add", wire, "netns", name, "type", "veth", "peer", port, "netns", self.switch)
            ip("-n", self.switch, "link", "set", port, "master", wire)
            ip("-n", self.switch, "link", "set", port, "up")

    def __exit__(self, *_):
        for name in filter(None, [*self.names.values(), self.switch]):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    def address(self, wire, host):
        return f"{self.NETS[wire]}.{number_of(host) + 1}"

    def cut(self, wire, host="b"):
        """Nothing passes any more, and nobody is told."""
        ip("-n", self.names[host], "link", "set", wire, "down")

    def mend(self, wire, host="b"):
        ip("-n", self.names[host], "link", "set", wire, "up")

    def cut_from(self, host, other, wire="ctl"):
        """What `host` sends to `other` comes to nobody; the other direction stays."""
        words = ["to", self.address(wire, other), "lladdr", self.NOBODY, "nud", "permanent", "dev", wire]
        ip("-n", self.names[host], "neigh", "replace", *words)

    def mend_from(self, host, other, wire="ctl"):
        ip("-n", self.names[host], "neigh", "del", "to", self.address(wire, other), "dev", wire)


class Hosts(System):
    """A manager on host `a`, in folders of its own, and a node with one CPU device on each host. Stage `i` of a training
    runs on the i-th host, and its device is cpu-i there: control groups are this machine's."""

    def __init__(self, wires):
        super().__init__()
        self.wires = wires
        self.port = 7420  # all ports of these hosts are free
        self._training_ports = iter(range(29500, 30000))
        self.address = f"tcp://{wires.address('ctl', 'a')}:{self.port}"
        for host in wires.names:
            for folder in self.folders(host).values():
                os.makedirs(folder)
            (self.root / host / "shm").mkdir()
        # An account and a key for each node; made before the manager starts, as an operator does.
        self.keys = {host: self.key(f"node-{host}", "node", "--host", host) for host in wires.names}

    def folders(self, host):
        return {"FREERIDE_RUN_DIR": str(self.root / host / "r"), "FREERIDE_STATE_DIR": str(self.root / host / "s")}

    def key(self, name, role, *words):
        file = self.root / f"{name}.key"
        self.ok("keys", "make", name, "--role", role, "--out", file, *words)
        return file

    def enter(self, host, words):
        """What runs `words` on a host."""
        script = 'mount --bind "$1" /dev/shm && hostname "$2" && shift 2 && exec "$@"'
        net = f"--net=/run/netns/{self.wires.names[host]}"
        into = ["nsenter", net, "unshare", "-m", "-u", "-i", "--propagation", "private", "sh", "-c", script, "sh"]
        return [*into, self.root / host / "shm", HOSTNAME, *words]

    def start_on(self, host, name, words, env=None, **more):
        return self.start(name, self.enter(host, words), {**self.folders(host), **(env or {})}, **more)

    def ctl_on(self, host, *words, user=None, timeout=5):
        """freeride-ctl there, which knows nothing but its host's own sockets; `user`: as this uid, of no group."""
        own = ["setpriv", f"--reuid={user}", "--clear-groups", "--"] if user else []
        words = self.enter(host, [*own, self.tree.program("freeride-ctl"), *words])
        calls = Ctl(words[0], {**self.env, **self.folders(host)})
        return calls.ask(*words[1:], timeout=timeout)

    def start_manager_there(self, *flags):
        words = [self.tree.program("freeride-manager"), "--listen", f"tcp://*:{self.port}", *flags]
        manager = self.start("manager", self.enter("a", words))
        until(lambda: self.ctl("status").code == 0 or manager.poll() is not None, "the manager's first answer")
        self.check()

    def start_node(self, host, *flags, key=None, name=None, manager=None):
        """Does not wait for what becomes of it."""
        return self.start_on(host, name or f"node-{host}", self.node_words(host, *flags, key=key, manager=manager))

    def node_words(self, host, *flags, key=None, manager=None):
        number = number_of(host)
        own = ["--device", f"cpu-{number}", "--cores", number % os.cpu_count(), "--key", key or self.keys[host]]
        words = [self.tree.program("freeride-node"), "--manager", manager or self.address, *own, *flags]
        return [*words, *self.worker_flags(host)]

    def worker_flags(self, host):
        return ["--", "--first-task-uid", 200_000_000 + 1000 * number_of(host), *self.tree.libraries()]

    def start_joined_node(self, host, settings):
        """A node as systemd starts it: with nothing but the settings that `freeride-ctl host join` has written."""
        env = dict(line.split("=", 1) for line in settings.read_text().splitlines())
        words = [self.tree.program("freeride-node"), *self.worker_flags(host)]
        return self.start_on(host, f"node-{host}", words, env)

    def start_bad_link(self, host, port, **how):
        """On that host, a port of loopback from which a bad link leads to the manager. Returns its address."""
        to = self.address.removeprefix("tcp://").split(":")
        script = SOURCE / "tests/rig/bad_link.py"
        words = [w for key, value in how.items() for w in ("--" + key.replace("_", "-"), value)]
        self.start_on(host, f"bad-link-{port}", [PYTHON, script, port, *to, *words])
        return f"tcp://127.0.0.1:{port}"

    def worker_pid(self, host):
        """Of the worker that listens to trainers there, whoever has started it."""
        device = f"cpu-{number_of(host)}"
        for folder in os.listdir("/proc"):
            try:
                with open(f"/proc/{folder}/cmdline", encoding="utf-8") as file:
                    words = file.read().split("\0")
            except (OSError, UnicodeDecodeError):
                continue
            if "freeride-worker" in words[0] and device in words and self.folders(host)["FREERIDE_RUN_DIR"] in words:
                return int(folder)
        return None

    def end_all(self, seconds=ENDING_S):
        """Workers outlive their nodes."""
        super().end_all(seconds)
        for pid in filter(None, map(self.worker_pid, self.wires.names)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(Failure):
            until(lambda: not self.runners(), "their side tasks' end", seconds)

    def worker(self, host):
        """What the manager says of it."""
        name = f"{host}:cpu-{number_of(host)}"
        answer = self.ctl("workers")
        return next((w for w in answer.json.get("workers", []) if w["state"]["worker"] == name), {})

    def start_training_there(self, hook="on", name="training", stages=2, hosts="ab", job="gpt", **options):
        """The example's small GPT, a rank a host. Its iterations are told by the last one."""
        log = self.trainings[name] = self.root / f"{name}.jsonl"
        log.unlink(missing_ok=True)
        port = next(self._training_ports)
        sizes = {"dim": 64, "layers": 2, "seq": 64, "micro_batches": 4, **options}
        for rank, host in enumerate(hosts):
            number = number_of(host)
            flags = [w for k, v in sizes.items() for w in (f"--{k.replace('_', '-')}", v)]
            through = ["-m", "freeride.run"] if hook == "on" else []
            words = [PYTHON, *through, SOURCE / "hooks/examples/train_gpt.py", "--stages", stages, "--rank", rank]
            words += ["--hook", hook, "--log-json", log, *flags]
            env = {
                "RANK": rank,
                "LOCAL_RANK": 0,
                "WORLD_SIZE": stages,
                "MASTER_ADDR": self.wires.address("data", hosts[0]),
                "MASTER_PORT": port,
                "GLOO_SOCKET_IFNAME": "data",
                "FREERIDE_DEVICE": f"cpu-{number}",
            }
            env = {k: str(v) for k, v in env.items()} | ({"FREERIDE_JOB": job} if job else {})
            if not job:
                env["FREERIDE_JOB"] = ""
            self.start_on(host, f"{name}-{rank}", ["taskset", "-c", number % os.cpu_count(), *words], env)
        return log

    def losses(self, name="training"):
        return [line["loss"] for line in read_lines(self.trainings[name])]

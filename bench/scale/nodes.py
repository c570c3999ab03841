"""The fake nodes (bench-scale-nodes) and the manager that they talk to, with what both cost."""

import json
import os
import pathlib
import select
import socket
import subprocess
import time

from rig.processes import Failure, cpu_s, resident_mib
from rig.system import System

WORKERS = 8  # of a node


def free_ports(count):
    """The first of so many in a row."""
    for first in range(21000 + os.getpid() % 5000, 32000, count):
        sockets = [socket.socket() for _ in range(count)]
        try:
            for offset, one in enumerate(sockets):
                one.bind(("127.0.0.1", first + offset))
            return first
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
    raise Failure("no ports are free")


def machine_busy_s():
    """Processor seconds that everybody has had, and that a hypervisor took."""
    fields = [int(field) for field in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    return (sum(fields[:3]) + sum(fields[5:8])) / os.sysconf("SC_CLK_TCK")


class Cluster:
    """A manager with so many GPUs. `manager`: another program than the tree's."""

    def __init__(self, tree, gpus, ranks_of_job, manager_flags, everything=False, manager=None):
        self.gpus, self.nodes = gpus, gpus // WORKERS
        self.tree, self.flags, self.everything = tree, manager_flags, everything
        self.program = manager or tree.program("freeride-manager")
        self.system = System(tree)
        self.port = free_ports(3)
        fleet = [tree.program("bench-scale-nodes")]
        keys = self.system.state_dir / "keys"
        subprocess.run([*fleet, "keys", keys, str(self.nodes)], check=True)
        self.start_manager()
        commands = f"ipc://{self.system.run_dir}/commands.sock"
        self.plugin = tree.plugin("libmanager_test_plugin.so")
        words = [self.nodes, WORKERS, ranks_of_job, self.port, commands, self.plugin]
        self.log = (self.system.root / "nodes.log").open("w")
        self.fleet = subprocess.Popen(
            [*fleet, "run", keys, *map(str, words)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            bufsize=1,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.fleet.kill()
        self.fleet.wait()
        self.system.close()

    def start_manager(self):
        flags = ["--listen", f"tcp://127.0.0.1:{self.port}", *map(str, self.flags)]
        self.manager = self.system.start("manager", [self.program, *flags])

    def end_manager(self, signal="kill"):
        getattr(self.manager, signal)()
        self.manager.wait()

    def say(self, *words):
        self.fleet.stdin.write(" ".join(map(str, words)) + "\n")

    def answer(self, seconds=600):
        ready, _, _ = select.select([self.fleet.stdout], [], [], seconds)
        line = self.fleet.stdout.readline() if ready else ""
        if not line:
            raise Failure(f"the nodes do not answer; {(self.system.root / 'nodes.log').read_text()[-2000:]}")
        return json.loads(line)

    def ask(self, *words, seconds=600):
        self.say(*words)
        return self.answer(seconds)

    def measure(self, seconds):
        """The manager's cost, and how busy everybody else kept the machine, over so many seconds."""
        pid = self.manager.pid
        self.ask("figures")
        begin, cpu, busy, own = time.monotonic(), cpu_s(pid), machine_busy_s(), cpu_s(self.fleet.pid)
        time.sleep(seconds)
        took = time.monotonic() - begin
        manager, fleet = cpu_s(pid) - cpu, cpu_s(self.fleet.pid) - own
        return {
            "cpu_pct": round(100 * manager / took, 1),
            "rss_mib": round(resident_mib(pid), 1),
            "nodes_cpu_pct": round(100 * fleet / took, 1),
            "others_cpu_pct": round(100 * (machine_busy_s() - busy - manager - fleet) / took, 1),
            **self.ask("figures"),
        }

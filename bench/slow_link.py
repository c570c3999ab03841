#!/usr/bin/python3
"""A large plugin through a node whose link to the manager is slow: the figures of bench/results/slow-link.json.

    FREERIDE_BUILD_DIR=build/dev bench/slow_link.py [--mb 120] [--mb-per-s 10] [--senders 2] [--out FILE]

Two hosts as network namespaces, with a manager on the one and, on the other, a node with a worker behind a link of so
many MB/s, made in user space (tests/rig/bad_link.py). One `freeride-ctl load` at first, then several at once. Said of
each: its exit code, how long it took, how many tasks there are of it, the node's memory, and how often the manager
called that host's worker anything else than up. Needs root."""

import argparse
import json
import os
import pathlib
import sys
import threading
import time

SOURCE = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(SOURCE / "tests"))

from rig.hosts import Hosts, Wires  # noqa: E402
from rig.processes import resident_mib, write_whole  # noqa: E402
from rig.testing import find_plugin  # noqa: E402

PORT = 7421  # of the slow link, on its host
LOOK_S = 0.2


def node_mib(hosts):
    """Its start is done by programs that become it."""
    return resident_mib(hosts.processes["node-b"].pid)


class Looks:
    """Of the node and its worker, until closed."""

    def __init__(self, hosts):
        self.hosts, self.mib, self.states = hosts, [], {}
        self._stop, self._thread = threading.Event(), threading.Thread(target=self._look)
        self._thread.start()

    def _look(self):
        while not self._stop.wait(LOOK_S):
            self.mib.append(node_mib(self.hosts))
            state = self.hosts.worker("b").get("state", {}).get("state", "not told")
            self.states[state] = self.states.get(state, 0) + 1

    def close(self):
        self._stop.set()
        self._thread.join()
        return {"node_mib_at_most": round(max(self.mib), 1), "worker_was": self.states}


def large(hosts, name, megabytes):
    path = hosts.root / f"{name}.so"
    with path.open("wb") as file:
        file.write(pathlib.Path(find_plugin("counter.so")).read_bytes() + name.encode())
        file.truncate(megabytes * 1_000_000)
    return path


def load(hosts, names, options):
    """All at once."""
    paths = {name: large(hosts, name, options.mb) for name in names}
    said, looks = {}, Looks(hosts)

    def one(name):
        begin = time.monotonic()
        flags = ("--name", name, "--no-profile", "--paused")
        answer = hosts.ctl_on("b", "load", paths[name], *flags, timeout=options.timeout)
        said[name] = {"exit": answer.code, "s": round(time.monotonic() - begin, 1)}
        if answer.code:
            said[name]["said"] = (answer.err or answer.out).strip()

    threads = [threading.Thread(target=one, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = looks.close()
    tasks = hosts.ok("tasks")["tasks"]
    for name in names:
        said[name]["tasks"] = sum(task["load"]["name"] == name for task in tasks)
    return {"loads": [said[name] for name in names], **found}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=120)
    parser.add_argument("--mb-per-s", type=float, default=10)
    parser.add_argument("--senders", type=int, default=2, help="at once, in the second part")
    parser.add_argument("--timeout", type=int, default=5, help="freeride-ctl's, s")
    parser.add_argument("--out", type=pathlib.Path, default=SOURCE / "bench/results/slow-link.json")
    options = parser.parse_args()
    with Wires() as wires, Hosts(wires) as hosts:
        hosts.start_manager_there()
        hosts.start_node("b", manager=hosts.start_bad_link("b", PORT, bytes_per_s=options.mb_per_s * 1e6))
        hosts.wait_workers(1)
        time.sleep(3)
        found = {
            "mb": options.mb,
            "mb_per_s": options.mb_per_s,
            "cores": os.cpu_count(),
            "load_average": round(os.getloadavg()[0], 2),
            "node_mib_before": round(node_mib(hosts), 1),
            "one": load(hosts, ["one"], options),
            "at_once": load(hosts, [f"sender-{n}" for n in range(options.senders)], options),
        }
        time.sleep(2)
        found["node_mib_after"] = round(node_mib(hosts), 1)
        found["lost_in_manager_log"] = (hosts.root / "manager.log").read_text().count("is lost")
    found["command"] = " ".join(["bench/slow_link.py", *sys.argv[1:]])
    write_whole(options.out, json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()

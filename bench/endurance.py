#!/usr/bin/python3
"""A month in minutes: what manager, worker and the host keep of very many bubbles and of very many side tasks that came
and went.

    bench/endurance.py --bubbles 100000 --tasks 1000

Bubbles of a millisecond, side tasks that are stopped as soon as they are initialised. A line every 5 s: so far, and
what there is then. The last ones say what there was at first, at half time and at the end; what grows over the second
half would not last a month. Exit 1 when something is left behind at the end."""

import argparse
import ctypes
import json
import os
import pathlib
import sys
import threading
import time

SOURCE = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(SOURCE / "tests"))
from rig.testing import System, find_plugin, until
from rig.tree import PYTHON

WAITS = 8  # of an iteration


def train(bubbles):
    """A rank that does nothing but wait, a millisecond at a time."""
    from freeride.measure import Config, Library

    library = Library()
    hook = library.attach(ctypes.byref(Config(job=b"endurance", device=b"cpu-0", framework=b"bench")))
    for i in range(bubbles):
        library.mark_begin(hook)
        time.sleep(0.001)
        library.mark_end(hook)
        if i % WAITS == WAITS - 1:
            library.iteration_end(hook)
        if i % 1000 == 0:
            print(i, flush=True)
    print(bubbles, flush=True)
    library.detach(hook)


def status(pid, key):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1])
    return 0


def of_process(name, pid):
    return {
        f"{name} KiB": status(pid, "VmRSS"),
        f"{name} fds": len(os.listdir(f"/proc/{pid}/fd")),
        f"{name} threads": status(pid, "Threads"),
    }


def groups():
    return sum(
        1 for folder, _, _ in os.walk("/sys/fs/cgroup") if os.path.basename(folder).startswith("freeride-cpu-0-")
    )


def look(system, worker, manager):
    """What there is now."""
    state = system.state_dir
    return {
        **of_process("manager", manager.pid),
        **of_process("worker", worker.pid),
        "state KiB": sum(file.stat().st_size for file in state.glob("freeride.db*")) // 1024,
        "folders": len(list((state / "tasks").glob("*"))),
        "run files": len(list(system.run_dir.rglob("*"))),
        "shm": len(os.listdir("/dev/shm")),
        "groups": groups(),
    }


def come_and_go(system, count, done, stride, first):
    """Loads and stops every `stride`th side task from the `first` on."""
    plugin = find_plugin("counter.so")
    for i in range(first, count, stride):
        name = f"t{i}"
        system.ok("load", plugin, "--name", name, "--memory", "64MiB", "--param", "step_us=100")
        system.wait_state(name, "PAUSED", "RUNNING", "STOPPED")
        system.ok("stop", name)
        done.append(name)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bubbles", type=int, default=100_000)
    parser.add_argument("--tasks", type=int, default=1_000)
    parser.add_argument("--sandbox", default="bubblewrap")
    parser.add_argument("--train", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        return train(options.train)
    with System() as system:
        manager = system.start_manager("--baseline-block-ms", 1000, "--history", 200)
        worker = system.start_worker(
            "cpu-0", "--sandbox", options.sandbox, "--keep-bytes", 1 << 20, cores=f"0-{os.cpu_count() - 1}"
        )
        before = look(system, worker, manager)
        system.start("training", [PYTHON, __file__, "--train", options.bubbles])
        done, samples, begin = [], [], time.monotonic()
        threads = [
            threading.Thread(target=come_and_go, args=(system, options.tasks, done, 3, first)) for first in range(3)
        ]
        for thread in threads:
            thread.start()

        def bubbles():
            lines = system.log("training").split("\n")
            return next((int(line) for line in reversed(lines) if line.isdigit()), 0)

        finished = False
        while not finished:
            time.sleep(5)
            finished = bubbles() >= options.bubbles and not any(thread.is_alive() for thread in threads)
            samples.append(
                {
                    "s": round(time.monotonic() - begin),
                    "bubbles": bubbles(),
                    "tasks": len(done),
                    **look(system, worker, manager),
                }
            )
            print(json.dumps(samples[-1]), flush=True)
        last = f"t{options.tasks - 1}"
        system.wait_verdict(last)
        until(lambda: groups() <= before["groups"], "the control groups go")
        after = look(system, worker, manager)
        half = samples[len(samples) // 2]
        for key in after:
            print(
                f"{key:16} {before[key]:8} at first, {half[key]:8} at half time, {after[key]:8} at the end", flush=True
            )
        left = [
            key
            for key in ("worker fds", "worker threads", "manager threads", "run files", "shm", "groups")
            if after[key] > before[key] + 8
        ]
        verdicts = {}
        for task in system.ok("tasks")["tasks"]:
            kind = task["state"]["verdict"]["kind"]
            verdicts[kind] = verdicts.get(kind, 0) + 1
        print(f"verdicts of the tasks that are still listed: {verdicts}")
        if left:
            print(f"left behind: {', '.join(left)}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/python3
"""What one manager takes: the figures of bench/results/scale.json.

    bench/scale/run.py --build build/dev [--gpus 10000] [--small 1000] [--seconds 20] [--only scale|users] [--out FILE]

Drives the real freeride-manager over TCP with CURVE: registration, reports each second, bubbles with and without a
subscriber, a task for each GPU submitted at once, a manager that is killed, a tenth of the nodes gone and back. First
with --small GPUs, for the growth of its cost. Then with --small GPUs what users ask for that is large, and how long others
wait meanwhile. Needs freeride-manager, freeride-ctl, bench-scale-nodes and manager_test_plugin."""

import argparse
import contextlib
import hashlib
import json
import os
import pathlib
import sqlite3
import subprocess
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "tests"))

from nodes import WORKERS, Cluster  # noqa: E402

from rig.processes import Failure, until, write_whole  # noqa: E402
from rig.tree import SOURCE, Tree  # noqa: E402

PATIENCE_S = 240  # of a phase


def reached(said, what):
    if not said.get("reached"):
        raise Failure(f"{what}: not within {PATIENCE_S} s; {said}")
    return said


def subscribe(cluster, topic):
    """Somebody on the manager's host who reads such events."""
    words = [cluster.tree.program("freeride-ctl"), "events", "--topic", topic]
    return subprocess.Popen(words, env=cluster.system.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def scenario(tree, gpus, seconds, restart, manager=None):
    """All phases with so many GPUs; `restart`: also those in which somebody goes away."""
    flags = ["--max-workers", gpus + 64, "--max-connections", 4 * gpus // WORKERS + 64]
    found = {"gpus": gpus}

    def note(name, figures):
        found[name] = figures
        print(f"{gpus} GPUs, {name}: {json.dumps(figures)}", file=sys.stderr, flush=True)

    with Cluster(tree, gpus, min(gpus, 1000), flags, manager=manager) as cluster:
        note("registration", reached(cluster.ask("connect", 0, PATIENCE_S), "all workers are registered"))
        time.sleep(min(5, seconds))
        note("idle", cluster.measure(seconds))
        cluster.ask("look")
        note("placing", reached(cluster.ask("submit", gpus, PATIENCE_S), "all tasks are on workers"))
        note("placing_looks", cluster.ask("looked"))
        time.sleep(min(10, seconds))
        note("steady", cluster.measure(seconds))
        cluster.ask("look")
        time.sleep(seconds)
        note("looks", cluster.ask("looked"))
        cluster.ask("bubbles", 1)
        note("bubbles_unheard", cluster.measure(seconds / 2))
        listener = subscribe(cluster, "bubble.")
        try:
            time.sleep(3)
            note("bubbles_heard", cluster.measure(seconds / 2))
            if listener.poll() is not None:
                raise Failure(f"freeride-ctl events ended with {listener.poll()}")
        finally:
            listener.kill()
            listener.wait()
        cluster.ask("bubbles", 0)
        if not restart:
            return found
        cluster.end_manager()
        cluster.ask("forget-registered")
        cluster.start_manager()
        back = reached(cluster.ask("wait-registered", PATIENCE_S), "all workers are back after a restart")
        note("restart", {**back, **reached(cluster.ask("wait-tasks", gpus, PATIENCE_S), "all tasks are held once")})
        found["restart_converged_s"] = round(back["s"] + found["restart"]["s"], 2)
        time.sleep(min(5, seconds))
        cluster.ask("away", max(1, gpus // WORKERS // 10))
        time.sleep(min(30, seconds))
        note("away", cluster.measure(min(10, seconds)))
        reached(cluster.ask("back", PATIENCE_S), "the nodes are back")
        note("back", reached(cluster.ask("wait-tasks", gpus, PATIENCE_S), "all tasks are held once"))
    return found


def scale(tree, options):
    small = scenario(tree, options.small, options.seconds, False, options.manager)
    large = scenario(tree, options.gpus, options.seconds, True, options.manager)
    growth = large["steady"]["cpu_pct"] / max(0.1, small["steady"]["cpu_pct"])
    return {
        "gpus": options.gpus,
        "manager_cpu_pct": large["steady"]["cpu_pct"],
        "manager_rss_mib": max(large[phase]["rss_mib"] for phase in ("idle", "steady", "bubbles_heard", "away")),
        "command_p99_ms": round(large["looks"]["command_ms"]["p99"], 2),
        "place_10000_tasks_s": round(large["placing"]["s"], 2),
        "loop_blocked_max_ms": round(large["placing_looks"]["loop_ms"]["max"], 1),
        "restart_converged_s": large["restart_converged_s"],
        "cost_growth": round(growth, 2),
        "phases": {"small": small, "large": large},
    }


def fill_usage(database, tasks_a_day, days=397):
    """Accounts of more than a year, as a manager keeps them: a row for each day, task, user, job and account."""
    rows = (
        (hour, f"task-{hour}-{n}", f"user-{n % 50}", f"job-{n % 20}", 10**12, 10**12, 10**9, 1000, f"account-{n % 7}")
        for hour in range(24 * (int(time.time()) // 86400 - days), int(time.time()) // 3600 - 72, 24)
        for n in range(tasks_a_day)
    )
    with contextlib.closing(sqlite3.connect(database)) as file, file:
        file.executemany("INSERT INTO task_usage VALUES (?,?,?,?,?,?,?,?,?)", rows)
        return file.execute("SELECT COUNT(*) FROM task_usage").fetchone()[0]


def users(tree, options):
    """What users ask for that is large, beside --small GPUs: `loop_ms` is how long a command waits that costs nothing,
    `report_ms` how long a worker waits for the answer that renews its orders."""
    found, gpus = {"gpus": options.small}, options.small
    flags = ["--max-workers", gpus + 64, "--max-connections", 4 * gpus // WORKERS + 64]
    with Cluster(tree, gpus, min(gpus, 1000), flags, manager=options.manager) as cluster:
        ctl, env, root = tree.program("freeride-ctl"), cluster.system.env, cluster.system.root

        def start(*words):
            return subprocess.Popen(list(map(str, [ctl, "--timeout", 300, *words])), env=env, stdout=subprocess.DEVNULL)

        def meanwhile(name, work):
            cluster.ask("figures")
            cluster.ask("look")
            begin = time.monotonic()
            said = work() or {}
            took = round(time.monotonic() - begin, 1)
            looks, reports = cluster.ask("looked")["loop_ms"], cluster.ask("figures")["report_ms"]
            found[name] = {"s": took, "loop_ms": looks, "report_ms": reports, **said}
            print(f"{gpus} GPUs, {name}: {json.dumps(found[name])}", file=sys.stderr, flush=True)

        def large(number):
            """The test plugin with other bytes behind it: 256 MB."""
            path, head = root / f"large-{number}.so", pathlib.Path(cluster.plugin).read_bytes()
            with path.open("wb") as file:
                file.write(head + str(number).encode())
                file.truncate(options.plugin_mb * 1_000_000)
            return path

        def loads():
            ended = [start("load", path, "--no-profile", "--paused").wait() for path in paths]
            if any(ended):
                raise Failure(f"freeride-ctl load has ended with {ended}")

        def fetch():
            cluster.ask("fetch", hashlib.sha256(paths[0].read_bytes()).hexdigest())
            time.sleep(options.seconds)
            return {"fetched_mb": cluster.ask("fetch")["bytes"] // 1_000_000}

        def report():
            end, answered = time.monotonic() + options.seconds, 0
            while time.monotonic() < end or answered == 0:
                both = [start("report", "--since", "397d", "--by", by) for by in ("user", "task")]
                if any(one.wait() for one in both):
                    raise Failure("freeride-ctl report has failed")
                answered += len(both)
            return {"answered": answered}

        paths = [large(number) for number in range(3)]
        until(lambda: cluster.system.ctl("status").code == 0, "the manager's first answer")  # its tables are there
        cluster.end_manager("terminate")
        found["usage_rows"] = fill_usage(cluster.system.state_dir / "freeride.db", options.tasks_a_day)
        cluster.start_manager()
        reached(cluster.ask("connect", 0, PATIENCE_S), "all workers are registered")
        reached(cluster.ask("submit", gpus, PATIENCE_S), "all tasks are on workers")
        time.sleep(min(5, options.seconds))
        meanwhile("nothing", lambda: time.sleep(options.seconds))
        meanwhile("loads", loads)
        meanwhile("reports", report)
        meanwhile("fetches", fetch)
    return {"users": found}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=SOURCE / "build/dev")
    parser.add_argument("--gpus", type=int, default=10_000)
    parser.add_argument("--small", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20, help="of each measurement")
    parser.add_argument("--manager", help="another freeride-manager than the build's")
    parser.add_argument("--tasks-a-day", type=int, default=2500, help="of the accounts that are reported")
    parser.add_argument("--plugin-mb", type=int, default=256, help="of what is loaded and fetched")
    parser.add_argument("--only", action="append", choices=["scale", "users"])
    parser.add_argument("--out", type=pathlib.Path, default=SOURCE / "bench/results/scale.json")
    options = parser.parse_args()
    tree = Tree.of_build(options.build)
    figures = {}
    for name in options.only or ["users", "scale"]:
        figures.update({"scale": scale, "users": users}[name](tree, options))
        figures["load_average"] = round(os.getloadavg()[0], 2)
        others = json.loads(options.out.read_text()) if options.out.exists() else {}
        write_whole(options.out, json.dumps({**others, **figures}, indent=1, sort_keys=True) + "\n")
    print(json.dumps({name: value for name, value in figures.items() if name != "phases"}, indent=1))


if __name__ == "__main__":
    main()

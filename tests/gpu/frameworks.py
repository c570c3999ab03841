#!/usr/bin/env python3
"""Megatron-Core's schedules and DeepSpeed's PipelineEngine over NCCL on two GPUs, each hooked and not, all at the same
time.

    frameworks.py --python DIR --scripts hooks/tests/frameworks --out FILE [--path SITE] [--dry-run]

For each: are the losses equal to the bit; is what the hook counted as a wait, in number and order, what the framework
waited for in the unhooked run; how many waits were held. Exit code 1 if not. --hosts: as if each rank were on a host of
its own, with messages over sockets and waits for another host held. --dry-run: Megatron over gloo on a CPU, to try out
this script."""

import argparse
import json
import os
import pathlib
import shutil
import sys
import tempfile

sys.path.append(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
)  # in a packed tree rig lies beside this file
from rig.processes import Processes
from rig.system import new_folder
from rig.tree import environment

MEGATRON = [
    {"chunks": 1, "overlap": False, "batched": True},
    {"chunks": 1, "overlap": False, "batched": False},
    {"chunks": 2, "overlap": False, "batched": True},
    {"chunks": 2, "overlap": True, "batched": False},
]
# Between hosts; NCCL tells them apart by its id, the hook by its folder of sent pages.
SOCKETS = {
    "NCCL_NET": "Socket",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_SOCKET_IFNAME": "lo",
    "FREERIDE_HOLD_HOSTS": "1",
}
SURE = 4  # iterations until the hook knows which receives are posted early


def start(options, script, plan, name, hooked):
    """Two ranks that train by the plan, in a folder of their own."""
    folder = options.folder / name
    folder.mkdir()
    (folder / "plan").write_text(json.dumps(plan))
    hosts = {}
    for rank in range(2) if options.hosts else ():
        own = options.shared / f"{name}-host{rank}"
        own.mkdir()
        hosts[rank] = {**SOCKETS, "NCCL_HOSTID": own.name, "FREERIDE_SHM_DIR": str(own)}
    training = Processes(
        folder,
        {
            **environment(),
            "PYTHONPATH": ":".join(filter(None, (options.python, options.scripts, options.path))),
            "PYTHONUNBUFFERED": "1",
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "NCCL_NVLS_ENABLE": "0",
            "FREERIDE_RUN_DIR": str(folder),
            "FREERIDE_JOB": name,
            "FREERIDE_HOOK_SHORTEST_MS": "0.3",
            "DS_ACCELERATOR": "cpu" if options.dry_run else "cuda",
            "HOME": str(folder),
        },
    )
    through = ["-m", "freeride.run"] if hooked else []
    training.start_ranks(
        [
            "timeout",
            "-k",
            "2",
            options.seconds,
            "setpriv",
            "--pdeathsig",
            "KILL",
            sys.executable,
            *through,
            os.path.join(options.scripts, script),
            folder / "plan",
            folder / "out",
        ],
        2,
        per_rank=hosts,
    )
    return training


def finish(training):
    """Exit codes of the ranks, and what they left."""
    codes, results = [process.wait() for process in training.processes.values()], []
    for rank in range(2):
        try:
            results.append(json.loads((training.folder / f"out.{rank}").read_text()))
        except (OSError, ValueError):
            results.append([])
    return codes, results


def compare(plain, hooked, dry_run):
    """One plan's rows, a rank each."""
    rows = []
    for without, with_hook in zip(plain, hooked):
        marks, waits = with_hook["marks"][SURE:], without["waits"][SURE:]
        row = {
            "losses_equal": with_hook["losses"] == without["losses"],
            "iterations": len(without["losses"]),
            "waits": len(waits[-1]),
            "waits_equal": [one for one in with_hook["waits"]] == without["waits"],
            "marks_equal": dry_run or marks == waits,
            "state": with_hook.get("state"),
            "counters": with_hook.get("counters"),
            "remote": with_hook.get("remote"),
        }
        if "receives" in without:
            row["as_the_schedule"] = len(waits[-1]) == without["receives"]
        if not row["marks_equal"]:
            wrong = next(i for i, (a, b) in enumerate(zip(marks, waits)) if a != b)
            row["first_difference"] = {"iteration": wrong + SURE, "marks": marks[wrong], "waits": waits[wrong]}
        rows.append(row)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", required=True, help="folder of the package freeride")
    parser.add_argument("--scripts", required=True)
    parser.add_argument("--path", default="", help="folder with deepspeed and megatron")
    parser.add_argument("--out", required=True)
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=100, help="after which a rank that hangs is ended")
    parser.add_argument("--hosts", action="store_true", help="each rank as if on a host of its own")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    options.folder = new_folder()
    options.shared = pathlib.Path(tempfile.mkdtemp(prefix="freeride-hosts-", dir="/dev/shm"))
    more = {"micro_batches": 4, "iterations": options.iterations, "width": 64 if options.dry_run else 1024}
    names = [("Megatron-Core", "train_megatron.py", [dict(plan, **more) for plan in MEGATRON])]
    if not options.dry_run:
        names.append(("DeepSpeed", "train_deepspeed.py", dict(more, stages=2, backend="nccl")))
    running = []
    for number, (name, script, plan) in enumerate(names):
        for hooked in (False, True):
            short = f"{number}{'h' if hooked else 'p'}"
            running.append((name, hooked, start(options, script, plan, short, hooked)))
    done, good = {}, True
    for name, hooked, started in running:
        codes, results = finish(started)
        done[name, hooked] = results
        if codes != [0, 0]:
            good = False
            for rank in range(2):
                print(
                    f"-- {name}, hooked {hooked}, rank {rank} ended with {codes[rank]}:\n{started.log(f'rank-{rank}', 1500)}",
                    flush=True,
                )
    record = {"rows": []}
    for name, _, plan in names:
        plans = plan if isinstance(plan, list) else [plan]
        for index, one in enumerate(plans):
            both = [
                [of_rank[index] for of_rank in done[name, hooked] if len(of_rank) > index] for hooked in (False, True)
            ]
            if len(both[0]) != 2 or len(both[1]) != 2:
                print(name, one, "left no result", flush=True)
                good = False
                continue
            for rank, row in enumerate(compare(*both, options.dry_run)):
                row = {
                    "framework": name,
                    **{key: one[key] for key in ("chunks", "overlap", "batched") if key in one},
                    "rank": rank,
                    **row,
                }
                record["rows"].append(row)
                good = good and all(
                    value for key, value in row.items() if key.endswith("_equal") or key == "as_the_schedule"
                )
                print(json.dumps(row), flush=True)
    record["raw"] = {
        f"{name}, {'hooked' if hooked else 'unhooked'}": results for (name, hooked), results in done.items()
    }
    with open(options.out, "w") as file:
        json.dump(record, file)
    shutil.rmtree(options.shared, ignore_errors=True)
    print("good" if good else "NOT as it must be", flush=True)
    sys.exit(not good)


if __name__ == "__main__":
    main()

"""Profiles on a real GPU, in sandboxes: is the memory that the driver names what the side task took, and is a task then
placed by it?

    python3 profiles.py --bin DIR --plugins DIR --test DIR --out FILE [--sandbox none|bubblewrap] [--dry-run]

Starts a manager and a worker on GPU 0 (which must be free of other work) and profiles side tasks that hold known
amounts of memory, the shipped ones, and ones that misbehave; then loads a profiled one. Prints a table last; exit code
1 if something is not as it must be. --dry-run: on a CPU, to try out this script."""

import argparse
import contextlib
import json
import os
import sys
import time

sys.path.append(
    os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
)  # in a packed tree rig lies beside this file
from rig.gpus import gpus
from rig.processes import Failure
from rig.system import System
from rig.tree import Tree

MIB = 1 << 20


def cases(options):
    """(name, plugin, parameters and flags, MiB that it takes for sure or None, exit code, words of the verdict)"""
    if options.dry_run:
        return [
            ("counter", "test/counter.so", ["--param", "step_us=500", "--steps", "50"], 0, 0, ""),
            ("pagerank", "pagerank.so", ["--param", "scale=14", "--steps", "50"], None, 0, ""),
        ]
    task = "test/gpu_task.so"

    def held(mib):
        return ["--param", f"hold_mb={mib}", "--param", "mb=64", "--steps", "100", "--memory", "12GiB"]

    return [
        ("holds 64 MiB", task, held(0), 64, 0, ""),
        ("holds 1 GiB", task, held(960), 1024, 0, ""),
        ("holds 8 GiB", task, held(8128), 8192, 0, ""),
        ("pagerank, scale 20", "pagerank.so", ["--param", "scale=20", "--steps", "300"], None, 0, ""),
        ("sgd, scale 18", "sgd.so", ["--param", "scale=18", "--steps", "300"], None, 0, ""),
        ("image, 4096² pixels", "image.so", ["--param", "synthetic=4096", "--steps", "300"], None, 0, ""),
        (
            "grows up to its limit of 2 GiB",
            task,
            ["--param", "how=grow", "--param", "after=0", "--param", "mb=128", "--steps", "40", "--memory", "2GiB"],
            None,
            0,
            "",
        ),
        ("wants 4 GiB of 2", task, ["--param", "hold_mb=4096", "--memory", "2GiB"], None, 5, "out_of_memory"),
        ("illegal address in step 4", task, ["--param", "how=address", "--param", "after=3"], None, 5, "RunNextStep"),
        ("endless kernel in step 4", task, ["--param", "how=endless", "--param", "after=3"], None, 5, "overran"),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("--bin", "--plugins", "--test", "--out"):
        parser.add_argument(name, required=True)
    parser.add_argument("--sandbox", default="bubblewrap")
    parser.add_argument("--dry-run", action="store_true")
    options = parser.parse_args()
    device, model, driver = "cpu-0", "CPU", ""
    if not options.dry_run:
        device, model, driver = gpus()[0].uuid, gpus()[0].name, gpus()[0].driver
    system = System(Tree(options.bin, options.plugins), outside_tmp=True)
    problems, records = [], []

    def path(plugin):
        return (
            os.path.join(options.test, plugin[5:])
            if plugin.startswith("test/")
            else os.path.join(options.plugins, plugin)
        )

    try:
        system.start_manager("--baseline-pct", 0)
        system.start_worker(device, "--sandbox", options.sandbox, "--profile-ms", 8000, name="worker", cores="")
        system.wait_workers(1)
        for name, plugin, words, mib, code, verdict in cases(options):
            began = time.monotonic()
            answer = system.ctl("profile", path(plugin), *words)
            got, err = answer.code, answer.err
            record = dict(
                case=name,
                exit=got,
                seconds=time.monotonic() - began,
                known_mib=mib,
                says=err.strip().splitlines()[-1:] if got else [],
            )
            if got != code or verdict not in err:
                problems.append(f"{name}: exit {got}: {err.strip()[-600:]}")
            if got == 0:
                profile = answer.json["profiles"][0]
                record.update(
                    {
                        key: profile[key]
                        for key in (
                            "peak_bytes",
                            "create_ns",
                            "init_ns",
                            "stop_ns",
                            "starts",
                            "steps",
                            "pauses",
                            "ended",
                            "conditions",
                        )
                    }
                )
                record["looks"] = len(profile["memory_t_ns"])
            records.append(record)
        # One that is known now is placed by its profile, and that is room enough for it.
        known = next(case for case in cases(options) if case[1] == "pagerank.so")
        params = [word for word in known[2] if word not in ("--steps", known[2][-1])]
        answer = system.ctl("load", path("pagerank.so"), *params, "--name", "placed", "--when-idle", "--steps", "500")
        with contextlib.suppress(Failure):
            system.wait_verdict("placed", 30)
        placed = system.info("placed")
        state = placed.get("state", {})
        if state.get("verdict", {}).get("kind") != "finished":
            problems.append(f"the profiled task that was loaded: {answer.err} {state}")
    finally:
        system.end_all()
        logs = {name: system.log(name) for name in ("manager", "worker") if (system.folder / f"{name}.log").exists()}
        system.close()

    gpu = [record for record in records if record.get("peak_bytes", {}).get("gpu") and record["known_mib"]]
    contexts = [record["peak_bytes"]["gpu"] / MIB - record["known_mib"] for record in gpu]
    if not options.dry_run and (len(contexts) < 3 or max(contexts) - min(contexts) > 8):
        problems.append(
            f"what is left of the driver's figure without what was taken is not the same each time: {contexts}"
        )
    result = dict(
        device=model,
        driver=driver,
        sandbox=options.sandbox,
        context_mib=contexts,
        placed=dict(sandbox=placed.get("sandbox"), state=state.get("counters")),
        records=records,
        problems=problems,
    )
    with open(options.out, "w") as file:
        json.dump(result, file, indent=1)
    if problems:
        print(logs["manager"][-2000:], logs["worker"][-4000:])
    print(f"{model} {driver}, sandbox {options.sandbox}; placed with: {placed.get('sandbox')}")
    print(
        f"{'':32}{'taken':>9}{'GPU most':>10}{'host most':>10}{'Init ms':>9}{'steps':>7}{'p50 ms':>9}{'p99 ms':>9}{'max ms':>9}{'wall s':>8}"
    )
    for record in records:
        if record["exit"]:
            print(f"{record['case']:32}{'':73}{record['seconds']:8.1f}  {' '.join(record['says'])[:150]}")
            continue
        steps, peaks = record["steps"], record["peak_bytes"]
        print(
            f"{record['case']:32}{record['known_mib'] or '-':>9}{peaks.get('gpu', 0) / MIB:10.0f}{peaks['host'] / MIB:10.0f}{record['init_ns'] / 1e6:9.1f}{steps['count']:7}"
            + "".join(f"{steps[key] / 1e6:9.3f}" for key in ("p50_ns", "p99_ns", "max_ns"))
            + f"{record['seconds']:8.1f}"
        )
    print("the driver's figure less what was taken, MiB:", ", ".join(f"{context:.1f}" for context in contexts))
    for problem in problems:
        print("PROBLEM:", problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

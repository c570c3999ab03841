#!/usr/bin/env python3
"""Side tasks in synthetic bubbles, and beside the same work without FreeRide.

    bench/side_tasks.py --bin build/dev/bin --plugins build/dev/plugins --device cpu-0 --quick     # a dry run
    bench/side_tasks.py --bin DIR --plugins DIR --device gpu --out side-tasks.json
    bench/side_tasks.py --bin DIR --plugins DIR --device gpu:0,gpu:1 --out side-tasks.json         # side by side, each row on one of them
    bench/side_tasks.py --table side-tasks.json more.json --out all.json                           # the rows again, from the samples

For each side task: starts manager and worker, and bench-side-task as the training rank, which has bubbles and gaps of
5, 10, 20, 50 and 100 ms (what is harvested of them, and how far past their end it goes, is what the worker says of
each), then long bubbles in turns with blocks in which a plain program in the side task's circumstances (on a GPU:
client of an MPS server with the same limits) does the same work, and blocks in which one without MPS does:
host_overhead_pct is by how much the first one's rate is higher. Nothing else may use the device.

--task NAME:WORK[:KEY=VALUE,...] (any number; the default are the shipped ones) names a plugin, the metric that counts its work ("steps" where it has
none), and its parameters. Writes JSON, with every bubble and block that was measured (`samples`) and what they come to (`rows`), and prints a table; exit code 1 if a
side task did not work.
"""

import argparse
import collections
import datetime
import json
import math
import os
import pathlib
import platform
import re
import signal
import statistics
import subprocess
import sys
import threading
import time

# In a packed tree rig lies beside this file
sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "tests"))
from rig.gpus import gpus
from rig.processes import Failure, flags
from rig.statistics import interval
from rig.system import System
from rig.tree import Tree, folder

MARGIN_MS = 0.02  # what policy/step_fit adds to a step
ORKUT = "vertices=3072441,edges=117185083"  # SNAP's com-Orkut, as large
TASKS_GPU = [
    f"pagerank:iterations:{ORKUT},tolerance=0,max_iterations=1000000",
    f"sgd:megaedges:{ORKUT}",
    "image:images:synthetic=16384",
]
TORCH_GPU = [f"{model}:steps:batch=64" for model in ("vgg19", "resnet50", "resnet18")]  # with --python
TASKS_CPU = [
    "pagerank:iterations:scale=10,tolerance=0,max_iterations=1000000",
    "sgd:megaedges:scale=10",
    "image:images:synthetic=200,width=100",
]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=folder, help="folder with freeride-* and bench-side-task")
    parser.add_argument("--plugins", type=folder, help="folder with the plugins")
    parser.add_argument(
        "--device",
        default="gpu",
        help="gpu: the first one; gpu:N; cpu-N; several with commas between them, which share the rows out",
    )
    parser.add_argument("--task", action="append", help="NAME:WORK[:KEY=VALUE,...]")
    parser.add_argument("--memory", help="limit of a side task; else 8GiB, with --python 24GiB")
    parser.add_argument("--interfaces", default="iterative", help="of iterative,imperative: a row for each")
    parser.add_argument("--python", help="the Python whose torch is to be used by side tasks that have the parameter")
    parser.add_argument("--thread-pct", type=int, default=100, help="share of a GPU's multiprocessors")
    parser.add_argument("--sandbox", default="bubblewrap", choices=["bubblewrap", "none"])
    parser.add_argument("--out", type=pathlib.Path, help="JSON file")
    parser.add_argument("--bubbles-ms", default="5,10,20,50,100")
    parser.add_argument(
        "--count", default="40", help="bubbles of each length; or a number for each, with commas between them"
    )
    parser.add_argument("--pairs", type=int, default=12, help="blocks with and without FreeRide")
    parser.add_argument("--block-ms", type=float, default=300)
    parser.add_argument("--quick", action="store_true", help="few bubbles and blocks: to see that it works")
    parser.add_argument(
        "--table",
        nargs="+",
        type=pathlib.Path,
        metavar="FILE",
        help="measure nothing: rows and table of these files' samples",
    )
    options = parser.parse_args()
    if not options.table:
        if not options.bin or not options.plugins:
            parser.error("--bin and --plugins are needed")
    if options.quick:
        options.bubbles_ms, options.count, options.pairs, options.block_ms = "10,20", "12,10", 4, 200
    return options


class Device:
    """What is measured on."""

    def __init__(self, name):
        self.is_gpu, self.asked = name.startswith("gpu"), name
        self.name, self.model, self.driver = name, platform.processor() or platform.machine(), ""
        if self.is_gpu:
            number, found = int(name.partition(":")[2] or 0), gpus()
            if number >= len(found):
                raise Failure(f"--device {name}: nvidia-smi lists {len(found)} GPUs")
            self.name, self.model, self.driver = found[number].uuid, found[number].name, found[number].driver

    def environment(self):
        """Of a program that is to see this device alone."""
        return {"CUDA_VISIBLE_DEVICES": self.name} if self.is_gpu else {}


def start_system(options, device):
    """Manager and worker. No baseline iterations and no throttling: every bubble is the side task's."""
    system = System(Tree(options.bin, options.plugins), outside_tmp=True)
    try:
        system.start_manager("--baseline-pct", 0, "--budget-pct", 100)
        system.start_worker(
            device.name,
            *flags(sandbox=options.sandbox, **({"thread_pct": options.thread_pct} if device.is_gpu else {})),
            name="worker",
            cores="",
        )
        system.wait_workers(1)
    except BaseException:
        system.close()
        raise
    return system


def start_mps(system, options, device, memory):
    """An MPS server as the worker starts one for a side task, for the plain program beside it; returns its clients'
    environment."""
    folder = system.root / "m"
    folder.mkdir()
    clients = {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    server = {**device.environment(), **clients}
    system.start("mps", ["nvidia-cuda-mps-control", "-f"], env=server)
    system.wait((folder / "control").exists, "an MPS server for the plain program", 20)
    for command in (
        f"set_default_device_pinned_mem_limit 0 {mebibytes(memory)}M",
        f"set_default_active_thread_percentage {options.thread_pct}",
    ):
        subprocess.run(
            ["nvidia-cuda-mps-control"],
            input=command + "\n",
            env={**system.env, **server},
            text=True,
            timeout=30,
            check=True,
            stdout=subprocess.DEVNULL,
        )
    return clients


def mebibytes(size):
    return int(float(size.removesuffix("GiB")) * 1024) if size.endswith("GiB") else int(size.removesuffix("MiB"))


def quantile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * (len(values) - 1) + 0.5))] if values else 0.0


def bubbles_of(phase, events):
    """What the worker has said of the bubbles of one length, us: length, inside steps, overrun, until the first step
    began, from the pause to the end; the last two are None where no step was made. And whether there was a lease."""
    of_phase = [
        event for event in events if phase["from_ns"] <= event["begin_ns"] and event["end_ns"] <= phase["to_ns"]
    ]
    if not of_phase:
        raise Failure(f"the worker has reported no bubble of {phase['bubble_ms']} ms")
    lines = []
    for event in of_phase:
        used = event["side_begin_ns"] > 0
        spans = [
            event["end_ns"] - event["begin_ns"],
            event["harvested_ns"],
            event["overrun_ns"],
            event["side_begin_ns"] - event["begin_ns"] if used else None,
            event["end_ns"] - event["side_end_ns"] if used else None,
        ]
        lines.append([None if span is None else round(span / 1e3, 1) for span in spans] + [int(event["leased"])])
    return {"bubble_ms": phase["bubble_ms"], "bubbles": lines}


def harvest(sample, step_ms):
    """What the bubbles of one length come to."""
    lines = sample["bubbles"]
    length, inside, overruns = (
        sum(line[0] for line in lines),
        sum(line[1] for line in lines),
        [line[2] for line in lines],
    )
    used = [line for line in lines if line[3] is not None]
    room = max(0.0, sample["bubble_ms"] - MARGIN_MS)
    return {
        "bubble_ms": sample["bubble_ms"],
        "bubbles": len(lines),
        "share_pct": round(100 * inside / length, 2),
        "whole_steps_pct": round(100 * math.floor(room / step_ms) * step_ms / sample["bubble_ms"], 2)
        if step_ms > 0
        else 0.0,
        "overrun_p50_us": round(quantile(overruns, 0.5), 1),
        "overrun_p99_us": round(quantile(overruns, 0.99), 1),
        "overrun_max_us": round(max(overruns), 1),
        "until_first_step_p50_us": round(quantile([line[3] for line in used], 0.5), 1),
        "after_pause_p50_us": round(quantile([line[4] for line in used], 0.5), 1),
        "unleased": sum(1 for line in lines if not line[5]),
    }


def save(options, devices, samples):
    result = {
        "machine": devices[0].model,
        "driver": devices[0].driver,
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "versions": {"kernel": platform.release(), "freeride": version(options)},
        "command": " ".join(["bench/side_tasks.py", *sys.argv[1:]]),
        "sandbox": options.sandbox,
        "cores": os.cpu_count(),
        "rows": [row_of(s) for s in samples],
        "samples": samples,
    }
    options.out.write_text(as_text(result))


def version(options):
    return subprocess.run(
        [options.bin / "freeride-ctl", "--version"], capture_output=True, text=True, timeout=120, check=False
    ).stdout.strip()


def as_text(result):
    """JSON with a line for each sample's bubbles and pairs, and for each list of numbers, rather than for each
    number."""
    text = json.dumps({key: value for key, value in result.items() if key != "samples"}, indent=1)
    text = re.sub(
        r"\[\n\s+([-+.\deE,\s]*|null)\n\s*\]", lambda found: "[" + re.sub(r",\s+", ", ", found[1]) + "]", text
    )
    lines = ",\n".join("  " + json.dumps(sample, separators=(",", ":")) for sample in result["samples"])
    return text[:-2] + ',\n "samples": [\n' + lines + "\n ]\n}\n"


def measure(options, device, spec, interface):
    name, _, rest = spec.partition(":")
    work, _, params = rest.partition(":")
    words = [param for param in params.split(",") if param]
    plugin = options.plugins / f"{name}.so"
    task = f"{name}-{interface}-{os.getpid()}"  # its process is found by this, of all that run on this host
    torch = options.python is not None and any(spec.startswith(one.partition(":")[0]) for one in TORCH_GPU)
    memory = options.memory or ("24GiB" if torch else "8GiB")
    if not work or not plugin.exists():
        raise Failure(f"--task {spec}: expected NAME:WORK[:KEY=VALUE,...] with NAME.so in {options.plugins}")
    system = start_system(options, device)
    try:
        events_path, scratch = system.root / "events", system.root / "plain"
        scratch.mkdir()
        with open(events_path, "wb") as sink:
            events = system.start(
                "events",
                [system.tree.program("freeride-ctl"), "--format", "json", "events", "--topic", "bubble.end"],
                stdout=sink,
            )
        of_task = flags(plugin=plugin, device=device.name, scratch=scratch, work=work)
        of_task += [word for param in words for word in ("--param", param)]
        twin_flags, twin_ends = [], ()
        if options.pairs > 0:
            clients = start_mps(system, options, device, memory) if device.is_gpu else {}
            twin = system.start(
                "twin",
                [system.tree.program("bench-side-task"), "run", "--serve", *of_task],
                env=clients or device.environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            twin_ends = (twin.stdin.fileno(), twin.stdout.fileno())
            twin_flags = ["--twin-in", twin_ends[0], "--twin-out", twin_ends[1]]
        trainer = system.start(
            "trainer",
            [
                system.tree.program("bench-side-task"),
                "train",
                *of_task,
                *flags(run_dir=system.run_dir, task=task, bubbles_ms=options.bubbles_ms, count=options.count),
                *flags(pairs=options.pairs, block_ms=options.block_ms),
                *twin_flags,
            ],
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=twin_ends,
            env=device.environment(),
        )
        if '"attached"' not in trainer.stdout.readline():
            raise Failure(f"the plain program did not start; {system.last_words('trainer')}")
        system.load(
            plugin,
            task,
            *flags(memory=memory, interface=interface, **({"python": options.python} if torch else {})),
            params=words,
        )
        system.wait_steps(task, 1, 240)
        lines = [json.loads(line) for line in trainer.stdout]
        try:
            system.finish("trainer")
        except Failure as failure:
            state = system.task(task)
            raise Failure(
                f"{failure}; the side task is {state.get('state')}: {state.get('reason')} {state.get('verdict')}"
            ) from None
        time.sleep(0.5)  # the last events are on their way
        state = system.task(task)
        system.ok("stop", task)
        del system.processes["events"]
        events.send_signal(signal.SIGINT)
        events.wait(20)
        reports = [json.loads(line) for line in events_path.read_text().splitlines() if line]
    finally:
        system.close()
    return {
        "side_task": name,
        "interface": interface,
        "params": params,
        "work": work,
        "device": device.asked,
        "gpu_memory_mib": state["counters"]["peak_memory_bytes"] >> 20 if device.is_gpu else None,
        "own_step_ms": own_step_ms(state["counters"]) if interface == "iterative" else None,
        "step_ms": [round(lines[-1][key], 4) for key in ("step_p50_ms", "step_p99_ms")],
        "pairs": [line for line in lines if "pair" in line],
        "harvest": [bubbles_of(line, reports) for line in lines if "bubble_ms" in line],
    }


def own_step_ms(counters):
    """The mean of the side task's own steps: it may cut its work otherwise than the plain program does."""
    return round(counters["step_ns"] / counters["steps"] / 1e6, 4) if counters["steps"] else None


def row_of(sample):
    """What one side task's samples come to."""
    return {
        **{key: sample[key] for key in ("side_task", "interface", "params")},
        **overhead(sample["pairs"], sample["interface"]),
        "work": sample["work"],
        "step_p50_ms": sample["step_ms"][0],
        "step_p99_ms": sample["step_ms"][1],
        "gpu_memory_mib": sample["gpu_memory_mib"],
        "own_step_ms": sample.get("own_step_ms"),
        "harvest": [harvest(one, sample.get("own_step_ms") or sample["step_ms"][0]) for one in sample["harvest"]],
    }


def overhead(pairs, interface):
    """The side task's rate beside those of the plain programs. In the imperative interface a lease is one step, so that
    nothing is known of the time between a task's own."""
    # On a busy CPU a side task may get no core in a whole block: that is no rate to compare.
    stepped = interface == "iterative"
    pairs = [
        pair
        for pair in pairs
        if pair["side_per_s"] > 0
        and pair["plain_per_s"] > 0
        and pair["like_per_s"] > 0
        and (pair["in_steps_ns"] > 0 or not stepped)
    ]
    keys = {
        "host_overhead": lambda pair: pair["like_per_s"] / pair["side_per_s"],
        "without_mps": lambda pair: pair["plain_per_s"] / pair["side_per_s"],
        "outside_steps": lambda pair: pair["steps_wall_ns"] / pair["in_steps_ns"],
    }
    row = {"pairs": len(pairs)}
    for key, ratio in keys.items():
        known = pairs if stepped or key != "outside_steps" else []
        mean, half = interval([100 * (ratio(pair) - 1) for pair in known]) if known else (None, math.inf)
        row[f"{key}_pct"] = round(mean, 3) if known else None
        row[f"{key}_ci95_pct"] = [round(mean - half, 3), round(mean + half, 3)] if math.isfinite(half) else None
    for key, of in (
        ("work_per_s", "side_per_s"),
        ("like_work_per_s", "like_per_s"),
        ("plain_work_per_s", "plain_per_s"),
    ):
        row[key] = round(statistics.fmean(pair[of] for pair in pairs), 4) if pairs else None
    return row


def table(rows):
    lines = [
        f"{'side task':23}{'overhead':>22}{'outside steps':>15}{'no MPS':>9}{'step p50':>11}{'GPU MiB':>9}   bubble: harvested (whole steps), overrun p99"
    ]
    for row in rows:
        low, high = row["host_overhead_ci95_pct"] or (math.nan, math.nan)
        figures = [
            math.nan if row[key] is None else row[key]
            for key in ("host_overhead_pct", "outside_steps_pct", "without_mps_pct")
        ]
        cells = "  ".join(
            f"{cell['bubble_ms']:g} ms: {cell['share_pct']:.1f} % ({cell['whole_steps_pct']:.1f}), {cell['overrun_p99_us']:.0f} us"
            for cell in row["harvest"]
        )
        lines.append(
            f"{row['side_task']:11}{row['interface']:12}{figures[0]:+8.2f} ({low:+.2f}..{high:+.2f}){figures[1]:+15.2f}{figures[2]:+9.2f}{row['step_p50_ms']:8.3f} ms"
            f"{row['gpu_memory_mib'] or '-':>9}   {cells}"
        )
    return "\n".join(lines)


def measure_all(options, devices, cells):
    """Every cell once: each device, with its share of the cores, takes the next one that is left. What was measured, in
    the cells' order, and what went wrong."""
    left, samples, problems, lock = collections.deque(enumerate(cells)), {}, [], threading.Lock()
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // len(devices))

    def work(at, device):
        os.sched_setaffinity(0, cores[at * share % len(cores) :][:share])  # this thread's, and what it starts
        while True:
            with lock:
                if not left:
                    return
                number, (spec, interface) = left.popleft()
            began = time.monotonic()
            try:
                sample = measure(options, device, spec, interface)
                if options.pairs > 0 and row_of(sample)["pairs"] == 0:
                    raise Failure("no work was done in any of the blocks")
            except Exception as failure:  # whatever it is: the other cells go on
                with lock:
                    problems.append(f"{spec} {interface}: {failure if isinstance(failure, Failure) else repr(failure)}")
                continue
            with lock:
                samples[number] = sample
                print(
                    f"side_tasks: {spec} {interface} on {device.asked}: {time.monotonic() - began:.0f} s",
                    file=sys.stderr,
                )
                if options.out:
                    # After each: whoever is stopped keeps what there is
                    save(options, devices, [samples[key] for key in sorted(samples)])

    threads = [threading.Thread(target=work, args=pair) for pair in enumerate(devices)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [samples[key] for key in sorted(samples)], problems


def again(options):
    """Of files that were written before: those of the first, with the samples of all, and the rows made of these
    anew."""
    files = [json.loads(path.read_text()) for path in options.table]
    samples = {
        (sample["side_task"], sample["interface"], sample["params"]): sample
        for file in files
        for sample in file["samples"]
    }  # the last one counts
    result = {**files[0], "rows": [row_of(sample) for sample in samples.values()], "samples": list(samples.values())}
    if len(files) > 1:
        result["commands"] = list(
            dict.fromkeys(command for file in files for command in file.get("commands") or [file["command"]])
        )
    print(table(result["rows"]))
    if options.out:
        options.out.write_text(as_text(result))
    return 0


def main():
    options = parse()
    if options.table:
        return again(options)
    try:
        devices = [Device(name) for name in options.device.split(",")]
    except Failure as failure:
        sys.exit(f"side_tasks: {failure}")
    tasks = options.task or ((TORCH_GPU if options.python else []) + TASKS_GPU if devices[0].is_gpu else TASKS_CPU)
    samples, problems = measure_all(
        options, devices, [(spec, interface) for spec in tasks for interface in options.interfaces.split(",")]
    )
    print(table([row_of(sample) for sample in samples]))
    for problem in problems:
        print("side_tasks:", problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

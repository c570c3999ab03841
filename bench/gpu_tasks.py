#!/usr/bin/env python3
"""The side tasks that one installs FreeRide for, in a training's bubbles: canary, generate, evaluate. How much of the bubbles
becomes work that the same program does alone, and what it costs training.

    gpu_tasks.py --bin DIR --plugins DIR --python DIR --out bench/results/batches-h200.json   # as hook_gpu_harvest.py
    gpu_tasks.py --try      # on a CPU: whether each of them runs alone; no figures

useful_share_pct: steps made in bubbles, over what the program alone makes on the same GPU in as much time as these bubbles
last. Python's tasks run in this Python, with its torch and transformers. --bin needs bench-side-task, for canary alone."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time

import gpu_work
import hook_gpu_harvest as harvest

import endless

FOLDER = tempfile.mkdtemp(prefix="endless-")
TASKS = {
    "canary": ("canary", "2GiB", [], False),
    "generate": (f"{FOLDER}/generate.py", "24GiB", ["sequences=32"], True),
    "evaluate": (f"{FOLDER}/evaluate.py", "24GiB", [], True),
    # Fewer texts a step fill less of the GPU at a time, which takes less power.
    "evaluate4": (f"{FOLDER}/evaluate.py", "24GiB", ["batch=4"], True),
    "evaluate2": (f"{FOLDER}/evaluate.py", "24GiB", ["batch=2"], True),
    "evaluate1": (f"{FOLDER}/evaluate.py", "24GiB", ["batch=1"], True),
    # One launch for each kernel: the GPU waits for the host most of the time.
    "evaluate2launches": (f"{FOLDER}/evaluate.py", "24GiB", ["batch=2", "graphs=false"], True),
}
ALONE_S = 15


class TasksRun(gpu_work.WorkRun):
    tasks = TASKS

    def alone(self, name):
        if name != "canary":
            return super().alone(name)
        return canary_alone(self.system.tree.program("bench-side-task"), self.plugin("canary"), self.devices()[0])

    def load(self, names, plugin, params, *words):
        self.names = names
        # What is made of short steps needs nobody to cut it.
        more = [] if plugin == "canary" else self.options.load.split()
        harvest.Run.load(self, names, plugin, params, *words, *more)


def canary_alone(program, plugin, device, params=()):
    words = [program, "run", "--plugin", plugin, "--device", device, "--scratch", tempfile.mkdtemp(prefix="canary-")]
    words += [word for param in params for word in ("--param", param)]
    env = os.environ if device.startswith("cpu-") else {**os.environ, "CUDA_VISIBLE_DEVICES": device}
    process = subprocess.Popen([str(word) for word in words], env=env, stdout=subprocess.PIPE, text=True)
    time.sleep(ALONE_S)
    process.send_signal(signal.SIGTERM)
    said = json.loads(process.communicate(timeout=60)[0].splitlines()[-1])
    return {
        "steps_per_s": round(1e3 * said["steps"] / said["work_ms"], 3),
        "step_p50_ms": said["step_p50_ms"],
        "step_p99_ms": said["step_p99_ms"],
    }


def try_out():
    """Each Python task for a moment, on a CPU and small."""
    os.environ.update(BENCH_DEVICE="cpu-0", BENCH_WARM_UP_S="1", BENCH_COUNTED_S="2")
    for name, params in (
        ("generate", ["layers=1", "width=128", "sequences=4", "length=128", "most_new=16"]),
        ("evaluate", ["layers=1", "width=128", "batch=1", "length=32"]),
    ):
        found = gpu_work.alone(f"{FOLDER}/{name}.py", params)
        if not found["steps_per_s"] > 0:
            sys.exit(f"{name} makes no step")
        print(name, "runs", flush=True)


def main():
    parser = harvest.parser_of(__doc__.splitlines()[0])
    parser.set_defaults(seconds="canary=60,generate=60,evaluate=60", blocks=2, iterations=4)
    parser.add_argument(
        "--load", default="--interface imperative", help="more flags of freeride-ctl load, of Python tasks"
    )
    parser.add_argument("--try", dest="trying", action="store_true", help="on a CPU, small, without a training")
    options = parser.parse_args()
    endless.write(FOLDER)
    if options.trying:
        return try_out()
    if not (options.bin and options.plugins and options.python and options.out):
        parser.error("--bin, --plugins, --python and --out are needed")
    harvest.run_all(options, TasksRun)


if __name__ == "__main__":
    main()

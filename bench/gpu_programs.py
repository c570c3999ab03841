#!/usr/bin/env python3
"""Programs that know nothing of FreeRide, in a training's bubbles on GPUs (freeride-ctl submit): how much of the bubbles
becomes work that the same program does alone, and what it costs training.

    gpu_programs.py --bin DIR --plugins DIR --python DIR --out FILE [--replay FILE --stage N]     # as hook_gpu_harvest.py
    gpu_programs.py --try NAME …      # alone for a moment, on this machine's GPU; no figures

useful_share_pct: steps made in bubbles, over what the program alone makes on the same GPU in as much time as these bubbles
last, both by what the program prints. `shim` in a row is what the shim of libcuda counted until then."""

import json
import pathlib
import re
import statistics
import subprocess
import sys
import time

import gpu_work
import hook_gpu_harvest as harvest

from rig.statistics import quantile

FOLDER = harvest.HERE / "gpu/programs"
# XLA times kernels behind one that waits for the host, and so lasts for as long as a lease is away.
ENVIRONMENTS = {"jax_loop.py": ["XLA_FLAGS=--xla_gpu_autotune_level=0"]}
# Name of the row: script, memory.
PROGRAMS = {
    "resnet18": ("train_resnet18.py", "16GiB"),
    "generation": ("generate_gpt2.py", "16GiB"),
    "cupy": ("cupy_loop.py", "8GiB"),
    "jax": ("jax_loop.py", "8GiB"),
    "finetune": ("finetune_gpt2.py", "16GiB"),
    "driver": ("driver_loop.py", "4GiB"),
}
ALONE_S, SETTLED_S, STARTED_S = 12, 8, 200
LAST = re.compile(r"^steps (\d+)$", re.MULTILINE)


def steps_in(text):
    found = LAST.findall(text)
    return int(found[-1]) if found else 0


def alone(name, device=None, seconds=ALONE_S):
    """Steps a second with a GPU to itself, after as long as the program takes to settle."""
    process = subprocess.Popen(
        [sys.executable, FOLDER / PROGRAMS[name][0]],
        env={
            **gpu_work.on_device(device),
            **dict(one.split("=", 1) for one in ENVIRONMENTS.get(PROGRAMS[name][0], ())),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    begin, seen, said = time.monotonic(), [], []
    try:
        for line in process.stdout:
            now = time.monotonic()
            if LAST.match(line.strip()):
                seen.append((now, int(line.split()[1])))
            else:
                said.append(line)
            if seen and now - seen[0][0] > SETTLED_S + seconds or now - begin > STARTED_S:
                break
    finally:
        process.kill()
        process.wait()
    if len(seen) < 3:
        raise harvest.Failure(f"{name} alone: {''.join(said)[-2000:]}")
    steady = [one for one in seen if one[0] > seen[-1][0] - seconds]
    rate = (steady[-1][1] - steady[0][1]) / (steady[-1][0] - steady[0][0])
    return {
        "steps_per_s": round(rate, 3),
        "first_step_s": round(seen[0][0] - begin, 2),
        "step_p50_ms": round(1e3 / rate, 3),
    }


class ProgramsRun(gpu_work.WorkRun):
    tasks = {name: (str(FOLDER / script), memory, [], False) for name, (script, memory) in PROGRAMS.items()}

    def alone(self, name):
        return alone(name, self.devices()[0])

    def worker_flags(self):
        opened = {str(FOLDER), *(str(path) for path in interpreter())}
        return [word for path in sorted(opened) for word in ("--data", path)]

    def load(self, names, plugin, params, *words):
        self.names = names
        memory = words[words.index("--memory") + 1]
        more = [word for one in ENVIRONMENTS.get(pathlib.Path(plugin).name, ()) for word in ("--env", one)]
        given = [word for path in (FOLDER, *interpreter()) for word in ("--read", path)]
        for stage, name in enumerate(names, self.options.stage):
            self.system.ok(
                "submit", "--no-wait", "--name", name, "--stage", stage, "--memory", memory, *given, "--env",
                "PYTHONUNBUFFERED=1", *more, "--", sys.executable, plugin,
            )  # fmt: skip
        self.begun = time.monotonic()

    def done(self):
        return [steps_in(self.said(name)) for name in self.names]

    def said(self, name):
        lines = self.system.ctl("logs", name).out.splitlines()
        return "".join(json.loads(line).get("text", "") for line in lines)

    def wait_steps(self, names, seconds):
        def begun():
            for name in names:
                verdict = self.system.task(name).get("verdict", {})
                if verdict.get("kind"):
                    raise harvest.Failure(f"{name} has ended: {verdict['kind']}: {verdict['reason']}")
            return min(self.done()) > 0

        try:
            self.wait("each program's first steps", begun, STARTED_S)
        except harvest.Failure:
            for name in names:
                print(f"-- why {name}\n{self.system.ctl('why', name).out}", flush=True)
                print(f"-- logs {name}\n{self.said(name)[-3000:]}", flush=True)
            raise
        self.first_step_s = round(time.monotonic() - self.begun, 2)
        print(f"-- first steps after {self.first_step_s} s", flush=True)
        self.settled(time.monotonic() + SETTLED_S)

    def settled(self, until):
        while time.monotonic() < until:
            self.ranks.check()
            time.sleep(0.5)

    def summary(self):
        rows = [program_row(sample, self.record["alone"]) for sample in self.record["samples"]]
        return {**super().summary(), "rows": rows}


def program_row(sample, alone_of):
    row = gpu_work.row_of(sample, alone_of)
    row["program"] = row.pop("task")
    lengths = [ms for of_stage in row.pop("bubble_ms") for ms in [of_stage] if ms is not None]
    row["bubble_ms"] = round(statistics.fmean(lengths), 1) if lengths else None
    late = sum(sample["overrun_us"], [])
    row["overrun_p99_ms"] = round(quantile(late, 0.99) / 1e3, 3) if late else None
    return row


def interpreter():
    """Where this Python and its packages lie."""
    return sorted({pathlib.Path(sys.prefix), pathlib.Path(sys.base_prefix)} - {pathlib.Path("/usr")})


def main():
    parser = harvest.parser_of(__doc__.splitlines()[0])
    parser.set_defaults(
        seconds="resnet18=40,generation=40,cupy=30,jax=30,finetune=30,driver=20", blocks=2, iterations=4
    )
    parser.add_argument("--load", default="", help=harvest.argparse.SUPPRESS)
    parser.add_argument("--try", dest="trying", nargs="*", help="which programs; on this machine's GPU")
    options = parser.parse_args()
    if options.trying is not None:
        for name in options.trying or PROGRAMS:
            print(name, alone(name), flush=True)
        return
    if not (options.bin and options.plugins and options.python and options.out):
        parser.error("--bin, --plugins, --python and --out are needed")
    harvest.run_all(options, ProgramsRun)


if __name__ == "__main__":
    main()

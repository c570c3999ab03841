#!/usr/bin/env python3
"""Programs that know nothing of FreeRide, in a training's bubbles on GPUs (freeride-ctl submit): how much of the bubbles
becomes work that the same program does alone, and what it costs training.

    gpu_programs.py --bin DIR --plugins DIR --python DIR --out FILE [--replay FILE --stage N]     # as harvest.py
    gpu_programs.py --try NAME …      # alone for a moment, on this machine's GPU; no figures

useful_share_pct: steps made in bubbles, over what the program alone makes on the same GPU in as much time as these bubbles
last, both by what the program prints. `shim` in a row is what the shim of libcuda counted until then."""

import json
import os
import pathlib
import re
import subprocess
import sys
import time

import analysis

import harvest
from rig.processes import Failure
from rig.shim_page import counters_of

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
STEPS = re.compile(r"^steps (\d+)$", re.MULTILINE)
# Of a program's shim page.
COUNTED = (
    "submissions waits waited_ns captured longest_ns leases too_long let_in stalled late late_most_ns full full_ns"
).split()


def alone(name, device=None, seconds=ALONE_S):
    """Steps a second with a GPU to itself, after as long as the program takes to settle. `device`: None: any GPU."""
    own = dict(one.split("=", 1) for one in ENVIRONMENTS.get(PROGRAMS[name][0], ()))
    env = {**os.environ, **own, **({"CUDA_VISIBLE_DEVICES": device} if device else {})}
    words = [sys.executable, FOLDER / PROGRAMS[name][0]]
    process = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    begin, seen, said = time.monotonic(), [], []
    try:
        for line in process.stdout:
            now = time.monotonic()
            if STEPS.match(line.strip()):
                seen.append((now, int(line.split()[1])))
            else:
                said.append(line)
            if seen and now - seen[0][0] > SETTLED_S + seconds or now - begin > STARTED_S:
                break
    finally:
        process.kill()
        process.wait()
    if len(seen) < 3:
        raise Failure(f"{name} alone: {''.join(said)[-2000:]}")
    steady = [one for one in seen if one[0] > seen[-1][0] - seconds]
    rate = (steady[-1][1] - steady[0][1]) / (steady[-1][0] - steady[0][0])
    return {"steps_per_s": round(rate, 3), "first_step_s": round(seen[0][0] - begin, 2)}


def interpreter():
    """Where this Python and its packages lie."""
    return sorted({pathlib.Path(sys.prefix), pathlib.Path(sys.base_prefix)} - {pathlib.Path("/usr")})


class Programs(harvest.Scenario):
    def __init__(self, options):
        super().__init__(options)
        self.tasks = {name: (str(FOLDER / script), memory, [], False) for name, (script, memory) in PROGRAMS.items()}
        self.record["alone"] = {name: alone(name, self.devices()[0]) for name in options.seconds}
        print("alone", json.dumps(self.record["alone"]), flush=True)

    def worker_flags(self):
        opened = sorted({str(FOLDER), *map(str, interpreter())})
        return [*super().worker_flags(), *(word for path in opened for word in ("--data", path))]

    def load(self, names, plugin, params, *words):
        self.names, self.begun = names, time.monotonic()
        memory = words[words.index("--memory") + 1]
        more = [word for one in ENVIRONMENTS.get(pathlib.Path(plugin).name, ()) for word in ("--env", one)]
        more += [word for path in (FOLDER, *interpreter()) for word in ("--read", path)]
        for stage, name in enumerate(names, self.options.stage):
            self.system.ok(
                "submit", "--no-wait", "--name", name, "--stage", stage, "--memory", memory, "--env",
                "PYTHONUNBUFFERED=1", *more, "--", sys.executable, plugin,
            )  # fmt: skip

    def said(self, name):
        lines = self.system.ctl("logs", name).out.splitlines()
        return "".join(json.loads(line).get("text", "") for line in lines)

    def done(self):
        return [int((STEPS.findall(self.said(name)) or ["0"])[-1]) for name in self.names]

    def wait_steps(self, names, seconds):
        def begun():
            for name in names:
                verdict = self.system.task(name).get("verdict", {})
                if verdict.get("kind"):
                    raise Failure(f"{name} has ended: {verdict['kind']}: {verdict['reason']}")
            return min(self.done()) > 0

        try:
            self.wait("each program's first steps", begun, STARTED_S)
        except Failure:
            for name in names:
                print(f"-- why {name}\n{self.system.ctl('why', name).out}", flush=True)
                print(f"-- logs {name}\n{self.said(name)[-3000:]}", flush=True)
            raise
        self.first_step_s = round(time.monotonic() - self.begun, 2)
        time.sleep(SETTLED_S)

    def observe(self, seconds):
        before = self.done()
        seen = super().observe(seconds)
        self.made = [now - then for now, then in zip(self.done(), before)]
        pages = [page for page in sorted(self.system.root.rglob("*.shim")) if page.is_file()]
        self.counted = [{name: counters_of(page.read_bytes())[name] for name in COUNTED} for page in pages]
        return seen

    def keep(self, sample):
        super().keep(sample | {"first_step_s": self.first_step_s, "made": self.made, "shim": self.counted})

    def summary(self):
        return summarise(self.record)


def summarise(record):
    rows = []
    for sample in record["samples"]:
        rate = record["alone"][sample["name"]]["steps_per_s"]
        possible = [rate * ns / 1e9 for ns in sample["bubble_ns"]]
        row = {"program": sample["name"], "first_step_s": sample["first_step_s"], **analysis.row_of(sample)}
        row["useful_share_pct"] = round(100 * sum(sample["made"]) / sum(possible), 2) if sum(possible) else None
        rows.append({**row, "shim": sample["shim"]})
    return {**analysis.summarise(record), "rows": rows}


def main():
    parser = harvest.parser_of(__doc__)
    seconds = "resnet18=40,generation=40,cupy=30,jax=30,finetune=30,driver=20"
    parser.set_defaults(seconds=seconds, blocks=2, iterations=4)
    parser.add_argument("--try", dest="trying", nargs="*", help="which programs; on this machine's GPU")
    trying = parser.parse_known_args()[0].trying
    if trying is None:
        return harvest.main(Programs, parser, summarise)
    for name in trying or PROGRAMS:
        print(name, alone(name), flush=True)
    return None


if __name__ == "__main__":
    main()

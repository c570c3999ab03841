"""How many steps a second a Python side task makes with a GPU to itself, driven as its author would try it: no runner, no
leases. alone.py FILE [KEY=VALUE …]; prints JSON. BENCH_DEVICE (gpu-0), BENCH_WARM_UP_S and BENCH_COUNTED_S are for trying
it out.

First steps are slower than the rest, and not for one step only: a generation that grows by a token a step asks for memory
that it has not had yet in each of them, until its second round. So what counts are the last seconds of many."""

import importlib.util
import json
import os
import pathlib
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "plugin-api/python"))
import freeride_plugin

WARM_UP_S = float(os.environ.get("BENCH_WARM_UP_S", 22))
COUNTED_S = float(os.environ.get("BENCH_COUNTED_S", 8))


def timed(task):
    begin = time.perf_counter()
    task.RunNextStep()
    return time.perf_counter() - begin


def main():
    file = sys.argv[1]
    spec = importlib.util.spec_from_file_location("task", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kind = freeride_plugin._find_class(module)
    task = kind()
    for word in sys.argv[2:]:
        key, _, value = word.partition("=")
        task.__dict__[key] = getattr(kind, key).parse(value)
    task.device = os.environ.get("BENCH_DEVICE", "gpu-0")
    task.CreateSideTask()
    task.InitSideTask()
    durations, ends = [], []
    until = time.perf_counter() + WARM_UP_S + COUNTED_S
    while time.perf_counter() < until:
        durations.append(timed(task))
        ends.append(time.perf_counter())
    steady = sorted(took for took, end in zip(durations, ends) if end > until - COUNTED_S)
    print(
        json.dumps(
            {
                "steps_per_s": round(len(steady) / sum(steady), 3),
                "first_step_ms": round(1e3 * durations[0], 2),
                "early_p50_ms": round(1e3 * sorted(durations[1:65])[len(durations[1:65]) // 2], 3),
                "step_p50_ms": round(1e3 * steady[len(steady) // 2], 3),
                "step_p99_ms": round(1e3 * steady[len(steady) * 99 // 100], 3),
            }
        )
    )


if __name__ == "__main__":
    main()

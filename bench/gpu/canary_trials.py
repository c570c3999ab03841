#!/usr/bin/env python3
"""Single bits flipped in the canary's products and memory, and how many of them it finds.

    canary_trials.py --bin DIR --plugins DIR --device GPU-UUID [--trials 1000] [--out FILE]
    canary_trials.py --bin build/dev/bin --plugins build/dev/plugins --device cpu-0 --trials 100      # a dry run

--bin has bench-side-task, which calls the plugin as the runner does. Exit code 1: less than 99 % were found."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--plugins", type=pathlib.Path, required=True)
    parser.add_argument("--device", default="cpu-0")
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    env = dict(os.environ)
    if not options.device.startswith("cpu-"):
        env["CUDA_VISIBLE_DEVICES"] = options.device
    with tempfile.TemporaryDirectory(prefix="canary-") as scratch:
        done = subprocess.run(
            [options.bin / "bench-side-task", "run", "--plugin", options.plugins / "canary.so", "--device", options.device,
             "--scratch", scratch, "--param", f"inject={options.trials}"],
            env=env, capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode:
        sys.exit(f"canary_trials: {done.stderr.strip()}")
    metrics = json.loads(done.stdout.splitlines()[-1])["metrics"]
    injected, found = int(metrics["injected"]), int(metrics["alarm.wrong"])
    result = {
        "device": options.device,
        "injected": injected,
        "found": found,
        "found_pct": round(100 * found / injected, 2),
    }
    text = json.dumps(result)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    sys.exit(0 if found >= 0.99 * injected else 1)


if __name__ == "__main__":
    main()

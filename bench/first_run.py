#!/usr/bin/env python3
"""What a newcomer waits for, on fresh Debian 12 systems: `make demo` and `make test` of two commits, and from the wheel to a side task
that is harvested.

    first_run.py --before COMMIT --out FILE              # both commits, demo and test; then the wheel
    first_run.py --before COMMIT --parts demo --out FILE # a part of it

Each run has a system of its own (tests/rig/fresh.py): debootstrap's smallest with git and make, and nothing compiled or downloaded
before. Needs root and debootstrap. Times are seconds of the wall clock; the two commits' runs follow each other. Run it on a machine
that does nothing else."""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

SOURCE = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(SOURCE / "tests"))
from rig.fresh import Layer, made

PLAIN = ["git", "make", "ca-certificates"]
# What a trainer's machine has anyway; not counted.
TRAINER = ["python3-venv", "python3-torch", "python3-numpy", "libopenblas0-pthread"]


def timed(layer, script, log, seen=()):
    """Seconds that the shell's `script` took in `layer`; SystemExit if it fails."""
    print(f"{log.name}: {script}", flush=True)
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
    began = time.monotonic()
    with open(log, "a") as file:
        code = layer.run(
            ["bash", "-c", script], seen, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment
        ).returncode
    seconds = time.monotonic() - began
    if code:
        sys.stderr.write("".join(log.read_text(errors="replace").splitlines(keepends=True)[-40:]))
        sys.exit(f"first_run.py: '{script}' ended with {code} after {seconds:.0f} s; its output is {log}")
    print(f"{log.name}: {seconds:.0f} s", flush=True)
    return round(seconds, 1)


def source_runs(options, commits, parts):
    """{side: {part: seconds}}: each part of both commits, one after the other."""
    plain = made("bookworm", PLAIN, options.folder)
    layers, clones, times = {}, {}, {side: {} for side in commits}
    for side, commit in commits.items():
        clones[side] = options.folder / f"clone-{side}"
        shutil.rmtree(clones[side], ignore_errors=True)
        subprocess.run(["git", "clone", "-q", str(SOURCE), str(clones[side])], check=True)
        subprocess.run(["git", "-C", str(clones[side]), "checkout", "-q", commit], check=True)
        layers[side] = Layer(plain, options.folder / f"layer-{side}")
    for part in parts:
        for side, layer in layers.items():
            log = options.folder / f"{side}-{part}.log"
            log.unlink(missing_ok=True)
            # The demo fails when a figure misses its goal, too, as it may on two cores; then all of it ran.
            rest = " || test -f build/demo/report.json" if part == "demo" else ""
            times[side][part] = timed(
                layer, f"cd /root/freeride && make {part}{rest}", log, [(clones[side], "/root/freeride")]
            )
    for side, layer in layers.items():
        layer.remove()
        shutil.rmtree(clones[side])
    return times


def wheel_run(options, wheel):
    """{step: seconds} from `pip install` of the wheel to a side task that has harvested, for a user without root."""
    root = made("bookworm", PLAIN + TRAINER, options.folder, "bookworm-trainer")
    layer, log = Layer(root, options.folder / "layer-wheel"), options.folder / "wheel.log"
    log.unlink(missing_ok=True)
    timed(layer, "useradd --create-home --shell /bin/bash user", log)

    def as_user(*commands):
        script = "set -e; cd; export PATH=$HOME/venv/bin:$PATH; " + "; ".join(commands)
        user = "setpriv --reuid user --regid user --init-groups env HOME=/home/user"
        return timed(layer, f"exec {user} bash -c '{script}'", log, [(wheel.parent, "/mnt/wheel")])

    example = "venv/lib/python3*/site-packages/freeride/_tree/examples/train_gpt.py"
    times = {
        "install": as_user(
            "python3 -m venv --system-site-packages venv", f"pip install --quiet --no-index /mnt/wheel/{wheel.name}"
        ),
        "observe": as_user(f"python -m freeride.observe {example} --stages 2 --iterations 20"),
        "demo": as_user("freeride demo"),
    }
    layer.remove()
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", help="the commit that HEAD is compared with")
    parser.add_argument(
        "--parts", nargs="*", default=["demo", "test"], help="demo, test: what of the source is run, in this order"
    )
    parser.add_argument(
        "--wheel", type=pathlib.Path, help="a wheel that make wheel made; without it that part is left out"
    )
    parser.add_argument(
        "--folder", type=pathlib.Path, default=pathlib.Path("/var/tmp/first-run"), help="systems and logs"
    )
    parser.add_argument("--out", type=pathlib.Path, required=True, help="JSON; what it has of other parts is kept")
    options = parser.parse_args()
    for program in ("debootstrap", "unshare", "git"):
        if not shutil.which(program):
            parser.error(f"{program} is not installed")
    if os.geteuid() != 0:
        parser.error("needs root: it makes systems")
    if options.parts and not options.before:
        parser.error("--before COMMIT: what HEAD is compared with")
    options.folder.mkdir(parents=True, exist_ok=True)
    result = json.loads(options.out.read_text()) if options.out.exists() else {}
    result.update(cores=os.cpu_count(), load_before=round(os.getloadavg()[0], 1))
    if options.parts:
        commits = {"before": options.before, "after": "HEAD"}
        named = {
            side: subprocess.run(
                ["git", "-C", str(SOURCE), "rev-parse", "--short", commit], check=True, capture_output=True, text=True
            ).stdout.strip()
            for side, commit in commits.items()
        }
        result["commits"] = named
        for part, times in parts_of(source_runs(options, named, options.parts)).items():
            result[f"{part}_s"], result[f"{part}_ratio"] = times, round(times["after"] / times["before"], 2)
    if options.wheel:
        times = wheel_run(options, options.wheel.resolve())
        result["wheel_s"], result["wheel_to_harvest_s"] = times, round(sum(times.values()), 1)
        result["wheel_mib"] = round(options.wheel.stat().st_size / 2**20, 1)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def parts_of(times):
    """{part: {side: seconds}} of {side: {part: seconds}}."""
    return {part: {side: times[side][part] for side in times} for part in next(iter(times.values()))}


if __name__ == "__main__":
    main()

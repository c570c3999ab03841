#!/usr/bin/env python3
"""What a newcomer waits for, on fresh Debian 12 systems: `make demo` and `make test` of two commits, and from the wheel to a side task
that is harvested.

    first_run.py --before COMMIT --out FILE              # both commits, demo and test; then the wheel
    first_run.py --before COMMIT --parts demo --out FILE # a part of it
    first_run.py --parts --systems build/systems/systems.json --out FILE   # what make test-systems has found

Each commit has a system of its own (tests/rig/fresh.py): debootstrap's smallest with git and make, and nothing compiled or downloaded
before. A commit's parts follow each other in it: `test` after `demo` finds what that has installed and built. The two commits' runs of a
part follow each other, and FILE is written after each part. Times are seconds of the wall clock. What is being done, and since when, is
said on stderr. Needs root and debootstrap. Run it on a machine that does nothing else."""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import threading
import time

SOURCE = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(SOURCE / "tests"))
from rig.fresh import Layer, made

PLAIN = ["git", "make", "ca-certificates"]
# What a trainer's machine has anyway; not counted.
TRAINER = ["python3-venv", "python3-torch", "python3-numpy", "libopenblas0-pthread"]


def progress(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def timed(layer, script, log, seen=()):
    """Seconds that the shell's `script` took in `layer`; SystemExit if it fails."""
    progress(f"{log.name}: {script}")
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
    began, ended = time.monotonic(), threading.Event()

    def tell():
        while not ended.wait(60):
            progress(f"{log.name}: since {time.monotonic() - began:.0f} s")

    threading.Thread(target=tell, daemon=True).start()
    with open(log, "a") as file:
        code = layer.run(
            ["bash", "-c", script], seen, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment
        ).returncode
    seconds = time.monotonic() - began
    ended.set()
    if code:
        sys.stderr.write("".join(log.read_text(errors="replace").splitlines(keepends=True)[-40:]))
        sys.exit(f"first_run.py: '{script}' ended with {code} after {seconds:.0f} s; its output is {log}")
    progress(f"{log.name}: {seconds:.0f} s")
    return round(seconds, 1)


# A figure that misses its goal fails the demo, as it may on two cores, and one test fails `make test`: then all of it ran, too.
RAN = {"demo": "build/demo/report.json", "test": "build/dev/Testing/Temporary/LastTestsFailed.log"}


def source_runs(options, commits, parts, keep):
    """Runs each part of both commits, one after the other, and gives what it took to keep(part, {side: seconds}, {side: tests that
    failed})."""
    plain = made("bookworm", PLAIN, options.folder)
    layers, clones = {}, {}
    for side, commit in commits.items():
        clones[side] = options.folder / f"clone-{side}"
        shutil.rmtree(clones[side], ignore_errors=True)
        subprocess.run(["git", "clone", "-q", str(SOURCE), str(clones[side])], check=True)
        subprocess.run(["git", "-C", str(clones[side]), "checkout", "-q", commit], check=True)
        layers[side] = Layer(plain, options.folder / f"layer-{side}")
    for part in parts:
        times, failed = {}, {}
        for side, layer in layers.items():
            log = options.folder / f"{side}-{part}.log"
            log.unlink(missing_ok=True)
            script = f"cd /root/freeride && make {part} || test -s {RAN[part]}"
            times[side] = timed(layer, script, log, [(clones[side], "/root/freeride")])
            names = clones[side] / RAN["test"]
            failed[side] = names.read_text().split() if part == "test" and names.exists() else []
        keep(part, times, failed)
    for side, layer in layers.items():
        layer.remove()
        shutil.rmtree(clones[side])


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
        "--parts",
        nargs="*",
        choices=RAN,
        default=list(RAN),
        help="demo, test: what of the source is run, in this order",
    )
    parser.add_argument(
        "--wheel", type=pathlib.Path, help="a wheel that make wheel made; without it that part is left out"
    )
    parser.add_argument("--systems", type=pathlib.Path, help="what make test-systems has found, to be part of FILE")
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
    if options.parts or options.wheel:
        result.update(cores=os.cpu_count(), load_before=round(os.getloadavg()[0], 1))

    def write():
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")

    def keep(part, times, failed):
        result[f"{part}_s"], result[f"{part}_ratio"] = times, round(times["after"] / times["before"], 2)
        if any(failed.values()):
            result[f"{part}_failed"] = failed
        else:
            result.pop(f"{part}_failed", None)
        write()

    if options.systems:
        result["systems"] = json.loads(options.systems.read_text())
    if options.parts:
        commits = {"before": options.before, "after": "HEAD"}
        named = {
            side: subprocess.run(
                ["git", "-C", str(SOURCE), "rev-parse", "--short", commit], check=True, capture_output=True, text=True
            ).stdout.strip()
            for side, commit in commits.items()
        }
        result["commits"] = named
        source_runs(options, named, options.parts, keep)
    if options.wheel:
        times = wheel_run(options, options.wheel.resolve())
        result["wheel_s"], result["wheel_to_harvest_s"] = times, round(sum(times.values()), 1)
        result["wheel_mib"] = round(options.wheel.stat().st_size / 2**20, 1)
    write()
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

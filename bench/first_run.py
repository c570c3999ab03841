#!/usr/bin/env python3
"""What a newcomer waits for, on fresh Debian 12 systems: `make demo` and `make test` of two commits, and from the wheel to a side task
that is harvested.

    first_run.py --before COMMIT --out FILE              # both commits, demo and test; then the wheel
    first_run.py --before COMMIT --parts demo --out FILE # a part of it

Each run has a system of its own: debootstrap's smallest with git and make, and nothing compiled or downloaded before. It is an overlay
on one that is made once in --folder, in namespaces of mounts and processes; the network is this machine's. Needs root and debootstrap.
Times are seconds of the wall clock; the two commits' runs follow each other. Run it on a machine that does nothing else."""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

SOURCE = pathlib.Path(__file__).resolve().parents[1]
MIRROR = "http://deb.debian.org/debian"
INCLUDE = "git,make,ca-certificates"
# What a trainer's machine has anyway; not counted.
TRAINER = "python3-venv,python3-torch,python3-numpy"

# pivot_root, not chroot: in a chroot nobody may make the user namespaces that sandboxes are.
ENTER = """
set -e
mount --make-rprivate /
mount -t overlay overlay -o lowerdir="$1",upperdir="$2/upper",workdir="$2/work" "$2/root"
cd "$2/root"
mkdir -p old proc sys dev
mount -t proc proc proc
mount --rbind /sys sys
mount --rbind /dev dev
cat /etc/resolv.conf > etc/resolv.conf
mount -t tmpfs tmpfs run
pivot_root . old
umount -l /old
cd /
exec bash -c "$3"
"""


class Fresh:
    """A fresh system in `folder` over the base `base`; removed by remove()."""

    def __init__(self, base, folder):
        self.base, self.folder = base, folder
        shutil.rmtree(folder, ignore_errors=True)
        for name in ("upper", "work", "root"):
            (folder / name).mkdir(parents=True)

    def copy(self, what, where):
        """A file or folder of this machine, to a path inside."""
        target = self.folder / "upper" / where.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if what.is_dir():
            shutil.copytree(what, target, symlinks=True)
        else:
            shutil.copy2(what, target)

    def run(self, command, log):
        """Seconds that `command` took inside, by the shell; SystemExit if it fails."""
        print(f"{log.name}: {command}", flush=True)
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
        began = time.monotonic()
        with open(log, "a") as file:
            code = subprocess.run(
                ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", ENTER, "sh"]
                + [str(self.base), str(self.folder), command],
                stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, check=False,
            ).returncode  # fmt: skip
        seconds = time.monotonic() - began
        if code:
            sys.stderr.write("".join(log.read_text(errors="replace").splitlines(keepends=True)[-40:]))
            sys.exit(f"first_run.py: '{command}' ended with {code} after {seconds:.0f} s; its output is {log}")
        print(f"{log.name}: {seconds:.0f} s", flush=True)
        return round(seconds, 1)

    def remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)


def base(folder, name, include):
    """The system that fresh ones begin with, made once."""
    root = folder / name
    if not (root / ".made").exists():
        shutil.rmtree(root, ignore_errors=True)
        cache = folder / "debs"
        cache.mkdir(parents=True, exist_ok=True)
        print(f"debootstrap of {name}", flush=True)
        subprocess.run(
            ["debootstrap", "--variant=minbase", f"--cache-dir={cache}", f"--include={include}"]
            + ["bookworm", str(root), MIRROR],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        shutil.rmtree(root / "var/cache/apt/archives", ignore_errors=True)
        (root / ".made").touch()
    return root


def source_runs(options, commits, parts):
    """{side: {part: seconds}}: each part of both commits, one after the other."""
    plain = base(options.folder, "bookworm", INCLUDE)
    systems, times = {}, {side: {} for side in commits}
    for side, commit in commits.items():
        clone = options.folder / f"clone-{side}"
        shutil.rmtree(clone, ignore_errors=True)
        subprocess.run(["git", "clone", "-q", str(SOURCE), str(clone)], check=True)
        subprocess.run(["git", "-C", str(clone), "checkout", "-q", commit], check=True)
        systems[side] = Fresh(plain, options.folder / f"fresh-{side}")
        systems[side].copy(clone, "/root/freeride")
    for part in parts:
        for side, system in systems.items():
            log = options.folder / f"{side}-{part}.log"
            log.unlink(missing_ok=True)
            # The demo fails when a figure misses its goal, too, as it may on two cores; then all of it ran.
            rest = " || test -f build/demo/report.json" if part == "demo" else ""
            times[side][part] = system.run(f"cd /root/freeride && make {part}{rest}", log)
    for system in systems.values():
        system.remove()
    return times


def wheel_run(options, wheel):
    """Seconds from `pip install` of the wheel to `observe`'s report, and to a side task that has harvested, for a user without root."""
    system = Fresh(base(options.folder, "bookworm-trainer", f"{INCLUDE},{TRAINER}"), options.folder / "fresh-wheel")
    system.copy(wheel, f"/home/user/{wheel.name}")
    log = options.folder / "wheel.log"
    log.unlink(missing_ok=True)
    system.run("useradd --home-dir /home/user --shell /bin/bash user && chown -R user /home/user", log)

    def as_user(*commands):
        script = "set -e; cd; export PATH=$HOME/venv/bin:$PATH; " + "; ".join(commands)
        return system.run(
            f"exec setpriv --reuid user --regid user --init-groups env HOME=/home/user bash -c '{script}'", log
        )

    installed = as_user("python3 -m venv --system-site-packages venv", f"pip install --quiet --no-index ./{wheel.name}")
    observed = as_user(
        "python -m freeride.observe venv/lib/python3*/site-packages/freeride/_tree/examples/train_gpt.py --stages 2 --iterations 20"
    )
    harvested = as_user("freeride demo")
    system.remove()
    return {"install_s": installed, "observe_s": observed, "demo_s": harvested}


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
        times = wheel_run(options, options.wheel)
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

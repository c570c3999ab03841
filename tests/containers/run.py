#!/usr/bin/python3
"""FreeRide in real containers: training on the host, manager, workers and side tasks inside.

    tests/containers/run.py --build build/dev --out build/docker

Builds the image, checks the units, runs the misbehaving suite with the worker in a container, and the main job twice,
short: as compose.yaml's service `worker` (root without most capabilities) and as `worker-unprivileged`; then the pods
of the manifests for Kubernetes (tests/kubernetes). Exit code 0: all went well; 1: something did not, and the last line
says what. Needs a Docker engine, or root to start one; there is no run without."""

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(SOURCE / "demo"), str(SOURCE / "tests"), str(SOURCE / "tests/kubernetes")]
import cluster

import in_container
import misbehaving
from engine import Engine, EngineError
from main_job import Demo, parse
from rig.processes import Failure

IMAGE = "freeride"
BUSY_PCT, MOST_SECONDS = 50, 120
USER = 4711  # of the unprivileged run: nobody on this host


class InContainers(Demo):
    """The main job with the daemons in containers. `uid`: theirs, and that of the folders they share with the host."""

    def __init__(self, options, env, uid):
        super().__init__(options)
        self.system.env.update(env)
        for folder in (self.system.run_dir, self.system.state_dir, self.system.state_dir / "plugins", self.data_dir):
            os.chown(folder, uid, uid)


def container_env(engine, service, uid, overrides):
    return {
        **{key: engine.env[key] for key in ("DOCKER_HOST",) if key in engine.env},
        "IN_CONTAINER_UID": str(uid),
        "IN_CONTAINER_SERVICES": f"manager=manager worker={service}",
        "IN_CONTAINER_OVERRIDES": " ".join(overrides),
    }


def end_containers(engine):
    """A client that was killed leaves its container running."""
    names = engine.docker("ps", "--all", "--quiet", "--filter", f"label={in_container.LABEL}").split()
    if names:
        engine.docker("rm", "--force", *names, check=False)


def main_job(options, engine, service, uid, seconds, overrides=()):
    """Runs the demo; returns what was wrong with it. A figure that was missed is said, and is no fault: this is no
    place to measure."""
    print(f"\n== the main job, {service} (uid {uid})", flush=True)
    in_container.make_tree(options.out / "tree", options.build, ["freeride-manager", "freeride-worker"])
    flags = [
        "--build",
        options.out / "tree",
        "--out",
        options.out / service,
        "--seconds",
        seconds,
        "--compare-iterations",
        8,
    ]
    job = InContainers(parse([str(flag) for flag in flags]), container_env(engine, service, uid, overrides), uid)
    try:
        report = job.run()
    except Failure as error:
        return [str(error)]
    finally:
        job.finish()
        end_containers(engine)
    kept = [path.name for path in (options.out / service / "results").iterdir()]
    idle = [f"task {task['name']} harvested nothing" for task in report["tasks"] if not task["harvested_s"]] + [
        f"nothing that task {task['name']} made was kept"
        for task in report["tasks"]
        if not any(name.startswith(task["name"]) for name in kept)
    ]
    if idle and report["other_cpu_pct"] > BUSY_PCT and seconds < MOST_SECONDS:
        # The worker's side tasks count as others, too; but they have done hardly anything.
        print(f"({', '.join(idle)} while others had {report['other_cpu_pct']:.0f} % of the machine: once more, longer)")
        return main_job(options, engine, service, uid, min(4 * seconds, MOST_SECONDS), overrides)
    for line in report["missed"]:
        print(f"(not judged here: {line})")
    return report["faults"] + idle


def misbehaving_suite(options, engine, overrides):
    print("\n== misbehaving side tasks, worker", flush=True)
    in_container.make_tree(options.out / "tree", options.build, ["freeride-manager", "freeride-worker"])
    try:
        return misbehaving.run(
            options.out / "tree", options.build / "test-plugins", container_env(engine, "worker", 0, overrides)
        )
    except (AssertionError, Failure) as error:
        return [str(error)]
    finally:
        end_containers(engine)


def build_image(options, engine):
    print("== image", flush=True)
    context = options.out / "context"
    subprocess.run([SOURCE / "containers/make-root.sh", options.build, context], check=True)
    engine.docker("build", "--quiet", "--tag", IMAGE, context)
    size = int(engine.docker("image", "inspect", "--format", "{{.Size}}", IMAGE))
    print(f"{IMAGE}: {size / 1e6:.0f} MB, engine {engine.docker('version', '--format', '{{.Server.Version}}')}")


def prepare_cgroups():
    """The host's group for side tasks; returns the compose file that goes with it."""
    done = subprocess.run([SOURCE / "containers/prepare-cgroups.sh"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EngineError(done.stderr.strip())
    print(done.stdout.strip())
    return done.stdout.split()[-1]


def check_units():
    """systemd's own opinion of the units, with the programs where they would be installed."""
    print("== units", flush=True)
    with tempfile.TemporaryDirectory() as root:
        for folder in ("usr/bin", "etc/systemd/system"):
            (pathlib.Path(root) / folder).mkdir(parents=True)
        for program in ("freeride-manager", "freeride-worker"):
            shutil.copy("/bin/true", pathlib.Path(root) / "usr/bin" / program)
        units = sorted((SOURCE / "containers/systemd").glob("*.*"))
        for unit in units:
            shutil.copy(unit, pathlib.Path(root) / "etc/systemd/system" / unit.name)
        done = subprocess.run(
            [
                "systemd-analyze",
                "verify",
                "--man=no",
                "--recursive-errors=no",
                f"--root={root}",
                "freeride-manager.service",
                "freeride-worker@cpu-0.service",
            ],
            capture_output=True,
            text=True,
            check=False,
        )
    ours = [line for line in (done.stdout + done.stderr).splitlines() if "freeride" in line]
    return [f"systemd-analyze: {line}" for line in ours] + (
        [] if done.returncode == 0 else [f"systemd-analyze ended with {done.returncode}: {done.stderr.strip()}"]
    )


def left_behind(engine):
    """What should be gone: containers, and control groups of side tasks."""
    found = engine.docker("ps", "--all", "--filter", f"label={in_container.LABEL}", "--format", "{{.Names}}").split()
    return [f"container {name} was left behind" for name in found] + [
        f"control group {folder} was left behind"
        for folder in sorted(pathlib.Path("/sys/fs/cgroup").glob("**/freeride/*/"))
    ]


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=SOURCE / "build/dev")
    parser.add_argument("--out", type=pathlib.Path, default=SOURCE / "build/docker")
    parser.add_argument(
        "--seconds", type=float, default=30, help="of training in the first run; the others are shorter"
    )
    options = parser.parse_args(argv)
    options.build, options.out = options.build.resolve(), options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    faults = check_units()
    try:
        with Engine(options.out) as engine:
            build_image(options, engine)
            groups = [prepare_cgroups()]
            faults += misbehaving_suite(options, engine, groups)
            faults += main_job(options, engine, "worker", 0, options.seconds, groups)
            faults += main_job(options, engine, "worker-unprivileged", USER, options.seconds / 2)
            faults += cluster.run(engine, options.build, IMAGE)
            faults += left_behind(engine)
    except (EngineError, subprocess.CalledProcessError) as error:
        faults.append(str(error))
    for fault in faults:
        print(f"test-docker: {fault}", file=sys.stderr)
    print("test-docker: " + ("FAILED" if faults else "all went well"), file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/python3
"""Stands in for a program of FreeRide's in a folder of programs, under its name, and runs the real one in a container:
so whatever starts `freeride-worker` on the host, the demo or a test suite, has its worker and side tasks in one.
Signals and the exit code pass through.

Run and state folder come from the environment, as for the real one; folders named with --data are mounted read-only
under their own path. From the environment also: IN_CONTAINER_SERVICES ("manager=manager worker=worker"),
IN_CONTAINER_OVERRIDES (compose files), IN_CONTAINER_UID."""

import os
import pathlib
import shutil
import sys
import zlib

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import compose  # noqa: E402

LABEL = "freeride-test"


def make_tree(folder, build, programs):
    """A folder with what `build` has to run, these programs replaced. Files are links, folders are not: searches do not
    follow those."""
    folder, build = pathlib.Path(folder), pathlib.Path(build)
    shutil.rmtree(folder, ignore_errors=True)
    for source in [*(build / "bin").iterdir(), *(build / "lib").iterdir(), *build.glob("*plugins/**/*.so")]:
        link = folder / source.relative_to(build)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(pathlib.Path(__file__).resolve() if source.name in programs else source)


def main():
    program = pathlib.Path(sys.argv[0]).name
    services = dict(pair.split("=") for pair in os.environ["IN_CONTAINER_SERVICES"].split())
    uid = os.environ.get("IN_CONTAINER_UID", "0")
    device = sys.argv[sys.argv.index("--device") + 1] if "--device" in sys.argv else ""
    env = {
        **os.environ,
        "FREERIDE_UID": uid,
        "FREERIDE_GID": uid,
        "FREERIDE_FIRST_TASK_UID": str(2_000_000_000 + zlib.crc32(device.encode()) % 1000 * 5000),
    }
    flags, image, command = compose.run_flags(
        services[program.removeprefix("freeride-")], env, os.environ.get("IN_CONTAINER_OVERRIDES", "").split()
    )
    if "--user" not in flags:
        flags += ["--user", f"{uid}:{uid}"]  # the manager's sockets are for its own user
    data = [path for option, path in zip(sys.argv, sys.argv[1:]) if option == "--data"]
    flags += [part for path in dict.fromkeys(data) for part in ("--volume", f"{path}:{path}:ro")]
    # Settings of the caller's for this program; its folders have other names inside.
    for name, value in os.environ.items():
        if name.startswith("FREERIDE_") and not name.endswith(("_DIR", "_UID", "_GID", "_LIBRARY")):
            flags += ["--env", f"{name}={value}"]
    os.execvp("docker", ["docker", "run", "--rm", "--label", LABEL, *flags, image, command[0], *sys.argv[1:]])


if __name__ == "__main__":
    main()

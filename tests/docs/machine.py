"""A machine on which FreeRide was installed, for one run of pages: /usr is this one's with the installed tree over it; /run and /var/lib are
empty, the network is a loopback, and every process ends with this one. In namespaces of its own, so nothing of it is seen from outside.

    machine.py pages TREE OUT PAGE...    in it: does what the pages say, until one fails; OUT gets one JSON object a page
    machine.py settle                    in a page: waits until what was started has come as far as a reader sees it come
    machine.py look                      in a page, before each block: waits until every side task that may run has made a step
    machine.py live COMMAND...           in a page: runs it, with Ctrl-C after its first output
"""

import fcntl
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time

import pages

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parents[1]
PYTHON = "/usr/bin/python3"
WATCHDOG_S = 120
ENVIRONMENT = {
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
# Each command is said with its line of the page; the first that fails ends the page. Who has started something in the background types on when it is there.
PRELUDE = f"""
set -eE -o pipefail
live() {{ {PYTHON} {HERE}/machine.py live "$@"; }}
settle() {{ if [ "${{!:-}}" != "${{settled:-}}" ]; then settled=$!; {PYTHON} {HERE}/machine.py settle; fi; }}
look() {{ {PYTHON} {HERE}/machine.py look; }}
trap 'settle; echo "line $LINENO: $BASH_COMMAND"' DEBUG
trap 'echo "line $LINENO: exit $?"' ERR
"""
# What was started in the background is still there, or has ended well.
POSTLUDE = "trap - DEBUG; jobs -l; ! jobs -l | grep -Eq 'Exit|Killed|Aborted|fault|Terminated'\n"


def call(*words, **more):
    return subprocess.run([str(word) for word in words], check=True, **more)


def prepare(tree):
    """Mounts, loopback."""
    shutil.copy(HERE / "torchrun", pathlib.Path(tree) / "bin")
    call("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={tree}:/usr", "/usr")
    for folder in ("/run", "/var/lib"):
        call("mount", "-t", "tmpfs", "tmpfs", folder)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14x", b"lo", 0)
        (flags,) = struct.unpack("16xH14x", fcntl.ioctl(any_socket, 0x8913, request))  # SIOCGIFFLAGS
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", b"lo", flags | 1))  # SIOCSIFFLAGS, IFF_UP


def ctl(*words):
    answer = subprocess.run(["freeride-ctl", *words, "--format", "json"], capture_output=True, text=True, check=False)
    return json.loads(answer.stdout) if answer.returncode == 0 else None


def until(condition, what):
    end = time.monotonic() + WATCHDOG_S
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.1)
    raise SystemExit(f"never happened: {what}")


def processes(pattern):
    found = 0
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += re.search(pattern, path.read_bytes().replace(b"\0", b" ").decode()) is not None
        except OSError:
            pass  # it has ended
    return found


def settle():
    until(lambda: ctl("status"), "the manager answers")
    # Counted anew each time: a worker that has just forked is there twice.
    until(
        lambda: sum(worker["state"]["state"] == "up" for worker in ctl("workers")["workers"])
        == processes(r"^(/usr/bin/)?freeride-worker "),
        "each worker is up",
    )
    until(
        lambda: sum(len(worker["ranks"]) for worker in ctl("workers")["workers"])
        >= processes(r"-m freeride\.run .*--rank"),
        "each rank is attached",
    )


def live(command):
    """Exit code 0: it ended by itself, or by Ctrl-C after it had said something."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"}) as process:
        first = process.stdout.readline()
        sys.stdout.buffer.write(first)
        if first:
            process.send_signal(signal.SIGINT)
        process.stdout.read()
    return (
        0
        if process.returncode == 0 or first and process.returncode in (130, -signal.SIGINT)
        else process.returncode or 1
    )


def tasks():
    answer = ctl("tasks")
    return {info["state"]["task"]: info["state"] for info in answer["tasks"]} if answer else {}


def look():
    def waits(task):
        return not task["verdict"]["kind"] and not task["paused_by_user"] and task["counters"]["steps"] == 0

    until(
        lambda: not [name for name, task in tasks().items() if waits(task)], "every side task that may run makes a step"
    )


def faults(said):
    """What went wrong though every command ended well: side tasks that end badly, a hook that says that it does not work."""
    look()
    bad = [
        f"{name}: {task['verdict']}"
        for name, task in tasks().items()
        if task["verdict"]["kind"] not in ("", "finished", "stopped")
    ]
    return bad + [line for line in said.splitlines() if line.startswith("freeride: ")]


def do(page, folder):
    """One page, from a folder of its own. Returns (exit code, what was printed)."""
    for name, source in PREPARED.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, folder / name)
    (folder / "prelude.sh").write_text(PRELUDE)
    (folder / "page.sh").write_text(pages.script(SOURCE / page, folder) + POSTLUDE)
    with open(folder / "out", "wb") as out:
        code = subprocess.run(
            ["bash", "page.sh"],
            cwd=folder,
            env={**ENVIRONMENT, "HOME": str(folder), "BASH_ENV": str(folder / "prelude.sh")},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    said = (folder / "out").read_text(errors="replace")
    bad = [] if code else faults(said)
    for name, task in tasks().items():
        if not task["verdict"]["kind"]:
            ctl("stop", name)
    return code or len(bad), said + "\n".join(bad)


# What a page's reader has: a training, plugins.
PLUGINS = pathlib.Path("/usr/lib/freeride/plugins")
PREPARED = {
    "train.py": HERE / "train.py",
    "pagerank.so": PLUGINS / "pagerank.so",
    "my.so": PLUGINS / "sgd.so",
    "image2.so": PLUGINS / "image.so",
    "my_task.py": SOURCE / "plugins/python/tiny_net.py",
}


def main():
    if sys.argv[1] == "settle":
        return settle()
    if sys.argv[1] == "look":
        return look()
    if sys.argv[1] == "live":
        return live(sys.argv[2:])
    tree, out, *names = sys.argv[2:]
    prepare(tree)
    os.environ.clear()
    os.environ.update(ENVIRONMENT)
    for number, page in enumerate(names):
        folder = pathlib.Path(out).parent / f"page{number}"
        folder.mkdir()
        began = time.monotonic()
        code, said = do(page, folder)
        with open(out, "a") as file:
            file.write(
                json.dumps({"page": page, "code": code, "said": said, "seconds": time.monotonic() - began}) + "\n"
            )
        if code:
            break  # the next page goes on from here
    return 0


if __name__ == "__main__":
    sys.exit(main())

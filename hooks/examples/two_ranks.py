#!/usr/bin/python3
"""Two ranks and a watcher that share pages, and what happens when any of them is killed.

    two_ranks.py                       # runs to the end
    two_ranks.py --kill rank1          # or rank0, watcher, all: killed in the middle, with SIGKILL

The ranks play a pipeline without a framework: each computes (sleeps), produces for the other on the sent page, marks a bubble on its bubble
page while it waits for the other's counter, and ends an iteration. The watcher stands where the worker would: it takes both bubble pages and
prints what it sees on them. Killed processes are started again by the launcher, but for ranks: as in a real training their job is over, and
the survivor must be released, not hang. Exit code 0: every process that was not killed did all its work.
"""

import argparse
import ctypes
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
from freeride import _library, pages  # noqa: E402


def rank(number, iterations):
    hook = _library.Library()
    names = {"job": b"two-ranks", "device": f"cpu-{number}".encode(), "framework": b"two_ranks.py"}
    config = _library.Config(**names, flags=_library.SENT, rank=number, stage=number, stages=2, local_rank=number)
    handle = hook.attach(ctypes.byref(config))
    peer, released = 1 - number, False
    print(f"rank {number}: sent page {hook.sent_path(handle).decode()}", flush=True)
    for iteration in range(iterations):
        select.select([], [], [], 0.02 + 0.01 * number)  # the forward and backward pass
        hook.produce(handle, peer)
        hook.mark_begin(handle)
        # In a training this wait is the receive itself; 30 s is only so that a bug here ends.
        result = hook.wait_sent(handle, peer, iteration + 1, 30 * 10**9)
        hook.mark_end(handle)
        if result == _library.TIMEOUT:
            print(f"rank {number}: nobody released us", flush=True)
            return 1
        if result == _library.RELEASED and not released:
            released = True
            print(
                f"rank {number}: the other one is gone; released in iteration {iteration}, going on alone", flush=True
            )
        hook.iteration_end(handle)
        print(f"rank {number}: iteration {iteration}", flush=True)
    sys.stdin.read()  # until the launcher lets it go
    hook.detach(handle)
    return 0


def watcher(run_dir):
    listeners = {pages.listen(f"{run_dir}/worker-cpu-{number}.sock"): number for number in range(2)}
    attached = {}
    print("watcher: listening", flush=True)
    while True:
        ready, _, _ = select.select([*listeners, *attached], [], [])
        for end in ready:
            if end in listeners:
                connection, _ = end.accept()
                page = pages.take_page(connection)
                attached[connection] = page
                print(
                    f"watcher: has the page of rank {page.view.rank}, which has finished {page.view.iteration} iterations",
                    flush=True,
                )
            else:  # silent until it ends
                page = attached.pop(end)
                view = page.copy()
                state = "in a bubble" if pages.state_wait(view.state_word) else "training"
                how = "detached" if view.hook_state == pages.HOOK_GONE else f"died {state}"
                lengths = [(record.end_ns - record.begin_ns) / 1e6 for _, record in pages.finished_bubbles(page)]
                mean = sum(lengths) / len(lengths) if lengths else 0
                print(
                    f"watcher: rank {view.rank} {how} after {view.iteration} iterations, {view.bubbles} bubbles of {mean:.1f} ms; learned "
                    f"{view.learned[0].low_ns / 1e6:.1f} to {view.learned[0].high_ns / 1e6:.1f} ms",
                    flush=True,
                )
                end.close()
                page.close()


def launch(options):
    run_dir = tempfile.mkdtemp(prefix="freeride-two-ranks-")
    env = dict(os.environ, FREERIDE_RUN_DIR=run_dir, FREERIDE_SHM_DIR=run_dir, PYTHONUNBUFFERED="1")
    processes = {}

    def start(name):
        processes[name] = subprocess.Popen(
            [sys.executable, __file__, "--be", name, "--iterations", str(options.iterations)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return processes[name]

    def lines_of(name):
        for line in processes[name].stdout:
            print(line, end="", flush=True)
            yield line

    victims = {"all": ["rank0", "rank1", "watcher"], None: []}.get(options.kill, [options.kill])
    try:
        watch = start("watcher")
        next(lines_of("watcher"))
        for name in ("rank0", "rank1"):
            start(name)
        for line in lines_of("rank0"):
            if f"iteration {options.iterations // 2}" in line:
                break
        for name in victims:
            processes[name].send_signal(signal.SIGKILL)
            processes[name].wait()
            print(f"launcher: {name} killed", flush=True)
        if "watcher" in victims:
            watch.stdout.close()
            start("watcher")
            next(lines_of("watcher"))
        if victims == ["watcher"]:  # however late the new one is, both ranks come back to it
            taken = 0
            for line in lines_of("watcher"):
                taken += "has the page" in line
                if taken == 2:
                    break
        for name in ("rank0", "rank1"):
            processes[name].stdin.close()
        code = 0
        for name in ("rank0", "rank1"):
            for _ in lines_of(name):
                pass
            if name not in victims and processes[name].wait() != 0:
                code = 1
        # Every rank that was attached has ended by now, and the watcher says so for each.
        ended = 0 if victims == ["rank0", "rank1", "watcher"] else 1 if "watcher" in victims and len(victims) > 1 else 2
        for line in lines_of("watcher") if ended else ():
            ended -= " iterations, " in line and "bubbles" in line
            if ended == 0:
                break
        print("launcher: " + ("all who lived did their work" if code == 0 else "FAILED"), flush=True)
        return code
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
        shutil.rmtree(run_dir)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=40)
    parser.add_argument("--kill", choices=["rank0", "rank1", "watcher", "all"])
    parser.add_argument("--be", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be == "watcher":
        return watcher(os.environ["FREERIDE_RUN_DIR"])
    if options.be:
        return rank(int(options.be[-1]), options.iterations)
    return launch(options)


if __name__ == "__main__":
    sys.exit(main())

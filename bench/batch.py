#!/usr/bin/python3
"""A batch whose plugin crashes, and whose workers, manager and runners are killed: whether each item has its result once.

    bench/batch.py --build build/dev --out bench/results/batch.json
    bench/batch.py --build build/dev --items 2000 --kills 12          # a dry run

CPUs, four workers, two trainings of two stages over them, whose passes are asleep as if their work were a GPU's: the
processors are the side tasks', and seldom more of those have a bubble than there are processors. Items take log-normal
times from 0.2 to 50 ms of a processor, in pieces of at most 2 ms with a yield point behind each; one in a thousand ends the
process. Of the kills from outside one third each hits a worker, the manager and the runners of a side task, at random
moments. From inside a member is ended at each step between computing, writing and committing: when results are computed,
when half of a record is written, when all of them are, and when they are on the disk and nobody has been told. Needs root, whose batches are those of another user.

Keys: `missing` (items with neither result nor failure), `repeated_in_output`, `wrong` (another result than the right one),
`failed_wrongly` (set aside, though it ends no process), `kills`, `bubbles_used_pct` (time inside steps within bubbles ÷ bubble
time while the batch ran, holdout excluded)."""

import argparse
import collections
import datetime
import json
import math
import os
import pathlib
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time

SOURCE = pathlib.Path(__file__).resolve().parents[1]
sys.path.append(str(SOURCE / "tests"))
from rig.events import Recorder
from rig.processes import Failure, write_whole
from rig.processors import first_on_the_processors
from rig.system import System
from rig.tree import Tree, folder

USER = 1  # "daemon": a real user of every host, who is nobody special
LEAST_MS, MOST_MS = 0.2, 50.0
POISON_ONE_IN = 1000
MANAGER = ("--group", "daemon", "--default-memory-mib", "256")
# Of each of the two: a stage waits for a third of the time, while the other one works, and as long as a stage of the
# demo's training. A side task is bound to the core of its device, cpu-0 and cpu-2 to one where there are two.
TRAINING = {"stages": 2, "micro_batches": 2, "pass_ms": 120, "dim": 32, "layers": 2, "seq": 32}
POINTS = ("computed", "half", "written", "synced")

# What a member runs. A mark in the folder says that a point was hit for an item or a mark, so that it is hit once.
PLUGIN = """
import os, time
import freeride_plugin

MARKS, EACH = "/marks", __EACH__

def once(point, key):
    if len([name for name in os.listdir(MARKS) if name.startswith(point)]) >= EACH:
        return False
    try:
        os.close(os.open(f"{MARKS}/{point}-{key}", os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True

def chosen(number, at):
    return number % __EVERY__ == at

write, sync = freeride_plugin._Synced.write, freeride_plugin._Synced._sync

def killing_write(self, text):
    item = int(text.split(b" ", 1)[0])
    if chosen(item, 1) and once("half", item):
        write(self, text[: len(text) // 2])
        os.abort()
    write(self, text)
    if chosen(item, 2) and once("written", item):
        os.abort()

def killing_sync(self, mark):
    sync(self, mark)
    if (mark[0] + mark[1]) % max(5, __EVERY__ // 20) == 3 and once("synced", f"{mark[0]}-{mark[1]}"):
        os.abort()

freeride_plugin._Synced.write, freeride_plugin._Synced._sync = killing_write, killing_sync

class Score(freeride_plugin.Batch):
    def process(self, items):
        results = []
        for item in items:
            if item["poison"]:
                os.abort()
            left = item["ms"] / 1e3
            while left > 0:  # an item has up to 50 ms: it may be cut in two by a bubble's end
                piece = min(left, 0.002)
                left -= piece
                end = time.thread_time() + piece
                while time.thread_time() < end:
                    pass
                self.yield_point()
            results.append([item["n"], item["n"] ** 2])
        for item in items:
            if chosen(item["n"], 0) and once("computed", item["n"]):
                os.abort()
        return results
"""


def log_normal(chosen):
    """Between the two bounds, which lie three standard deviations apart from the middle."""
    middle = (math.log(LEAST_MS) + math.log(MOST_MS)) / 2
    return min(MOST_MS, max(LEAST_MS, chosen.lognormvariate(middle, (math.log(MOST_MS) - math.log(LEAST_MS)) / 6)))


class Run:
    def __init__(self, options):
        self.options, self.chosen = options, random.Random(options.seed)
        self.system = System(Tree.of_build(options.build), job="gpt")
        self.place = pathlib.Path(tempfile.mkdtemp(prefix="data-", dir="/var/tmp"))
        self.kills = collections.Counter()
        self.rank_sums, self.recorder, self.counted = collections.Counter(), None, 0

    # ---- what there is
    def devices(self):
        return [f"cpu-{number}" for number in range(4)]

    def start_worker(self, device):
        self.system.start_worker(device, "--data", self.place, "--scratch-bytes", 16 << 20)

    def up(self):
        self.place.chmod(0o755)
        for name in ("user", "marks"):
            (self.place / name).mkdir(mode=0o700)
            os.chown(self.place / name, USER, USER)
        (self.place / "score.py").write_text(
            PLUGIN.replace("__EACH__", str(self.options.inside)).replace("__EVERY__", str(self.every()))
        )
        self.items = [
            {"n": n, "ms": round(log_normal(self.chosen), 3), "poison": self.chosen.randrange(POISON_ONE_IN) == 0}
            for n in range(self.options.items)
        ]
        path = self.place / "user/items.jsonl"
        path.write_text("".join(json.dumps(item) + "\n" for item in self.items))
        os.chown(path, USER, USER)
        self.system.start_manager(*MANAGER)
        for device in self.devices():
            self.start_worker(device)
        self.system.wait_workers(4)
        for number in range(2):
            self.system.start_training(
                name=f"training-{number}", env={"FREERIDE_JOB": f"gpt-{number}"}, devices=f"{number},{number + 2}",
                seconds=self.options.watchdog + 3600, **TRAINING,
            )  # fmt: skip
        self.system.wait_workers(4, trained=True)

    def every(self):
        return max(7, self.options.items // (4 * max(1, self.options.inside)))

    def ctl(self, *words):
        user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
        words = [*user, self.system.tree.program("freeride-ctl"), "--format", "json", *words]
        return subprocess.run(
            [str(word) for word in words], env=self.system.env, capture_output=True, text=True, check=False
        )

    def submit(self):
        done = self.ctl(
            "batch", self.place / "score.py", "--input", self.place / "user/items.jsonl", "--output",
            self.place / "user/results.jsonl", "--retries", 3, "--detach", "--write",
            f"{self.place}/marks:/marks",
        )  # fmt: skip
        if done.returncode:
            raise Failure(done.stderr)

    def info(self):
        answer = self.system.ctl("batch", "ls")
        found = answer.json.get("batches", []) if answer.code == 0 else []
        return found[0] if found else {}

    # ---- kills from outside
    def kill_worker(self):
        device = self.chosen.choice(self.devices())
        name = f"worker-{device}"
        self.system.processes[name].kill()
        self.system.processes[name].wait()
        self.start_worker(device)

    def kill_manager(self):
        self.system.processes["manager"].kill()
        self.system.processes["manager"].wait()
        self.system.start_manager(*MANAGER)

    def kill_runner(self):
        found = self.runners()
        if not found:
            return False
        os.kill(self.chosen.choice(found), 9)
        return True

    def runners(self):
        found = []
        for one in pathlib.Path("/proc").iterdir():
            if not one.name.isdigit():
                continue
            try:
                words = (one / "cmdline").read_bytes().split(b"\0")
                ours = b"freeride-runner" in words[0] and str(self.system.root) in (one / "mountinfo").read_text()
            except OSError:
                continue
            if ours:
                found.append(int(one.name))
        return found

    def strike(self):
        """By turns, at random moments, until the batch has ended or all have been made. On the main thread: what it starts
        ends with the thread that has started it."""
        blows = [self.kill_runner, self.kill_worker, self.kill_manager]
        handled, step = 0, self.options.items / (self.options.kills + 1)
        while sum(self.kills.values()) < self.options.kills:
            info = self.info()
            if info.get("ended_unix_ms"):
                return
            self.note(info)
            # Spread over the batch, whatever it takes.
            if info and info["done"] + info.get("failed", 0) < handled * step:
                time.sleep(0.2)
                continue
            time.sleep(self.chosen.uniform(0, 0.5))
            blow = blows[handled % 3]
            if blow() is False:
                continue
            handled += 1
            self.kills[blow.__name__.removeprefix("kill_")] += 1
            print(f"{handled} of {self.options.kills} kills, {info.get('done', 0)} items done", flush=True)

    # ---- bubbles
    def listen(self):
        self.recorder = Recorder(f"ipc://{self.system.run_dir}/events.sock", "training.iteration/")

    def count_bubbles(self):
        for _, fields in self.recorder.events[self.counted :]:
            self.counted += 1
            if not fields.get("holdout"):
                self.rank_sums["bubble"] += fields["bubble_ns"]
                self.rank_sums["harvested"] += fields["harvested_ns"]

    def note(self, info):
        if info.get("state", "running") == "running":
            self.count_bubbles()
        else:  # what is put together at the end is no work of items
            self.counted = len(self.recorder.events)

    # ---- the end
    def wait(self):
        end = time.monotonic() + self.options.watchdog
        while time.monotonic() < end:
            info = self.info()
            if info.get("ended_unix_ms"):
                return info
            self.note(info)
            time.sleep(0.5)
        raise Failure(f"the batch has not ended in {self.options.watchdog} s: {self.info()}")

    def judge(self, info, seconds):
        out = self.place / "user/results.jsonl"
        lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
        failures = self.place / "user/results.failed.jsonl"
        failed = (
            {json.loads(line)["index"] for line in failures.read_text().splitlines()} if failures.exists() else set()
        )
        counted = collections.Counter(one["index"] for one in lines)
        poison = {item["n"] for item in self.items if item["poison"]}
        marks = collections.Counter(name.split("-")[0] for name in os.listdir(self.place / "marks"))
        bubbles = self.rank_sums["bubble"]
        return {
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "command": " ".join(sys.argv),
            "machine": {"processors": os.cpu_count(), "kernel": platform.release()},
            "seed": self.options.seed,
            "items": len(self.items),
            "workers": 4,
            "item_ms": {"least": LEAST_MS, "most": MOST_MS, "sum": round(sum(item["ms"] for item in self.items))},
            "poisoned": len(poison),
            "state": info["state"],
            "missing": len(set(range(len(self.items))) - set(counted) - failed),
            "repeated_in_output": sum(times - 1 for times in counted.values()) + len(failed & set(counted)),
            "wrong": sum(1 for one in lines if one["result"] != [one["index"], one["index"] ** 2]),
            "failed": len(failed),
            "failed_wrongly": len(failed - poison),
            "kills": {**self.kills, **{point: marks[point] for point in POINTS}},
            "crashes": info.get("crashes", 0),
            "seconds": round(seconds, 1),
            "bubble_s": round(bubbles / 1e9, 3),
            "bubbles_used_pct": round(100 * self.rank_sums["harvested"] / bubbles, 2) if bubbles else None,
        }

    def close(self):
        if self.recorder:
            self.recorder.close()
        self.system.close()
        shutil.rmtree(self.place, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=folder, required=True)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=100, help="from outside")
    parser.add_argument("--inside", type=int, default=8, help="at each step between computing and committing, at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--watchdog", type=float, default=7200, help="s; a bound against hanging for ever")
    options = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("only root can give files under another user's rights")
    run = Run(options)
    with first_on_the_processors():
        try:
            run.up()
            run.listen()
            begin = time.monotonic()
            run.submit()
            run.strike()
            info = run.wait()
            result = run.judge(info, time.monotonic() - begin)
        finally:
            run.close()
    text = json.dumps(result, indent=1)
    print(text)
    if options.out:
        write_whole(options.out, text + "\n")
    good = info["state"] == "finished" and not any(
        result[key] for key in ("missing", "repeated_in_output", "wrong", "failed_wrongly")
    )
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()

#!/usr/bin/python3
"""What the flight recorder costs and keeps: the figures recorder_* and replay_hour_s of bench/results/see.json.

    bench/recorder.py --build build/dev [--seconds 60] [--kills 100] [--only cost|replay|kills] [--out FILE]

Needs freeride-manager, freeride-recorder, freeride-ctl and bench-recording. Other keys of the file stay."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent / "tests"))

from rig import kills  # noqa: E402
from rig.processes import until, write_whole  # noqa: E402
from rig.system import System  # noqa: E402
from rig.tree import SOURCE, Tree  # noqa: E402

DEVICES, BUBBLES_PER_S = 8, 100


def start_bubbles(system, devices=DEVICES, per_s=BUBBLES_PER_S):
    words = [f"ipc://{system.run_dir}/publish.sock", devices, per_s]
    return system.start("bubbles", [sys.executable, SOURCE / "tests/rig/bubbles.py", *words])


def cpu_s(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cost(tree, seconds):
    with System(tree) as system:
        system.start_manager()
        start_bubbles(system)
        folder = system.root / "recording"
        recorder = system.start(
            "recorder", [tree.program("freeride-recorder"), "--recordings", folder, "--keep-free", 0]
        )

        def size():
            return sum(file.stat().st_size for file in folder.glob("*.mcap"))

        until(lambda: size() > 10_000, "a recording")
        time.sleep(5)
        begin, cpu = time.monotonic(), cpu_s(recorder.pid)
        time.sleep(seconds)
        took, cpu = time.monotonic() - begin, cpu_s(recorder.pid) - cpu
        events = kills.view(tree.program("freeride-ctl"), folder, system.env)
        ends = sum(event["topic"].startswith("bubble.end/") for event in events)
        span = (events[-1]["time_unix_ns"] - events[0]["time_unix_ns"]) / 1e9
        lost = sum(event["lost"] for event in events if event["topic"].startswith("recording.gap/"))
        return {
            "recorder_cpu_pct": round(100 * cpu / took, 3),
            # For the wanted rate: a machine that is busy with others publishes, and records, fewer.
            "recorder_mib_per_day": round(size() / ends * DEVICES * BUBBLES_PER_S * 86400 / 2**20, 1),
            "recorder_bubbles_per_s": round(ends / span, 1),
            "recorder_events_lost": lost,
        }


def lost_after_kills(tree, count):
    lost = []
    with System(tree) as system:
        system.start_manager()
        bubbles = start_bubbles(system, devices=4, per_s=50)
        while len(lost) < count:
            lost += kills.round_of_kills(system, min(10, count - len(lost)), len(lost), lambda: bubbles.poll() is None)
    never = sum(each < 0 for each in lost)
    return {"recorder_lost_after_kill": sum(max(0, each) for each in lost) + never, "recorder_kills": len(lost)}


def replay(tree):
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([tree.programs / "bench-recording", folder, "1"], check=True, capture_output=True)
    said = json.loads(done.stdout)
    return {
        "replay_hour_s": round(said["read_s"], 2),
        "replay_hour_cpu_s": round(said["read_cpu_s"], 2),
        "replay_hour_events": said["events"],
        "replay_hour_mib": round(said["bytes"] / 2**20, 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=SOURCE / "build/dev")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--out", type=pathlib.Path, default=SOURCE / "bench/results/see.json")
    parser.add_argument("--only", action="append", choices=["cost", "replay", "kills"])
    options = parser.parse_args()
    tree = Tree.of_build(options.build)
    figures = {}
    parts = {
        "cost": lambda: cost(tree, options.seconds),
        "replay": lambda: replay(tree),
        "kills": lambda: lost_after_kills(tree, options.kills),
    }
    for name in options.only or parts:
        figures.update(parts[name]())
        print(json.dumps(figures), flush=True)
    others = json.loads(options.out.read_text()) if options.out.exists() else {}
    write_whole(options.out, json.dumps({**others, **figures}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()

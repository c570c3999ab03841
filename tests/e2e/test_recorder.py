"""The flight recorder beside a real manager: kill -9, freeride-ctl's verbs, and PyPI's reader of MCAP."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from rig import kills
from rig.testing import BUILD, SOURCE, System, until

KILLS = 20
EXAMPLE = SOURCE / "recorder/python/recording.py"


def start_bubbles(system, devices=4, per_s=50):
    return system.start(
        "bubbles",
        [sys.executable, SOURCE / "tests/rig/bubbles.py", f"ipc://{system.run_dir}/publish.sock", devices, per_s],
    )


def start_recorder(system, *flags):
    process = system.start("recorder", [system.tree.program("freeride-recorder"), "--keep-free", 0, *flags])
    until(lambda: list((system.state_dir / "recordings").glob("*.mcap")), "a recording")
    return process


def viewed(system):
    return kills.view(system.tree.program("freeride-ctl"), system.state_dir / "recordings", system.env)


def mcap_python():
    """A Python with PyPI's mcap, made once in the build folder."""
    venv = BUILD / "mcap-venv"
    python = venv / "bin/python"
    if (
        subprocess.run([python, "-c", "import mcap, msgpack"], capture_output=True).returncode
        if python.exists()
        else True
    ):
        subprocess.run([sys.executable, "-m", "venv", "--clear", venv], check=True, capture_output=True)
        packages = ["mcap==1.2.2", "msgpack"]
        done = subprocess.run([python, "-m", "pip", "install", "-q", *packages], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"pip cannot install mcap: {done.stderr.strip().splitlines()[-1:]}")
    return python


READ = """
import json, pathlib, sys
sys.path.insert(0, str(pathlib.Path(sys.argv[2])))
import recording
from mcap.reader import make_reader, NonSeekingReader
with open(sys.argv[1], "rb") as file:
    reader = make_reader(file, validate_crcs=True)
    seeking = [(c.topic, m.log_time, m.publish_time, len(m.data)) for _, c, m in reader.iter_messages()]
    summary = reader.get_summary()
    names = [metadata.name for metadata in reader.iter_metadata()]
with open(sys.argv[1], "rb") as file:
    straight = [(c.topic, m.log_time, m.publish_time, len(m.data)) for _, c, m in
                NonSeekingReader(file, validate_crcs=True).iter_messages()]
assert sorted(seeking) == sorted(straight)
assert seeking == sorted(seeking, key=lambda each: each[1])
events = sorted(([time, topic, event["seq"], event["t_ns"]] for topic, time, event in recording.events(sys.argv[1])))
print(json.dumps({"events": events, "count": summary.statistics.message_count, "messages": len(seeking),
                  "chunks": summary.statistics.chunk_count, "metadata": names,
                  "schemas": sorted(schema.name for schema in summary.schemas.values())}))
"""


def read_by_mcap(python, file):
    done = subprocess.run([python, "-c", READ, file, EXAMPLE.parent], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_is_older_than_5_s_outlives_kills_at_random():
    with System() as system:
        system.start_manager()
        bubbles = start_bubbles(system)
        lost = []
        while len(lost) < KILLS:
            lost += kills.round_of_kills(system, 10, len(lost), lambda: bubbles.poll() is None)
        assert lost == [0] * KILLS


def test_pypis_mcap_and_freeride_ctl_read_the_same_from_whole_and_recovered_files():
    python = mcap_python()
    with System() as system:
        system.start_manager()
        start_bubbles(system)
        recorder = start_recorder(system)
        until(lambda: len(viewed(system)) > 300, "300 events")
        recorder.kill()
        recorder.wait()
        start_recorder(system)  # ends the file of before
        until(lambda: any(event["topic"] == "recording.gap/stopped" for event in viewed(system)), "the gap")
        system.processes["recorder"].terminate()
        assert system.processes["recorder"].wait() == 0
        events = viewed(system)
        found = []
        files = sorted((system.state_dir / "recordings").glob("*.mcap"))
        assert len(files) == 2
        for file in files:
            assert file.stat().st_mode & 0o777 == 0o640
            read = read_by_mcap(python, file)
            assert read["count"] == read["messages"] and read["chunks"] > 0 and read["metadata"] == ["freeride"]
            assert read["schemas"] == ["freeride.columns"]
            assert read["messages"] < len(read["events"])
            found += read["events"]
        assert sorted(found) == sorted(
            [event["time_unix_ns"], event["topic"], event["seq"], event["t_ns"]] for event in events
        )

        # The example prints what is whole of a file that a crash has cut, as it was written.
        def printed(file):
            done = subprocess.run([python, EXAMPLE, file], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            return done.stdout.splitlines(), done.stderr

        cut = system.root / "cut.mcap"
        data = files[0].read_bytes()
        whole, _ = printed(files[0])
        for size in (len(data) // 2, len(data) - 100):  # within a chunk; behind the last
            cut.write_bytes(data[:size])
            left, said = printed(cut)
            assert left == whole[: len(left)] and "is cut off" in said
        assert left == whole != []

        out = system.root / "part.mcap"
        system.ok("recording", "export", out, "--topic", "bubble.end/gpt/1")
        read = read_by_mcap(python, out)
        wanted = sorted(event for event in found if event[1] == "bubble.end/gpt/1")
        assert read["events"] == wanted != []
        assert read["messages"] == len(wanted) and read["schemas"] == ["freeride.event"]  # JSON, which Foxglove shows
        again = kills.view(system.tree.program("freeride-ctl"), out, system.env)
        assert [event["seq"] for event in again] == [event[2] for event in wanted]


def test_why_is_told_by_the_manager_now_and_by_the_recording_then():
    with System() as system:
        manager = system.start_manager()
        start_recorder(system)
        bubbles = start_bubbles(system, devices=2)
        plugin = system.tree.plugin("sgd.so")
        system.load(plugin, "mine", "--stage", 7)
        now = system.ok("why", "mine")
        assert now["tasks"][0]["why"] == "no_worker"
        until(
            lambda: any(
                event["topic"] == "command.done/load" and event["target"] == "mine" for event in viewed(system)
            ),
            "the command in the recording",
        )
        time.sleep(6)
        # From now on nobody but the recording can know.
        for process in (manager, bubbles, system.processes["recorder"]):
            process.send_signal(signal.SIGTERM)
            process.wait()
        ends = [event for event in viewed(system) if event["topic"] == "bubble.end/gpt/1"]
        middle = ends[len(ends) // 2]
        # The second in which that bubble ended; then a moment in it may lie between two bubbles.
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(middle["time_unix_ns"] // 10**9))
        rank = system.ok("why", "gpt/1", "--at", at)
        assert rank["bubbles"] > 100 and rank["leased"] == rank["bubbles"] and rank["harvested_ns"] > 0
        assert rank["in_bubble"] == (rank["why"] != "training")
        task = system.ok("why", "mine", "--at", at)
        assert task["why"] == "no_worker" and task["task"]["state"] == "SUBMITTED"
        text = subprocess.run(
            [system.tree.program("freeride-ctl"), "why", "gpt/1", "--at", at],
            env=system.env,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        assert text.startswith("gpt/1 at ") and "bubble " in text and "lease " in text
        assert system.ok("why", "gpt/1", "--since", "10m")["bubbles"] == len(ends)
        assert system.ctl("why", "nobody", "--at", at).code == 4
        assert system.ctl("why", "mine", "--at", "yesterday").code == 2
        assert system.ctl("why", "mine").code == 3
        trace = system.root / "trace.json"
        system.ok("recording", "export", trace)
        spans = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
        assert len([span for span in spans if span["cat"] == "bubbles" and span["args"]["leased"]]) >= len(ends)
        assert system.ctl("recording", "export", trace).code == 1  # it is there
        files = system.ok("recording", "ls")["files"]
        assert [file["finished"] for file in files] == [True]


def test_a_full_disk_is_a_pause(tmp_path):
    if os.geteuid() != 0:
        pytest.skip("needs root, for a disk of its own")
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.strip()}")
    try:
        with System() as system:
            system.start_manager()
            start_bubbles(system)
            system.start(
                "recorder", [system.tree.program("freeride-recorder"), "--recordings", disk / "r", "--keep-free", 0]
            )
            log = system.root / "recorder.log"
            ctl = system.tree.program("freeride-ctl")
            until(lambda: list((disk / "r").glob("*.mcap")) and kills.view(ctl, disk / "r", system.env), "events")
            filler = disk / "filler"
            with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
                while True:
                    file.write(b"x" * 4096)
            until(lambda: "recording pauses" in log.read_text(), "the pause")
            time.sleep(5)
            assert log.read_text().count("recording pauses") == 1
            filler.unlink()
            until(lambda: "recording continues" in log.read_text(), "that it goes on")
            until(
                lambda: any(
                    event["topic"] == "recording.gap/disk" for event in kills.view(ctl, disk / "r", system.env)
                ),
                "the gap",
            )
            gap = [event for event in kills.view(ctl, disk / "r", system.env) if event["topic"] == "recording.gap/disk"]
            assert gap[0]["lost"] > 0
    finally:
        subprocess.run(["umount", disk], check=False)

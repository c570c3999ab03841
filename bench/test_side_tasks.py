"""bench/side_tasks.py on a CPU, with few bubbles: every figure is there and of the right kind. How good they are is for a machine with a GPU to say."""
import json
import os
import pathlib
import subprocess
import sys

BUILD = pathlib.Path(os.environ["FREERIDE_BUILD_DIR"])
SCRIPT = pathlib.Path(__file__).with_name("side_tasks.py")


def run(*words):
    return subprocess.run([sys.executable, str(SCRIPT), "--bin", str(BUILD / "bin"), "--plugins", str(BUILD / "plugins"), "--device", "cpu-0",
                           "--sandbox", "none", "--quick", *map(str, words)], capture_output=True, text=True, timeout=240, check=False)


def test_a_row_has_every_figure(tmp_path):
    done = run("--task", "pagerank:iterations:scale=8,tolerance=0,max_iterations=1000000,step_ms=0.2", "--out", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "out.json").read_text())
    for key in ("machine", "driver", "versions", "date", "command"):
        assert key in result
    (row,) = result["rows"]
    assert row["side_task"] == "pagerank" and row["interface"] == "iterative" and row["gpu_memory_mib"] is None
    assert row["work_per_s"] > 0 and row["plain_work_per_s"] > 0 and row["like_work_per_s"] > 0 and row["step_p50_ms"] > 0
    assert row["outside_steps_pct"] > -1  # the two clocks are read a moment apart; on a busy core others come between
    assert [cell["bubble_ms"] for cell in row["harvest"]] == [10, 20]
    for cell in row["harvest"]:
        assert cell["bubbles"] >= 8 and 0 <= cell["share_pct"] <= 100 and cell["overrun_p99_us"] >= 0
    assert "pagerank" in done.stdout


def test_what_cannot_be_measured_is_said_in_a_line():
    done = run("--task", "nosuch:steps")
    assert done.returncode == 1 and "expected NAME:WORK" in done.stderr
    done = run("--task", "image:images:input=/nowhere")
    assert done.returncode == 1 and "/nowhere" in done.stderr
    done = run("--task", "pagerank:iterations:scale=no")
    assert done.returncode == 1 and "parameter scale=no" in done.stderr

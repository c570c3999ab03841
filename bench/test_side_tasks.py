"""bench/side_tasks.py on a CPU, with few bubbles: every figure is there and of the right kind. How good they are is for
a machine with a GPU to say."""

import json
import os
import pathlib
import subprocess
import sys

BUILD = pathlib.Path(os.environ["FREERIDE_BUILD_DIR"])
SCRIPT = pathlib.Path(__file__).with_name("side_tasks.py")


def run(*words):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, words)], capture_output=True, text=True, timeout=300, check=False
    )


def measure(*words):
    return run("--bin", BUILD / "bin", "--plugins", BUILD / "plugins", "--sandbox", "none", "--quick", *words)


def test_both_interfaces_side_by_side_have_every_figure(tmp_path):
    out = tmp_path / "out.json"
    cores = sorted(os.sched_getaffinity(0))
    done = measure(
        "--device",
        f"cpu-{cores[0]},cpu-{cores[-1]}",
        "--interfaces",
        "iterative,imperative",
        "--task",
        "pagerank:iterations:scale=8,tolerance=0,max_iterations=1000000,step_ms=0.2",
        "--out",
        out,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    for key in ("machine", "driver", "versions", "date", "command"):
        assert key in result
    assert [(row["side_task"], row["interface"]) for row in result["rows"]] == [
        ("pagerank", "iterative"),
        ("pagerank", "imperative"),
    ]
    for row in result["rows"]:
        assert row["gpu_memory_mib"] is None and row["host_overhead_pct"] is not None
        assert (
            row["work_per_s"] > 0
            and row["plain_work_per_s"] > 0
            and row["like_work_per_s"] > 0
            and row["step_p50_ms"] > 0
        )
        assert [cell["bubble_ms"] for cell in row["harvest"]] == [10, 20]
        for cell in row["harvest"]:
            assert cell["bubbles"] >= 8 and 0 <= cell["share_pct"] <= 100 and cell["overrun_p99_us"] >= 0
        assert "pagerank" in done.stdout
    # Two clocks are read a moment apart, and on a busy core others come between: some percent below 0 then.
    assert -50 < result["rows"][0]["outside_steps_pct"] < 100
    assert result["rows"][1]["outside_steps_pct"] is None
    assert result["rows"][0]["own_step_ms"] > 0 and result["rows"][1]["own_step_ms"] is None
    # The rows follow from the samples, and of two files' the later ones count.
    again = tmp_path / "again.json"
    assert run("--table", out, out, "--out", again).stdout == done.stdout
    assert json.loads(again.read_text())["rows"] == result["rows"]
    assert run("--table", again, again).stdout == done.stdout  # of files that were made so, too


def test_what_cannot_be_measured_is_said_in_a_line():
    done = measure("--device", "cpu-0", "--task", "nosuch:steps")
    assert done.returncode == 1 and "expected NAME:WORK" in done.stderr
    done = measure("--device", "cpu-0", "--task", "image:images:input=/nowhere")
    assert done.returncode == 1 and "/nowhere" in done.stderr
    done = measure("--device", "cpu-0", "--task", "pagerank:iterations:scale=no")
    assert done.returncode == 1 and "parameter scale=no" in done.stderr

"""Report, timeline and progress of the demo, on events of a run that is known by heart."""

import json
import os
import pathlib
import subprocess
import sys
import xml.etree.ElementTree

import pytest

import machine
import material
import progress
import report
import timeline

MS = 1_000_000
SECOND = 1000 * MS
IDLE = {"other_cpu_pct": 1.0, "stolen_cpu_pct": 0.5}


def iteration(stage, number, holdout, harvested_ms=0):
    begin = SECOND + number * 100 * MS
    return f"training.iteration/demo/{stage}", {
        "t_ns": begin + 100 * MS,
        "source": f"w{stage}",
        "seq": 1,
        "job": "demo",
        "device": f"cpu-{stage}",
        "rank": stage,
        "stage": stage,
        "iteration": number,
        "begin_ns": begin,
        "end_ns": begin + 100 * MS,
        "bubble_ns": 20 * MS,
        "harvested_ns": harvested_ms * MS,
        "holdout": holdout,
        "harvested": harvested_ms > 0,
    }


def bubble(stage, number, holdout, harvested_ms=0, overrun_us=0):
    begin = SECOND + number * 100 * MS + 40 * MS
    event = {
        "t_ns": begin,
        "source": f"w{stage}",
        "seq": 1,
        "job": "demo",
        "stage": stage,
        "rank": stage,
        "iteration": number,
        "wait": 1,
        "type": "B",
        "begin_ns": begin,
        "end_ns": begin + 20 * MS,
        "learned_ns": 19 * MS,
        "harvested_ns": harvested_ms * MS,
        "overrun_ns": overrun_us * 1000,
        "leased": not holdout,
        "holdout": holdout,
        "task": "",
        "side_begin_ns": 0,
        "side_end_ns": 0,
    }
    if harvested_ms:
        event.update(task="pagerank", side_begin_ns=begin + MS, side_end_ns=begin + (1 + harvested_ms) * MS)
    return f"bubble.end/demo/{stage}", event


@pytest.fixture
def events():
    """Two stages, eight iterations; the even blocks of two are held out, the others harvest 15 of 20 ms on stage 0 and
    13 on stage 1."""
    made = [
        (
            "task.state/pagerank",
            {
                "t_ns": 2 * SECOND,
                "source": "m",
                "seq": 1,
                "task": "pagerank",
                "state": "RUNNING",
                "verdict": {"kind": ""},
                "counters": {"steps": 7},
            },
        )
    ]
    for number in range(8):
        holdout = number // 2 % 2 == 0
        for stage in range(2):
            harvested = 0 if holdout else 15 - 2 * stage
            made += [
                bubble(stage, number, holdout, harvested, overrun_us=0 if holdout else 10 * number),
                iteration(stage, number, holdout, harvested),
            ]
    return made


@pytest.fixture
def job():
    return {
        "job": "demo",
        "stages": 2,
        "iterations": 8,
        "holdout_iterations": 4,
        "measured": True,
        "time_increase_pct": 0.3,
        "time_increase_ci95_low_pct": -0.9,
        "time_increase_ci95_high_pct": 1.5,
        "bubble_share_pct": 20.0,
        "harvested_share_pct": 70.0,
        "overrun_p50_us": 20.0,
        "overrun_p99_us": 70.0,
        "duty_pct": 100.0,
        "stage_bubble_share_pct": {"0": 20.0, "1": 20.0},
        "stage_harvested_share_pct": {"0": 75.0, "1": 65.0},
    }


def task(name="pagerank", steps=1000, kind="stopped"):
    return {
        "state": {
            "task": name,
            "plugin": f"{name}.so",
            "stage": 0,
            "verdict": {"kind": kind, "reason": "by user"},
            "counters": {"steps": steps, "step_ns": steps * MS, "harvested_ns": steps * MS, "leases": 9, "metrics": {}},
        }
    }


def log(count, offset=0.0):
    return [
        {
            "iteration": i,
            "loss": 5.0 - i / 10 + offset,
            "begin_ns": SECOND + i * 100 * MS,
            "end_ns": SECOND + (i + 1) * 100 * MS,
        }
        for i in range(count)
    ]


def test_report_has_the_promised_keys_and_no_problem(events, job):
    made = report.build(job, [task()], events, log(8), log(3), 0, IDLE)
    for key in (
        "time_increase_pct",
        "time_increase_ci95_pct",
        "bubble_share_pct",
        "harvested_share_pct",
        "overrun_p99_us",
        "loss_first",
        "loss_last",
    ):
        assert key in made
    assert (
        made["tasks"][0]["name"] == "pagerank"
        and made["tasks"][0]["steps"] == 1000
        and made["tasks"][0]["verdict"] == "stopped"
    )
    assert made["time_increase_ci95_pct"] == [-0.9, 1.5]
    assert made["losses_equal"] and made["loss_first"] == 5.0 and made["loss_last"] == 4.3
    assert made["problems"] == []
    json.dumps(made)
    text = report.table(made)
    for part in ("+0.30 %", "70.0 %", "p99 70 µs", "pagerank", "bit for bit", "stage 1 65.0 %"):
        assert part in text


def test_measures_are_found_again_in_the_events(events):
    found = report.measures_from_events(events)
    assert found["bubbles"] == 16 and found["bubbles_leased"] == 8
    assert found["bubble_share_pct"] == pytest.approx(20)
    assert found["harvested_share_pct"] == pytest.approx(70)
    assert found["overrun_p50_us"] == 60 and found["overrun_max_us"] == 70
    assert report.measures_from_events([])["harvested_share_pct"] == 0


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(losses=log(3, 1e-12)), "losses with and without harvesting differ"),
        (dict(losses=[]), "no losses to compare"),
        (dict(job={"time_increase_ci95_low_pct": 2.1}), "slowed down"),
        (dict(job={"measured": False}), "could not be measured"),
        (dict(job={"harvested_share_pct": 59.9}), "only 59.9 %"),
        (
            dict(job={"harvested_share_pct": 59.9}, load={"other_cpu_pct": 30, "stolen_cpu_pct": 2}),
            "32 % of its CPU time went to others",
        ),
        (dict(tasks=[task(steps=0)]), "made no step"),
        (dict(tasks=[task(kind="crashed")]), "ended as 'crashed'"),
        (dict(lost=3), "3 events were lost"),
    ],
)
def test_everything_that_is_wrong_is_a_problem(events, job, change, words):
    made = report.build(
        dict(job, **change.get("job", {})),
        change.get("tasks", [task()]),
        events,
        log(8),
        change.get("losses", log(3)),
        change.get("lost", 0),
        change.get("load", IDLE),
    )
    assert len(made["problems"]) == 1 and words in made["problems"][0]
    assert report.table(made)


def test_timeline_shows_where_holdout_meets_harvest(events, tmp_path):
    # A held-out iteration and then three harvested ones are nowhere here: the last four it is.
    assert timeline.choose_window(events) == (SECOND + 400 * MS, SECOND + 800 * MS)
    longer = events + [iteration(0, number, False, 15) for number in range(8, 12)]
    begin, end = timeline.choose_window(longer)
    assert begin == SECOND + 500 * MS  # the held-out fifth, and the sixth to eighth
    assert (end - begin) == timeline.WINDOW_ITERATIONS * 100 * MS
    picture = tmp_path / "timeline.svg"
    assert timeline.draw(picture, longer)
    drawn = [one.get("fill") for one in xml.etree.ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}rect")]
    assert all(drawn.count(colour) > 1 for colour in timeline.COLOURS)  # bars, besides what explains them
    assert drawn.count("url(#baseline)") == 2  # one of each stage
    assert not timeline.draw(tmp_path / "none.svg", []) and not (tmp_path / "none.svg").exists()


def test_progress_line(events):
    events.append(("task.progress/profile-1", {"task": "profile-1", "counters": {"steps": 8}}))
    text = progress.line(events, log(8))
    assert "profile-1" not in text
    assert "loss 4.300" in text and "stage 0: bubbles 20 %, harvested 75 %" in text and "pagerank 7 steps" in text
    assert progress.line([], []) == "training starts"


def test_a_run_without_a_build_says_so(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            os.path.join(os.path.dirname(__file__), "run.py"),
            "--build",
            str(tmp_path),
            "--out",
            str(tmp_path / "out"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "make build" in done.stderr


@pytest.mark.parametrize(
    "wanted, built, stages, chosen",
    [
        ("pagerank,image", [], 2, ["pagerank", "image"]),
        ("pagerank,image", [], 4, ["pagerank", "image", "pagerank", "image"]),
        ("sgd", [], 3, ["sgd", "sgd", "sgd"]),
        ("all", ["sgd", "pagerank", "image"], 2, ["pagerank", "image", "sgd"]),
        ("all", ["sgd"], 2, ["sgd", "sgd"]),
    ],
)
def test_every_stage_gets_a_side_task_and_every_side_task_a_stage(tmp_path, wanted, built, stages, chosen):
    for name in built:
        (tmp_path / f"{name}.so").touch()
    assert material.choose_side_tasks(wanted, tmp_path, stages) == chosen


@pytest.mark.parametrize("wanted", ["", "sgd,nothing", "all"])
def test_unknown_side_tasks_are_said_with_what_there_is(tmp_path, wanted):
    with pytest.raises(ValueError, match="choose among pagerank"):
        material.choose_side_tasks(wanted, tmp_path, 2)


def test_the_machines_other_work_is_told_from_ours():
    watch = machine.Watch()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 1: pass"], check=True)
    load = watch.end()
    assert 0 <= load["other_cpu_pct"] <= 101 and 0 <= load["stolen_cpu_pct"] <= 101
    watch._own -= 1000  # as if ours had been 1000 s more: nothing is left for others
    assert watch.end()["other_cpu_pct"] == 0


def test_identifier_graph(tmp_path):
    names = material.write_identifier_graph(tmp_path / "graph.txt", limit_bytes=100_000)
    lines = (tmp_path / "graph.txt").read_text().splitlines()
    assert lines[0].startswith("#") and "self" in names
    for line in lines[1:]:
        assert all(0 <= int(number) < len(names) for number in line.split("\t"))


def test_the_sandbox_is_tried_before_anything_is_built(tmp_path):
    script = pathlib.Path(__file__).resolve().parent / "try-sandbox.sh"

    def tried(path):
        return subprocess.run([script], env={"PATH": path}, capture_output=True, text=True, timeout=60, check=False)

    assert tried(os.environ["PATH"]).returncode == 0
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: no' >&2\nexit 1\n")
    refusing.chmod(0o755)
    done = tried(f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 1
    assert "the bubblewrap sandbox does not work here: bwrap: no; user namespaces are needed" in done.stderr

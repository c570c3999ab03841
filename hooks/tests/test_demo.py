"""freeride demo: what it says of a run. The run itself: tests/e2e/test_up.py."""

import argparse

import pytest

from freeride import _demo


def job(**other):
    return {
        "measured": True,
        "iteration_ms": 100.0,
        "iterations": 80,
        "holdout_iterations": 40,
        "time_increase_pct": 2.0,
        "time_increase_ci95_low_pct": -1.0,
        "time_increase_ci95_high_pct": 5.0,
        "stage_bubble_share_pct": {"0": 10.0, "1": 25.0},
        "stage_harvested_share_pct": {"0": 0.0, "1": 60.0},
        **other,
    }


def state(steps=500, kind="", reason=""):
    return {"counters": {"steps": steps, "harvested_ns": 2_500_000_000}, "verdict": {"kind": kind, "reason": reason}}


def test_all_is_well():
    lines, wrong = _demo.outcome(job(), state(), [3.0, 2.0, 1.0], [3.0, 2.0])
    assert wrong == []
    table = dict(line.strip().split("  ", 1) for line in lines)
    assert {name: text.strip() for name, text in table.items()} == {
        "iteration without side task": "100 ms, the mean of 40 of 80",
        "iteration with side task": "102 ms",
        "slowdown": "+2.0 % (95 %: -1.0 to +5.0 %)",
        "bubbles of stage 1": "25 % of the time",
        "harvested share": "60 % of these bubbles, without baseline iterations",
        "steps of pagerank": "500, 2.50 s in all",
        "losses": "the first 2 with and without FreeRide are equal, bit for bit",
    }


@pytest.mark.parametrize(
    "arguments, said",
    [
        ((job(), state(), [3.0, 2.0], [3.0, 2.1]), "the losses with and without FreeRide differ"),
        ((job(), state(), [3.0, 2.0], []), "the losses with and without FreeRide differ"),
        ((job(), state(0), [3.0], [3.0]), "no bubble was harvested"),
        ((job(stage_harvested_share_pct={"0": 5.0}), state(), [3.0], [3.0]), "no bubble was harvested"),
        ((job(), state(kind="killed", reason="too long"), [3.0], [3.0]), "pagerank ended as killed: too long"),
    ],
)
def test_what_is_wrong_is_said(arguments, said):
    _, wrong = _demo.outcome(*arguments)
    assert len(wrong) == 1 and said in wrong[0]


def test_a_slowdown_that_is_not_measured_is_no_figure():
    lines, wrong = _demo.outcome(job(measured=False, time_increase_pct=0.0), state(), [3.0], [3.0])
    assert wrong == [] and any("not measured: too few iterations" in line for line in lines)


def test_a_python_without_torch_is_told_of(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho \"ModuleNotFoundError: No module named 'torch'\" >&2; exit 1\n")
    python.chmod(0o755)
    with pytest.raises(_demo.Failure, match="pip install torch"):
        _demo.check_torch(str(python))
    with pytest.raises(_demo.Failure, match="cannot be started"):
        _demo.check_torch(str(tmp_path / "none"))


def test_it_finds_the_example_of_a_checkout():
    assert _demo.example().endswith("examples/train_gpt.py")
    assert isinstance(_demo.parse([]), argparse.Namespace)

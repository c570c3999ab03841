"""The tables' arithmetic and page, on samples known by heart. `make bench-tables` runs the measuring itself."""

import json
import math
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import breakdown
import cells
import labels
import page
import pictures
import power
import rows

PRICE = {
    "training": {"gpu": "a GPU", "dollars_per_hour": 4.0},
    "low_tier": {"gpu": "a small GPU", "dollars_per_hour": 0.2},
    "paper": {},
    "side_task": {"pagerank": {"metric": "iterations", "per": 1, "unit": "iterations", "low_tier": 100.0}},
}


def alternating(pairs, without=100.0, increase=0.02):
    """Blocks of two iterations with and without side tasks, between them one that is neither."""
    samples = []
    for index in range(pairs):
        jitter = 1 + 0.001 * (index % 3)
        for ms, kind in ((without * (1 + increase) * jitter, True), (without * jitter, False)):
            samples += [[ms, kind], [ms, kind], [ms * 1.5, None]]
    return samples


def test_time_increase_of_blocks_that_alternate():
    mean, half = rows.time_increase_pct(alternating(6))
    assert mean == pytest.approx(2.0, abs=0.02) and half < 0.2


def test_time_increase_cancels_drift():
    samples = [[ms * (1 + 0.01 * index / 6), kind] for index, (ms, kind) in enumerate(alternating(10))]
    mean, half = rows.time_increase_pct(samples)
    assert mean - half <= 2.0 <= mean + half and half < 0.5


def test_time_increase_widens_with_noise_and_needs_five_blocks():
    noisy = [[ms * (1.1 if index % 12 < 6 else 1.0), kind] for index, (ms, kind) in enumerate(alternating(8))]
    noisy = [[ms * (1.08 if index % 5 == 0 else 1.0), kind] for index, (ms, kind) in enumerate(noisy)]
    mean, half = rows.time_increase_pct(noisy)
    assert half > 0.5
    assert rows.time_increase_pct(alternating(2)) == (None, None)
    assert rows.time_increase_pct([[100.0, True]] * 50) == (None, None)


def test_a_block_without_a_neighbour_is_left_out():
    # The third block without side tasks was too short to be seen: two blocks with them meet.
    samples = alternating(6)
    missing = samples[:9] + samples[12:]
    mean, _ = rows.time_increase_pct(missing)
    assert mean == pytest.approx(2.0, abs=0.2)


def test_cost_savings_by_hand():
    # An hour of training costs 4 $. Side tasks as fast as 5 low-tier GPUs earn 1 $ in it; it takes 1 % longer, which
    # costs 0.04 $ and lets them earn 0.01 $ more.
    assert rows.cost_savings_pct(1.0, 5.0, PRICE) == pytest.approx(100 * (1.01 - 0.04) / 4)
    assert rows.cost_savings_pct(50.0, 0.0, PRICE) == pytest.approx(-50)


def test_the_paper_s_figures_are_within_reach_of_its_formula():
    # S + I = (1 + I) x what side tasks earn: for all of the paper's rows that has to be a sum that some rate of work
    # can earn.
    price = rows.prices()
    for method in price["paper"].values():
        for increase, savings in method.values():
            assert savings + increase > 0


def event(stage, begin_ms, end_ms, **more):
    fields = {
        "topic": f"bubble.end/tables/{stage}",
        "stage": stage,
        "begin_ns": int(begin_ms * 1e6),
        "end_ns": int(end_ms * 1e6),
        "learned_ns": 1,
        "leased": True,
        "holdout": False,
        "harvested_ns": 0,
        "overrun_ns": 0,
        "side_begin_ns": 0,
        "side_end_ns": 0,
    }
    fields.update(
        {
            key: int(value * 1e6) if key.endswith("_ns") and isinstance(value, float) else value
            for key, value in more.items()
        }
    )
    return fields


def test_the_parts_of_the_bubbles_add_up():
    events = [
        event(0, 0, 10, side_begin_ns=1.0, side_end_ns=9.0, harvested_ns=7.0),
        event(0, 20, 25),
        event(0, 30, 32, leased=False),
        event(0, 40, 43, leased=False, learned_ns=0),
        event(0, 50, 60, side_begin_ns=51.0, side_end_ns=61.0, harvested_ns=9.0, overrun_ns=1.0),
    ]
    stage = breakdown.bubble_breakdown(events)["0"]
    parts = {key: stage[key] / 1e6 for key, _, _ in pictures.PARTS}
    assert parts == {
        "running_ns": 16,
        "until_first_step_ns": 2,
        "between_steps_ns": 1,
        "after_last_step_ns": 1,
        "no_step_fitted_ns": 5,
        "not_leased_ns": 2,
        "not_learned_ns": 3,
    }
    assert sum(parts.values()) * 1e6 == stage["offered_ns"] and stage["bubbles"] == 5
    assert stage["overruns_quantiles_us"][-1] == 1000


def record():
    cell = {
        "side_task": "pagerank",
        "method": "iterative",
        "micro_batches": 4,
        "schedule": "1F1B",
        "budget_pct": None,
        "size": "middle",
        "batch": None,
    }
    bubbles = breakdown.bubble_breakdown([event(0, 0, 10, side_begin_ns=1.0, side_end_ns=9.0, harvested_ns=8.0)])
    bubbles["0"]["share_pct"] = 40.0
    return {
        "scale": "of a test",
        "machine": "a machine",
        "stages": 1,
        "driver": None,
        "versions": {"torch": "2"},
        "commit": "abc",
        "date": "today",
        "command": "run.py",
        "low_tier": "paper",
        "sizes": {"middle": {"layers": 1, "width": 1, "length": 1, "batch": 1}},
        "failed": {"pagerank-mps": "MPS needs GPUs"},
        "alone": {"pagerank": [1000.0, 2.0]},
        "runs": [
            {
                "cell": cell,
                "samples": alternating(6),
                "tasks": [{"side_task": "pagerank", "stage": 0, "work": 150.0, "seconds": 1.0}],
                "bubbles": bubbles,
            }
        ],
    }


def test_a_row_by_hand():
    (row,) = rows.rows(record(), PRICE)
    assert row["time_increase_pct"] == pytest.approx(2.0, abs=0.02) and row["harvested_share_pct"] == 80
    assert row["cost_savings_pct"] == pytest.approx(100 * (0.2 * 1.5 * 1.02 / 4 - 0.02), abs=0.03)
    assert row["most_savings_pct"] == pytest.approx(100 * 0.2 * (500 * 0.4 / 100) / 4)
    assert row["rates"][0]["in_bubbles_per_s"] == 150 and row["rates"][0]["alone_per_s"] == 500


def test_a_budget_s_ramp_is_told_apart():
    whole = record()
    (run_,) = whole["runs"]
    run_["cell"]["budget_pct"] = 0.5
    run_["ramp"] = {"samples": alternating(6, increase=0.04), "duty_pct": 45.0}
    (row,) = rows.rows(whole, PRICE)
    assert row["time_increase_pct"] == pytest.approx(2.0, abs=0.02)
    assert row["ramp_time_increase_pct"] == pytest.approx(4.0, abs=0.02) and row["ramp_duty_pct"] == 45


def test_every_table_is_made_of_a_single_run_and_pictures_of_it(tmp_path):
    tables = page.Tables(record(), PRICE)
    assert tables.main()[0]["slowdown, %"].startswith("+2.0")
    assert all(isinstance(labels.markdown(getattr(tables, name)()), str) for name in page.TABLES)
    for path in pictures.all_of(tables, str(tmp_path / "results")):
        assert path.stat().st_size > 5000


def test_the_published_tables_are_made_of_the_recorded_samples():
    tables = page.Tables(json.loads((HERE.parent / "results/tables-h200.json").read_text()), rows.prices())
    for path in (HERE.parents[1] / "docs/results.md", HERE / "details.md"):
        text = path.read_text()
        assert page.MARKED.search(text) and page.filled(text, tables) == text


def test_an_interval_of_26_blocks_has_23_degrees_of_freedom(monkeypatch):
    _, half = rows.time_increase_pct(alternating(13))
    monkeypatch.setattr(rows.stats.t, "ppf", lambda _, degrees: degrees)
    _, errors = rows.time_increase_pct(alternating(13))
    assert half / errors == pytest.approx(2.0686576 / 23, rel=1e-6)  # 1.960 would be the normal quantile


def test_every_scale_s_cells_have_names_of_their_own_and_prices():
    for scale in (cells.toy(), cells.gpu()):
        names = [cell.name for cell in scale.cells]
        assert len(set(names)) == len(names)
        used = {name for cell in scale.cells if cell.side_task != "mixed" for name in cell.side_task.split("+")} | set(
            scale.mixed
        )
        assert used <= set(rows.prices()["side_task"]) and used <= set(scale.params)


def test_bad_options_get_a_line(tmp_path):
    words = [sys.executable, str(HERE / "run.py"), "--scale", "toy", "--out", str(tmp_path / "t.json")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--build, or --programs and --plugins" in done.stderr
    done = subprocess.run(
        words + ["--build", str(tmp_path), "--python", "/usr/bin/false"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "can't import torch" in done.stderr and "Traceback" not in done.stderr
    assert not math.isnan(rows.prices()["training"]["dollars_per_hour"])


def test_blocks_of_one_kind_in_a_row_are_several():
    samples = [[100.0, True]] * 3 + [[98.0, False]] * 6 + [[102.0, True]] * 3 + [[101.0, None]] + [[99.0, False]] * 3
    assert [block[0] for block in rows.blocks_of(samples, 3)] == [True, False, False, True, False]
    assert len(rows.blocks_of(samples)) == 4


def test_energy_is_that_of_the_iterations_with_side_tasks_beyond_those_without():
    whole = record()
    for sample in whole["runs"][0]["samples"]:
        sample.append([[60.0 if sample[1] else 50.0, 1700.0, 1.0]])
    whole["runs"][0]["power"] = rows.power(whole["runs"][0]["samples"])
    whole["alone"]["pagerank"].append(400.0)
    (row,) = rows.rows(whole, PRICE)
    (of,) = row["power"]
    assert (
        of["with"]["joules"] == 60
        and of["without"]["watts"] == pytest.approx(500, rel=1e-2)
        and of["with"]["power_capped_pct"] == 100
    )
    # 12 iterations with side tasks, each 10 J more; 150 iterations of PageRank a second.
    seconds = row["seconds_with"]
    assert row["rates"][0]["joules_per_unit"] == pytest.approx(120 / (150 * seconds), rel=1e-2)
    assert row["rates"][0]["alone_joules_per_unit"] == pytest.approx(0.4)


def test_energy_between_samples_is_interpolated():
    samples = [{"at_ns": at * 10**8, "gpus": [[1000 * at, 0, 1500 + at, 4 * (at % 2), 0]]} for at in range(10)]
    joules, mhz, capped = power.between(samples, 2.5e8, 4.5e8, 0)
    assert joules == pytest.approx(2.0) and mhz == 1503.5 and capped == 0.5
    assert power.between(samples, 8e8, 12e8, 0) is None


def test_iterations_are_told_apart_by_their_ends():
    lines = [{"iteration": number, "end_ns": 10**9 * number + 7} for number in range(5, 12)]
    events = [{"iteration": number, "end_ns": 10**9 * (number - 1)} for number in range(1, 20)]
    assert breakdown.shift(lines, events) == 1 and breakdown.shift(lines, []) == 0
    said = [
        {"iteration": 1, "holdout": True},
        {"iteration": 1, "holdout": True},
        {"iteration": 2, "holdout": False},
        {"iteration": 3, "holdout": True},
        {"iteration": 3, "holdout": False},
    ]
    assert breakdown.kinds(said) == {1: False, 2: True, 3: None}

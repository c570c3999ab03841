"""What bench/long.py makes of a record: a made one, whose answers are known."""

import copy

import long

MS = 100  # of an iteration without side tasks
BLOCK, EVERY = 10, 5  # iterations of a block, and which block is held out


def record(slower=1.02, start_ms=150):
    """A side task is ordered in iteration 100, starts until 110, and is ordered to stop behind iteration 399."""
    begin_us, ms, kinds, now = [], [], "", 0
    for i in range(450):
        held_out, starting, there = i // BLOCK % EVERY == 0, 100 <= i < 110, 110 <= i < 400
        length = start_ms if starting else MS * slower if there and not held_out else MS
        kinds += {(0, 0): "-", (0, 1): "s", (1, 0): "h", (1, 1): "b"}[held_out, starting]
        begin_us.append(round(now * 1000))
        ms.append(length)
        now += length
    at = [1_000_000_000 + us * 1000 for us in begin_us]
    bubbles = [40.0] * 450
    harvested = [30.0 if 110 <= i < 400 and kinds[i] == "-" else 0.0 for i in range(450)]
    return {
        "iterations": {"first_begin_ns": at[0], "begin_us": begin_us, "ms": ms, "kinds": kinds},
        "stages": {"0": {"bubble_ms": bubbles, "harvested_ms": harvested}},
        "loads": [
            {"side_task": "made", "ordered_ns": at[100], "steps_ns": at[110], "stop_ns": at[400], "ended_ns": at[402]}
        ],
        "memory_mib": [[0, 10.0], [1, 11.0], [2, 11.5]],
        "memory_of": ["manager"],
    }


def test_a_side_task_is_compared_with_the_held_out_iterations_beside_it():
    row = long.summarise(record())["side_tasks"][0]
    assert abs(row["time_increase_pct"] - 2) < 1e-6
    assert row["time_increase_ci95_half_pct"] < 1e-6
    assert row["iterations"] == 290
    assert abs(row["held_out_pct"] - 100 * 50 / 290) < 0.1
    assert row["harvested_pct"] == [75.0]
    assert row["duty_pct"] == 100
    assert row["harvested_on_duty_pct"] == [75.0]


def test_iterations_that_the_budget_skips_lower_the_duty_and_not_what_is_harvested_on_duty():
    half = record()
    harvested = half["stages"]["0"]["harvested_ms"]
    half["stages"]["0"]["harvested_ms"] = [value if i % 2 else 0.0 for i, value in enumerate(harvested)]
    row = long.summarise(half)["side_tasks"][0]
    assert row["duty_pct"] == 50
    assert row["harvested_pct"] == [37.5]
    assert row["harvested_on_duty_pct"] == [75.0]


def test_a_start_loses_by_how_much_its_iterations_are_longer_held_out_or_not():
    row = long.summarise(record())["side_tasks"][0]
    assert row["start_s"] == 1.5
    assert row["beside_training_s"] == 1.5
    assert row["lost_s"] == 0.5  # ten iterations, each 50 ms longer
    assert row["longest_iteration_ms"] == 150


def test_the_whole_counts_starts_and_a_single_side_task_does_not():
    with_start = record(start_ms=300)
    # The start is in iterations that are not held out
    with_start["iterations"]["kinds"] = with_start["iterations"]["kinds"].replace("b", "s")
    plain = long.summarise(record())
    dear = long.summarise(with_start)
    assert dear["side_tasks"][0]["time_increase_pct"] == plain["side_tasks"][0]["time_increase_pct"]
    assert dear["whole"]["time_increase_pct"] > plain["whole"]["time_increase_pct"]


def test_a_record_that_was_cut_off_has_what_it_has():
    cut = copy.deepcopy(record())
    cut["loads"] = [{"side_task": "made", "ordered_ns": 5}]
    assert long.summarise(cut)["side_tasks"] == []
    cut["memory_mib"] = []
    assert "memory_mib" not in long.summarise(cut)


def test_memory_is_told_of_each_daemon():
    assert long.summarise(record())["memory_mib"] == {"manager": {"first": 10.0, "half time": 11.0, "last": 11.5}}

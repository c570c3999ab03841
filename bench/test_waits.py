"""What bench/gpu_waits.py makes of its record: the rows that are in it."""

import json
import pathlib

import analysis
import gpu_waits
import pytest

RECORD = json.loads((pathlib.Path(__file__).resolve().parent / "results/waits-h200.json").read_text())


def test_the_recorded_rows_are_made_of_the_recorded_samples():
    made = json.loads(json.dumps(gpu_waits.summarise(RECORD)))
    assert made == {key: RECORD[key] for key in made} and len(made["rows"]) == 15


def test_a_block_s_first_iteration_does_not_count():
    kinds = ([True] * 3 + [False] * 3) * 4
    values = [(102 if kind else 100) + 50 * (i % 3 == 0) for i, kind in enumerate(kinds)]
    assert analysis.increases(values, kinds) == pytest.approx([2] * 4)
    assert analysis.increase_row([1.0] * 4, [True, True, False, None]) == {}

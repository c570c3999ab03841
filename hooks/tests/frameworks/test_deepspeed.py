"""DeepSpeed's PipelineEngine, unpatched, over gloo: hooked and not."""

import pytest

import launch
import schedules


@pytest.mark.parametrize("size,stages,micro_batches", [(2, 2, 3), (4, 4, 4), (4, 2, 4)])
def test_pipeline_engine(tmp_path, size, stages, micro_batches):
    plan = {"stages": stages, "micro_batches": micro_batches, "iterations": 50}
    plain = launch.run("train_deepspeed.py", size, plan, tmp_path / "plain", hooked=False)
    hooked = launch.run("train_deepspeed.py", size, plan, tmp_path / "hooked", hooked=True)
    for rank, (without, with_hook) in enumerate(zip(plain, hooked)):
        assert with_hook["losses"] == without["losses"]
        assert len(set(without["losses"])) > 25
        for number, marked in enumerate(with_hook["marked"]):
            expected = with_hook["expected"]
            if number == 0 and with_hook["stage"] > 0:
                expected = ["receive", *expected]  # the shapes
            assert marked == expected, (rank, number)
        # The loss comes after the optimizer's step: it is the next iteration's first wait.
        assert (with_hook["waits"], with_hook["iterations"]) == (len(with_hook["expected"]), 50)
        # DeepSpeed counts pipelines first: ranks 0 and 1 are the same stage of two pipelines.
        assert (
            [with_hook["stage"], with_hook["replica"]]
            == with_hook["place"]
            == [rank // (size // stages), rank % (size // stages)]
        )
        assert (with_hook["stages"], with_hook["replicas"]) == (stages, size // stages)
        assert with_hook["framework"].endswith("gloo, DeepSpeed") and with_hook["state"] == "active"
        assert "freeride:" not in launch.said(tmp_path / "hooked", rank)
    if stages == size:
        schedules.check(
            f"DeepSpeed 1F1B, {stages} ranks, {micro_batches} micro-batches", [rank["calls"] for rank in plain]
        )

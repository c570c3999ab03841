"""torch.distributed.pipelining, unpatched, over gloo: hooked and not, every schedule it has."""

import itertools

import pytest

import launch
import schedules

ITERATIONS = 50
# schedule, stages a rank, micro-batches: some counts that each accepts. DualPipeV wants at least one for each of its stages, 1F1B's action
# list one for each rank.
PLANS = {
    2: [
        ("GPipe", 1, 1),
        ("GPipe", 1, 4),
        ("1F1B", 1, 2),
        ("1F1B", 1, 5),
        ("Interleaved1F1B", 2, 2),
        ("Interleaved1F1B", 2, 4),
        ("LoopedBFS", 2, 2),
        ("LoopedBFS", 2, 3),
        ("InterleavedZeroBubble", 2, 2),
        ("InterleavedZeroBubble", 2, 4),
        ("ZBVZeroBubble", 2, 2),
        ("ZBVZeroBubble", 2, 5),
        ("DualPipeV", 2, 4),
        ("DualPipeV", 2, 6),
    ],
    3: [
        ("GPipe", 1, 3),
        ("1F1B", 1, 4),
        ("Interleaved1F1B", 2, 3),
        ("LoopedBFS", 2, 2),
        ("InterleavedZeroBubble", 2, 3),
        ("ZBVZeroBubble", 2, 3),
        ("DualPipeV", 2, 6),
    ],
    4: [
        ("GPipe", 1, 2),
        ("1F1B", 1, 4),
        ("1F1B", 1, 8),
        ("Interleaved1F1B", 2, 4),
        ("Interleaved1F1B", 2, 8),
        ("LoopedBFS", 2, 4),
        ("InterleavedZeroBubble", 2, 4),
        ("ZBVZeroBubble", 2, 4),
        ("ZBVZeroBubble", 2, 7),
        ("DualPipeV", 2, 8),
    ],
}


def plans(size, **more):
    return [
        {"schedule": schedule, "chunks": chunks, "micro_batches": batches, "iterations": ITERATIONS, **more}
        for schedule, chunks, batches in PLANS[size]
    ]


def check(plan, rank, plain, hooked):
    assert hooked["losses"] == plain["losses"]
    first, *others = hooked["marked"]
    # The first iteration also learns shapes from the neighbours, which is waited for, too; in torch 2.15 after a vote of all.
    first = itertools.dropwhile(lambda mark: mark == "collective", (mark for mark in first if mark != "other"))
    assert list(first) == hooked["expected"], (plan, rank)
    for marked in others:
        assert marked == hooked["expected"], (plan, rank)
    assert hooked["waits"] == len(hooked["expected"])
    assert hooked["framework"].endswith("gloo, torch.distributed.pipelining")


@pytest.mark.parametrize("size", PLANS)
def test_every_schedule(tmp_path, size):
    plain = launch.run("train_pipelining.py", size, plans(size), tmp_path / "plain", hooked=False)
    hooked = launch.run("train_pipelining.py", size, plans(size), tmp_path / "hooked", hooked=True)
    for rank in range(size):
        assert "freeride" not in launch.said(tmp_path / "hooked", rank)
        assert hooked[rank][-1]["state"] == "active"
        for plan, without, with_hook in zip(plans(size), plain[rank], hooked[rank]):
            check(plan, rank, without, with_hook)
            assert (with_hook["stage"], with_hook["stages"], with_hook["replica"], with_hook["replicas"]) == (
                rank,
                size,
                0,
                1,
            )
    assert any(any(losses) for rank in plain for losses in rank[0]["losses"])
    for index, plan in enumerate(plans(size)):
        schedules.check(
            f"{plan['schedule']}, {size} ranks, {plan['micro_batches']} micro-batches",
            [rank[index]["calls"] for rank in plain],
        )


def test_data_and_context_parallel_beside_the_pipeline(tmp_path):
    """Two pipelines of two stages: all-reduces and a ring among the two of a stage are not the pipeline's, a norm over both stages is."""
    chosen = [
        plan
        for plan in plans(2, stages=2)
        if (plan["schedule"], plan["micro_batches"])
        in (("1F1B", 5), ("GPipe", 4), ("Interleaved1F1B", 4), ("ZBVZeroBubble", 5))
    ]
    plain = launch.run("train_pipelining.py", 4, chosen, tmp_path / "plain", hooked=False)
    hooked = launch.run("train_pipelining.py", 4, chosen, tmp_path / "hooked", hooked=True)
    for rank in range(4):
        assert "freeride" not in launch.said(tmp_path / "hooked", rank)
        for plan, without, with_hook in zip(chosen, plain[rank], hooked[rank]):
            assert with_hook["expected"][-1] == "collective"
            check(plan, rank, without, with_hook)
            assert (with_hook["stage"], with_hook["stages"], with_hook["replica"], with_hook["replicas"]) == (
                rank % 2,
                2,
                rank // 2,
                2,
            )

"""What Megatron-Core, unpatched, tells of its pipelines; and its schedules, for which what they allocate on the GPU comes to lie on the CPU (over
NCCL: tests/gpu/frameworks.py)."""

import launch


def test_place_and_calls(tmp_path):
    ranks = launch.run("place_megatron.py", 4, {"late": False}, tmp_path / "hooked", hooked=True)
    for rank, seen in enumerate(ranks):
        assert seen["ranks"] == [rank % 2, rank % 2 + 2]
        assert (seen["stage"], seen["stages"], seen["replica"], seen["replicas"]) == (rank // 2, 2, rank % 2, 2)
        assert seen["framework"].endswith("gloo, Megatron")
        assert seen["counts"] == [1, 1, 0, 0, 1, 0, 0]
        assert "freeride:" not in launch.said(tmp_path / "hooked", rank)


def test_imported_after_the_default_group_was_made(tmp_path):
    """Ranks attach by a guess, and move to their place when Megatron tells it."""
    ranks = launch.run("place_megatron.py", 4, {"late": True}, tmp_path / "hooked", hooked=True)
    for rank, seen in enumerate(ranks):
        assert seen["counts"] == [1, 1, 0, 0, 1, 0, 0]
        assert (seen["stage"], seen["stages"], seen["replica"], seen["replicas"]) == (rank // 2, 2, rank % 2, 2)
        assert "freeride:" not in launch.said(tmp_path / "hooked", rank)


def test_schedules(tmp_path):
    """1F1B in batches and in single messages, interleaved, and interleaved with messages overlapped by computing."""
    kinds = [(1, False, True), (1, False, False), (2, False, True), (2, True, False)]
    plans = [
        {"chunks": chunks, "overlap": overlap, "batched": batched, "micro_batches": 4, "iterations": 20}
        for chunks, overlap, batched in kinds
    ]
    plain = launch.run("train_megatron.py", 2, plans, tmp_path / "plain", hooked=False)
    hooked = launch.run("train_megatron.py", 2, plans, tmp_path / "hooked", hooked=True)
    for rank in range(2):
        for plan, without, with_hook in zip(plans, plain[rank], hooked[rank]):
            assert with_hook["losses"] == without["losses"], (plan, rank)
            assert with_hook["waits"] == without["waits"] and with_hook["state"] == "active"
            # Each micro-batch comes to a rank from the other one once for each of its parts but one, in either direction; and the norm of
            # the gradients over both stages is waited for, too. gloo waits for each receive of a batch by itself.
            assert with_hook["page_waits"] == plan["micro_batches"] * (2 * plan["chunks"] - 1) + 1, (plan, rank)
        assert "freeride:" not in launch.said(tmp_path / "hooked", rank)
    assert any(losses for of_rank in plain for losses in of_rank[0]["losses"])

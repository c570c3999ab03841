"""The same on other versions of torch: what the hook reads of torch.distributed, and a pipeline of each kind, hooked and not."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.testing._internal.distributed.fake_pg import FakeStore

import launch
from freeride import _torch

PLANS = [
    {"schedule": schedule, "chunks": chunks, "micro_batches": batches, "iterations": 4, **more}
    for schedule, chunks, batches, more in (
        ("1F1B", 1, 5, {}),
        ("Interleaved1F1B", 2, 4, {}),
        ("GPipe", 1, 4, {"new_group_at": 2}),
    )
]
HAS_EDGE_GROUPS = hasattr(getattr(dist, "config", None), "pipeline_per_edge_p2p")


def receives(plan, rank, size=2):
    """What a rank receives in an iteration, in any order."""
    mine = [rank + chunk * size for chunk in range(plan["chunks"])]
    last = size * plan["chunks"] - 1
    kinds = [f"F{stage}" for stage in mine if stage > 0] + [f"B{stage}" for stage in mine if stage < last]
    return sorted(f"{kind}.{batch}" for kind in kinds for batch in range(plan["micro_batches"]))


@pytest.fixture(name="plain", scope="module")
def _plain(tmp_path_factory):
    return launch.run("train_pipelining.py", 2, PLANS, tmp_path_factory.mktemp("plain"), hooked=False)


@pytest.mark.parametrize(
    "edge_groups",
    [
        False,
        pytest.param(
            True, marks=pytest.mark.skipif(not HAS_EDGE_GROUPS, reason="this torch has no groups of single edges")
        ),
    ],
)
def test_every_wait_of_a_pipeline_is_marked(tmp_path, plain, edge_groups):
    """Also on groups that no stage names, and after the default group was made anew."""
    env = {"TORCH_DISTRIBUTED_PIPELINE_PER_EDGE_P2P": "1"} if edge_groups else {}
    plans = [{**plan, "new_group_at": None} for plan in PLANS] if edge_groups else PLANS
    hooked = launch.run("train_pipelining.py", 2, plans, tmp_path, hooked=True, **env)
    for rank in range(2):
        assert "freeride" not in launch.said(tmp_path, rank)
        assert hooked[rank][-1]["state"] == "active"
        for plan, without, with_hook in zip(plans, plain[rank], hooked[rank]):
            assert with_hook["losses"] == without["losses"], plan
            first, *others = with_hook["marked"]
            named = sorted(mark for mark in first if mark not in ("other", "collective"))
            assert named == receives(plan, rank), (plan, rank)
            for marked in others:
                assert sorted(marked) == named and marked == others[0], (plan, rank, marked)


def test_the_peer_of_a_batch_on_another_group():
    """Rank 6 of the world is rank 2 of the group."""
    dist.init_process_group("fake", rank=5, world_size=8, store=FakeStore())
    try:
        group = dist.new_group([4, 5, 6, 7])
        ops = [dist.P2POp(dist.irecv, torch.zeros(1), 6, group), dist.P2POp(dist.isend, torch.zeros(1), 6)]
        found = [(sends, of, peer) for sends, of, peer, _ in _torch._messages_of_batch(c10d, (ops,), {})]
        assert found == [(False, group, 2), (True, dist.group.WORLD, 6)]
    finally:
        dist.destroy_process_group()

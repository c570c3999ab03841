"""What Megatron-Core, unpatched, tells of its pipelines. Its schedules allocate on the GPU and cannot run here."""
import launch


def test_place_and_calls(tmp_path):
    ranks = launch.run("place_megatron.py", 4, {"late": False}, tmp_path / "hooked", hooked=True)
    for rank, seen in enumerate(ranks):
        assert seen["ranks"] == [rank % 2, rank % 2 + 2]
        assert (seen["stage"], seen["stages"], seen["replica"], seen["replicas"]) == (rank // 2, 2, rank % 2, 2)
        assert seen["framework"].endswith("gloo, Megatron")
        assert seen["counts"] == [1, 1, 0, 0, 1, 0, 0]
        assert "freeride:" not in launch.said(tmp_path / "hooked", rank)


def test_imported_too_late_for_the_place(tmp_path):
    """The calls are known all the same, and the user is told what to do about the place."""
    ranks = launch.run("place_megatron.py", 4, {"late": True}, tmp_path / "hooked", hooked=True)
    for rank, seen in enumerate(ranks):
        assert seen["counts"] == [1, 1, 0, 0, 1, 0, 0] and (seen["stage"], seen["stages"]) == (rank, 4)
        assert f"set FREERIDE_STAGE={rank // 2}, FREERIDE_STAGES=2, FREERIDE_REPLICA={rank % 2}" in launch.said(tmp_path / "hooked", rank)

"""One rank of four: two Megatron pipelines of two stages, and the calls that its schedules make (which themselves need a GPU)."""

import json
import sys

import torch
import torch.distributed as dist


def main():
    late = json.load(open(sys.argv[1]))["late"]
    if late:
        dist.init_process_group("gloo")
    from megatron.core import parallel_state

    if not late:
        dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(pipeline_model_parallel_size=2)
    import freeride
    import record

    place, pipe, data = (
        freeride.state(),
        parallel_state.get_pipeline_model_parallel_group(),
        parallel_state.get_data_parallel_group(),
    )
    marks = []
    record.start(marks)

    def exchange(peer, group):
        works = [dist.isend(torch.ones(1), peer, group=group), dist.irecv(torch.ones(1), peer, group=group)]
        for work in works:
            work.wait()

    rank, counts = dist.get_rank(), []
    steps = [
        lambda: exchange((rank + 2) % 4, pipe),
        lambda: exchange((rank + 2) % 4, None),  # with two stages Megatron uses both groups
        lambda: exchange(rank ^ 1, data),
        lambda: exchange(rank ^ 1, None),  # a ring of the same stage
        lambda: dist.all_reduce(torch.ones(1), group=parallel_state.get_model_parallel_group()),  # the norm
        lambda: dist.all_reduce(torch.ones(1), group=data),
        lambda: dist.all_reduce(torch.ones(1 << 15), group=pipe),
    ]
    for step in steps:
        before = len(marks)
        step()
        counts.append(len(marks) - before)
    page = record.page()
    json.dump(
        {
            "state": place,
            "counts": counts,
            "stage": page.stage,
            "stages": page.stages,
            "replica": page.replica,
            "replicas": page.replicas,
            "ranks": dist.get_process_group_ranks(pipe),
            "framework": page.framework.decode(),
        },
        open(f"{sys.argv[2]}.{rank}", "w"),
    )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

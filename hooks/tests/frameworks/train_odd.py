"""One rank of a real GPipe training by torch.distributed.pipelining in which something odd happens; two ranks.

train_odd.py PLAN OUT     PLAN is a JSON object: iterations; and any of attach_twice, loader, profiler, fail_at, disable_at, kill_at, change_at,
                          micro_batches, then_micro_batches, delay_ms, then_delay_ms
"""

import json
import os
import signal
import sys
import threading
import time
import types

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import ScheduleGPipe

from train_pipelining import DIM, ROWS, Part, Stage

hooked = "freeride" in sys.modules


class Slow(Part):
    """Takes as long as it is told to."""

    delay_ms = 0

    def forward(self, x):
        time.sleep(self.delay_ms / 1e3)
        return super().forward(x)


class Rows(torch.utils.data.Dataset):
    def __init__(self, count):
        self.rows = torch.randn(count, DIM, generator=torch.Generator().manual_seed(5))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        if hooked and torch.utils.data.get_worker_info() is not None:
            import freeride  # what a forked loader may do by accident

            freeride.iteration_end()
            freeride.disable("in a loader")
        return self.rows[index]


def from_another_thread(function):
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def odd_things(plan, rank, number):
    if number == plan.get("kill_at") and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if not hooked or rank != plan.get("odd_rank", 0):
        return
    import freeride
    from freeride._hook import hook

    if number == plan.get("disable_at"):
        from_another_thread(lambda: freeride.disable("a test"))
    if number == plan.get("fail_at"):
        from_another_thread(lambda: hook.fail(RuntimeError("a test's failure")))


def main():
    plan = json.load(open(sys.argv[1]))
    torch.set_num_threads(1)
    if hooked and plan.get("attach_twice"):
        import freeride

        assert freeride.attach() and freeride.attach(job="other")
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    if hooked and plan.get("attach_twice"):
        assert freeride.attach(stage=7)
    part = Slow(rank)
    counts = [plan.get("micro_batches", 4), plan.get("then_micro_batches", plan.get("micro_batches", 4))]
    schedules = [
        ScheduleGPipe(Stage(part, rank, size, torch.device("cpu")), count, loss_fn=nn.functional.mse_loss)
        for count in counts
    ]
    optimizer = torch.optim.SGD(part.parameters(), lr=0.05)
    change_at = plan.get("change_at", plan["iterations"])
    data = Rows(max(counts) * ROWS * 2 * plan["iterations"])
    loader = iter(
        torch.utils.data.DataLoader(data, batch_size=max(counts) * ROWS * 2, num_workers=2 if plan.get("loader") else 0)
    )
    if plan.get("profiler"):
        profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True)
        profiler.start()
    losses = []
    try:
        for number in range(plan["iterations"]):
            odd_things(plan, rank, number)
            changed = number >= change_at
            part.delay_ms = (plan.get("then_delay_ms") if changed else plan.get("delay_ms")) or 0
            schedule, count = schedules[changed], counts[changed]
            rows = next(loader)
            given, wanted = rows[: count * ROWS], rows[-count * ROWS :]
            of_batches = []
            schedule.step(
                *([given] if rank == 0 else []),
                **({"target": wanted, "losses": of_batches} if rank == size - 1 else {}),
            )
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append([loss.item().hex() for loss in of_batches])
    except Exception as error:
        print(f"ENDED {number} {type(error).__name__}", flush=True)
        os._exit(3)
    result = {"losses": losses}
    if plan.get("profiler"):
        profiler.stop()
        result["profiled"] = any("Forward" in event.key or "gloo" in event.key for event in profiler.key_averages())
    if hooked:
        import freeride
        import record
        from freeride import pages

        result["state"] = freeride.state()
    if result.get("state", "off") != "off":
        page = record.page()
        bubbles = sorted(
            (bubble.state_word, bubble.begin_ns, bubble.end_ns, bubble.learned_low_ns)
            for _, bubble in pages.finished_bubbles(types.SimpleNamespace(view=page))
        )
        result.update(
            waits=page.waits,
            iterations=page.iteration,
            job=page.job.decode(),
            stage=page.stage,
            bubbles=[
                [pages.state_iteration(word), pages.state_wait(word), end - begin, learned]
                for word, begin, end, learned in bubbles
            ],
        )
    json.dump(result, open(f"{sys.argv[2]}.{rank}", "w"))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

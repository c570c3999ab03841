"""One rank of the training that the tables are about: a GPT in torch.distributed.pipelining stages, over NCCL where
there are GPUs, else over gloo.

RANK, WORLD_SIZE, … in the environment, the job as JSON in the argument. It knows nothing of FreeRide: with the hook it
is started by `python -m freeride.run`. It imports what it needs, waits until the file job["go"] exists, and trains in
*phases*: a schedule and a size each, one after the other in the same processes. The phase after this one, or the end,
is told by the file job["orders"]: {"phase": its number, "at": the iteration that is its first, "job": its schedule,
size and warm_up, or null}; "at" has to lie some iterations ahead, so that every rank sees it in time.

Rank 0 prints {"phase": number, "ready": iteration_ms} once a phase has warmed up, and one line for every iteration
since: {"iteration": number since the start, "ms": its length, "end_ns": CLOCK_MONOTONIC at its end}."""

import collections
import gc
import json
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "gpu"))

import torch
import torch.distributed as dist

import pipeline


class GpuClock:
    """Iterations as the GPU sees them; the host is at most two of them ahead."""

    def __init__(self):
        self.marks = collections.deque()
        self.begin = torch.cuda.Event(enable_timing=True)
        self.begin.record()
        self.begin.synchronize()
        self.begin_ns = time.monotonic_ns()
        self.last = None

    def lap(self, number):
        mark = torch.cuda.Event(enable_timing=True)
        mark.record()
        self.marks.append((number, mark))
        while len(self.marks) > 2:
            yield from self._oldest()

    def rest(self):
        while self.marks:
            yield from self._oldest()

    def _oldest(self):
        number, mark = self.marks.popleft()
        mark.synchronize()
        if self.last is not None:
            yield number, self.last.elapsed_time(mark), self.begin_ns + int(self.begin.elapsed_time(mark) * 1e6)
        self.last = mark


class HostClock:
    """The same where a step returns when its work is done."""

    def __init__(self):
        self.last = None

    def lap(self, number):
        end_ns = time.monotonic_ns()
        if self.last is not None:
            yield number, (end_ns - self.last) / 1e6, end_ns
        self.last = end_ns

    def rest(self):
        return ()


class Orders:
    """What is to come after this phase."""

    def __init__(self, path):
        self.path, self.order = pathlib.Path(path), None

    def due(self, phase, number):
        """Whether `number` is the first iteration that is not this phase's any more."""
        if self.order is None and self.path.exists():
            order = json.loads(self.path.read_text())  # put there whole, by renaming
            if order["phase"] == phase + 1:
                if number > order["at"]:
                    raise RuntimeError(
                        f"told in iteration {number} to end the phase with {order['at']}: other ranks have"
                    )
                self.order = order
        return self.order is not None and number >= self.order["at"]

    def take(self):
        order, self.order = self.order, None
        return order["job"]


def say(line):
    if dist.get_rank() == 0:
        print(json.dumps(line), flush=True)


def train(phase, job, number, orders, device):
    """One phase from iteration `number` on. Returns the next one's number and job."""
    training = pipeline.Training(
        job["schedule"],
        pipeline.Size(**job["size"]),
        device,
        dtype=torch.bfloat16 if device.type == "cuda" else torch.float32,
    )
    clock = GpuClock() if device.type == "cuda" else HostClock()
    lengths, warm = [], number + job["warm_up"]

    def told(laps):
        for one, ms, end_ns in laps:
            lengths.append(ms)
            if one >= warm:
                say({"iteration": one, "ms": round(ms, 4), "end_ns": end_ns})

    while not orders.due(phase, number):
        training.step()
        told(clock.lap(number))
        number += 1
        if number == warm:
            say({"phase": phase, "ready": sorted(lengths)[len(lengths) // 2]})
    told(clock.rest())
    return number, orders.take()


def main():
    job = json.loads(sys.argv[1])
    while not os.path.exists(job["go"]):
        time.sleep(0.01)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
        os.sched_setaffinity(0, {job["cores"][int(os.environ["RANK"]) % len(job["cores"])]})
    dist.init_process_group("nccl" if on_gpu else "gloo")
    orders, phase, number, after = Orders(job["orders"]), 0, 0, job
    while after is not None:
        number, after = train(phase, after, number, orders, device)
        phase += 1
        gc.collect()
        if on_gpu:
            torch.cuda.empty_cache()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

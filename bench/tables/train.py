"""One rank of the training that the tables are about: a GPT in torch.distributed.pipelining stages, over NCCL where there are GPUs, else over gloo.

RANK, WORLD_SIZE, … in the environment, the job as JSON in the argument. It knows nothing of FreeRide: with the hook it is started by
`python -m freeride.run`. Rank 0 prints a line {"ready": iteration_ms} after warm-up and one for every iteration since:
{"iteration": number since the start, "ms": its length, "end_ns": CLOCK_MONOTONIC when it was seen to have ended}. It trains until the file
job["end"] names the number of the last iteration, which has to lie some iterations ahead, so that every rank sees it in time.
"""
import collections
import json
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "gpu"))

import pipeline
import torch
import torch.distributed as dist


class GpuClock:
    """Lengths of iterations as the GPU sees them; the host is at most two iterations ahead."""

    def __init__(self):
        self.marks = collections.deque()
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
        end_ns = time.monotonic_ns()
        if self.last is not None:
            yield number, self.last.elapsed_time(mark), end_ns
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


def main():
    job = json.loads(sys.argv[1])
    rank, on_gpu = int(os.environ["RANK"]), torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)
        os.sched_setaffinity(0, {job["cores"][rank % len(job["cores"])]})
    dist.init_process_group("nccl" if on_gpu else "gloo")
    training = pipeline.Training(job["schedule"], pipeline.Size(**job["size"]), device, dtype=torch.bfloat16 if on_gpu else torch.float32)
    clock = GpuClock() if on_gpu else HostClock()
    lengths = []

    def say(laps):
        for number, ms, end_ns in laps:
            lengths.append(ms)
            if rank == 0 and number >= job["warm_up"]:
                print(json.dumps({"iteration": number, "ms": round(ms, 4), "end_ns": end_ns}), flush=True)

    for number in range(job["warm_up"]):
        training.step()
        say(clock.lap(number))
    if rank == 0:
        print(json.dumps({"ready": sorted(lengths)[len(lengths) // 2]}), flush=True)
    end, last = pathlib.Path(job["end"]), None
    while last is None or number < last:
        number += 1
        training.step()
        say(clock.lap(number))
        if last is None and end.exists():
            last = int(end.read_text())
    say(clock.rest())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

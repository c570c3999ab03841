"""One rank of bench/gpu_hosts.py's training on GPUs: blocks of iterations by turns, plain, held, and held with leases, under
what becomes of hints. As rank.py: RANK, WORLD_SIZE, … in the environment; the job as JSON in the argument, the result to
job["out"].<rank>.

With job["played"] it is gloo on CPUs, and a CUDA driver that is no GPU: to try out the script."""

import ctypes
import json
import os
import sys
import time

job = json.loads(sys.argv[1])
if job.get("played"):  # before the hook asks for libcuda.so.1
    fake = ctypes.CDLL(job["played"], mode=ctypes.RTLD_GLOBAL)
    fake.fake_cuda_stream.restype = ctypes.c_void_p
    fake.fake_cuda_work.argtypes = [ctypes.c_void_p, ctypes.c_int64]
    fake.fake_cuda_synchronize.argtypes = [ctypes.c_void_p]

import contextlib
import types

if job.get("played"):
    sys.modules["pipeline"] = types.ModuleType("pipeline")  # an older torch has no such schedules

import torch
import torch.distributed as dist

import freeride
import rank
from freeride import measure

# What becomes of hints in a block, and what of its iterations. Two plain ones in a cycle, so that what drifts is in both.
FAULTS = {
    "plain": {},
    "held": {},
    "none": {"lose_per_mille": 1000},
    "late": {"late_ms": 5},
    "lost": {"lose_per_mille": 50},
    "forged": {"forge": True},
    "leased": {},
}
WITHOUT_TASKS = ["plain", "held", "none", "late", "plain", "lost", "forged", "held"]
WITH_TASKS = ["plain", "held", "leased"]


class Gpu:
    """What times iterations."""

    def __init__(self, job):
        self.device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(self.device)
        self.events = []

    def training(self, job):
        import pipeline

        made = pipeline.Training(job["schedule"], pipeline.Size(**job["size"]), self.device)
        return made.step

    def mark(self):
        """An iteration has ended; the host stays no more than two ahead, as a training does that logs its loss."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.events.append(event)
        if len(self.events) > 2:
            self.events[-3].synchronize()

    def iteration_ms(self):
        torch.cuda.synchronize()
        return [None, *(round(a.elapsed_time(b), 4) for a, b in zip(self.events, self.events[1:]))]


class Played:
    """The waits of 1F1B on two ranks, with naps for computing."""

    def __init__(self, job):
        self.stream, self.ends = fake.fake_cuda_stream(), []
        stream = self.stream

        class FakeGpu(measure.Gpu):
            KIND = "cpu"
            context = staticmethod(lambda device: contextlib.nullcontext())
            new_stream = staticmethod(lambda device: fake.fake_cuda_stream())
            follow = staticmethod(lambda apart: None)
            on = staticmethod(lambda apart: contextlib.nullcontext())
            raw = staticmethod(lambda apart: apart)
            usable_bytes = staticmethod(lambda device: 5 << 30)

        FakeGpu.stream = staticmethod(lambda device: stream)
        # As NCCL's messages, gloo's are not there before the stream has come to them.
        c10d = sys.modules["torch.distributed.distributed_c10d"]
        original = c10d.batch_isend_irecv

        def in_stream_order(ops):
            fake.fake_cuda_synchronize(stream)
            return original(ops)

        c10d.batch_isend_irecv = dist.batch_isend_irecv = in_stream_order
        measure.play(FakeGpu())

    def training(self, job):
        parameter = torch.nn.Parameter(torch.zeros(1))
        optimizer, mine = torch.optim.SGD([parameter], lr=1.0), int(os.environ["RANK"])

        def post(sends, receives):
            ops = [dist.P2POp(dist.isend, torch.zeros(8), 1 - mine)] if sends else []
            ops += [dist.P2POp(dist.irecv, torch.zeros(8), 1 - mine)] if receives else []
            for one in dist.batch_isend_irecv(ops):
                one.wait()
            fake.fake_cuda_synchronize(self.stream)

        def work(ms):
            fake.fake_cuda_work(self.stream, int(ms * 1e6))

        def step():
            if mine == 0:
                work(10)
                post(True, False)
                work(10)
                for _ in range(3):
                    post(True, True)
                    work(40)
                post(False, True)
            else:
                post(False, True)
                for k in range(4):
                    work(40)
                    post(True, k < 3)
            optimizer.step()
            fake.fake_cuda_synchronize(self.stream)

        return step

    def mark(self):
        self.ends.append(time.monotonic())

    def iteration_ms(self):
        return [None, *(round(1e3 * (b - a), 4) for a, b in zip(self.ends, self.ends[1:]))]


class Blocks:
    """Runs iterations, and keeps what each was."""

    def __init__(self, device, step):
        self.device, self.step = device, step
        self.kinds, self.holds, self.reports = [], [], []

    def arm_of(self, kind):
        return kind if kind in ("plain", "leased") else "held"

    def run(self, kind, iterations, then):
        """`then`: the kind of the block behind it, which its first iteration has to be of already."""
        measure.remote_faults(**FAULTS[kind], show=True)
        for i in range(iterations):
            measure.remote_arm(self.arm_of(kind if i < iterations - 1 else then))
            self.step()
            self.device.mark()
            self.kinds.append(kind)
        self.holds.append([kind, measure.remote_holds()])
        self.reports.append([kind, len(self.kinds), measure.remote_report()])

    def in_turns(self, kinds, cycles, iterations):
        """Every other cycle backwards; behind all of them it is plain."""
        order = [kind for cycle in range(cycles) for kind in (kinds if cycle % 2 == 0 else kinds[::-1])]
        for kind, then in zip(order, [*order[1:], "plain"]):
            self.run(kind, iterations, then)


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)
    with open(path) as file:
        return json.load(file)


def hosts(device, job, result):
    out, mine = job["out"], dist.get_rank()
    blocks = Blocks(device, device.training(job))
    measure.remote_arm("plain")
    blocks.run("plain", job["warm_up"], "plain")
    result["learned"] = measure.remote_report()
    # Rank 0 says how long all of it is to be: no message of training's may do that, for it would be a wait more.
    if mine == 0:
        usual = sorted(device.iteration_ms()[-10:])[5] / 1e3
        cycles = [
            max(2, int(seconds / usual / (job["iterations"] * len(kinds))))
            for seconds, kinds in ((job["seconds"], WITHOUT_TASKS), (job["task_seconds"], WITH_TASKS))
        ]
        rank.write(out + ".plan", cycles)
    cycles = wait_for(out + ".plan")
    result["cycles"] = cycles
    blocks.in_turns(WITHOUT_TASKS, cycles[0], job["iterations"])
    keep(job, device, blocks, result)
    if mine == 0:
        rank.write(out + ".first", len(blocks.kinds))
    # Side tasks begin; the driver says at which iteration the rest does.
    last, result["filling_from"] = None, len(blocks.kinds)
    while last is None or len(blocks.kinds) < last:
        blocks.run("leased", 2, "leased")
        if mine == 0:
            rank.write(out + ".at", len(blocks.kinds))
        if last is None and os.path.exists(out + ".go"):
            last = wait_for(out + ".go")
            if 0 <= last < len(blocks.kinds):
                raise RuntimeError(f"told to go on at iteration {last} in iteration {len(blocks.kinds)}")
        if last is not None and last < 0:
            break
    if last < 0:
        return keep(job, device, blocks, result)
    blocks.run("plain", job["iterations"], "plain")
    if mine == 0:
        rank.write(out + ".begun", len(blocks.kinds))
    blocks.run("plain", job["pause"], "plain")
    result["before_tasks"], result["tasks_from"] = measure.remote_report(), len(blocks.kinds)
    blocks.in_turns(WITH_TASKS, cycles[1], job["iterations"])
    blocks.run("plain", job["iterations"], "plain")
    result["after_tasks"], result["tasks_to"] = measure.remote_report(), len(blocks.kinds)
    if mine == 0:
        rank.write(out + ".ended", len(blocks.kinds))
    blocks.run("plain", job["pause"], "plain")
    keep(job, device, blocks, result)


def keep(job, device, blocks, result):
    result["iteration_ms"], result["kinds"] = device.iteration_ms(), blocks.kinds
    result["holds"], result["reports"] = blocks.holds, blocks.reports
    result["counters"], result["state"] = measure.counters(), freeride.state()
    result["page"] = rank.waits_of_page() if rank.page_path() else None
    rank.save(job, result)


if __name__ == "__main__":
    if job.get("played"):
        device = Played(job)
        freeride.attach()
        dist.init_process_group("gloo")
        result = {"rank": dist.get_rank(), "torch": torch.__version__, "nccl": "none", "cuda": "none"}
        hosts(device, job, result)
        dist.barrier()
        freeride.detach()
    else:
        rank.main({"hosts": lambda job, _, result: hosts(Gpu(job), job, result)})

"""A rank of test_cuda.py: gloo, and the hook's path for NCCL and CUDA streams on a CUDA driver that is no GPU (fake_cuda.cpp).

cuda_rank.py LIBCUDA SCENARIO: sends and receives in a 1F1B of two stages, with computing that is a nap of the host and of the stream.
"""

import contextlib
import ctypes
import json
import os
import sys
import time

fake = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)  # before the hook asks for libcuda.so.1
fake.fake_cuda_stream.restype = ctypes.c_void_p
fake.fake_cuda_work.argtypes = [ctypes.c_void_p, ctypes.c_int64]
fake.fake_cuda_synchronize.argtypes = [ctypes.c_void_p]

import torch
import torch.distributed as dist
from torch.distributed import batch_isend_irecv as imported_before

import freeride
from freeride import _cuda, measure
from freeride._hook import hook, off

stream = fake.fake_cuda_stream()
ARMS_AT = 40  # by then it is learned; the plan would go on with plain iterations for a while


class FakeGpu(_cuda.Gpu):
    KIND = "cpu"
    context = staticmethod(lambda device: contextlib.nullcontext())
    stream = staticmethod(lambda device: stream)
    new_stream = staticmethod(lambda device: fake.fake_cuda_stream())
    follow = staticmethod(lambda apart: None)  # the receives are gloo's
    on = staticmethod(lambda apart: contextlib.nullcontext())
    raw = staticmethod(lambda apart: apart)
    usable_bytes = staticmethod(lambda device: 5 << 30)
    current = staticmethod(lambda: 0)
    if sys.argv[2] in ("norm", "skips"):
        at_once = staticmethod(lambda options: True)  # this torch's options may not say


_cuda.wanted = lambda c10d: True
hook.gpu = FakeGpu()


def work(ms):
    """The GPU computes, and the host is ahead of it."""
    fake.fake_cuda_work(stream, int(ms * 1e6))


def main(scenario):
    rank = int(os.environ["RANK"])
    freeride.attach()
    dist.init_process_group("gloo")
    assert freeride.state() == ("off" if off() else "waiting"), freeride.state()
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    batch = imported_before if scenario == "imported" else dist.batch_isend_irecv
    got = []

    def post(send, receive):
        ops, into = [], torch.zeros(1)
        if send is not None:
            ops.append(dist.P2POp(dist.isend, torch.full((1,), float(send)), 1 - rank))
        if receive:
            ops.append(dist.P2POp(dist.irecv, into, 1 - rank))
        works = batch(ops)
        if scenario == "early" and receive:
            time.sleep(0.002)  # what a schedule does that posts ahead
        for one in works:
            one.wait()
        fake.fake_cuda_synchronize(stream)
        if receive:
            got.append(float(into))

    phases = []

    def phase():
        """Of 20 ms, behind 10 ms of the stream's work, in a stream whose place the host does not know."""
        work(10)
        with freeride.idle("save"):
            time.sleep(0.03)
        page = hook.page()
        phases.append((page.stages, page.replica, page.phases[0].name.decode(), page.phases[0].count))

    if scenario == "phases":
        phase()
    iterations = int(os.environ.get("TEST_ITERATIONS", 12))
    for iteration in range(iterations):
        if rank == 0:
            work(1)
            post(iteration, False)
            for k in range(3):
                post(k if k < 2 else None, True)
        else:
            post(None, True)
            for k in range(3):
                work(8)
                post(10 * iteration + k, k < 2)
        if scenario in ("norm", "skips"):
            work(9 * rank)
            norm = torch.ones(1)
            dist.all_reduce(norm)
            assert norm.item() == 2
        if scenario == "fails" and rank == 1 and iteration == 7:
            hook.fail(RuntimeError("a test"))
        if scenario == "hosts" and iteration == ARMS_AT:
            measure.remote_arm("leased")
        skips = rank == 1 and scenario == "skips" and (iteration in (5, 8) or os.environ.get("TEST_NEVER"))
        if not skips:
            optimizer.step()
        fake.fake_cuda_synchronize(stream)
    if scenario == "phases":
        phase()
    time.sleep(0.05)
    page = hook.page()
    result = {
        "got": got,
        "phases": phases,
        "phase_ms": page.phases[0].total_ns / 1e6 if page else None,
        "counters": hook.counters(),
        "remote": measure.remote_report(),
        "holds": measure.remote_holds(),
        "state": freeride.state(),
        "device": page.device.decode() if page else None,
        "waits": page.waits if page else None,
        "iteration": page.iteration if page else None,
        "usable_bytes": page.usable_bytes if page else None,
        "low_ms": [page.learned[i].low_ns / 1e6 for i in range(page.waits)] if page else None,
    }
    print(json.dumps(result), flush=True)
    dist.barrier()
    freeride.detach()


main(sys.argv[2])

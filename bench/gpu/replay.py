"""One stage of a recorded 1F1B on one GPU, where there are not as many GPUs as stages: the work is the stage's own,
forward, backward and optimizer; its neighbours are played by a process beside it, which says that the data is there as
long after the stream has come to it as it took in the record. As in torch, the receive is a kernel on a stream of NCCL's,
which waits for an event of training's, and training's for an event of that one. Blocks of iterations by turns: with the
hook, and with a bare wait in its place. The job as JSON in the argument, the result to job["out"].0, as by rank.py."""

import ctypes
import json
import mmap
import os
import struct
import subprocess
import sys
import threading
import time

from freeride import measure, pages

SENT_FIRST = 0x80000000  # FREERIDE_SENT_FIRST
SEEN_US = 50  # of shorter waits, and of those not marked, the data came while the GPU was at the work before
BETWEEN_S = 0.005  # where it was marked all the same: then the host has posted the wait, and the GPU has not come to it


def attach(library, flags, rank, job, device=None):
    stage, stages = job["stage"], job["size"]["stages"]
    config = measure.Config(flags=flags, job=os.environ["FREERIDE_JOB"].encode(), device=device, framework=b"replay")
    config.rank = config.local_rank = rank
    config.stage, config.stages = stage if rank == 0 else (stage + 1) % stages, stages
    handle = library.attach(ctypes.byref(config))
    if not handle:
        raise RuntimeError("the hook did not attach")
    return handle


def block_of(job, iteration):
    """0: warm-up and learning. Odd ones are bare, up to the last; then side tasks come."""
    block = 0 if iteration < job["warm_up"] else 1 + (iteration - job["warm_up"]) // job["iterations"]
    return min(block, job["blocks"] + 1)


def is_bare(job, iteration):
    block = block_of(job, iteration)
    return block % 2 == 1 and block <= job["blocks"]


def words_of():
    """Two words that both processes map: how many receives training's stream has come to, and how many bare ones are there."""
    fd = os.open(os.environ["FREERIDE_SHM_DIR"] + "/words", os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(fd, 4096)
    return mmap.mmap(fd, 4096)


def neighbours(job):
    """Plays them until its stdin ends: it must not outlive a training that is killed, for it never sleeps long."""
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    library = measure.Library()
    handle = attach(library, measure.SENT, 1, job, b"cpu-neighbours")
    sent_fd = os.open(library.sent_path(handle), os.O_RDWR)
    sent = pages.SentPage.from_buffer(mmap.mmap(sent_fd, ctypes.sizeof(pages.SentPage)))
    words = words_of()
    word = struct.Struct("<I")
    # As a GPU counts; a rank is waited for from its first message on, so that one is there
    sent.sent[1][0] = count = SENT_FIRST + 1
    print("READY", flush=True)
    come, bare, iteration = 0, 0, 0
    while True:
        for length_us in job["lengths_us"][iteration % len(job["lengths_us"])]:
            come += 1
            if come == 1:
                continue
            if length_us is not None and length_us < SEEN_US:
                time.sleep(BETWEEN_S)
            elif length_us is not None:
                while word.unpack_from(words, 0)[0] < come:
                    pass
                until = time.monotonic_ns() + int(length_us * 1e3)
                if length_us > 3000:
                    time.sleep(length_us / 1e6 - 0.002)
                while time.monotonic_ns() < until:
                    pass
            if is_bare(job, iteration):
                bare += 1
                word.pack_into(words, 4, bare)
            else:
                count += 1
                sent.sent[1][0] = count
        iteration += 1


class Words:
    """words_of() in stream order."""

    def __init__(self):
        self.driver, self.words = ctypes.CDLL("libcuda.so.1"), words_of()
        host = ctypes.addressof(ctypes.c_char.from_buffer(self.words))
        self.address = ctypes.c_uint64()
        self.call("cuMemHostRegister_v2", ctypes.c_void_p(host), ctypes.c_size_t(4096), 3)
        self.call("cuMemHostGetDevicePointer_v2", ctypes.byref(self.address), ctypes.c_void_p(host), 0)

    def call(self, name, *args):
        code = getattr(self.driver, name)(*args)
        if code != 0:
            raise RuntimeError(f"{name}: {code}")

    def come(self, stream, count):
        self.call("cuStreamWriteValue32_v2", ctypes.c_void_p(stream), self.address, ctypes.c_uint32(count), 0)

    def wait(self, stream, count):
        at = ctypes.c_uint64(self.address.value + 4)
        self.call("cuStreamWaitValue32_v2", ctypes.c_void_p(stream), at, ctypes.c_uint32(count), 0)


class Training:
    """step() is one iteration of the stage."""

    def __init__(self, job, device, library, handle):
        import torch

        import pipeline

        self.torch, self.pipeline, self.library, self.handle, self.device = torch, pipeline, library, handle, device
        size = self.size = pipeline.Size(**job["size"])
        self.stage, stages, dtype = (
            job["stage"],
            size.stages,
            torch.bfloat16 if device.type == "cuda" else torch.float32,
        )
        torch.manual_seed(1)
        with device:
            self.chunk = pipeline.Chunk(size, self.stage == 0, self.stage == stages - 1).to(dtype)
            shape = (size.batch, size.length, size.width)
            self.given, self.gradient = torch.randn(shape, dtype=dtype), torch.randn(shape, dtype=dtype) * 1e-4
            self.tokens = torch.randint(0, size.vocabulary, (size.batch, size.length))
        self.optimizer = torch.optim.AdamW(self.chunk.parameters(), lr=1e-4, fused=True)
        self.first, self.last = self.stage == 0, self.stage == stages - 1
        ahead = min(size.micro_batches, stages - self.stage)
        self.order = "F" * ahead + "BF" * (size.micro_batches - ahead) + "B" * ahead
        self.sources = (ctypes.c_uint32 * 1)(1)
        self.none = (ctypes.c_uint32 * 1)()
        self.job, self.come, self.bare = job, 0, 0
        self.words, self.nccl = Words(), torch.cuda.Stream(device)
        self.events, self.received = [torch.cuda.Event() for _ in range(64)], torch.zeros(1, device=device)
        self.iteration = 0

    def stream(self):
        return self.torch._C._cuda_getCurrentRawStream(self.device.index)

    def receive(self):
        self.come += 1
        self.words.come(self.stream(), self.come)
        if is_bare(self.job, self.iteration):
            self.bare += 1
            self.words.wait(self.stream(), self.bare)
        else:
            self.library.stream_batch(self.handle, self.stream(), self.none, 0, self.sources, 1, measure.HOLD)
        before, behind = self.events[2 * self.come % 64], self.events[2 * self.come % 64 + 1]
        before.record()
        self.nccl.wait_event(before)
        with self.torch.cuda.stream(self.nccl):
            self.received.add_(1)
        behind.record(self.nccl)
        self.torch.cuda.current_stream().wait_event(behind)

    def step(self):
        under_way = []
        for what in self.order:
            if what == "F":
                if not self.first:
                    self.receive()
                given = self.tokens if self.first else self.given.detach().requires_grad_()
                output = self.chunk(given)
                under_way.append(self.pipeline.loss_of(output, self.tokens) if self.last else output)
            else:
                if not self.last:
                    self.receive()
                output = under_way.pop(0)
                output.backward(None if self.last else self.gradient)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if not is_bare(self.job, self.iteration):
            self.library.stream_count_iterations(self.handle, self.stream(), 0)
        self.iteration += 1


def main():
    job = json.loads(sys.argv[1])
    if len(sys.argv) > 2:
        return neighbours(job)
    library = measure.Library()
    getattr(measure, "preload", lambda _: None)(library)  # earlier builds have none
    import torch
    import torch.distributed as dist

    import rank

    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    torch.cuda.current_stream().query()
    dist.init_process_group("gloo")
    handle = attach(library, measure.CUDA, 0, job)
    measure.use(library, handle)
    played = subprocess.Popen(
        [sys.executable, __file__, sys.argv[1], "neighbours"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        played.stdout.readline()
        training = Training(job, device, library, handle)
        if job.get("host_ratio"):
            from slow_host import slow_host

            shape = (training.size.batch, training.size.length, training.size.width)
            slow_host(list(training.chunk.blocks), job["host_ratio"], shape, torch.bfloat16, device)
        cpu, events, ways = [], [], []
        for block in range(job["blocks"] + 1):  # the first: warm-up and learning
            before, begin = rank.helper_cpu_s(), time.monotonic()
            for _ in range(job["warm_up"] if block == 0 else job["iterations"]):
                ways.append("warm up" if block == 0 else None if block % 2 == 1 else "held")
                training.step()
                events.append(torch.cuda.Event(enable_timing=True))
                events[-1].record()
                if len(events) > 2:
                    events[-3].synchronize()
            if block > 0 and block % 2 == 0:
                cpu.append(100 * (rank.helper_cpu_s() - before) / (time.monotonic() - begin))
        torch.cuda.synchronize()
        result = {
            "rank": 0,
            "stage": job["stage"],
            "torch": torch.__version__,
            "nccl": None,
            "cuda": torch.version.cuda,
            "gpu": torch.cuda.get_device_name(device),
            "iteration_ms": [None] + [round(a.elapsed_time(b), 4) for a, b in zip(events, events[1:])],
            "ways": ways,
            "hook_cpu_pct_of": {"held": cpu},
        }
        rank.leave(job, result)
        rank.train_on(training, job["until"], len(events))
        torch.cuda.synchronize()
    finally:
        played.kill()
        played.wait()
    library.detach(handle)


if __name__ == "__main__":
    main()

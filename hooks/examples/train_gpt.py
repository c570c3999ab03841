#!/usr/bin/python3
"""Trains a small byte-level GPT on the Python standard library's own sources: 1F1B pipeline, gloo, one process a stage.

    train_gpt.py --stages 2 --iterations 60 --cores 0,1             # plain
    train_gpt.py --stages 2 --iterations 60 --cores 0,1 --hook on   # the same, started through python -m freeride.run

The training itself knows nothing of FreeRide: with --hook on the launcher below only starts the ranks through another program, and where it was
itself run through one, such as python -m freeride.observe, so are the ranks. Everything is deterministic for a given --seed, so the losses of two
runs are bitwise equal, hooked or not.
"""

import argparse
import atexit
import copy
import ctypes
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=2, help="pipeline stages, one process each")
    parser.add_argument("--micro-batches", type=int, default=4, help="per iteration")
    parser.add_argument("--micro-batch-size", type=int, default=4, help="sequences in one micro-batch")
    parser.add_argument("--iterations", type=int, default=0, help="stop after so many (0: no limit)")
    parser.add_argument("--seconds", type=float, default=0, help="stop after so long (0: no limit)")
    parser.add_argument(
        "--layers", type=int, default=8, help="transformer layers over all stages; a multiple of --stages"
    )
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--seq", type=int, default=128, help="bytes in one sequence")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--again-after",
        type=int,
        default=0,
        help="begin again with the first weights and batches after so many iterations, so that the losses repeat (0: never)",
    )
    parser.add_argument(
        "--skip-every",
        type=int,
        default=0,
        help="the last stage leaves its optimizer's step out in every so many-th iteration, as with a gradient that is not finite (0: never)",
    )
    parser.add_argument(
        "--save-every",
        type=int,
        default=0,
        help="each rank writes a checkpoint after every so many-th iteration (0: never)",
    )
    parser.add_argument(
        "--save-folder",
        default="",
        help="where each rank keeps its newest; default: a folder that it removes at the end",
    )
    parser.add_argument(
        "--pass-ms",
        type=float,
        default=0,
        help="a forward pass takes at least so long and a backward pass twice as long, most of it asleep: "
        "as a stage whose work is on a GPU, it leaves the processors to others",
    )
    parser.add_argument(
        "--devices", default="", help="rank r is on the device cpu-N of the r-th of these N, e.g. 0,2; default: cpu-r"
    )
    parser.add_argument("--cores", default="", help="pin rank r to the r-th of these cores, e.g. 0,1")
    parser.add_argument("--log-json", default="", help="one line per iteration: iteration, loss, begin_ns, end_ns")
    parser.add_argument(
        "--hook", choices=["on", "off"], default="off", help="start the ranks through python -m freeride.run"
    )
    parser.add_argument("--rank", type=int, default=-1, help="set by the launcher: be this rank")
    options = parser.parse_args(argv)
    if options.layers % options.stages:
        parser.error(f"--layers {options.layers} is not a multiple of --stages {options.stages}")
    numbers = options.devices.split(",") if options.devices else []
    if numbers and not (len(numbers) == options.stages and all(map(str.isdecimal, numbers))):
        parser.error(
            f"--devices {options.devices}: for {options.stages} stages it has to be as many numbers, as in 0,2"
        )
    if not options.iterations and not options.seconds:
        options.iterations = 60
    return options


PROGRESS_EVERY_S = 3


def say(text):
    sys.stderr.write(f"train_gpt: {text}\n")  # in one piece: the ranks share the terminal
    sys.stderr.flush()


# ---- launcher ------------------------------------------------------------------------------------------------------------------


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def introduce(options):
    length = f"{options.iterations} iterations" if options.iterations else ""
    length += (" or " if length and options.seconds else "") + (f"{options.seconds:g} s" if options.seconds else "")
    say(
        f"a GPT of {options.layers} layers of width {options.dim} on this Python's own sources: {options.stages} stages, a process each, "
        f"{options.micro_batches} micro-batches of {options.micro_batch_size} x {options.seq} bytes an iteration; {length}"
        + ("" if options.seconds else ", the time left is said after the second")
    )


def launch(options, argv):
    """Starts one process a stage, ends them all when one fails; returns the exit code."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    introduce(options)
    devices = options.devices.split(",") if options.devices else [str(rank) for rank in range(options.stages)]
    ranks = []
    for rank in range(options.stages):
        env = dict(
            os.environ,
            RANK=str(rank),
            LOCAL_RANK=devices[rank],
            WORLD_SIZE=str(options.stages),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
            OMP_NUM_THREADS="1",
            OPENBLAS_NUM_THREADS="1",
            PYTHONUNBUFFERED="1",
        )
        # As this process was started, maybe.
        through = ["-m", "freeride.run"] if options.hook == "on" or "FREERIDE_STARTED_BY" in os.environ else []
        ranks.append(
            subprocess.Popen(
                [sys.executable, *through, os.path.abspath(__file__), *argv, "--rank", str(rank)],
                env=env,
                preexec_fn=die_with_parent,
            )
        )

    def end_all(*_):
        for process in ranks:
            if process.returncode is None:
                # Not Popen.kill(), which may take the end away from os.wait() below
                os.kill(process.pid, signal.SIGKILL)

    signal.signal(signal.SIGTERM, lambda *_: (end_all(), sys.exit(143)))
    code = 0
    try:
        left = {process.pid: process for process in ranks}
        while left:
            pid, status = os.wait()
            process = left.pop(pid, None)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode != 0 and code == 0:
                code = 1
                say(f"rank {ranks.index(process)} ended with {process.returncode}; ending the others")
                end_all()
    except KeyboardInterrupt:
        end_all()
        code = 130
    return code


# ---- one rank ------------------------------------------------------------------------------------------------------------------


def read_text(limit=4 << 20):
    """Bytes of the standard library's sources, the same on every rank."""
    text = bytearray()
    for path in sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= limit:
            break
    return bytes(text[:limit])


class Progress:
    """A line every few seconds: the first one once there is an iteration to measure, since the first is slower."""

    def __init__(self, options):
        self.options, self.began, self.said, self.iteration = options, time.monotonic(), time.monotonic(), 0
        self.first_ended = None

    def iteration_ended(self, iteration, loss):
        now = time.monotonic()
        if self.first_ended is None:
            self.first_ended = now
            return
        if self.iteration and now - self.said < PROGRESS_EVERY_S and iteration != self.options.iterations:
            return
        each = (now - self.first_ended) / (iteration - 1)
        left = [each * (self.options.iterations - iteration)] if self.options.iterations else []
        left += [self.options.seconds - (now - self.began)] if self.options.seconds else []
        say(
            f"iteration {iteration}, loss {loss:.3f}, {1000 * each:.0f} ms an iteration, about {max(0, min(left)):.0f} s left"
        )
        self.said, self.iteration = now, iteration


def checkpoints(options):
    """Their folder."""
    if options.save_folder:
        return options.save_folder
    folder = tempfile.mkdtemp(prefix="train_gpt-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def say_if_no_worker(options):
    """Hooked and alone: worth a line, since nothing else would show it."""
    freeride = sys.modules.get("freeride")
    if (
        options.hook == "on"
        and freeride is not None
        and freeride.state() in ("starting", "active")
        and not freeride.connected()
    ):
        say(
            "--hook on, but no worker has this rank's page: no side task runs in its bubbles until a freeride-worker is started"
        )


def train(options):
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn import functional

    rank, stages, micro_batches = options.rank, options.stages, options.micro_batches
    first, last = rank == 0, rank == stages - 1
    if options.cores:
        cores = [int(core) for core in options.cores.split(",")]
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    torch.manual_seed(options.seed * 1000 + rank)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            dim = options.dim
            self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
            self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
            self.register_buffer(
                "mask", torch.full((options.seq, options.seq), float("-inf")).triu(1), persistent=False
            )

        def forward(self, x):
            batch, seq, dim = x.shape
            q, k, v = (
                self.qkv(self.norm1(x)).view(batch, seq, 3, options.heads, dim // options.heads).permute(2, 0, 3, 1, 4)
            )
            scores = q @ k.transpose(-1, -2) / (dim // options.heads) ** 0.5 + self.mask
            x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, seq, dim))
            return x + self.mlp(self.norm2(x))

    class Embed(nn.Module):
        def __init__(self):
            super().__init__()
            self.token, self.position = nn.Embedding(256, options.dim), nn.Embedding(options.seq, options.dim)

        def forward(self, tokens):
            return self.token(tokens) + self.position.weight

    parts = [Embed()] if first else []
    parts += [Block() for _ in range(options.layers // stages)]
    parts += [nn.LayerNorm(options.dim), nn.Linear(options.dim, 256)] if last else []
    model = nn.Sequential(*parts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    first_weights = copy.deepcopy(model.state_dict()) if options.again_after else None

    text = torch.frombuffer(bytearray(read_text()), dtype=torch.uint8)
    # The same on every rank: first and last stage see the same batches
    draws = torch.Generator().manual_seed(options.seed)
    shape = (options.micro_batch_size, options.seq, options.dim)

    def batch():
        starts = torch.randint(len(text) - options.seq - 1, (options.micro_batch_size,), generator=draws)
        rows = torch.stack([text[start : start + options.seq + 1] for start in starts.tolist()]).long()
        return rows[:, :-1], rows[:, 1:]

    place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), stages, first
    try:
        store = dist.TCPStore(*place)
    except RuntimeError as error:  # Debian 13's torch has no libuv, which is what it takes by itself
        if "libuv" not in str(error):
            raise
        store = dist.TCPStore(*place, use_libuv=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=stages)
    sends = []

    def send(tensor, to):
        tensor = tensor.detach().contiguous()
        sends.append((dist.isend(tensor, to), tensor))

    def receive(source):
        tensor = torch.empty(shape)
        dist.recv(tensor, source)
        return tensor

    log = open(options.log_json, "w", buffering=1) if last and options.log_json else None
    progress = Progress(options) if last else None
    checkpoint = os.path.join(checkpoints(options), f"rank{rank}.pt") if options.save_every else ""
    began, iteration = time.monotonic(), 0
    while True:
        iteration += 1
        if first and (
            (options.iterations and iteration >= options.iterations)
            or (options.seconds and time.monotonic() - began >= options.seconds)
        ):
            store.add("last", iteration)  # before this iteration's first send: every rank learns it in time
        begin_ns = time.monotonic_ns()
        if first_weights and iteration > 1 and (iteration - 1) % options.again_after == 0:
            model.load_state_dict(first_weights)
            optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
            draws.manual_seed(options.seed)
        batches = [batch() for _ in range(micro_batches)]
        in_flight, loss_sum = [], 0.0

        def sleep_until(end):
            time.sleep(max(0, end - time.monotonic()))

        def forward(index):
            nonlocal loss_sum
            if first:
                given = batches[index][0]
            else:
                given = receive(rank - 1).requires_grad_()
            end = time.monotonic() + options.pass_ms / 1e3
            made = model(given)
            sleep_until(end)
            if last:
                made = functional.cross_entropy(made.reshape(-1, 256), batches[index][1].reshape(-1)) / micro_batches
                loss_sum += made.item()
            else:
                send(made, rank + 1)
            in_flight.append((given, made))

        def backward():
            given, made = in_flight.pop(0)
            gradient = None if last else receive(rank + 1)
            end = time.monotonic() + 2 * options.pass_ms / 1e3
            made.backward(gradient)
            sleep_until(end)
            if not first:
                send(given.grad, rank - 1)

        # 1F1B: fill the pipeline, then one forward and one backward in turn, then drain it.
        warm_up = min(stages - rank - 1, micro_batches)
        for index in range(warm_up):
            forward(index)
        for index in range(warm_up, micro_batches):
            forward(index)
            backward()
        for _ in range(warm_up):
            backward()
        for work, _ in sends:
            work.wait()
        sends.clear()
        of_these = (iteration - 1) % (options.again_after or iteration) + 1
        if not (last and options.skip_every and of_these % options.skip_every == 0):
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if checkpoint and iteration % options.save_every == 0:  # an idle phase with FREERIDE_IDLE=save
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint + ".new")
            os.replace(checkpoint + ".new", checkpoint)
        if log:
            log.write(
                json.dumps(
                    {"iteration": iteration, "loss": loss_sum, "begin_ns": begin_ns, "end_ns": time.monotonic_ns()}
                )
                + "\n"
            )
        if progress:
            progress.iteration_ended(iteration, loss_sum)
        if first and iteration == 2:
            say_if_no_worker(options)
        if store.add("last", 0) == iteration:
            break
    dist.barrier()
    dist.destroy_process_group()
    return 0


def main():
    argv = sys.argv[1:]
    options = parse(argv)
    return launch(options, argv) if options.rank < 0 else train(options)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Unmodified programs under the shim of libcuda.so.1, on one GPU without other work; needs PyTorch.

    tests/gpu/shim.py --shim libfreeride_shim.so --check shim_check --out FILE [--real PATH] [--seconds S]
    tests/gpu/shim.py --dry-run --shim libfreeride_shim.so --real build/dev/played-cuda/libcuda.so.1

The shim's cost: a process does short blocks of work in pairs, one by the driver and one by the shim with a lease that
is always open (libswitched_cuda.so beside the shim switches between them). Two processes would differ by some percent,
whatever they run under. The cost is the median of the pairs, with its 95 % interval, of several processes.

The share of leases that was useful, by the program's own progress: the same work in two processes, with the driver, and
with the shim under leases of 50 ms every 100 ms. What the two compute is compared bit by bit. A CUDA program says by
the GPU's clock when each of its kernels was on the GPU, and so how long after a lease's end the GPU still worked.

Prints a JSON row a program last, and writes all of it to --out. Exit code 1 if a result differs or a step fails."""

import argparse
import contextlib
import ctypes
import faulthandler
import json
import os
import pathlib
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "hooks/python"), str(ROOT / "tests")]

from freeride import pages  # noqa: E402
from rig.shim_page import ShimPage, counters_of  # noqa: E402
from rig.statistics import median_interval  # noqa: E402

EMPTY = "empty kernels, C++"
LEASE_NS, PERIOD_NS = 50_000_000, 100_000_000
MOST_SECONDS = 60  # for one answer


# ---- the programs ----------------------------------------------------------------------------------------------------


def torch_programs():
    """{name: what does so many iterations and returns their results}. Nothing in it knows of FreeRide."""
    import torch

    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    device = torch.device("cuda")

    def trained():
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 64, 3, padding=1),
            torch.nn.BatchNorm2d(64),
            torch.nn.ReLU(),
            torch.nn.Conv2d(64, 128, 3, stride=2, padding=1),
            torch.nn.BatchNorm2d(128),
            torch.nn.ReLU(),
            torch.nn.Conv2d(128, 128, 3, stride=2, padding=1),
            torch.nn.ReLU(),
            torch.nn.Flatten(),
            torch.nn.Linear(128 * 16 * 16, 256),
            torch.nn.ReLU(),
            torch.nn.Linear(256, 10),
        ).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        images = torch.randn(16, 64, 3, 64, 64)
        labels = torch.randint(0, 10, (16, 64))
        state = {"at": 0}

        def run(iterations):
            losses = []
            for _ in range(iterations):
                at = state["at"] % len(images)
                state["at"] += 1
                loss = torch.nn.functional.cross_entropy(
                    model(images[at].to(device, non_blocking=True)), labels[at].to(device)
                )
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
                if state["at"] % 10 == 0:
                    losses[-1].item()
            return [one.item() for one in losses]

        return run

    def graph():
        layers = [torch.nn.Linear(1024, 1024, device=device) for _ in range(8)]
        model = torch.nn.Sequential(*layers)
        value = torch.randn(256, 1024, device=device)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), torch.no_grad():
            for _ in range(3):
                model(value)
        torch.cuda.current_stream().wait_stream(stream)
        captured = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(captured):
            result = torch.tanh(model(value))
            value.copy_(result + 0.1 * value)

        def run(iterations):
            for _ in range(iterations):
                captured.replay()
            return [result.double().sum().item(), value.double().abs().sum().item()]

        return run

    def tiny():
        value = torch.zeros(64, device=device)

        def run(iterations):
            for _ in range(iterations):
                value.add_(1)
            torch.cuda.synchronize()
            return [value.sum().item()]

        return run

    return {"train": trained, "graph": graph, "tiny": tiny}


def played_programs():
    """The same for a driver without a GPU: kernels that pause, by the driver's own functions."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def must(code):
        if code:
            raise RuntimeError(f"the driver answers {code}")

    context = ctypes.c_void_p()
    must(cuda.cuInit(0))
    must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    must(cuda.cuCtxSetCurrent(context))

    def kernels(ns):
        function = ctypes.c_void_p()
        must(cuda.cuModuleGetFunction(ctypes.byref(function), None, f"kernel:{ns}".encode()))

        def run(iterations):
            for _ in range(iterations):
                must(cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None))
            must(cuda.cuStreamSynchronize(None))
            return [iterations]

        return run

    return {"train": lambda: kernels(300_000), "graph": lambda: kernels(1_000_000), "tiny": lambda: kernels(1000)}


def program_main(kind):
    """A program: a line of stdin is a block of work, {"program", "iterations"}; a line of stdout its result."""
    faulthandler.register(signal.SIGUSR1)
    makers = {"torch": torch_programs, "played": played_programs}[kind]()
    ready = {}
    if kind == "torch":
        import torch

        version, memory = torch.__version__, torch.cuda.mem_get_info()
    else:
        version, memory = None, None
    print(json.dumps({"ready": True, "torch": version, "memory": memory}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        name = order["program"]
        if "shim" in order:
            ctypes.CDLL("libcuda.so.1").freeride_switch(int(order["shim"]))
        if name not in ready:
            ready[name] = makers[name]()
        begin = time.monotonic_ns()
        results = ready[name](order["iterations"])
        end = time.monotonic_ns()
        print(
            json.dumps({"begin_ns": begin, "end_ns": end, "results": [float(one).hex() for one in results]}), flush=True
        )


# ---- leases ----------------------------------------------------------------------------------------------------------


class Leases:
    """The lease page of a task, as its worker writes it: closed, open for good, or 50 ms every 100 ms."""

    def __init__(self):
        self.fd, self.page = pages.create(pages.LeasePage)
        self.path = f"/proc/{os.getpid()}/fd/{self.fd}"
        self.given = []  # (opened_ns, deadline_ns)
        self._id = 0
        self._stop = threading.Event()
        self._thread = None

    def _write(self, **fields):
        pages.write_lease(self.page, **fields)
        pages.futex_wake(self.page, "sequence", pages.WAKE_RUNNER)

    def give(self, length_ns):
        self._id += 1
        now = time.monotonic_ns()
        self._write(
            order=pages.ORDER_RUN,
            kind=pages.LEASE_BUBBLE,
            lease_id=self._id,
            opened_ns=now,
            deadline_ns=now + length_ns,
        )
        self.given.append((now, now + length_ns))

    def open(self):
        self.stop()
        self.give(3600 * 10**9)

    def close(self):
        self.stop()
        self._write(order=pages.ORDER_PAUSE, kind=pages.LEASE_NONE, lease_id=0, deadline_ns=0)

    def alternate(self):
        self.close()
        self.given.clear()
        self._stop.clear()
        self._thread = threading.Thread(target=self._alternate)
        self._thread.start()

    def _alternate(self):
        begin = time.monotonic_ns()
        count = 0
        while not self._stop.is_set():
            self.give(LEASE_NS)
            count += 1
            while (left := begin + count * PERIOD_NS - time.monotonic_ns()) > 0:
                time.sleep(left / 1e9)

    def stop(self):
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None

    def inside(self, begin_ns, end_ns):
        """How much of that time was within leases."""
        return sum(max(0, min(end, end_ns) - max(begin, begin_ns)) for begin, end in self.given)


class Counters:
    """The shim page of a program."""

    def __init__(self, folder):
        self.path = str(pathlib.Path(folder) / "counters")
        pathlib.Path(self.path).write_bytes(bytes(4096))

    def read(self):
        return counters_of(pathlib.Path(self.path).read_bytes())

    def clear_largest(self):
        """The largest values are counted from here on."""
        with open(self.path, "r+b") as file:
            for name in ("late_most_ns", "full_most_ns"):
                file.seek(getattr(ShimPage, name).offset)
                file.write(bytes(8))


# ---- processes -------------------------------------------------------------------------------------------------------


class Process:
    """A program that answers lines with lines."""

    def __init__(self, command, env, deadline, errors):
        self.deadline = deadline
        self.errors = errors
        self.process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(errors, "wb"), bufsize=0
        )
        self.buffer = b""

    def tell(self, line):
        self.process.stdin.write(line.encode() + b"\n")

    def hear(self):
        deadline = min(self.deadline, time.monotonic() + MOST_SECONDS)
        while b"\n" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise TimeoutError("no answer in time")
            part = os.read(self.process.stdout.fileno(), 1 << 20)
            if not part:
                raise RuntimeError("ended: " + pathlib.Path(self.errors).read_text(errors="replace")[-2000:])
            self.buffer += part
        line, self.buffer = self.buffer.split(b"\n", 1)
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def ask(self, line):
        self.tell(line)
        return self.hear()

    def end(self):
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Bench:
    def __init__(self, options):
        self.options = options
        self.deadline = time.monotonic() + options.seconds
        self.folder = tempfile.mkdtemp(prefix="freeride-shim-")
        self.library = pathlib.Path(self.folder) / "lib"
        self.library.mkdir()
        shutil.copy(options.shim, self.library / "libcuda.so.1")
        self.switched = pathlib.Path(self.folder) / "switched"
        self.switched.mkdir()
        shutil.copy(options.switched, self.switched / "libcuda.so.1")
        self.plain = pathlib.Path(self.folder) / "plain"
        self.plain.mkdir()
        if options.dry_run:
            (self.plain / "libcuda.so.1").symlink_to(pathlib.Path(options.real).resolve())
        self.real = str(pathlib.Path(options.real).resolve())
        self.leases = Leases()
        self.rows = []
        self.failed = False
        self.number = 0
        self.ratios, self.plain_ns = {}, {}  # by program: of each process, a list of its pairs
        self.cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[-2:]))

    def env(self, shim, **more):
        env = dict(os.environ, CUBLAS_WORKSPACE_CONFIG=":4096:8")
        path = [str(self.library if shim else self.plain), env.get("LD_LIBRARY_PATH", "")]
        env["LD_LIBRARY_PATH"] = ":".join(one for one in path if one)
        if shim:
            env.update(FREERIDE_LEASE_PAGE=self.leases.path, FREERIDE_SHIM_REAL=self.real)
            env["TRITON_LIBCUDA_PATH"] = str(self.library)
        env.update(more)
        return env

    def start(self, command, shim, **more):
        """Both of a pair on the same cores: the cores of a host are not equally fast."""
        self.number += 1
        pinned = ["taskset", "-c", self.cores, *command]
        return Process(
            pinned, self.env(shim, **more), self.deadline, str(pathlib.Path(self.folder) / f"stderr-{self.number}")
        )

    def note(self, row):
        self.rows.append(row)
        print(f"# {row}", file=sys.stderr, flush=True)

    def attempt(self, name, step, *arguments):
        """A step that fails says so in a row of its own, and the others go on."""
        try:
            step(*arguments)
        except Exception as error:  # noqa: BLE001
            self.failed = True
            self.note({"program": name, "failed": f"{type(error).__name__}: {error}"})

    # -- the steps

    def python_programs(self, name, pair, whole):
        """One program in two processes of its own."""
        kind = "played" if self.options.dry_run else "torch"
        command = [sys.executable, str(pathlib.Path(__file__).resolve()), "--program", kind]
        counters = Counters(self.folder)
        log = pathlib.Path(self.folder) / f"log-{name}"
        memory = 20 << 30
        self.leases.open()
        begun = time.monotonic()
        plain = self.start(command, False)
        shimmed = self.start(
            command,
            True,
            FREERIDE_SHIM_PAGE=counters.path,
            FREERIDE_SHIM_LOG=str(log),
            FREERIDE_MEMORY_BYTES=str(memory),
        )
        try:
            first, second = plain.hear(), shimmed.hear()
            started = round(time.monotonic() - begun, 1)
            self.python_program(name, pair, whole, plain, shimmed, counters)
        except Exception:
            with contextlib.suppress(OSError):
                shimmed.process.send_signal(signal.SIGUSR1)
            time.sleep(1)
            said = pathlib.Path(shimmed.errors).read_text(errors="replace")
            self.note({"program": name, "counters": counters.read(), "stderr": said[-4000:]})
            raise
        finally:
            plain.end()
            shimmed.end()
        kinds = {}
        for line in log.read_text().splitlines() if log.exists() else []:
            kinds.setdefault(line.split(" ", 1)[0], []).append(line.split(" ", 1)[1])
        self.note(
            {
                "program": f"{name}: what passed",
                "torch": first["torch"],
                "seconds_until_ready": started,
                "memory_plain": first["memory"],
                "memory_shim": second["memory"],
                "memory_bytes": memory,
                "submitted": kinds.get("submitted"),
                "wrapped": len(kinds.get("wrapped", [])),
                "known": len(kinds.get("known", [])),
                "unknown": kinds.get("unknown"),
                "counters": counters.read(),
                "stderr": pathlib.Path(shimmed.errors).read_text(errors="replace")[-1000:],
            }
        )

    def in_turns(self, command, questions, number):
        """A process for pairs of blocks. `questions`: by program, what to ask for, and how many units of work that is."""
        self.leases.open()
        counters = Counters(self.folder)
        path = [str(self.switched), os.environ.get("LD_LIBRARY_PATH", "")]
        process = self.start(
            command,
            True,
            FREERIDE_SHIM_PAGE=counters.path,
            FREERIDE_SWITCHED_SHIM=self.real if self.options.control else str(self.library / "libcuda.so.1"),
            LD_LIBRARY_PATH=":".join(one for one in path if one),
        )
        try:
            if command[0] == sys.executable:
                process.hear()
            for name, (question, units) in questions.items():
                ratios, plain_ns = [], []
                for i in range(self.options.pairs + 2):
                    took = {}
                    for shim in (0, 1) if (i + number) % 2 == 0 else (1, 0):
                        answer = process.ask(question(shim))
                        took[shim] = (answer["end_ns"] - answer["begin_ns"]) / units
                    if i >= 2:  # warm: kernels are loaded and learned
                        ratios.append(took[1] / took[0])
                        plain_ns.append(took[0])
                self.ratios.setdefault(name, []).append(ratios)
                self.plain_ns.setdefault(name, []).append(plain_ns)
        finally:
            process.end()
        if counters.read()["submissions"] == 0 and not self.options.control:
            raise RuntimeError("nothing passed the shim: the driver was not switched")

    def pairs(self, sizes):
        command = [sys.executable, str(pathlib.Path(__file__).resolve()), "--program"]
        command.append("played" if self.options.dry_run else "torch")

        def question(name, iterations):
            return lambda shim: json.dumps({"program": name, "iterations": iterations, "shim": shim})

        questions = {name: (question(name, pair), pair) for name, (pair, _) in sizes.items()}
        for number in range(self.options.processes):
            self.in_turns(command, questions, number)
            if self.options.check:
                check = str(pathlib.Path(self.options.check).resolve())
                self.in_turns([check], {EMPTY: (lambda shim: f"tiny 20000 {shim}", 20_000)}, number)
        if self.options.check:
            self.note({"program": EMPTY, **self.slowdown(EMPTY)})

    def slowdown(self, name):
        processes = self.ratios.get(name)
        if not processes:
            return {}
        ratios = [one for pairs in processes for one in pairs]
        middle, low, high = (round(100 * (one - 1), 2) for one in median_interval(ratios))
        return {
            "plain_us": round(statistics.median(one for pairs in self.plain_ns[name] for one in pairs) / 1e3, 2),
            "shim_slowdown_pct": middle,
            "shim_slowdown_ci95_pct": [low, high],
            "by_process_pct": [round(100 * (statistics.median(pairs) - 1), 2) for pairs in processes],
            "pairs": len(ratios),
        }

    def python_program(self, name, pair, whole, plain, shimmed, counters):
        def block(process, iterations):
            answer = process.ask(json.dumps({"program": name, "iterations": iterations}))
            return answer, (answer["end_ns"] - answer["begin_ns"]) / iterations

        equal = True
        self.leases.open()
        for _ in range(2):  # warm: kernels are loaded and learned
            equal &= block(plain, pair)[0]["results"] == block(shimmed, pair)[0]["results"]
        before = counters.read()
        counters.clear_largest()
        reference, whole_ns = block(plain, whole)
        self.leases.alternate()
        try:
            answer, _ = block(shimmed, whole)
        finally:
            self.leases.stop()
        after = counters.read()
        equal &= answer["results"] == reference["results"]
        self.failed |= not equal
        inside = self.leases.inside(answer["begin_ns"], answer["end_ns"])
        self.note(
            {
                "program": name,
                "iterations": whole,
                **self.slowdown(name),
                "useful_share_pct": round(100 * whole * whole_ns / inside, 1),
                "seconds": round((answer["end_ns"] - answer["begin_ns"]) / 1e9, 2),
                "leases": len(self.leases.given),
                "results_equal": equal,
                "late_leases_seen": after["late"] - before["late"],
                "late_most_ms": round(after["late_most_ns"] / 1e6, 3),
                "full_most_ms": round(after["full_most_ns"] / 1e6, 3),
                **{
                    key: after[key] - before[key]
                    for key in "submissions waits full captured measured marks stalled too_long let_in".split()
                },
                "longest_ms": round(after["longest_ns"] / 1e6, 3),
                "longest_name": after["longest_name"],
            }
        )

    def cuda_program(self):
        check = str(pathlib.Path(self.options.check).resolve())
        counters = Counters(self.folder)
        self.leases.open()
        plain = self.start([check], False)
        shimmed = self.start([check], True, FREERIDE_SHIM_PAGE=counters.path)
        self.attempt("stamps", self.stamps, plain, shimmed, counters)
        self.attempt("long kernel", self.long_kernel, shimmed, counters)
        plain.end()
        shimmed.end()

    def stamps(self, plain, shimmed, counters):
        count = 20_000
        file = str(pathlib.Path(self.folder) / "stamps")
        plain.ask(f"stamps {file} {count // 10}")
        reference = plain.ask(f"stamps {file} {count}")
        self.leases.open()
        shimmed.ask(f"stamps {file} {count // 10}")
        opened = shimmed.ask(f"stamps {file} {count}")
        counters.clear_largest()
        before = counters.read()
        self.leases.alternate()
        try:
            answer = shimmed.ask(f"stamps {file} {count}")
        finally:
            self.leases.stop()
        after = counters.read()
        data = pathlib.Path(file).read_bytes()
        times = [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]
        kernels = sorted(zip(times[::2], times[1::2], strict=True))
        overruns, begun_late = [], 0
        at = 0
        ends = [(end, after_it[0]) for (_, end), after_it in zip(self.leases.given, self.leases.given[1:])]
        for end, next_begin in ends:
            if not answer["begin_ns"] < end < answer["end_ns"]:
                continue
            worst = 0
            while at < len(kernels) and kernels[at][0] < next_begin:
                begun, ended = kernels[at]
                if ended > end:
                    worst = max(worst, min(ended, next_begin) - end)
                    begun_late += begun > end
                at += 1
            overruns.append(worst / 1e6)
        overruns.sort()
        inside = self.leases.inside(answer["begin_ns"], answer["end_ns"])
        whole = reference["end_ns"] - reference["begin_ns"]
        self.failed |= reference["sum"] != answer["sum"] or reference["sum"] != opened["sum"]
        self.note(
            {
                "program": "stamps: kernels of 20 to 400 µs on three streams, with copies",
                "kernels": count,
                "plain_seconds": round(whole / 1e9, 3),
                "open_seconds": round((opened["end_ns"] - opened["begin_ns"]) / 1e9, 3),
                "useful_share_pct": round(100 * whole / inside, 1),
                "useful_share_of_open_pct": round(100 * (opened["end_ns"] - opened["begin_ns"]) / inside, 1),
                "leases": len(overruns),
                "overrun_p50_ms": round(overruns[len(overruns) // 2], 3) if overruns else None,
                "overrun_p99_ms": round(overruns[int(len(overruns) * 0.99)], 3) if overruns else None,
                "overrun_most_ms": round(overruns[-1], 3) if overruns else None,
                "kernels_begun_after_the_end": begun_late,
                "drift_us": answer["drift_ns"] / 1e3,
                "results_equal": reference["sum"] == answer["sum"] == opened["sum"],
                "late_leases_seen": after["late"] - before["late"],
                "late_most_ms": round(after["late_most_ns"] / 1e6, 3),
                "full_most_ms": round(after["full_most_ns"] / 1e6, 3),
                "stalled": after["stalled"] - before["stalled"],
            }
        )

    def long_kernel(self, shimmed, counters):
        self.leases.open()
        shimmed.ask("long 70000000 3")
        before = counters.read()
        self.leases.alternate()
        try:
            answer = shimmed.ask("long 70000000 1")
        finally:
            self.leases.stop()
        after = counters.read()
        self.note(
            {
                "program": "a kernel of 70 ms in leases of 50 ms",
                "leases_until_it_was_tried": sum(end < answer["end_ns"] for _, end in self.leases.given),
                **{key: after[key] - before[key] for key in ("too_long", "let_in")},
                "too_long_ms": after["too_long_ns"] / 1e6,
                "too_long_name": after["too_long_name"],
            }
        )

    def refusal(self):
        check = str(pathlib.Path(self.options.check).resolve())
        process = self.start([check], True, FREERIDE_LEASE_PAGE="/nonexistent")
        answer = process.ask("refused")
        process.end()
        self.failed |= answer["code"] != 800
        self.note(
            {
                "program": "without a lease page",
                "code": answer["code"],
                "stderr": pathlib.Path(process.errors).read_text(errors="replace").splitlines()[:3],
            }
        )

    def run(self):
        sizes = {"train": (16, 1000), "graph": (200, 12_000), "tiny": (6000, 400_000)}
        if self.options.dry_run:
            sizes = {"train": (200, 600), "graph": (60, 200), "tiny": (2000, 4000)}
        sizes = {name: size for name, size in sizes.items() if name in self.options.programs}
        self.attempt("pairs", self.pairs, sizes)
        if self.options.pairs_only:
            for name in sizes:
                self.note({"program": name, **self.slowdown(name)})
        else:
            for name, (pair, whole) in sizes.items():
                self.attempt(name, self.python_programs, name, pair, whole)
        if self.options.check and not self.options.pairs_only:
            self.attempt("cuda", self.cuda_program)
            self.attempt("refusal", self.refusal)
        self.leases.close()
        result = {
            "shim": self.options.shim,
            "real": self.real,
            "device": device() if not self.options.dry_run else "played",
            "lease_ms": LEASE_NS / 1e6,
            "period_ms": PERIOD_NS / 1e6,
            "rows": self.rows,
        }
        if self.options.out:
            pathlib.Path(self.options.out).write_text(json.dumps(result, indent=1) + "\n")
        for row in self.rows:
            print(json.dumps(row), flush=True)
        shutil.rmtree(self.folder, ignore_errors=True)
        return 1 if self.failed else 0


def device():
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def real_driver():
    """What dlopen finds: LD_LIBRARY_PATH's first."""
    folders = [one for one in os.environ.get("LD_LIBRARY_PATH", "").split(":") if one]
    listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    known = re.findall(r"libcuda\.so\.1 .*=> (\S+)", listed)
    for path in [*(f"{folder}/libcuda.so.1" for folder in folders), *known, "/usr/local/nvidia/lib64/libcuda.so.1"]:
        if os.path.exists(path):
            return path
    raise SystemExit("no libcuda.so.1 is known to ldconfig: name it by --real")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", choices=("torch", "played"), help=argparse.SUPPRESS)
    parser.add_argument("--shim", help="libfreeride_shim.so")
    parser.add_argument("--check", help="the built shim_check")
    parser.add_argument("--real", help="the CUDA driver; ldconfig's libcuda.so.1 unless told")
    parser.add_argument("--out")
    parser.add_argument("--switched", help="libswitched_cuda.so; beside --shim unless told")
    parser.add_argument("--programs", nargs="+", default=["train", "graph", "tiny"], help="of the Python programs")
    parser.add_argument("--pairs-only", action="store_true", help="the shim's cost and nothing else")
    parser.add_argument(
        "--control", action="store_true", help="the pairs by the driver alone: what the method itself shows"
    )
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=40, help="of blocks, of a process")
    parser.add_argument("--seconds", type=float, default=230, help="at most so long")
    parser.add_argument(
        "--dry-run", action="store_true", help="the played driver in the place of --real, and no PyTorch"
    )
    options = parser.parse_args()
    if options.program:
        return program_main(options.program)
    if not options.shim or not os.path.exists(options.shim):
        parser.error("--shim names no file")
    options.switched = options.switched or str(pathlib.Path(options.shim).with_name("libswitched_cuda.so"))
    if not os.path.exists(options.switched):
        parser.error(f"{options.switched} is missing: it is built with the tests")
    options.real = options.real or real_driver()
    return Bench(options).run()


if __name__ == "__main__":
    sys.exit(main())

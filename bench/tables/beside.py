"""What one would use instead of FreeRide: side tasks' own programs beside a training without the hook.

"naive": on the same device. "mps": as clients of one MPS server, training at the higher priority. All programs of all
cells are loaded at the start and wait for orders of so many nanoseconds of steps; a cell's work in blocks, with as long
blocks of nothing between."""

import pathlib
import subprocess
import time

from cells import TRAIN
from rig.processes import PATIENCE_S, Failure, Lines, flags
from training import Training


class Program:
    """A side task's own program, `bench-side-task run --serve`."""

    def __init__(self, tables, system, stage, side_task, batch, env):
        self.stage, self.side_task, self.batch = stage, side_task, batch
        self.name = f"{side_task}{batch or ''}-{stage}"
        device = tables.machine.devices[stage]
        scratch = system.root / f"{self.name}.scratch"
        scratch.mkdir()
        words = [word for param in tables.params(side_task, batch) for word in ("--param", param)]
        pin = []
        if device.startswith("cpu-"):
            pin = ["taskset", "-c", tables.machine.core_of(stage)]
        else:
            env = dict(env, CUDA_VISIBLE_DEVICES=device)
        if side_task in TRAIN:
            env = dict(env, LD_LIBRARY_PATH=tables.torch_lib())
        self.process = system.start(
            self.name,
            [
                *pin,
                tables.options.programs / "bench-side-task",
                "run",
                "--serve",
                *flags(work=tables.metric(side_task), plugin=system.tree.plugins / f"{side_task}.so"),
                *flags(device=device, scratch=scratch),
                *words,
            ],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lines, self.asked = Lines(self.process.stdout).lines, 0

    def ask(self, what):
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        self.asked += 1

    def answered(self):
        return len(self.lines) >= self.asked


class Beside:
    def __init__(self, tables, cells, method):
        self.tables, self.scale, self.machine, self.options = tables, tables.scale, tables.machine, tables.options
        self.cells, self.method, self.system = cells, method, tables.system()
        self.programs = {}
        self.mps_env = {}
        self.training = None

    def close(self):
        self.system.close()

    def prepare(self):
        """Ranks, and programs where that takes nothing of a GPU, up to where they would."""
        if self.method == "mps":
            if not self.machine.gpus:
                raise Failure("MPS needs GPUs")
            self.mps_env = {
                "CUDA_MPS_PIPE_DIRECTORY": str(self.system.root / "p"),
                "CUDA_MPS_LOG_DIRECTORY": str(self.system.root / "l"),
            }
            for path in self.mps_env.values():
                pathlib.Path(path).mkdir()
        env = dict(self.mps_env, CUDA_MPS_CLIENT_PRIORITY="0") if self.mps_env else {}
        self.training = Training(
            self.system, self.options.python, False, len(self.machine.devices), self.machine.cores, env
        )
        if self.method == "naive":
            self.training.prepare(self.tables.job(self.cells[0]))
            self.start_programs({})
            # For alone(): side tasks of FreeRide's cells only.
            devices = range(len(self.machine.devices))
            for cell in self.scale.cells:
                for stage in devices:
                    for side_task in self.tables.side_tasks(cell, stage):
                        batch = cell.batch if side_task in TRAIN else None
                        if all(key[1:] != (side_task, batch) for key in self.programs):
                            free = min(devices, key=lambda one: sum(key[0] == one for key in self.programs))
                            self.programs[free, side_task, batch] = Program(
                                self.tables, self.system, free, side_task, batch, {}
                            )

    def start_programs(self, env):
        for cell in self.cells:
            for key in self.keys(cell):
                if key not in self.programs:
                    self.programs[key] = Program(self.tables, self.system, *key, env)

    def keys(self, cell):
        return [
            (stage, side_task, cell.batch if side_task in TRAIN else None)
            for stage in range(len(self.machine.devices))
            for side_task in self.tables.side_tasks(cell, stage)
        ]

    def answers(self, programs, what, seconds=PATIENCE_S):
        self.system.wait(
            lambda: all(program.answered() for program in programs),
            f"{what} of " + ", ".join(program.name for program in programs),
            seconds,
        )
        return [program.lines[-1] for program in programs]

    def init(self):
        if self.method == "mps":
            self.system.start("mps", ["nvidia-cuda-mps-control", "-f"], env=self.mps_env)
            self.system.wait(
                (pathlib.Path(self.mps_env["CUDA_MPS_PIPE_DIRECTORY"]) / "control").exists, "MPS control daemon", 20
            )
            # Not before: whoever opens CUDA and finds no server runs without one, and a library may open it as it is
            # loaded.
            self.training.prepare(self.tables.job(self.cells[0]))
            self.start_programs(dict(self.mps_env, CUDA_MPS_CLIENT_PRIORITY="1"))
        for program in self.programs.values():
            program.ask("init")
        self.answers(list(self.programs.values()), "InitSideTask")

    def control(self, order):
        try:
            done = subprocess.run(
                ["nvidia-cuda-mps-control"],
                input=order + "\n",
                env=dict(self.system.env, **self.mps_env),
                capture_output=True,
                text=True,
                timeout=20,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Failure(f"nvidia-cuda-mps-control: no answer to {order} within 20 s") from None
        return [int(word) for word in done.stdout.split() if word.isdigit()]

    def strangers(self):
        """Names of those that are no clients of the server: a process that finds none runs without one, and would be
        measured as if it had."""
        clients = {
            pid for server in self.control("get_server_list") for pid in self.control(f"get_client_list {server}")
        }
        found = [
            name for name, process in self.system.processes.items() if name != "mps" and process.pid not in clients
        ]
        self.tables.say(f"MPS: {len(clients)} clients" + (f", and not: {', '.join(found)}" if found else ""))
        return found

    def alone(self, seconds, done):
        """Each side task with a device to itself, as many of them at a time as there are devices."""
        left = {}
        for (stage, side_task, batch), program in self.programs.items():
            left.setdefault((side_task, batch), {})[stage] = program
        while left:
            free, round_ = set(range(len(self.machine.devices))), []
            for what, by_stage in list(left.items()):
                stage = next((stage for stage in by_stage if stage in free), None)
                if stage is not None:
                    free.discard(stage)
                    round_.append((what, by_stage[stage]))
                    del left[what]
            for _, program in round_:
                program.ask(int(seconds * 1e9))
            answers = self.answers([program for _, program in round_], "steps")
            for ((side_task, batch), program), answer in zip(round_, answers):
                work = self.tables.in_units(side_task, batch, answer["work"])
                done(side_task, batch, work, answer["ns"] / 1e9, program.stage, answer["began_ns"])

    def go(self):
        self.training.go()

    def measure(self, done):
        # Cells of one training only: the baselines are not measured in several phases.
        block_ns = int(self.scale.block_iterations * self.training.ready_ms() * 1e6)
        strangers = self.strangers() if self.method == "mps" else []
        for cell in self.cells:
            if self.tables.late():
                return
            try:
                needed = [f"rank-{rank}" for rank in range(len(self.machine.devices))] + [
                    self.programs[key].name for key in self.keys(cell)
                ]
                if not set(needed).isdisjoint(strangers):
                    raise Failure(
                        f"no clients of the MPS server: {', '.join(name for name in needed if name in strangers)}"
                    )
                done(cell, self.cell(cell, block_ns))
            except Failure as failure:
                done(cell, failure)
                self.system.check()
        self.training.end()

    def cell(self, cell, block_ns):
        programs = [self.programs[key] for key in self.keys(cell)]
        windows, worked = [], [0.0] * len(programs)  # (from, to, with side tasks)
        from_ns = time.monotonic_ns()
        # Training may take twice as long beside side tasks, so they get twice as long; three pairs make an interval.
        pairs = max(3, round((self.options.seconds or cell.seconds or self.scale.seconds) / (3 * block_ns / 1e9)))
        for _ in range(pairs):
            for program in programs:
                program.ask(2 * block_ns)
            answers = self.answers(programs, "steps", 30)
            worked = [one + answer["work"] for one, answer in zip(worked, answers)]
            # All of them at work: from the last one's first step to the first one's end.
            windows.append(
                (
                    max(answer["began_ns"] for answer in answers),
                    min(answer["began_ns"] + answer["ns"] for answer in answers),
                    True,
                )
            )
            begin = time.monotonic_ns()
            time.sleep(block_ns / 1e9)
            self.system.check()
            windows.append((begin, time.monotonic_ns(), False))
        time.sleep(2 * block_ns / self.scale.block_iterations / 1e9)  # the last iterations are not told yet
        lines = self.training.iterations(from_ns, windows[-1][1])

        def kind(line):
            begin = line["end_ns"] - int(line["ms"] * 1e6)
            return next((on for since, until, on in windows if since <= begin and line["end_ns"] <= until), None)

        samples = self.tables.samples(lines, kind)
        if not samples:
            raise Failure("no iteration was within a block")
        seconds = sum(until - since for since, until, on in windows if on) / 1e9
        tasks = [
            {
                "side_task": program.side_task,
                "batch": program.batch,
                "stage": program.stage,
                "seconds": seconds,
                "work": self.tables.in_units(program.side_task, program.batch, work),
            }
            for program, work in zip(programs, worked)
        ]
        return {"samples": samples, "tasks": tasks, "bubbles": {}}

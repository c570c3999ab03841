"""A whole FreeRide system of real processes: manager, workers, trainings, freeride-ctl."""

import contextlib
import json
import os
import pathlib
import shutil
import tempfile

from .ctl import Ctl
from .processes import PATIENCE_S, Failure, Processes, flags, until
from .tree import PYTHON, SOURCE, environment


def new_folder(outside_tmp=False):
    """`outside_tmp`: with MPS, since a sandbox has /tmp to itself; there no plugin may be kept where /run is mounted
    noexec. Short, since sockets' names are."""
    under = "/run" if outside_tmp and os.access("/run", os.W_OK) else None
    folder = pathlib.Path(tempfile.mkdtemp(prefix="fr-", dir=under))
    folder.chmod(0o755)
    return folder


class System(Processes):
    """Processes in folders of their own, which close() removes. `logs`: where what they say is kept instead; `env`:
    more of all programs' environment."""

    def __init__(self, tree, job=None, outside_tmp=False, logs=None, env=None):
        self.tree, self.root = tree, new_folder(outside_tmp)
        self.run_dir, self.state_dir = self.root / "r", self.root / "s"
        for folder in (self.run_dir, self.state_dir, self.state_dir / "plugins"):
            folder.mkdir()
        super().__init__(
            logs or self.root,
            {
                **environment(),
                "FREERIDE_RUN_DIR": str(self.run_dir),
                "FREERIDE_STATE_DIR": str(self.state_dir),
                "FREERIDE_SETTLE_MS": "0",  # no training is here that a new worker does not know
                "PYTHONPATH": str(tree.hooks),
                "PYTHONDONTWRITEBYTECODE": "1",
                "PYTHONUNBUFFERED": "1",
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
                **({"FREERIDE_JOB": job} if job else {}),
                **(env or {}),
            },
        )
        with contextlib.suppress(Failure):  # without one there is no Python training either
            self.env["FREERIDE_HOOK_LIBRARY"] = str(tree.hook_library())
        self.calls = Ctl(tree.programs / "freeride-ctl", self.env)
        self.trainings = {}  # name: the file of its iterations

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Ends everything, in whatever state it is. Never raises; a second time it does nothing."""
        self.end_all()
        shutil.rmtree(self.root, ignore_errors=True)

    # ---- manager and workers
    def start_manager(self, *flags, env=None):
        """Returns when it answers. Failure when it ends instead."""
        process = self.start("manager", [self.tree.program("freeride-manager"), *flags], env=env)
        until(lambda: self.ctl("status").code == 0 or process.poll() is not None, "the manager's first answer")
        if process.poll() is not None:
            raise Failure(f"the manager ended with {process.returncode}; {self.last_words('manager')}")
        return process

    def end_manager_on(self, keep, use=None):
        """Ends the manager, keeps its state file as `keep`, and perhaps puts another in its place."""
        self.end("manager")
        database = self.state_dir / "freeride.db"
        shutil.copy(database, keep)
        for end in ("-wal", "-shm"):
            database.with_name(database.name + end).unlink(missing_ok=True)
        if use:
            shutil.copy(use, database)

    def start_worker(self, device, *flags, name=None, cores=None, env=None, wait=True):
        """Returns when it listens to trainers, or has ended. `cores` of a CPU device: one of its number, unless they
        are given; "": all that we may use."""
        name = name or f"worker-{device}"
        pinned = (
            ["--cores", int(device[4:]) % os.cpu_count() if cores is None else cores]
            if device.startswith("cpu-") and cores != ""
            else []
        )
        process = self.start(
            name,
            [self.tree.program("freeride-worker"), "--device", device, *pinned, *self.tree.libraries(), *flags],
            env=env,
        )
        if wait:
            until(
                lambda: (self.run_dir / f"worker-{device}.sock").exists() or process.poll() is not None,
                f"{name} listens",
            )
        return process

    def wait_workers(self, count, trained=False, seconds=PATIENCE_S):
        """Until so many are registered and up; `trained`: and each has a rank of a training."""

        def up():
            answer = self.ctl("workers")
            states = [worker["state"] for worker in answer.json.get("workers", [])] if answer.code == 0 else []
            return len(states) == count and all(
                state["state"] == "up" and (not trained or state["stage"] >= 0) for state in states
            )

        self.wait(up, f"{count} registered workers", seconds)

    def start_training(
        self, stages=4, iterations=None, seconds=None, hook="on", name="training", log_json=None, env=None, **options
    ):
        """The example's small GPT, whose launcher starts its ranks. `options` are its flags; `env`: more of its
        environment."""
        self.trainings[name] = pathlib.Path(log_json or self.root / f"{name}.jsonl")
        self.trainings[name].unlink(missing_ok=True)
        long = {"iterations": iterations} if iterations else {"seconds": seconds or 600}
        words = flags(stages=stages, hook=hook, log_json=self.trainings[name], **options, **long)
        return self.start(name, [PYTHON, SOURCE / "hooks/examples/train_gpt.py", *words], env)

    def iterations(self, name="training"):
        """The training's own log, of whole lines only: it may be writing the last one."""
        return read_lines(self.trainings.get(name))

    # ---- talking to it
    def ctl(self, *words, timeout=5):
        """A freeride-ctl call, whatever becomes of it."""
        return self.calls.ask(*words, timeout=timeout)

    def ok(self, *words, timeout=20):
        """The JSON of a call that has to be good."""
        return self.calls(*words, timeout=timeout)

    def load(self, plugin, name, *flags, params=()):
        """`params`: KEY=VALUE words, or a dict."""
        params = [f"{key}={value}" for key, value in params.items()] if isinstance(params, dict) else params
        self.ok("load", plugin, "--name", name, *(word for param in params for word in ("--param", param)), *flags)

    def info(self, name):
        """All that the manager says of a task, or {} when there is none."""
        answer = self.ctl("task", name)
        return answer.json["task"] if answer.code == 0 else {}

    def task(self, name):
        """The task's state map (as on the bus), or {} when there is none."""
        return self.info(name).get("state", {})

    def steps(self, name):
        return self.task(name).get("counters", {}).get("steps", 0)

    def wait_state(self, name, *states):
        return until(
            lambda: next((task for task in [self.task(name)] if task.get("state") in states), None),
            f"{name} is {' or '.join(states)}",
        )

    def wait_verdict(self, name, seconds=PATIENCE_S):
        return until(
            lambda: next((verdict for verdict in [self.task(name).get("verdict", {})] if verdict.get("kind")), None),
            f"the end of {name}",
            seconds,
        )

    def wait_steps(self, name, more=5, seconds=PATIENCE_S):
        """Until it has made so many more; returns how many it has made in all. Failure when it has ended instead."""
        begin = self.steps(name)

        def made():
            state = self.task(name)
            if state.get("verdict", {}).get("kind"):
                raise Failure(f"{name} ended before it made {more} steps: {state['verdict']}")
            steps = state.get("counters", {}).get("steps", 0)
            return steps if steps >= begin + more else 0

        return until(made, f"{more} more steps of {name}", seconds)

    def stop_tasks(self, *names, seconds=PATIENCE_S):
        """As a user would, and waits for their verdicts."""
        for name in names:
            self.ok("stop", name)
        return [self.wait_verdict(name, seconds) for name in names]

    def wait_iterations(self, more=3, name="training"):
        begin = len(self.iterations(name))
        until(lambda: len(self.iterations(name)) >= begin + more, f"{more} more iterations of {name}")


def read_lines(path):
    return (
        [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path is not None and path.exists() else []
    )

"""What the Python tests share: folders, a worker's end of the handover, ranks started as processes of their own."""

import os
import pathlib
import socket
import subprocess
import sys

from freeride import pages

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("FREERIDE_BUILD_DIR", SOURCE / "build/dev"))
LIBRARY = BUILD / "lib/libfreeride_hook.so"
TRAIN = SOURCE / "hooks/examples/train_gpt.py"
SMALL = ["--dim", "16", "--heads", "2", "--layers", "4", "--seq", "16", "--micro-batch-size", "2"]
WATCHDOG = 120


def environment(run_dir, **more):
    """For a hooked process: this build's library, this test's folder, nothing from the outside that could decide for it."""
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FREERIDE_", "TORCHELASTIC", "SLURM_"))
    }
    env.update(
        FREERIDE_RUN_DIR=str(run_dir),
        FREERIDE_HOOK_LIBRARY=str(LIBRARY),
        PYTHONPATH=str(SOURCE / "hooks/python"),
        PYTHONDONTWRITEBYTECODE="1",
        OMP_NUM_THREADS="1",
        OPENBLAS_NUM_THREADS="1",
    )
    env.update({name: str(value) for name, value in more.items()})
    return env


class Worker:
    """The worker of one device, as far as a trainer can see."""

    def __init__(self, run_dir, device):
        self.path = f"{run_dir}/worker-{device}.sock"
        self.listener = pages.listen(self.path)
        self.listener.settimeout(WATCHDOG)
        self.page = self.connection = None

    def take(self):
        self.connection, _ = self.listener.accept()
        self.connection.settimeout(WATCHDOG)
        self.page = pages.take_page(self.connection)
        return self.page

    def wait_gone(self):
        try:
            return self.connection.recv(16) == b""
        except ConnectionResetError:  # it died with our answer unread
            return True

    def close(self):
        for end in (self.connection, self.listener):
            if end is not None:
                end.close()
        if os.path.exists(self.path):
            os.unlink(self.path)


def python(code_or_path, *arguments, run_dir, **env):
    """Runs Python code (text with a newline) or a script under this build's hook; returns the finished process."""
    start = ["-c", code_or_path] if "\n" in str(code_or_path) else [str(code_or_path)]
    return subprocess.run(
        [sys.executable, *start, *map(str, arguments)],
        env=environment(run_dir, **env),
        capture_output=True,
        text=True,
        timeout=WATCHDOG,
        check=False,
    )


def world(code, size, run_dir, hooked=True, **env):
    """Starts `size` ranks that run `code` over gloo, each with `rank`, `size`, `torch` and `dist` defined; returns their processes."""
    port = free_port()
    script = pathlib.Path(run_dir) / "rank.py"
    script.write_text(
        "import os, torch, torch.distributed as dist\nrank, size = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])\n"
        "torch.set_num_threads(1)\n" + code
    )
    through = ["-m", "freeride.run"] if hooked else []
    return [
        subprocess.Popen(
            [sys.executable, *through, str(script)],
            env=environment(
                run_dir, RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=size, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, **env
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]


def finish(processes):
    """Waits for all; [(exit code, stdout, stderr)]. A hang ends the test, and the processes."""
    try:
        return [(process.communicate(timeout=WATCHDOG), process.returncode) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]

"""A Docker engine: the one that answers already, else one of our own, which ends with the test."""

import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

START_S = 60  # a bound against hanging for ever


class EngineError(Exception):
    """No engine; the text is the line the user gets."""


class Engine:
    """Use as a context manager. `docker()` talks to it; `env` is for programs that do so themselves."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.env = dict(os.environ)
        self._daemon = self._log = None
        self._short = None  # sockets: their paths may have 107 bytes, which a checkout's may use up

    def __enter__(self):
        if not shutil.which("docker"):
            raise EngineError(
                "the program docker is not installed; scripts/install-deps.sh docker installs Debian's docker.io"
            )
        if self._answers():
            return self
        if "DOCKER_HOST" in os.environ:
            raise EngineError(
                f"no Docker engine answers at DOCKER_HOST={os.environ['DOCKER_HOST']}; start it, or unset DOCKER_HOST and one is started here"
            )
        if os.geteuid() != 0:
            raise EngineError(
                "no Docker engine answers, and only root can start one; start the engine (systemctl start docker), or run this as root"
            )
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self._daemon:
            # By its process, not its name: the host may have an engine of its own. It ends its containerd.
            self._daemon.send_signal(signal.SIGTERM)
            try:
                self._daemon.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self._daemon.pid, signal.SIGKILL)
                self._daemon.wait()
            self._daemon = None
            shutil.rmtree(self.folder / "data", ignore_errors=True)
        if self._short:
            shutil.rmtree(self._short, ignore_errors=True)
            self._short = None

    def _start(self):
        if not shutil.which("dockerd"):
            raise EngineError(
                "no Docker engine answers and dockerd is not installed; scripts/install-deps.sh docker installs Debian's docker.io"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        self._short = pathlib.Path(tempfile.mkdtemp(prefix="freeride-docker-"))
        socket, log = f"unix://{self._short}/docker.sock", self.folder / "dockerd.log"
        with open(log, "wb") as out:
            # No bridge and no packet filter: the containers have no network, and the kernel may lack both.
            self._daemon = subprocess.Popen(
                [
                    "dockerd",
                    "--iptables=false",
                    "--bridge=none",
                    "--data-root",
                    self.folder.resolve() / "data",
                    "--exec-root",
                    self._short / "exec",
                    "--pidfile",
                    self._short / "pid",
                    "--host",
                    socket,
                ],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.env["DOCKER_HOST"] = socket
        end = time.monotonic() + START_S
        while not self._answers():
            if self._daemon.poll() is not None or time.monotonic() > end:
                lines = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
                raise EngineError(f"the Docker engine does not start: {lines[-1]}; its log: {log}")
            time.sleep(0.2)

    def _answers(self):
        return (
            subprocess.run(
                ["docker", "version", "--format", "{{.Server.Version}}"],
                env=self.env,
                capture_output=True,
                timeout=START_S,
                check=False,
            ).returncode
            == 0
        )

    def docker(self, *arguments, check=True):
        done = subprocess.run(
            ["docker", *map(str, arguments)], env=self.env, capture_output=True, text=True, check=False
        )
        if check and done.returncode != 0:
            raise EngineError(
                f"docker {' '.join(map(str, arguments))[:200]} failed with {done.returncode}: {done.stderr.strip()[-2000:]}"
            )
        return done.stdout.strip()

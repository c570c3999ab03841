"""What each kind of blow does. Every one ends by itself, or is undone here."""

import contextlib
import itertools
import os
import resource
import shutil
import signal
import socket
import subprocess
import threading
import time

from chaos import links, plan
from rig.system import read_lines

GUEST_ITERATIONS = 6
BULK_BYTES = 200_000_000  # of a plugin
MOST_FREE = 8  # descriptors that one that runs out of them finds at first


class Blows:
    """strike() from any thread. `model`: the training's flags."""

    def __init__(self, system, keeper, watch, user, ground, fault, model):
        self.system, self.keeper, self.watch, self.user = system, keeper, watch, user
        self.ground, self._fault, self.model = ground, fault, model
        self.counts, self._guests = {}, 0
        self._lock = threading.Lock()
        self._alone = {what: threading.Lock() for what in ("disk", "shm", "manager", "recorder", *plan.DEVICES)}

    def strike(self, blow):
        """True if there was anything to strike."""
        if blow.kind in self.ground.impossible:
            return False
        time.sleep(blow.after_s)
        hit = getattr(self, "_" + blow.kind.split("-")[0])(blow)
        if hit:
            with self._lock:
                key = f"{blow.kind} {hit if isinstance(hit, str) else blow.target}"
                self.counts[key] = self.counts.get(key, 0) + 1
        return bool(hit)

    # ---- whom
    def _daemon(self, target):
        return target.replace("worker-", "worker-cpu-")

    def _rank(self, number):
        return self.watch.ranks.get(f"cpu-{number}")

    def _pid(self, blow):
        """Of the target; and notes who has to suffer for it."""
        what = f"{blow.kind} {blow.target.split('-')[0]}"
        if blow.target in ("supervisor", "runner"):
            side = self.watch.side(blow.target, blow.pick)
            if side is None:
                return 0
            self.user.strike(what, side.task)
            return side.pid
        if blow.target.startswith("rank"):
            rank = self._rank(blow.target[-1])
            return rank.pid if rank else 0
        self.user.strike(what)
        return self.keeper.pid(self._daemon(blow.target))

    # ---- processes
    def _kill(self, blow):
        pid = self._pid(blow)
        if blow.target not in ("supervisor", "runner"):
            self.keeper.struck(self._daemon(blow.target))
        with contextlib.suppress(ProcessLookupError):
            if pid:
                os.kill(pid, signal.SIGKILL)
        return bool(pid)

    def _freeze(self, blow):
        pid = self._pid(blow)
        if not pid:
            return False
        with contextlib.suppress(ProcessLookupError):
            pidfd = os.pidfd_open(pid)  # it may be another's by then
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
                time.sleep(blow.lasts_s)
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
            finally:
                os.close(pidfd)
        return True

    def _descriptors(self, blow):
        """It may have no more descriptors than it has, or a few, until they are given back."""
        pid = self._pid(blow)
        with self._alone[blow.target], contextlib.suppress(ProcessLookupError, FileNotFoundError):
            pidfd = os.pidfd_open(pid)
            try:
                has = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
                few = next(number for number in itertools.count() if number not in has) + int(blow.pick * MOST_FREE)
                before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
                resource.prlimit(pid, resource.RLIMIT_NOFILE, (few, before[1]))
                time.sleep(blow.lasts_s)
                signal.pidfd_send_signal(pidfd, 0)  # it may be another's by then
                resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
            finally:
                os.close(pidfd)
        return True

    # ---- links
    def _cut(self, blow):
        if blow.target.startswith("hook"):
            rank = self._rank(blow.target[-1])
            of_worker = blow.pick < 0.5 or rank is None
            pid = self.keeper.pid(f"worker-cpu-{blow.target[-1]}") if of_worker else rank.pid
            return links.cut(pid, socket.SOCK_SEQPACKET, blow.pick * 2 % 1)
        return links.cut(self.keeper.pid(self._daemon(blow.target)), socket.SOCK_STREAM, blow.pick)

    def _unlink(self, blow):
        path = self.system.run_dir / f"{self._daemon(blow.target)}.sock"
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
            return True
        return False

    def _run(self, blow):
        """As the end of a user's last session, or a cleaner: nobody reaches anybody until it is made again."""
        shutil.rmtree(self.system.run_dir, ignore_errors=True)
        return True

    def _usr(self, blow):
        """What Slurm's --signal sends to every process of a step; it explains the end of none."""
        if blow.target in ("supervisor", "runner"):
            side = self.watch.side(blow.target, blow.pick)
            pid = side.pid if side else 0
        else:
            pid = self.keeper.pid(self._daemon(blow.target))
        with contextlib.suppress(ProcessLookupError):
            if pid:
                os.kill(pid, signal.SIGUSR1 if blow.pick < 0.5 else signal.SIGUSR2)
        return bool(pid)

    # ---- what it stands on
    def _disk(self, blow):
        with self._alone["disk"]:
            if blow.kind == "disk-full":
                self.user.strike("full disk")
                with self.ground.full(self.ground.state_dir):
                    time.sleep(blow.lasts_s)
            else:
                freezer = self.ground.freeze(blow.lasts_s, blow.kind == "disk-slow")
                if freezer.wait() != 0:
                    self._fault(f"the disk could not be frozen: {freezer.returncode}")
        return True

    def _shm(self, blow):
        """While it is full a training comes, whose hook would like a page there."""
        with self._alone["shm"], self.ground.full("/dev/shm"):
            self._guest(blow.lasts_s if blow.pick < 0.3 else None)
        return True

    def _clock(self, blow):
        self.ground.step_clock(blow.step_s)
        return True

    # ---- others
    def _trainer(self, blow):
        self._guest(blow.lasts_s if blow.target == "kill" else None)
        return True

    def _guest(self, killed_after_s):
        """A second training on the same devices, for a short while; it may be killed in the middle."""
        with self._lock:
            self._guests += 1
            name = f"guest-{self._guests}"
        process = self.system.start_training(
            stages=2, iterations=GUEST_ITERATIONS, name=name, env={"FREERIDE_JOB": name}, **self.model
        )
        if killed_after_s is None:
            if process.wait(120) != 0:
                self._fault(f"{name} ended with {process.returncode}; {self.system.last_words(name)}")
            losses = [line["loss"] for line in self.system.iterations(name)]
            first = [line["loss"] for line in read_lines(self.system.trainings["training"])[:GUEST_ITERATIONS]]
            if losses != first:
                self._fault(f"the losses of {name} are {losses}, and {first} without it")
        else:
            time.sleep(killed_after_s)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(120)
        self.system.processes.pop(name, None)
        self.system.trainings.pop(name).unlink(missing_ok=True)

    def _bulk(self, blow):
        """A plugin as large as those of frameworks that are linked in, which nobody has had yet."""
        name = self.user.new_name("bulk")
        path = self.system.root / f"{name}.so"
        with open(path, "wb") as file:
            file.write(self.user.plugin.read_bytes() + name.encode())
            file.truncate(BULK_BYTES)
        try:
            with self.watch.bulk():
                # Whoever is struck meanwhile: it is loaded again as somebody would who is told to try again.
                for _ in range(3):
                    if self.user.load(name, "--no-profile", finish=20, plugin=path, patience_s=60):
                        break
        finally:
            path.unlink()
        return True

    def _ctl(self, blow):
        """freeride-ctl, ended or held in the middle of a command."""
        words = [blow.word]
        standing = sorted(self.user.names.values())
        task = standing[int(blow.pick * len(standing))]
        if blow.word == "load":
            name = self.user.new_name("half")
            words = list(self.user.words_of_load(name, finish=20))
            self.user.perhaps.add(name)
        elif blow.word in ("stop", "pause", "resume"):
            words.append(task)
        process = subprocess.Popen(
            [str(self.system.tree.programs / "freeride-ctl"), *map(str, words)],
            env=self.system.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(0.15 * blow.pick)
        if blow.target == "freeze":
            process.send_signal(signal.SIGSTOP)
            time.sleep(blow.lasts_s)
            process.send_signal(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1 if blow.word == "top" else 30)
        process.kill()
        process.wait()
        return f"{blow.target} {blow.word}"

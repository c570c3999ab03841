"""Starts daemons, and again when they end, as their systemd units say: Restart=on-failure, RestartSec=1."""

import threading
import time

from chaos import judge
from rig.processes import until

RESTART_S = 1.0


class Keeper:
    """`fault(text)` hears of what a daemon must never do. Ends of our own making are told before: struck(name)."""

    def __init__(self, system, fault):
        self.system, self._fault = system, fault
        self.starts, self.words = {}, {}  # by name
        self._killed, self._stop, self._over = set(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def add(self, name, *words):
        self.words[name] = words
        self._start(name)

    def begin(self):
        self._thread.start()

    def _start(self, name):
        self.starts[name] = self.starts.get(name, 0) + 1
        self.system.start(name, self.words[name])

    def pid(self, name):
        return self.system.processes[name].pid

    def alive(self):
        return all(self.system.processes[name].poll() is None for name in self.words)

    def struck(self, name):
        """It is about to be killed by us."""
        self._killed.add(self.pid(name))

    def _keep(self):
        ended = {}  # name: when
        while not self._stop.wait(0.05):
            for name in self.words:
                process = self.system.processes[name]
                code = process.poll()
                if code is None:
                    continue
                if name not in ended:
                    ended[name] = time.monotonic()
                    if judge.is_crash(code):
                        self._fault(f"{name} crashed: it ended with {code}; {self.system.last_words(name)}")
                    elif process.pid not in self._killed and code != 1:
                        self._fault(f"{name} ended with {code}, which nobody asked for; {self.system.last_words(name)}")
                elif time.monotonic() - ended[name] >= RESTART_S:
                    del ended[name]
                    self._start(name)

        self._over.wait()  # what this thread has started ends with it

    def stop(self):
        """No more restarts; then the daemons end in good order. Failure when one does not."""
        self._stop.set()
        try:
            until(self.alive, "all daemons are there at the end", 5)
            for name in [name for name in self.words if name != "manager"] + ["manager"]:
                self.system.end(name, 40)
        finally:
            self._over.set()
            self._thread.join()

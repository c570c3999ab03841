"""A rank with idle phases and no pipeline, as its worker sees one: a bubble page that a test writes, without a hook."""

import os
import socket
import time

from freeride import pages

from .processes import Failure, until


class PhaseRank:
    """Rank 0 of `job` on `device` of `system`, until close(). `names`: of its phases; each begin of the first ends an
    iteration."""

    def __init__(self, system, device="cpu-0", job="rl", names=("rollout", "save")):
        self.fd, self.page = pages.create(pages.BubblePage)
        self.names, self.number, self.slot, self.began = list(names), 0, None, time.monotonic_ns()
        view = self.page.view
        view.job, view.device, view.framework = job.encode(), device.encode(), b"test"
        view.stages, view.replicas, view.pid = 1, 1, os.getpid()
        view.hook_state = pages.HOOK_ACTIVE
        for slot, name in enumerate(names):
            view.phases[slot].name = name.encode()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        address = str(system.run_dir / f"worker-{device}.sock")
        until(lambda: self.socket.connect_ex(address) == 0, f"{address} listens")
        socket.send_fds(self.socket, [pages.HELLO], [self.fd])
        if not (answer := self.socket.recv(1000)).startswith(b"OK"):
            raise Failure(f"the worker refused the page: {answer}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()
        self.page.close()
        os.close(self.fd)

    def begin(self, name):
        self.slot = self.names.index(name)
        if self.slot == 0:
            self._end_iteration()
        view = self.page.view
        self.number += 1
        view.idle_begin_ns = time.monotonic_ns()
        view.idle_begun = pages.phase(self.number, self.slot)
        self._wake()

    def end(self):
        view, now = self.page.view, time.monotonic_ns()
        view.idle_ended = self.number
        length = now - view.idle_begin_ns
        record = view.history[view.bubbles % pages.HISTORY]
        record.state_word = pages.state(view.iteration, pages.phase_wait(self.slot))
        record.begin_ns, record.end_ns, record.learned_low_ns = view.idle_begin_ns, now, 0
        view.bubbles += 1
        view.phases[self.slot].count += 1
        view.phases[self.slot].total_ns += length
        self._wake()

    def _end_iteration(self):
        view, now = self.page.view, time.monotonic_ns()
        record = view.iterations[view.iteration % pages.ITERATIONS]
        record.iteration, record.begin_ns, record.end_ns = view.iteration, self.began, now
        self.began = now
        view.iteration += 1
        view.state_word = pages.state(view.iteration, 0)

    def _wake(self):
        self.page.view.wake += 1
        pages.futex_wake(self.page, "wake")

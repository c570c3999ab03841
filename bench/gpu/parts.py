"""Where the time of a stage's chunks goes, of which each follows a wait: from the wait's end to the first kernel's, in
the first layer, in the others; and the SM clock in the two latter."""

import ctypes
import os
import subprocess
import tempfile

MOST = 1 << 16  # looks at the clock, three for a chunk; later chunks are not measured
MULTIPROCESSORS = 4
OPEN = 16  # chunks whose end is not waited for


class Parts:
    def __init__(self, torch, layers, stream):
        self.torch, self.stream, self.looks, self.open, self.rows, self.chunk = torch, stream, 0, [], [], None
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "clock.cu")
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(
                [
                    "nvcc",
                    "-O2",
                    "-arch=native",
                    "-shared",
                    "-Xcompiler",
                    "-fPIC",
                    source,
                    "-o",
                    folder + "/libclock.so",
                ],
                check=True,
            )
            self.clock = ctypes.CDLL(folder + "/libclock.so")
        self.clock.clock_look.argtypes = [ctypes.c_void_p, ctypes.c_int]
        if self.clock.clock_init(MOST):
            raise RuntimeError("no memory for looks at the clock")
        layers[0].register_forward_hook(lambda *_: self.first("F"))

        def before_last(_, given):
            if given[0].requires_grad:
                given[0].register_hook(lambda _: self.first("B"))

        layers[-1].register_forward_pre_hook(before_last)

    def edge(self):
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        self.chunk.append(event)

    def look(self):
        self.clock.clock_look(self.stream(), self.looks)
        self.looks += 1

    def begin(self, iteration, index, what):
        """Behind the wait of the iteration's chunk so numbered: "F", a forward, or "B", a backward."""
        if self.looks + 3 > MOST:
            return
        self.chunk = [iteration, index, what, self.looks]
        self.edge()
        self.look()
        self.edge()

    def first(self, what):
        if self.chunk is not None and self.chunk[2] == what and len(self.chunk) == 6:
            self.edge()
            self.look()

    def end(self):
        if self.chunk is None:
            return
        self.edge()
        self.look()
        self.open.append(self.chunk)
        self.chunk = None
        if len(self.open) > OPEN:
            *head, begin, there, first, end = self.open.pop(0)
            end.synchronize()
            self.rows.append(
                head + [round(1e3 * a.elapsed_time(b), 2) for a, b in ((begin, there), (there, first), (first, end))]
            )

    def result(self):
        """Rows of iteration, chunk, what, the three times in us, the two clocks in MHz (None: not known)."""
        self.torch.cuda.synchronize()
        raw = (ctypes.c_uint64 * (2 * MULTIPROCESSORS * self.looks))()
        self.clock.clock_read(raw, self.looks)
        return [
            [iteration, index, what, *times, self.mhz(raw, at), self.mhz(raw, at + 1)]
            for iteration, index, what, at, *times in self.rows
        ]

    @staticmethod
    def mhz(raw, at):
        found = []
        for of in range(2 * MULTIPROCESSORS * at, 2 * MULTIPROCESSORS * (at + 1), 2):
            ns, cycles, later_ns, later_cycles = (
                *raw[of : of + 2],
                *raw[of + 2 * MULTIPROCESSORS : of + 2 * MULTIPROCESSORS + 2],
            )
            if ns and later_ns > ns and later_cycles > cycles:
                found.append(1e3 * (later_cycles - cycles) / (later_ns - ns))
        return round(sum(found) / len(found), 1) if found else None

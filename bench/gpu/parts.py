"""Where the time of a stage's chunks goes, of which each follows a wait: from the wait's end to the first kernel's, and in
each layer; and the SM clock in each layer."""

import ctypes
import os
import subprocess
import tempfile

MOST = 1 << 17  # looks at the clock, some more for a chunk than it has layers; later chunks are not measured
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
        self.most = len(layers) + 2  # looks of a chunk: at its begin, at each layer's end, at its end

        def before(_, given):
            if given[0].requires_grad:
                given[0].register_hook(lambda _: self.layer("B"))

        for layer in layers:
            layer.register_forward_hook(lambda *_: self.layer("F"))
            layer.register_forward_pre_hook(before)

    def edge(self):
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        self.chunk.append(event)

    def look(self):
        self.clock.clock_look(self.stream(), self.looks)
        self.looks += 1

    def begin(self, iteration, index, what):
        """Behind the wait of the iteration's chunk so numbered: "F", a forward, or "B", a backward."""
        if self.looks + self.most > MOST:
            return
        self.chunk = [iteration, index, what, self.looks]
        self.edge()
        self.look()
        self.edge()

    def layer(self, what):
        if self.chunk is not None and self.chunk[2] == what:
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
            self.row(self.open.pop(0))

    def row(self, chunk):
        events = chunk[4:]
        events[-1].synchronize()
        times = [round(1e3 * a.elapsed_time(b), 2) for a, b in zip(events, events[1:])]
        self.rows.append((*chunk[:4], times))

    def result(self):
        """Rows of iteration, chunk, what, times in us (until the first kernel's end, then of each layer, then of what
        comes behind the layers), clocks in MHz in all of these but the first (None: not known)."""
        self.torch.cuda.synchronize()
        raw = (ctypes.c_uint64 * (2 * MULTIPROCESSORS * self.looks))()
        self.clock.clock_read(raw, self.looks)
        return [
            [iteration, index, what, times, [self.mhz(raw, at + i) for i in range(len(times) - 1)]]
            for iteration, index, what, at, times in self.rows
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

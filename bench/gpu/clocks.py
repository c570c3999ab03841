"""Samples GPUs' clocks and power while something else is measured."""

import threading
import time


class Clocks:
    """Samples of all GPUs' clocks, twenty a second."""

    def __init__(self, gpus, first=0):
        self.samples, self.stopped = [], threading.Event()
        try:
            import pynvml

            pynvml.nvmlInit()
            self.nvml, self.handles = pynvml, [pynvml.nvmlDeviceGetHandleByIndex(first + i) for i in range(gpus)]
        except Exception as error:
            print(f"no clocks: {error}", flush=True)
            return
        threading.Thread(target=self.run, daemon=True).start()

    def instant_w(self, handle):
        """The driver's other figure is an average over a second."""
        try:
            return self.nvml.nvmlDeviceGetFieldValues(handle, [186])[0].value.uiVal / 1e3  # NVML_FI_DEV_POWER_INSTANT
        except Exception:
            return 0.0

    def run(self):
        while not self.stopped.wait(0.05):
            for gpu, handle in enumerate(self.handles):
                try:
                    at = time.monotonic_ns()
                    self.samples.append(
                        (
                            at,
                            gpu,
                            self.nvml.nvmlDeviceGetClockInfo(handle, self.nvml.NVML_CLOCK_SM),
                            self.nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
                            self.instant_w(handle),
                            self.nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle),
                        )
                    )
                except Exception as error:
                    print(f"clocks end: {error}", flush=True)
                    return

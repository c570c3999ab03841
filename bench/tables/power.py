#!/usr/bin/env python3
"""Samples every GPU's energy counter, power, clock and what throttles it, through NVML, until its standard input ends:
a line of JSON a sample, {"at_ns": CLOCK_MONOTONIC, "gpus": [[mJ since the driver was loaded, mW, SM MHz, throttle
reasons as the driver's bits, bytes in use], …]}.

    power.py GPU-UUID…  < /dev/tty
"""

import ctypes
import json
import select
import sys
import time

PERIOD_S = 0.05  # the driver's counter itself changes about so often
SM_CLOCK = 1
POWER_CAP = 0x4  # of the throttle reasons: the software power cap


class Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Nvml:
    """As little of libnvidia-ml as is needed here."""

    def __init__(self, uuids):
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        self.must("nvmlInit_v2")
        self.gpus = []
        for uuid in uuids:
            handle = ctypes.c_void_p()
            self.must("nvmlDeviceGetHandleByUUID", uuid.encode(), ctypes.byref(handle))
            self.gpus.append(handle)

    def must(self, function, *arguments):
        code = getattr(self.library, function)(*arguments)
        if code != 0:
            raise OSError(f"{function}: NVML error {code}")

    def read(self, gpu):
        energy, power, clock, reasons, memory = (
            ctypes.c_ulonglong(),
            ctypes.c_uint(),
            ctypes.c_uint(),
            ctypes.c_ulonglong(),
            Memory(),
        )
        self.must("nvmlDeviceGetTotalEnergyConsumption", gpu, ctypes.byref(energy))
        self.must("nvmlDeviceGetPowerUsage", gpu, ctypes.byref(power))
        self.must("nvmlDeviceGetClockInfo", gpu, SM_CLOCK, ctypes.byref(clock))
        self.must("nvmlDeviceGetCurrentClocksThrottleReasons", gpu, ctypes.byref(reasons))
        self.must("nvmlDeviceGetMemoryInfo", gpu, ctypes.byref(memory))
        return [energy.value, power.value, clock.value, reasons.value, memory.used]


def between(samples, from_ns, to_ns, gpu):
    """(joules, mean SM MHz, share of samples at the power cap) of a GPU in a stretch, from samples in order; None where
    they don't reach."""
    inside = [sample for sample in samples if from_ns - 1e9 < sample["at_ns"] < to_ns + 1e9]

    def energy(at_ns):
        for one, other in zip(inside, inside[1:]):
            if one["at_ns"] <= at_ns <= other["at_ns"]:
                share = (at_ns - one["at_ns"]) / max(1, other["at_ns"] - one["at_ns"])
                return one["gpus"][gpu][0] + share * (other["gpus"][gpu][0] - one["gpus"][gpu][0])
        return None

    begin, end = energy(from_ns), energy(to_ns)
    within = [sample["gpus"][gpu] for sample in inside if from_ns <= sample["at_ns"] <= to_ns]
    if begin is None or end is None or not within:
        return None
    capped = sum(bool(values[3] & POWER_CAP) for values in within) / len(within)
    return (end - begin) / 1e3, sum(values[2] for values in within) / len(within), capped


def main():
    nvml = Nvml(sys.argv[1:])
    while not select.select([sys.stdin], [], [], PERIOD_S)[0]:
        print(json.dumps({"at_ns": time.monotonic_ns(), "gpus": [nvml.read(gpu) for gpu in nvml.gpus]}), flush=True)


if __name__ == "__main__":
    main()

"""What else the machine did during the run: a busy one explains bubbles without harvest and wide intervals."""

import os
import resource
import time


def _cpu_seconds():
    """(busy, stolen) seconds of all cores since boot."""
    with open("/proc/stat") as file:
        ticks = [int(number) for number in file.readline().split()[1:9]]
    hertz = os.sysconf("SC_CLK_TCK")
    user, nice, system, _idle, _iowait, irq, softirq, steal = ticks
    return (user + nice + system + irq + softirq) / hertz, steal / hertz


def _own_seconds():
    """CPU time of this process and of all its descendants that have ended."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


class Watch:
    """Begins when constructed. end() is right when every process that was started since has ended."""

    def __init__(self):
        self._began, self._cpu, self._own = time.monotonic(), _cpu_seconds(), _own_seconds()

    def end(self):
        """Shares of all cores' time, %: of processes that are none of ours, and stolen by the host of a virtual
        machine."""
        available = (time.monotonic() - self._began) * os.cpu_count()
        busy, stolen = (now - before for now, before in zip(_cpu_seconds(), self._cpu))
        others = max(0.0, busy - (_own_seconds() - self._own))
        return {"other_cpu_pct": 100 * others / available, "stolen_cpu_pct": 100 * stolen / available}

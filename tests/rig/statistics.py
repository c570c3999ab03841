"""Means with their 95 % intervals, and quantiles."""

import functools
import math
import statistics


def _between(theta, degrees):
    """The probability that Student's t lies within ± sqrt(degrees) tan(theta): Abramowitz and Stegun, 26.7.3 and
    26.7.4."""
    cosine, odd = math.cos(theta), degrees % 2
    power = cosine if odd else 1.0
    total, at = 0.0, 1 + odd
    while at < degrees and power > 1e-18:
        total += power
        power *= cosine * cosine * at / (at + 1)
        at += 2
    return 2 / math.pi * (theta + math.sin(theta) * total) if odd else math.sin(theta) * total


@functools.lru_cache
def t975(degrees):
    """Half of a 95 % interval in standard errors: the 97.5 % quantile of Student's t. `degrees` of freedom: a whole
    number, at least 1."""
    if degrees < 1 or degrees != int(degrees):
        raise ValueError(f"{degrees} degrees of freedom: a whole number of at least 1 is needed")
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        theta = (low + high) / 2
        low, high = (theta, high) if _between(theta, degrees) < 0.95 else (low, theta)
    return math.sqrt(degrees) * math.tan(low)


def interval(values):
    """Mean and half the width of its 95 % interval, which a single value leaves without bound."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, math.inf
    return mean, t975(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def median_interval(values):
    """Median and the bounds of its 95 % interval, by order statistics: nothing is said of how the values are spread, and
    some that are far off do not move it. Fewer than six have none."""
    ordered, count = sorted(values), len(values)
    middle = statistics.median(ordered)
    low = max(0, int(count / 2 - 0.98 * math.sqrt(count)) - 1)
    return (middle, ordered[low], ordered[count - 1 - low]) if count >= 6 else (middle, -math.inf, math.inf)


def quantile(values, share):
    """The value below which `share` of them lie, by nearest rank; None of nothing."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else None

"""Student's t for every degree of freedom, and the intervals that are made of it."""

import math
from random import Random

import pytest

from rig.statistics import interval, median_interval, quantile, t975

# By Boost.Math, which policy/ uses.
KNOWN = {
    1: 12.7062047362,
    2: 4.3026527297,
    3: 3.1824463053,
    4: 2.7764451052,
    5: 2.5705818356,
    6: 2.4469118511,
    7: 2.3646242516,
    8: 2.3060041352,
    9: 2.2621571628,
    10: 2.2281388520,
    19: 2.0930240544,
    20: 2.0859634473,
    21: 2.0796138447,
    22: 2.0738730679,
    30: 2.0422724563,
    60: 2.0002978221,
    93: 1.9858018143,
    120: 1.9799304051,
    1000: 1.9623390808,
}


@pytest.mark.parametrize("degrees", KNOWN)
def test_t_is_exact_for_few_and_for_many_degrees_of_freedom(degrees):
    assert t975(degrees) == pytest.approx(KNOWN[degrees], abs=1e-8)


def test_t_falls_with_every_degree_of_freedom_and_stays_above_the_normal_quantile():
    found = [t975(degrees) for degrees in range(1, 400)]
    assert all(one > other for one, other in zip(found, found[1:])) and found[-1] > 1.959964
    assert t975(10**6) == pytest.approx(1.959964 + 2.37e-6, abs=1e-6)


@pytest.mark.parametrize("degrees", [0, -1, 2.5])
def test_t_of_no_degree_of_freedom_is_refused(degrees):
    with pytest.raises(ValueError, match="degrees of freedom"):
        t975(degrees)


def test_an_interval_by_hand():
    mean, half = interval([1.0, 2.0, 3.0])
    assert mean == 2 and half == pytest.approx(4.3026527297 / math.sqrt(3))
    assert interval([5.0]) == (5.0, math.inf)


def test_quantiles_by_nearest_rank():
    assert quantile(range(100), 0.5) == 50 and quantile([3, 1, 2], 1) == 3 and quantile([], 0.5) is None


def test_a_medians_interval_has_it_in_95_of_100_and_is_not_moved_by_what_is_far_off():
    middle, low, high = median_interval([*range(1, 100), 1e9])
    assert (middle, low, high) == (50.5, 40, 61)
    assert median_interval([3, 1, 2]) == (2, -math.inf, math.inf)
    random, found = Random(1), 0
    for _ in range(2000):
        _, low, high = median_interval([random.expovariate(1) for _ in range(60)])
        found += low <= math.log(2) <= high
    assert 0.94 < found / 2000 < 0.98

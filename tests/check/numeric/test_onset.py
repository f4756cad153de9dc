"""Where the bad begins, to the last bit."""

import numpy as np
import pytest
import torch

from pullback.check.numeric.elementwise import is_within, onset, plainest
from pullback.stable.formats import format_of

SINGLE = format_of(torch.float32)


@pytest.mark.parametrize("limit", [88.72283, 9.010914, 1.0, 3e38])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_first_bad_number_from_0_outwards(limit, sign):
    def bad(at):
        return np.abs(at["x"]) >= limit

    found = onset(bad, SINGLE, {"x": sign * min(7 * limit, SINGLE.largest)})
    assert found.upwards
    first = np.float32(limit)
    first = first if float(first) >= limit else np.nextafter(first, np.float32(np.inf))
    assert found.point == {"x": sign * float(first)}


def test_towards_0():
    found = onset(lambda at: np.abs(at["x"]) < 2.0**-12, SINGLE, {"x": 1e-7})
    assert not found.upwards
    assert found.point == {"x": float(np.nextafter(np.float32(2.0**-12), np.float32(0)))}


def test_along_the_line_through_0():
    found = onset(lambda at: at["x"] + at["y"] > 10, SINGLE, {"x": 30.0, "y": 60.0})
    assert found.point["x"] + found.point["y"] == pytest.approx(10, rel=1e-6)
    assert found.point["y"] == pytest.approx(2 * found.point["x"], rel=0.5)


@pytest.mark.parametrize("x", [0.0, 1.0])
def test_none_where_all_is_bad(x):
    assert onset(lambda at: np.ones(len(at["x"]), dtype=bool), SINGLE, {"x": x}) is None


def test_the_plainest_point_is_neither_large_nor_tiny_nor_0():
    at = {"x": np.array([0.0, 1e30, 3.0, 1e-30])}
    assert plainest(at, np.ones(4, dtype=bool)) == (2, {"x": 3.0})
    assert plainest(at, np.array([True, True, False, True])) == (0, {"x": 0.0})


def test_magnitudes_that_are_passed():
    assert is_within({"x": 0.0, "y": -99.0}, (1e-2, 1e2))
    assert not is_within({"x": 1.0, "y": 101.0}, (1e-2, 1e2))
    assert not is_within({"x": 1e-3}, (1e-2, 1e2))

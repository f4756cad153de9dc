"""Samples: what they must not miss, where they lie, and that they are the same again."""

import math

import numpy as np
import pytest
import torch

from pullback.stable.formats import DTYPES, format_of
from pullback.stable.sampling import every, points, window


@pytest.mark.parametrize(("dtype", "count"), [(torch.bfloat16, 65280), (torch.float16, 63488)])
def test_every_finite_number(dtype, count):
    values = every(dtype)
    assert len(values) == count
    assert np.isfinite(values).all()
    assert len(np.unique(values)) == count - 1  # 0 and −0
    assert np.signbit(values[values == 0]).tolist() == [True, False]


def test_a_window_is_consecutive():
    values = window(1.0, 5, torch.float32)
    assert (np.diff(values) * 2**24).tolist() == [1.0, 1.0, 2.0, 2.0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sample_has_the_edges(dtype):
    form, sample = format_of(dtype), set(points(["x"], dtype)["x"])
    for k in range(form.min_exponent - form.mantissa, form.max_exponent + 1):
        assert {2.0**k, -(2.0**k)} <= sample
    for k in range(1, form.mantissa + 1):
        assert {1 - 2.0**-k, -1 + 2.0**-k, 1 + 2.0**-k} <= sample
    assert {form.largest, -form.largest} <= sample


@pytest.mark.parametrize("edge", [88.72, -87.34, -103.97, 16.635, 9.011, 17.329, 13.32, 1.8446744e19])
def test_a_float32_sample_is_dense_where_formulas_change(edge):
    sample = points(["x"], torch.float32)["x"]
    assert np.min(np.abs(sample - edge)) < abs(edge) * 1e-3
    nearest = sample[np.argsort(np.abs(sample - edge))[:20]]
    assert np.ptp(nearest) < abs(edge) * 1e-3


@pytest.mark.parametrize("dtype", DTYPES)
def test_points_are_numbers_of_the_format(dtype):
    for x in points(["x", "y"], dtype).values():
        assert np.isfinite(x).all()
        assert (torch.from_numpy(x).to(dtype).double().numpy() == x).all()


def test_the_seed_decides():
    first, again, other = (points(["x", "y"], torch.float32, seed) for seed in (0, 0, 1))
    assert all((first[name] == again[name]).all() for name in "xy")
    assert len(first["x"]) != len(other["x"]) or (first["x"] != other["x"]).any()


def test_a_domain_holds_and_its_ends_are_dense():
    x = points(["x"], torch.float32, domain={"x": (0.25, 3.0)})["x"]
    assert x.min() == 0.25
    assert x.max() == 3.0
    assert (x < 0.25 * (1 + 2**-18)).sum() >= 30
    above = math.nextafter(0.0, math.inf)
    assert points(["x"], torch.float32, domain={"x": (above, math.inf)})["x"].min() == 2.0**-149


def test_near_a_point_it_is_dense():
    x = points(["x"], torch.float32, near=[{"x": 3.7}])["x"]
    assert (np.abs(x - 3.7) < 2**-15).sum() >= 200
    joint = points(["x", "y"], torch.float32, near=[{"x": 3.7, "y": -2.0}])
    assert ((np.abs(joint["x"] - 3.7) < 2**-15) & (np.abs(joint["y"] + 2.0) < 2**-15)).sum() >= 200


def test_several_variables_meet():
    x, y = points(["x", "y"], torch.float32).values()
    for meeting in (x == y, x == -y, x == 0, y == 0, np.abs(x - y) < 1e-4 * np.abs(x), np.abs(y) < 1e-6 * np.abs(x)):
        assert meeting.sum() > 500

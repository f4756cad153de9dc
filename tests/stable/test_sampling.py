"""Samples: coverage of edges and domains, placement and reproducibility."""

import math

import numpy as np
import pytest
import torch

from pullback.stable.formats import DTYPES, format_of, widened
from pullback.stable.oracle.values import exact
from pullback.stable.sampling import (
    REGION,
    TargetSamples,
    every_number,
    sample_points,
    sample_target,
    samples_at,
    window,
)
from pullback.stable.term import parse


@pytest.mark.parametrize(("dtype", "count"), [(torch.bfloat16, 65280), (torch.float16, 63488)])
def test_every_number_lists_all_finite_16_bit_numbers(dtype, count):
    values = every_number(dtype)
    assert len(values) == count
    assert np.isfinite(values).all()
    assert len(np.unique(values)) == count - 1  # 0 and −0
    assert np.signbit(values[values == 0]).tolist() == [True, False]


def test_window_is_consecutive():
    values = window(1.0, 5, torch.float32)
    assert (np.diff(values) * 2**24).tolist() == [1.0, 1.0, 2.0, 2.0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_sample_contains_powers_of_2_and_extremes(dtype):
    form, sample = format_of(dtype), set(sample_points(["x"], dtype)["x"])
    for k in range(form.min_exponent - form.mantissa, form.max_exponent + 1):
        assert {2.0**k, -(2.0**k)} <= sample
    for k in range(1, form.mantissa + 1):
        assert {1 - 2.0**-k, -1 + 2.0**-k, 1 + 2.0**-k} <= sample
    assert {form.largest, -form.largest} <= sample


@pytest.mark.parametrize("edge", [88.72, -87.34, -103.97, 16.635, 9.011, 17.329, 13.32, 1.8446744e19])
def test_float32_sample_is_dense_at_common_thresholds(edge):
    sample = sample_points(["x"], torch.float32)["x"]
    assert np.min(np.abs(sample - edge)) < abs(edge) * 1e-3
    nearest = sample[np.argsort(np.abs(sample - edge))[:20]]
    assert np.ptp(nearest) < abs(edge) * 1e-3


@pytest.mark.parametrize("dtype", DTYPES)
def test_points_are_representable_in_the_dtype(dtype):
    for x in sample_points(["x", "y"], dtype).values():
        assert np.isfinite(x).all()
        assert (torch.from_numpy(x).to(dtype).double().numpy() == x).all()


def test_same_seed_gives_the_same_points():
    first, again, other = (sample_points(["x", "y"], torch.float32, seed) for seed in (0, 0, 1))
    assert all((first[name] == again[name]).all() for name in "xy")
    assert len(first["x"]) != len(other["x"]) or (first["x"] != other["x"]).any()


def test_domain_is_respected_and_dense_at_its_ends():
    x = sample_points(["x"], torch.float32, domain={"x": (0.25, 3.0)})["x"]
    assert x.min() == 0.25
    assert x.max() == 3.0
    assert (x < 0.25 * (1 + 2**-18)).sum() >= 30
    above = math.nextafter(0.0, math.inf)
    assert sample_points(["x"], torch.float32, domain={"x": (above, math.inf)})["x"].min() == 2.0**-149


def test_sample_is_dense_near_given_points():
    x = sample_points(["x"], torch.float32, near=[{"x": 3.7}])["x"]
    assert (np.abs(x - 3.7) < 2**-15).sum() >= 200
    joint = sample_points(["x", "y"], torch.float32, near=[{"x": 3.7, "y": -2.0}])
    assert ((np.abs(joint["x"] - 3.7) < 2**-15) & (np.abs(joint["y"] + 2.0) < 2**-15)).sum() >= 200


def test_samples_of_two_variables_contain_equal_and_opposite_points():
    x, y = sample_points(["x", "y"], torch.float32).values()
    for meeting in (x == y, x == -y, x == 0, y == 0, np.abs(x - y) < 1e-4 * np.abs(x), np.abs(y) < 1e-6 * np.abs(x)):
        assert meeting.sum() > 500


def made(x, y=None):
    points = {"x": np.array(x, float)} | ({} if y is None else {"y": np.array(y, float)})
    return TargetSamples(points, np.arange(len(x), dtype=float))


def test_undefined_points_are_dropped_and_the_rest_sorted():
    found = samples_at(parse("log(x)"), {"x": np.array([3.0, -1.0, 0.0, 1.0, 2.0])})
    assert found.points["x"].tolist() == [1.0, 2.0, 3.0]
    np.testing.assert_allclose(found.exact, np.log([1.0, 2.0, 3.0]), rtol=1e-15)


def test_merged_samples_are_sorted():
    joined = made([1, 3, 5]).merged_with(made([2, 4]))
    assert joined.points["x"].tolist() == [1, 2, 3, 4, 5]
    assert joined.exact.tolist() == [0, 0, 1, 1, 2]
    assert made([1, 3]).concatenated_with(made([2])).points["x"].tolist() == [1, 3, 2]


def test_thinned_samples_are_evenly_spaced():
    some = made(range(1000)).thinned(100)
    assert len(some) == 100
    assert set(np.diff(some.points["x"])) == {10}
    assert len(made(range(3)).thinned(100)) == 3


@pytest.mark.parametrize("size", [1, 5, REGION, 100, 5000])
def test_regions_are_whole(size):
    assert len(made(range(size)).in_regions(512)) % REGION == 0
    whole = made(range(size)).whole_regions()
    assert len(whole) % REGION == 0
    assert set(whole.points["x"]) == set(range(size))


def test_points_in_a_region_are_close_in_every_variable():
    random = np.random.default_rng(0)
    x, y = random.uniform(-1, 1, (2, 4000))
    found = made(np.sort(x), y).in_regions(1024)
    for name, most in (("x", 0.6), ("y", 0.6)):
        spread = np.ptp(found.points[name].reshape(-1, REGION), axis=1)
        assert np.median(spread) < most


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_samples_are_all_numbers_of_the_domain(dtype):
    found = sample_target(parse("exp(x)"), ["x"], dtype, 0, {"x": (-1.0, 3.0)})
    x = every_number(dtype)
    assert found.points["x"].tolist() == x[(x >= -1) & (x <= 3)].tolist()


def test_samples_have_the_dtype_and_exact_values():
    found = sample_target(parse("x*y"), ["x", "y"], torch.float32, 0, {"y": (0.0, 1.0)})
    for name, x in found.tensors(torch.float32).items():
        assert (widened(x) == found.points[name]).all()
    assert found.points["y"].min() == 0.0
    assert (found.exact == exact([parse("x*y")], found.points)[0].high).all()


def test_sample_is_dense_at_zeros_of_trigonometric_functions():
    near = [
        np.abs(sample_target(parse(t), ["x"], torch.float32, 0, {}).points["x"] - 2 * np.pi)
        for t in ("sin(x)", "exp(x)")
    ]
    assert (near[0] < 1e-5).sum() > 10 > (near[1] < 1e-5).sum()


def test_sample_is_dense_at_sign_changes_of_two_variables():
    found = sample_target(parse("exp(x) - y"), ["x", "y"], torch.float32, 0, {})
    x, y = found.points.values()
    some = abs(x) < 80
    assert (abs(np.exp(x[some]) - y[some]) < 1e-6 * abs(y[some])).sum() > 50

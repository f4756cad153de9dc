"""The samples of a search."""

import numpy as np
import pytest
import torch

from pullback.stable.formats import widened
from pullback.stable.oracle import exact
from pullback.stable.samples import REGION, Samples, sampled, samples
from pullback.stable.sampling import every
from pullback.stable.term import parse


def made(x, y=None):
    points = {"x": np.array(x, float)} | ({} if y is None else {"y": np.array(y, float)})
    return Samples(points, np.arange(len(x), dtype=float))


def test_points_without_a_value_are_left_out_and_the_rest_sorted():
    found = samples(parse("log(x)"), {"x": np.array([3.0, -1.0, 0.0, 1.0, 2.0])})
    assert found.points["x"].tolist() == [1.0, 2.0, 3.0]
    np.testing.assert_allclose(found.exact, np.log([1.0, 2.0, 3.0]), rtol=1e-15)


def test_more_samples_are_put_in_their_place():
    joined = made([1, 3, 5]).and_(made([2, 4]))
    assert joined.points["x"].tolist() == [1, 2, 3, 4, 5]
    assert joined.exact.tolist() == [0, 0, 1, 1, 2]
    assert made([1, 3]).followed_by(made([2])).points["x"].tolist() == [1, 3, 2]


def test_thinned_is_even():
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


def test_neighbours_in_a_region_are_alike_in_every_variable():
    random = np.random.default_rng(0)
    x, y = random.uniform(-1, 1, (2, 4000))
    found = made(np.sort(x), y).in_regions(1024)
    for name, most in (("x", 0.6), ("y", 0.6)):
        spread = np.ptp(found.points[name].reshape(-1, REGION), axis=1)
        assert np.median(spread) < most


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_of_16_bits_every_number_of_the_domain_is_a_sample(dtype):
    found = sampled(parse("exp(x)"), ["x"], dtype, 0, {"x": (-1.0, 3.0)})
    x = every(dtype)
    assert found.points["x"].tolist() == x[(x >= -1) & (x <= 3)].tolist()


def test_samples_are_of_the_dtype_and_have_the_exact_value():
    found = sampled(parse("x*y"), ["x", "y"], torch.float32, 0, {"y": (0.0, 1.0)})
    for name, x in found.tensors(torch.float32).items():
        assert (widened(x) == found.points[name]).all()
    assert found.points["y"].min() == 0.0
    assert (found.exact == exact([parse("x*y")], found.points)[0].high).all()


def test_circular_functions_are_looked_at_where_they_vanish():
    near = [
        np.abs(sampled(parse(t), ["x"], torch.float32, 0, {}).points["x"] - 2 * np.pi) for t in ("sin(x)", "exp(x)")
    ]
    assert (near[0] < 1e-5).sum() > 10 > (near[1] < 1e-5).sum()


def test_of_two_variables_changes_of_sign_are_looked_at_closely():
    found = sampled(parse("exp(x) - y"), ["x", "y"], torch.float32, 0, {})
    x, y = found.points.values()
    some = abs(x) < 80
    assert (abs(np.exp(x[some]) - y[some]) < 1e-6 * abs(y[some])).sum() > 50

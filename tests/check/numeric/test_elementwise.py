"""Elementwise subjects: recognition, and the onset of a fault and jumps of the gradient to the last bit."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pullback.check.numeric.elementwise import elementwise, is_within, jumps, onset, plainest
from pullback.stable.formats import format_of

from ..making import audit_of, function, normal


def of(target, *inputs):
    audit = audit_of(target, *inputs)
    return elementwise(audit.subject, audit.base)


@pytest.mark.parametrize(
    ("target", "inputs", "names"),
    [
        (torch.tanh, (normal(3, 4),), ("x",)),
        (lambda x, y: x * torch.sin(y), (normal(5), normal(5, seed=1)), ("x", "y")),
        (lambda x, slope: torch.where(x > 0, x, slope * x), (normal(2, 3), 0.1), ("x",)),
        (lambda x, w: w.reshape(1, -1) * x, (normal(4, 3), normal(3, seed=1)), ("x",)),
        (lambda x: torch.exp(x), (normal(),), ("x",)),
    ],
)
def test_elementwise_inputs_are_found(target, inputs, names):
    def fn(*args):
        return target(*args)

    found = of(target if target is not torch.tanh else lambda x: fn(x), *inputs)
    assert found is not None
    assert found.names == names


@pytest.mark.parametrize(
    "target",
    [
        lambda x: x.softmax(-1),
        lambda x: x.cumsum(0),
        lambda x: x.sum(),
        lambda x: x.flip(0),
        lambda x: x - x.mean(),
        lambda x: (x.sin(), x.cos()),
        lambda x: x * 0 + 1,
    ],
    ids=["softmax", "cumsum", "sum", "flip", "centred", "two outputs", "constant"],
)
def test_other_functions_are_not_elementwise(target):
    assert of(target, normal(3, 4)) is None


def test_complex_functions_are_not_elementwise():
    assert of(lambda x: x * x, normal(3, dtype=torch.complex128)) is None


def test_gradient_that_mixes_elements_is_not_elementwise():
    assert of(function(torch.sin, lambda g, x: (g * x.cos()).flip(0)), normal(6)) is None


def test_elementwise_runs_on_points_in_any_dtype():
    found = of(lambda x, y: x * torch.exp(y), normal(3, 4), normal(3, 4, seed=1))
    at = {"x": np.array([1.0, 2.0, -0.5, 0.0, 3.0]), "y": np.array([0.0, 1.0, 2.0, 3.0, 4.0])}
    value, by_x, by_y = found.run(torch.float32, at)
    assert value.dtype == torch.float32
    assert len(value) == len(by_x) == len(by_y) == 5
    exp = np.exp(at["y"].astype(np.float64))
    np.testing.assert_allclose(value.numpy(), at["x"] * exp, rtol=1e-6)
    np.testing.assert_allclose(by_x.numpy(), exp, rtol=1e-6)
    np.testing.assert_allclose(by_y.numpy(), at["x"] * exp, rtol=1e-6)


SINGLE = format_of(torch.float32)


@pytest.mark.parametrize("limit", [88.72283, 9.010914, 1.0, 3e38])
@pytest.mark.parametrize("sign", [1, -1])
def test_onset_is_the_first_bad_number_from_zero_outwards(limit, sign):
    def bad(at):
        return np.abs(at["x"]) >= limit

    found = onset(bad, SINGLE, {"x": sign * min(7 * limit, SINGLE.largest)})
    assert found.upwards
    first = np.float32(limit)
    first = first if float(first) >= limit else np.nextafter(first, np.float32(np.inf))
    assert found.point == {"x": sign * float(first)}


def test_onset_towards_zero():
    found = onset(lambda at: np.abs(at["x"]) < 2.0**-12, SINGLE, {"x": 1e-7})
    assert not found.upwards
    assert found.point == {"x": float(np.nextafter(np.float32(2.0**-12), np.float32(0)))}


def test_onset_along_the_line_through_zero():
    found = onset(lambda at: at["x"] + at["y"] > 10, SINGLE, {"x": 30.0, "y": 60.0})
    assert found.point["x"] + found.point["y"] == pytest.approx(10, rel=1e-6)
    assert found.point["y"] == pytest.approx(2 * found.point["x"], rel=0.5)


@pytest.mark.parametrize("x", [0.0, 1.0])
def test_onset_is_none_if_all_points_are_bad(x):
    assert onset(lambda at: np.ones(len(at["x"]), dtype=bool), SINGLE, {"x": x}) is None


def test_plainest_point_is_of_moderate_magnitude():
    at = {"x": np.array([0.0, 1e30, 3.0, 1e-30])}
    assert plainest(at, np.ones(4, dtype=bool)) == (2, {"x": 3.0})
    assert plainest(at, np.array([True, True, False, True])) == (0, {"x": 0.0})


def test_is_within_compares_magnitudes():
    assert is_within({"x": 0.0, "y": -99.0}, (1e-2, 1e2))
    assert not is_within({"x": 1.0, "y": 101.0}, (1e-2, 1e2))
    assert not is_within({"x": 1e-3}, (1e-2, 1e2))


def function_of(slope):
    """Return a stub of an elementwise function of one input with this gradient."""

    def run(dtype, columns):
        x = torch.from_numpy(columns["x"])
        return [x, slope(x)]

    return SimpleNamespace(names=["x"], run=run)


@pytest.mark.parametrize("c", [0.3, -7.25, 1e-300, 15.9])
def test_jump_is_located_to_the_last_bit(c):
    ((below, above),) = jumps(function_of(lambda x: torch.where(x > c, 2.0, 1.0)), "x", {})
    assert below <= c <= above
    assert above == np.nextafter(below, np.inf)


@pytest.mark.parametrize("slope", [lambda x: torch.sin(2 * x), lambda x: x * 0 + 1, lambda x: x**3])
def test_smooth_gradient_has_no_jump(slope):
    assert jumps(function_of(slope), "x", {}) == []


def test_jumps_are_searched_within_the_interval():
    asked = []

    def slope(x):
        asked.append(float(x.abs().max()))
        return torch.sin(2 * x)

    jumps(function_of(slope), "x", {})
    assert max(asked) <= 16.1

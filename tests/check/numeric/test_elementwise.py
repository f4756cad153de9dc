"""Which subjects compute element by element, and that running them on points gives what autograd gives."""

import numpy as np
import pytest
import torch

from pullback.check.numeric.elementwise import elementwise

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
def test_finds_the_inputs_that_vary(target, inputs, names):
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
def test_others_are_none(target):
    assert of(target, normal(3, 4)) is None


def test_complex_inputs_are_none():
    assert of(lambda x: x * x, normal(3, dtype=torch.complex128)) is None


def test_a_gradient_that_mixes_elements_is_none():
    assert of(function(torch.sin, lambda g, x: (g * x.cos()).flip(0)), normal(6)) is None


def test_runs_on_points_in_any_dtype():
    found = of(lambda x, y: x * torch.exp(y), normal(3, 4), normal(3, 4, seed=1))
    at = {"x": np.array([1.0, 2.0, -0.5, 0.0, 3.0]), "y": np.array([0.0, 1.0, 2.0, 3.0, 4.0])}
    value, by_x, by_y = found.run(torch.float32, at)
    assert value.dtype == torch.float32
    assert len(value) == len(by_x) == len(by_y) == 5
    exp = np.exp(at["y"].astype(np.float64))
    np.testing.assert_allclose(value.numpy(), at["x"] * exp, rtol=1e-6)
    np.testing.assert_allclose(by_x.numpy(), exp, rtol=1e-6)
    np.testing.assert_allclose(by_y.numpy(), at["x"] * exp, rtol=1e-6)

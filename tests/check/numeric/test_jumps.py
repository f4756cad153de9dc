"""Jumps are found where they are, to the last bit, and nowhere else."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pullback.check.numeric.elementwise import jumps


def function_of(slope):
    """Return what stands for an elementwise function of one input, by its gradient."""

    def run(dtype, columns):
        x = torch.from_numpy(columns["x"])
        return [x, slope(x)]

    return SimpleNamespace(names=["x"], run=run)


@pytest.mark.parametrize("c", [0.3, -7.25, 1e-300, 15.9])
def test_a_jump_is_found_to_the_last_bit(c):
    ((below, above),) = jumps(function_of(lambda x: torch.where(x > c, 2.0, 1.0)), "x", {})
    assert below <= c <= above
    assert above == np.nextafter(below, np.inf)


@pytest.mark.parametrize("slope", [lambda x: torch.sin(2 * x), lambda x: x * 0 + 1, lambda x: x**3])
def test_a_smooth_gradient_has_none(slope):
    assert jumps(function_of(slope), "x", {}) == []


def test_no_place_lies_beyond_the_interval():
    asked = []

    def slope(x):
        asked.append(float(x.abs().max()))
        return torch.sin(2 * x)

    jumps(function_of(slope), "x", {})
    assert max(asked) <= 16.1

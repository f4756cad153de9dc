"""Backwards that are the exact derivative of what the forward approximates."""

import numpy
import pytest
import torch
from torch.autograd import Function

import pullback

NODES, WEIGHTS = (torch.from_numpy(a) for a in numpy.polynomial.legendre.leggauss(10))


class IntegralOfBell(Function):
    """The integral of exp(-t²) from 0 to x, by a rule that is exact to rounding up to 1 or so."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        half = x.unsqueeze(-1) / 2
        return (half * WEIGHTS * torch.exp(-((half * (NODES + 1)) ** 2))).sum(-1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.exp(-(x**2))


class FromABranch(Function):
    """x² up to 3, and 6x - 9 beyond; there the backward goes on as before."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x < 3, x * x, 6 * x - 9)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.where(x < 3, 2 * x, 2 * x - 2)


@pytest.mark.parametrize(("function", "severity"), [(IntegralOfBell, "warning"), (FromABranch, "error")])
def test_difference_that_grows_from_zero_is_a_warning_as_an_approximation(function, severity):
    x = torch.tensor([0.7, -0.4, 1.1], dtype=torch.float64)
    found = [f for f in pullback.check(function, x, select="PB101", budget=60).findings if f.verdict == "wrong"]
    assert [f.severity for f in found] == [severity]

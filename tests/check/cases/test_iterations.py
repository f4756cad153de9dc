"""Functions that iterate to convergence: detection, and the severity of findings on their variants."""

import pytest
import torch
from torch.autograd import Function

import pullback
from pullback.check.cases.iterations import iterates
from pullback.check.find.discover import subject_of

from ..making import case_of, normal


def root(x, tolerance):
    """Return the square root of |x| + 1 by Newton's method, to a tolerance, starting at 1."""
    a, y = x.abs() + 1, torch.ones_like(x)
    for _ in range(30):
        if not a.numel() or float((y * y - a).abs().max()) <= tolerance:
            break
        y = (y + a / y) / 2
    return y


def test_loop_to_convergence_counts_as_iteration():
    def solve(x):
        return root(x, 1e-12)

    example, near_one = case_of(solve, normal(5) + 9), case_of(solve, normal(5) / 1e9)
    assert not iterates(subject_of(solve), example, example)
    assert iterates(subject_of(solve), example, near_one)
    assert iterates(subject_of(solve), near_one, example)
    assert not iterates(subject_of(torch.sin), case_of(torch.sin, normal(5)), case_of(torch.sin, normal(5)))


def test_another_option_is_no_iteration():
    def loss(x, reduction):
        return x.exp() if reduction == "none" else x.exp().sum()

    mean, none = (case_of(loss, normal(5), word) for word in ("mean", "none"))
    assert not iterates(subject_of(loss), mean, none)


def of_root(tolerance, factor=1.0):
    class Root(Function):
        @staticmethod
        def forward(ctx, x):
            y = root(x, tolerance)
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return factor * g * x.sign() / (2 * y)

    return Root


@pytest.mark.parametrize(("factor", "severities"), [(1.0, set()), (2.0, {"error"})])
def test_unconverged_variant_is_no_error(factor, severities):
    # Near 0 the first iterate meets the tolerance and is returned as it is: there the forward is flat.
    found = pullback.check(of_root(1e-2, factor), 8 * normal(5) + 9, select="PB101").findings
    assert {f.severity for f in found if f.severity == "error"} == severities

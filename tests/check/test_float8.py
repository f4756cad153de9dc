"""Floats of a byte, which PyTorch only stores and converts: fixed arguments, outputs, and saved tensors."""

import pytest
import torch
from torch.autograd import Function

import pullback
from pullback.check.rules._residuals import altered
from pullback.dtypes import has_integers, has_reals, is_opaque

from .making import normal

X = normal(3, 8)
SCALES = normal(5, seed=1).abs() + 0.5


def weight(dtype=torch.float8_e4m3fn):
    return normal(5, 8, seed=2).to(dtype)


def linear(factor):
    class Linear(Function):
        @staticmethod
        def forward(ctx, x, w, scales):
            ctx.save_for_backward(w, scales)
            return x @ (w.to(x.dtype) * scales[:, None]).t()

        @staticmethod
        def backward(ctx, g):
            w, scales = ctx.saved_tensors
            return factor * g @ (w.to(g.dtype) * scales[:, None]), None, None

    return Linear


@pytest.mark.parametrize(("factor", "expected"), [(1, set()), (2, {"PB101"})])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_audit_of_a_frozen_weight(factor, expected, dtype):
    x = X.clone().requires_grad_()
    report = pullback.check(linear(factor), x, weight(dtype), SCALES, select="PB1,PB2,PB5,PB7")
    assert {f.rule for f in report.findings if f.severity == "error"} == expected
    assert not [f.message for f in report.findings if "could not be decided" in f.message]


class Quantised(Function):
    """The scale has a derivative, and the numbers have none."""

    @staticmethod
    def forward(ctx, x):
        scale = x.square().sum()
        ctx.save_for_backward(x)
        return (x / scale).to(torch.float8_e4m3fn), scale

    @staticmethod
    def backward(ctx, _, g):
        (x,) = ctx.saved_tensors
        return 3 * g * x


def test_an_output_is_no_part_of_the_derivative():
    (found,) = [f for f in pullback.check(Quantised, X, select="PB101").findings if f.severity == "error"]
    assert found.verdict == "wrong"
    assert "itemsize > 1" in found.reproduce


def test_a_saved_weight_that_no_gradient_needs():
    class Scaled(Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(w)
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            _ = ctx.saved_tensors
            return 2 * g, None

    report = pullback.check(Scaled, X.clone().requires_grad_(), weight(), select="PB205")
    assert {f.rule for f in report.findings} == {"PB205"}


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu])
def test_other_bytes(dtype):
    w = weight(dtype)
    assert is_opaque(w)
    assert not has_reals(w)
    assert not has_integers(w)
    zero, negative = altered(w)
    assert zero.dtype == negative.dtype == dtype
    assert not zero.view(torch.uint8).any()
    assert (negative.view(torch.uint8) != w.view(torch.uint8)).all()

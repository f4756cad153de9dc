"""Diagnosis of wrong gradients: swapped, missing, without conjugate, of an ignored cotangent, or an approximation."""

from collections import Counter
from dataclasses import replace

import numpy
import pytest
import torch
from torch.autograd import Function

import pullback
from pullback.check.derivative.diagnosis import cause, ignored_cotangents, swapped_with

from ..making import audit_of, function, normal


def named(target, *args, order=0):
    """Return the rule that explains the wrong gradient of an input."""
    audit = audit_of(target, *args)
    wrong = next(c for c in audit.base_result.wrong if c.input_index == order)
    return cause(audit, audit.base_result, wrong)


def product(backward):
    class Product(Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a * b.exp()

    Product.backward = staticmethod(lambda ctx, g: backward(g, *ctx.saved_tensors))
    return Product


A, B = normal(3, 4), normal(3, 4, seed=1)


def test_unexplained_wrong_gradient_has_no_cause():
    assert named(product(lambda g, a, b: (g * b, g * a * b.exp())), A, B) == ""
    assert named(function(torch.sin, lambda g, x: g * x.sin()), A) == ""


def test_missing_gradient_is_named():
    assert named(product(lambda g, a, b: (g * b.exp(), None)), A, B, order=1) == "no gradient"


@pytest.mark.parametrize("order", [0, 1])
def test_swapped_gradients_are_named(order):
    assert named(product(lambda g, a, b: (g * a * b.exp(), g * b.exp())), A, B, order=order) == "swapped gradients"


def test_swap_of_a_slow_function_takes_few_samples():
    swapped = product(lambda g, a, b: (g * a * b.exp(), g * b.exp()))
    audit = audit_of(swapped, A, B)
    result = replace(audit.base_result, seconds=60.0)
    calls, forward = Counter(), swapped.forward
    swapped.forward = staticmethod(lambda ctx, a, b: (calls.update(["forward"]), forward(ctx, a, b))[1])
    assert swapped_with(audit, result, result.comparisons[0]) == 1
    assert calls["forward"] <= 12


@pytest.mark.slow
def test_swap_is_named_only_if_it_makes_the_gradient_right():
    audit = audit_of(product(lambda g, a, b: (g * a * b.exp(), g)), A, B)
    assert swapped_with(audit, audit.base_result, audit.base_result.comparisons[0]) is None
    assert swapped_with(audit, audit.base_result, audit.base_result.comparisons[1]) == 0


def test_gradients_of_different_shapes_are_not_swapped():
    assert named(product(lambda g, a, b: (g.sum() * a, g * a * b.exp())), A, normal()) == ""


def test_missing_conjugate_is_named():
    z = normal(3, dtype=torch.complex128)
    assert named(function(lambda z: z.exp(), lambda g, z: g * z.exp()), z) == "missing conjugate"
    assert named(function(lambda z: z.exp(), lambda g, z: 2 * g * z.exp().conj()), z) == ""


def two_outputs(backward):
    class SinAndSquare(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin(), x * x

    SinAndSquare.backward = staticmethod(lambda ctx, g, h: backward(g, h, *ctx.saved_tensors))
    return SinAndSquare


def test_ignored_cotangent_is_named():
    fn = two_outputs(lambda g, h, x: g * x.cos())
    assert named(fn, A) == "ignored cotangent"
    audit = audit_of(fn, A)
    assert ignored_cotangents(audit, audit.base_result) == [1]


def test_misused_cotangent_is_not_ignored():
    fn = two_outputs(lambda g, h, x: g * x.cos() + h * x)
    assert named(fn, A) == ""
    audit = audit_of(fn, A)
    assert ignored_cotangents(audit, audit.base_result) == []


class Bits(Function):
    """Reads of its cotangent whether it is odd."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sum(-1)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return torch.ones_like(x) * (g != 0).unsqueeze(-1)


class LogScale(Function):
    """Has a gradient that is NaN for negative scales."""

    @staticmethod
    def forward(ctx, loc, scale):
        ctx.save_for_backward(scale)
        return loc + scale

    @staticmethod
    def backward(ctx, g):
        (scale,) = ctx.saved_tensors
        return g * scale.log() / scale.log(), g * scale.log() / scale.log()


def test_cotangent_read_for_its_zeros_or_hidden_by_nan_is_not_ignored():
    for audit in (audit_of(Bits, normal(3, 4)), audit_of(LogScale, normal(3), -normal(3).abs())):
        assert ignored_cotangents(audit, audit.base_result) == []


class Put(Function):
    @staticmethod
    def forward(ctx, x, index, value, accumulate):
        ctx.save_for_backward(index)
        ctx.accumulate = accumulate
        return x.index_put((index,), value, accumulate)

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        gx = g if ctx.accumulate else g.index_fill(0, index, 0)
        return gx, None, g[index], None


def test_nondeterministic_index_put_is_a_warning():
    index = torch.tensor([0, 2])
    found = pullback.check(Put, normal(4), index, normal(2), False, select="PB101").findings
    (told,) = found
    assert told.severity == "warning"
    assert "last one wins" in told.hint
    native = torch.zeros(3).index_put((torch.tensor([0, 0]),), ones := torch.ones(2, requires_grad=True))
    assert torch.autograd.grad(native.sum(), ones)[0].tolist() == [1, 1]  # one of the two has no effect
    assert not pullback.check(Put, normal(4), index, normal(2), True, select="PB101").findings


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

"""Comparison of jvp with the numeric derivative."""

import pytest
import torch
from torch.autograd import Function

from pullback.check.derivative.forward_mode import has_jvp, jvp_disagreement, tangents
from pullback.check.find.discover import subject_of
from pullback.check.trial import Raised

from ..making import audit_of, case_of, function, normal

# PyTorch's own: its first use of forward mode compiles decompositions with it.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")


def with_jvp(tangent):
    """Return x -> (sin x, x**2) with a given rule for its tangents."""

    class SinAndSquare(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)
            return x.sin(), x * x

        @staticmethod
        def backward(ctx, g, h):
            (x,) = ctx.saved_tensors
            return g * x.cos() + 2 * h * x

        @staticmethod
        def jvp(ctx, t):
            return tangent(t, *ctx.saved_tensors)

    return SinAndSquare


right = with_jvp(lambda t, x: (t * x.cos(), 2 * t * x))


def disagreement(target, *args, order=0):
    return jvp_disagreement(audit_of(target, *args), order)


def test_right_jvp_agrees():
    assert disagreement(right, normal(3, 4)) is None


def test_one_wrong_element_of_one_output_is_found():
    def tangent(t, x):
        factor = torch.ones_like(x)
        factor[4] = 1.0005
        return t * x.cos(), 2 * t * x * factor

    found = disagreement(with_jvp(tangent), normal(7))
    assert (found.output, found.index) == (1, (4,))
    assert abs(found.got / found.expected - 1.0005) < 1e-8
    assert found.bar < 1e-8


def test_any_directional_derivative_at_a_kink_is_accepted():
    class Relu(Function):
        at_zero = 0.0

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_forward(x)
            return x.clamp(min=0)

        @staticmethod
        def jvp(ctx, t):
            (x,) = ctx.saved_tensors
            return t * torch.where(x == 0, Relu.at_zero, (x > 0).double())

        @staticmethod
        def backward(ctx, g):
            return g

    x = torch.tensor([0.0, 1.0, -1.0], dtype=torch.float64)
    for Relu.at_zero, agrees in ((0.0, True), (0.5, True), (1.0, True), (2.0, False)):
        assert (disagreement(Relu, x) is None) is agrees


def test_jvp_that_ignores_its_tangent_is_wrong():
    found = disagreement(with_jvp(lambda t, x: (t * x.cos(), 0 * t)), normal(3))
    assert (found.output, found.got) == (1, 0)
    assert disagreement(with_jvp(lambda t, x: (x.cos(), 2 * t * x)), normal(3)).output == 0


def test_jvp_that_raises_is_no_disagreement():
    def tangent(t, x):
        raise ValueError("no tangents today")

    assert disagreement(with_jvp(tangent), normal(3)) is None


def test_tangents_of_each_output():
    x, t = normal(3), normal(3, seed=1)
    (sine, t_sine), (_, t_square) = tangents(subject_of(right), case_of(right, x), {0: t})
    assert torch.equal(sine, x.sin())
    assert torch.allclose(t_sine, t * x.cos())
    assert torch.allclose(t_square, 2 * t * x)
    assert tangents(subject_of(right), case_of(right, x), {})[0][1] is None


def test_tangents_without_jvp_raise():
    plain = function(torch.sin, lambda g, x: g * x.cos())
    with pytest.raises(Raised, match="jvp"):
        tangents(subject_of(plain), case_of(plain, normal(3)), {0: normal(3)})
    assert disagreement(plain, normal(3)) is None


def test_has_jvp():
    assert has_jvp(subject_of(right))
    assert not has_jvp(subject_of(function(torch.sin, lambda g, x: g)))
    assert has_jvp(subject_of(lambda x: x.sin()))


def test_callable_of_native_ops_agrees():
    assert disagreement(lambda x: x.sin() * x, normal(3)) is None


def test_complex_tangents_are_compared():
    class Square(Function):
        @staticmethod
        def forward(ctx, z):
            ctx.save_for_forward(z)
            return z * z

        @staticmethod
        def jvp(ctx, t):
            return 2 * t * ctx.saved_tensors[0] * (1 if Square.right else 1j)

        @staticmethod
        def backward(ctx, g):
            return g

    for Square.right in (True, False):
        assert (disagreement(Square, normal(3, dtype=torch.complex128)) is None) is Square.right

"""PB416 and PB417: derivatives of order 2 and 3 by every nesting of forward and reverse mode."""

import contextlib
import io
import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import Function

import pullback
from pullback.check.derivative.nesting import linearized
from pullback.check.rules import rule_named
from pullback.check.rules._nesting import measured

from ..making import audit_of, normal

NESTED = ("PB416", "PB417")
# PyTorch's own: its first use of forward mode compiles decompositions with it.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")


class Cube(Function):
    """x³ without a jvp: forward mode is refused."""

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * x * g


class WithTangent(Cube):
    """x³ with a right jvp."""

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx, tx):
        (x,) = ctx.saved_tensors
        return 3 * x * x * tx


class Derived(pullback.AutogradFunction):
    """The same body, made by Pullback."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * x * g


class TangentOfConstantTangent(WithTangent):
    """x³ whose jvp is right for a constant tangent alone."""

    @staticmethod
    def jvp(ctx, tx):
        (x,) = ctx.saved_tensors
        return 3 * x * x * tx.detach()


def _product(x):
    return (x.exp() * x).sum()


def told(target, *inputs):
    audit = audit_of(target, *inputs)
    return {finding.rule: finding for rule in NESTED for finding in rule_named(rule).runtime(audit)}


@pytest.mark.parametrize(
    "target", [Cube, Derived, torch.sin, _product], ids=["Function", "derived", "native", "callable"]
)
def test_right_functions_are_not_accused(target):
    assert told(target, normal(4)) == {}


def test_loss_of_a_jvp_in_nested_forward_mode_is_an_info():
    found = told(WithTangent, normal(4))
    assert list(found) == ["PB417"]
    assert (found["PB417"].severity, found["PB417"].verdict) == ("info", "wrong")
    assert "second derivative by forward over forward" in found["PB417"].message


def test_tangent_that_depends_on_the_inputs_must_be_differentiated():
    assert told(TangentOfConstantTangent, normal(4))["PB416"].severity == "error"


def test_wrong_rule_of_pytorch_is_a_warning():
    """The second derivative of PyTorch's layer norm by reverse over forward."""
    found = told(lambda x: F.layer_norm(x, (4,)), normal(2, 4))["PB416"]
    assert (found.severity, found.verdict) == ("warning", "wrong")
    assert "PyTorch's own fault" in found.message


class WrongBatch(Function):
    """3 x² g, with a rule for batches that loses a factor."""

    @staticmethod
    def forward(x, g):
        return 3 * x * x * g

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, before = ctx.saved_tensors
        return 6 * x * before * g, 3 * x * x * g

    @staticmethod
    def vmap(info, dims, x, g):
        return x * x * g, 0 if dims[1] == 0 else dims[0]


class CubeByWrongBatch(Cube):
    """x³, right but for batches of directions."""

    @staticmethod
    def backward(ctx, g):
        return WrongBatch.apply(*ctx.saved_tensors, g)


class Square(Function):
    """z² of complex numbers, whose second derivative lacks a factor where z is 0."""

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.where(x == 0, 1.5 * x, 2 * x).conj()


def test_callable_with_a_custom_function_may_be_wrong_by_a_rule_of_pytorch():
    found = told(lambda x: F.layer_norm(Cube.apply(x), (4,)), normal(2, 4))["PB416"]
    assert (found.severity, found.verdict) == ("warning", "wrong")
    assert "or of PyTorch's own rules" in found.message


def test_batches_of_directions_are_tried():
    found = told(CubeByWrongBatch, normal(4))["PB416"]
    assert found.severity == "error"
    assert "second derivative by reverse over reverse (vmap)" in found.message
    assert_shows(found)


def test_zeros_of_complex_numbers_are_tried():
    found = told(Square, normal(4, dtype=torch.complex128))["PB416"]
    assert found.severity == "error"
    assert "zero" in found.message
    assert_shows(found)


def test_linearize_is_tried_in_depth():
    audit = audit_of(Cube, normal(4))
    audit.options = replace(audit.options, deep=True)
    assert list(rule_named("PB416").runtime(audit)) == []
    assert linearized(2) in measured(audit)[0].nested.refused  # no jvp


def assert_shows(finding):
    """The reproduction prints the wrong derivative, and the difference quotient that shows it."""
    script = finding.reproduce
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(script, "<script>", "exec"), {})
    got, expected = (float(part.split()[0]) for part in said.getvalue().split(": ")[1:])
    assert abs(got - expected) > 0.01 * abs(expected)
    assert math.isclose(got, finding.evidence.got, rel_tol=1e-3)
    assert math.isclose(expected, finding.evidence.expected, rel_tol=1e-3)


def test_reproduction_prints_both_numbers():
    assert_shows(told(WithTangent, normal(4))["PB417"])


def test_wrong_second_derivative_at_two_zeros_is_found():
    class Product(Function):
        @staticmethod
        def forward(x):
            return x[..., 0] * x[..., 1] * x[..., 2]

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            a, b, c = x.unbind(-1)
            few = (x == 0).sum(-1, keepdim=True) < 2
            return torch.where(few, torch.stack([g * b * c, g * a * c, g * a * b], -1), 0.0)

    found = told(Product, normal(2, 3))["PB416"]
    assert found.severity == "error"
    assert "zeros" in found.message

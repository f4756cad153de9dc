"""PB416 and PB417: derivatives of order 2 and 3 by every nesting of forward and reverse mode."""

import contextlib
import io

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import Function

import pullback
from pullback.check.rules import rule_named

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


def test_reproduction_prints_both_numbers():
    script = told(WithTangent, normal(4))["PB417"].reproduce
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(script, "<script>", "exec"), {})
    got, expected = (float(part.split()[0]) for part in said.getvalue().split(": ")[1:])
    assert abs(got - expected) > 0.01 * abs(expected)


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

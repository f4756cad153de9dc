"""Variants that depend on the function: an extra dimension, shared inputs, its own output."""

import ast

import pytest
import torch
from torch.autograd import Function

import pullback
from pullback.check.optional_arguments import _replaced_by_numbers
from pullback.check.variants import of_its_own, variants_of, with_one_between

from .making import audit_of, normal


def of_rows(total, dim=-1):
    """Return a Function that centres each row; its backward sums the rows of the cotangent by `total(g)`."""

    class Centred(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.n = x.shape[dim]
            return x - x.mean(dim, keepdim=True)

        @staticmethod
        def backward(ctx, g):
            return g - (total(g) / ctx.n).unsqueeze(-1)

    return Centred


def told(target):
    found = pullback.check(target, normal(3, 5), select="PB101").findings
    return [(f.severity, "in the middle" in f.message) for f in found]


def test_backward_with_a_superfluous_squeeze_is_a_warning():
    assert told(of_rows(lambda g: g.sum(-1))) == []
    assert told(of_rows(lambda g: g.sum(-1, keepdim=True).squeeze())) == [("warning", True)]


def test_function_of_matrices_gets_no_further_dimensions():
    assert [c.tensors[0].shape for c in with_one_between(audit_of(of_rows(torch.sum), normal(3, 5)))] == [(3, 1, 5)]
    for dim, x in ((1, normal(3, 5)), (-1, normal(3)), (-1, normal(3, 4, 5))):
        assert list(with_one_between(audit_of(of_rows(torch.sum, dim), x))) == []


@pytest.mark.parametrize("constant", [False, True])
def test_constant_is_not_also_passed_as_a_variable(constant):
    class Product(Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * y, None if constant else g * x

    audit = audit_of(Product, normal(3), normal(3, seed=1))
    twice = [case for case, _ in variants_of(audit) if case.values[0] is case.values[1]]
    assert len(twice) == (0 if constant else 1)


class NearlyUnit(Function):
    """Rows made of length 1; the gradient forgets the projection where they are."""

    @staticmethod
    def forward(ctx, x):
        length = x.norm(dim=-1, keepdim=True)
        ctx.save_for_backward(x / length, length)
        return x / length

    @staticmethod
    def backward(ctx, g):
        y, length = ctx.saved_tensors
        return torch.where((length - 1).abs() < 1e-9, g, (g - y * (g * y).sum(-1, keepdim=True)) / length)


def test_output_of_a_projection_is_tried_as_its_input():
    (case,) = of_its_own(audit_of(NearlyUnit, normal(3, 5)))
    assert torch.allclose(case.tensors[0].norm(dim=-1), torch.ones(3, dtype=torch.float64))
    (finding,) = pullback.check(NearlyUnit, normal(3, 5), select="PB101").findings
    assert finding.severity == "error"
    assert "with the output as x" in finding.message


def test_output_equal_to_the_input_or_of_another_shape_is_not_tried():
    assert list(of_its_own(audit_of(torch.clone, normal(3)))) == []
    assert list(of_its_own(audit_of(torch.sum, normal(3)))) == []


class Scaled(Function):
    """x scaled; its backward ignores a scale that is given."""

    @staticmethod
    def forward(ctx, x, scale=None):
        if scale is None:
            scale = x.shape[-1] ** -0.5
        return x * scale

    @staticmethod
    def backward(ctx, g):
        return g * g.shape[-1] ** -0.5, None


def test_number_whose_default_is_none_is_given():
    (found,) = pullback.check(Scaled, normal(3, 5), select="PB101").findings
    assert found.severity == "error"
    assert "scale = 0.3" in found.message


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ("if s is None:\n    s = n ** -0.5", ["s"]),
        ("if s is None:\n    s = -2.0 * n", ["s"]),
        ("t = 1 / math.sqrt(n) if s is None else s", ["s"]),
        ("t = s if s is not None else math.sqrt(n)", ["s"]),
        ("t = s or 1e-6", ["s"]),
        ("if s is None:\n    s = n // 2", []),
        ("if s is None:\n    t = 0.5", []),
        ("if s is None:\n    s = torch.ones(n)", []),
    ],
)
def test_names_in_whose_place_a_forward_takes_a_number(body, names):
    assert list(_replaced_by_numbers(ast.parse(body))) == names

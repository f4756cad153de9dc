"""Kinks and domains in `explain`."""

import pytest
import torch
import torch.nn.functional as F

import pullback

X = torch.rand(1, 1, 4, 4)


@pytest.mark.parametrize(
    ("formula", "part"),
    [
        (F.hardswish, "hardswish at ±3"),
        (F.selu, "at 0"),
        (lambda x: F.max_pool2d(x, 2), "max pooling"),
        (lambda x: x % 2, "remainder at multiples"),
        (lambda x: x.std(), "a standard deviation at 0"),
        (lambda x: torch.linalg.det(x), "a determinant"),
        (lambda x: torch.special.xlog1py(x, x), "xlog1py: its second argument must be greater than −1"),
        (lambda x: torch.copysign(x, x), "not known for: copysign"),
        (lambda x: x**-1, "x**-1: its base must not be 0"),
        (lambda x: x**0.5, "x**0.5: its base must be positive"),
        (lambda x: torch.tan(x), "poles"),
    ],
)
def test_explain_names_kinks_and_domains(formula, part):
    assert part in pullback.function(lambda x: formula(x)).explain(X)


@pytest.mark.parametrize("formula", [lambda x: x**2, lambda x: torch.sin(x) * x.mean(), lambda x: x.sigmoid().tanh()])
def test_smooth_formula_has_no_kinks(formula):
    page = pullback.function(formula).explain(X)
    assert "Kinks: none." in page
    assert "Domain: everywhere." in page


def test_kinks_of_foreign_code_are_unknown():
    op = pullback.function(lambda x: torch.from_numpy(x.detach().numpy() ** 2))
    op.vjp(lambda g, out, x: 2 * g * x)
    assert "Kinks and domain of the formula: not known" in op.explain(X)

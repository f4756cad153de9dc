"""Formulas that one term describes for every call, and formulas that are refused."""

import pytest
import torch

import pullback
from pullback.errors import FormulaError
from pullback.stable.meaning import meaning_of


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 7


def with_no_grad(x):
    with torch.no_grad():
        scale = torch.exp(x)
    return x * scale


def with_hook(x):
    y = torch.exp(x)
    y.register_hook(lambda g: 0 * g)
    return y


NOT_A_TERM = {
    "an index": lambda x: x + 0 * x[0],
    "an error of its own": lambda x: torch.special.erfcx(x.half()).to(x.dtype),
    "a straight-through estimator": lambda x: x + (torch.round(x) - x).detach(),
    "detach in place": lambda x: (x * 2).detach_() + x,
    "data": lambda x: x * x.data,
    "no_grad": with_no_grad,
    "a hook": with_hook,
    "a Function": lambda x: Doubling.apply(x) + x,
    "a tuple": lambda x: (x * 2,),
    "a dict": lambda x: {"a": x * 2},
    "two tensors": lambda x: (x * 2, x),
    "a condition": lambda x: x > 0,
    "another dtype": lambda x: x.double() * 2,
    "another shape": lambda x: x.unsqueeze(0) * 2,
    "a flattened tensor": lambda x: x.flatten() * 2,
    "no scalar": lambda x: torch.atleast_1d(x) * 2,
    "a tensor of size 1": lambda x: x + torch.tensor([1.0]),
    "the number of dimensions": lambda x: x * (3 if x.dim() == 4 else 2),
    "the shape": lambda x: x * (3 if x.shape == (7,) else 2),
    "the number of elements": lambda x: x * (3 if x.numel() > 1000 else 2),
    "the length": lambda x: x * 2 if x.dtype == torch.float64 else x * len(x),
    "the strides": lambda x: x * x.stride(0),
    "whether it requires grad": lambda x: x * 2 if x.requires_grad else x,
    "a mean": lambda x: x - x.mean(-1, keepdim=True),
    "in place": lambda x: (x * 2).add_(1),
    "random": lambda x: x * torch.rand_like(x),
}


@pytest.mark.parametrize("what", NOT_A_TERM)
def test_formula_that_is_not_one_term_raises(what):
    with pytest.raises(FormulaError):
        meaning_of(NOT_A_TERM[what], torch.float32)


TERMS = {
    "x * 2": lambda x: x.to(x.dtype) * torch.full_like(x, 2),
    "where(x > 0, x, 0)": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    "exp(x)": lambda x: x.double().exp().to(x.dtype),
    "sqrt(2) * x": lambda x: torch.sqrt(torch.tensor(2.0)) * x,
    "input * sigmoid(input)": torch.nn.functional.silu,
}


@pytest.mark.parametrize("text", TERMS)
def test_formula_has_its_term(text):
    assert str(meaning_of(TERMS[text], torch.float32).term) == text


def test_parameters_with_a_default_are_constants():
    meaning = meaning_of(lambda x, factor=2.0, *, shift=1.0: x * factor + shift, torch.float64)
    assert (str(meaning.term), meaning.variables) == ("(x * 2) + 1", ("x",))


def test_formula_whose_ops_vary_between_calls_raises():
    calls = []

    def alternating(x):
        calls.append(x)
        return torch.exp(x) if len(calls) % 2 else torch.sin(x)

    with pytest.raises(FormulaError, match="depends on the shape"):
        meaning_of(alternating, torch.float32)


def euler(x):
    for _ in range(60):
        x = x + 0.01 * torch.sin(x)
    return x


def chain(x):
    for _ in range(170):
        x = torch.sin(x) + 0.5
    return x


@pytest.mark.parametrize("formula", [euler, chain])
def test_formula_with_a_large_term_raises(formula):
    """Each step of `euler` uses the previous one twice; written out, it would have 2⁶⁰ operations."""
    with pytest.raises(FormulaError, match="operations"):
        meaning_of(formula, torch.float32)
    x = torch.randn(5, requires_grad=True)
    op = pullback.function(backend="eager")(formula)
    ((ours,), (right,)) = (torch.autograd.grad(f(x).sum(), x) for f in (op, formula))
    torch.testing.assert_close(ours, right)


def test_multiplication_by_0_raises():
    """0 · ∞ and 0 · NaN are NaN, but the derivative of the term would be 0."""
    with pytest.raises(FormulaError, match="multiplies by 0"):
        meaning_of(lambda a, b: torch.nn.functional.mish(b + 0.0 * a), torch.float32)

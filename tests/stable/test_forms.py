"""Removable singularities are filled with the limit at that point, and nowhere else."""

import math

import mpmath
import pytest
import torch
from torch.autograd import grad
from torch.fx.experimental.proxy_tensor import make_fx

import pullback
from tests.compose.test_compile import compiled

HOLES = {
    "sin(x)/x": (lambda x: torch.sin(x) / x, lambda x: mpmath.sinc(x), 0.0),
    "(1 - cos x)/x²": (lambda x: (1 - torch.cos(x)) / x**2, lambda x: mpmath.sinc(x / 2) ** 2 / 2, 0.0),
    "(x² - 1)/(x - 1)": (lambda x: (x * x - 1) / (x - 1), lambda x: x + 1, 1.0),
}
DTYPES = [torch.float32, torch.float64, torch.bfloat16]


def derivatives(function, x, orders=4):
    """Return the value and derivatives."""
    found = [function(x)]
    for _ in range(orders):
        found += grad(found[-1].sum(), x, create_graph=True)
    return [d.detach() for d in found]


def leaf(*values, dtype):
    return torch.tensor(values, dtype=dtype, requires_grad=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", HOLES)
def test_value_and_derivatives_at_a_singularity_are_limits(name, dtype):
    formula, exact, at = HOLES[name]
    with mpmath.workdps(50):
        limits = [math.factorial(n) * float(c) for n, c in enumerate(mpmath.taylor(exact, at, 4))]
    op = pullback.function(formula, backend="eager")
    for got, limit in zip(derivatives(op, leaf(at, dtype=dtype)), limits, strict=True):
        torch.testing.assert_close(
            got, torch.tensor([limit], dtype=torch.float64).to(dtype), rtol=torch.finfo(dtype).eps, atol=1e-15
        )


WITHOUT_RULES = [("sin(x)/x", dtype) for dtype in DTYPES] + [("(1 - cos x)/x²", dtype) for dtype in DTYPES[:2]]


@pytest.mark.parametrize(("name", "dtype"), WITHOUT_RULES)
def test_formula_is_as_written_away_from_the_singularity(name, dtype):
    formula = HOLES[name][0]
    x = torch.cat([torch.linspace(-9, 9, 40), torch.tensor([math.inf, -math.inf, math.nan])]).to(dtype)
    ours, written = (
        derivatives(pullback.function(formula, stable=stable, backend="eager"), x.clone().requires_grad_())
        for stable in (True, False)
    )
    for got, right in zip(ours, written, strict=True):
        torch.testing.assert_close(got, right, rtol=0, atol=0, equal_nan=True)


def test_native_form_fills_the_singularity():
    op = pullback.function(HOLES["sin(x)/x"][0])
    x = torch.zeros((), dtype=torch.float64)
    one = torch.ones_like(x)
    assert op(x) == 1
    assert torch.func.grad(op)(x) == 0
    assert abs(torch.func.grad(torch.func.grad(op))(x) + 1 / 3) < 1e-15
    assert abs(torch.func.jvp(torch.func.grad(op), (x,), (one,))[1] + 1 / 3) < 1e-15
    assert abs(make_fx(torch.func.grad(torch.func.grad(op)))(x)(x) + 1 / 3) < 1e-15
    assert torch.equal(torch.func.vmap(torch.func.grad(op))(torch.zeros(3)), torch.zeros(3))
    y = leaf(0.0, 1.0, dtype=torch.float64)
    (g,) = grad(compiled(lambda x: op(x))(y).sum(), y)
    torch.testing.assert_close(g, torch.tensor([0, math.cos(1) - math.sin(1)], dtype=torch.float64))


def test_native_kernels_fill_the_singularity(native):
    x = leaf(0.0, 2.0, dtype=torch.float32)
    value, slope = derivatives(pullback.function(HOLES["sin(x)/x"][0]), x, orders=1)
    torch.testing.assert_close(value, torch.tensor([1, math.sin(2) / 2]))
    torch.testing.assert_close(slope, torch.tensor([0, (2 * math.cos(2) - math.sin(2)) / 4]))


@pytest.mark.parametrize("formula", [lambda x: 1 / x, lambda x: torch.sin(x.abs()) / x, lambda x: x.sgn() / x * x])
def test_singularity_without_limit_is_not_filled(formula):
    op = pullback.function(formula, backend="eager")
    x = leaf(0.0, dtype=torch.float32)
    for got, right in zip(derivatives(op, x, 1), derivatives(formula, x, 1), strict=True):
        torch.testing.assert_close(got, right, equal_nan=True)


def test_value_filled_by_the_formula_is_kept():
    op = pullback.function(lambda x: torch.where(x == 0, 7.0, torch.sin(x) / x), backend="eager")
    assert op(torch.zeros(1)) == 7


@pytest.mark.parametrize(
    "formula", [lambda x, y: torch.sin(x) / x, lambda x, y: torch.sin(x) / x + torch.zeros_like(y)]
)
def test_second_input_that_the_value_does_not_depend_on(formula):
    x = leaf(0.5, 2.0, dtype=torch.float32)
    op = pullback.function(formula, backend="eager")
    torch.testing.assert_close(op(x, torch.ones(2)), torch.sin(x) / x)


def test_explain_names_the_limit():
    assert "the limit at 0" in pullback.function(HOLES["sin(x)/x"][0]).explain(torch.zeros(3))


def test_third_derivative_at_a_singularity_is_the_limit():
    """The quick rules give two derivatives; the third is differentiated from the second."""
    op = pullback.function(lambda x: (torch.exp(x) - 1) / x, backend="eager")
    assert derivatives(op, leaf(0.0, dtype=torch.float32), 3)[3] == 0.25

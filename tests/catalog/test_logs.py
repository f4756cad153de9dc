"""log_sigmoid, softplus and log1mexp against mpmath over the range of each dtype."""

import mpmath
import pytest
import torch
from tests.catalog.reference import DTYPES, assert_close, exact, orders

from pullback import catalog

LINE = [-700.0, -80.0, -20.5, -3.0, -0.5, -1e-8, 0.0, 1e-8, 0.7, 1.0, 19.9, 20.1, 36.0, 80.0, 700.0]
HALF_LINE = [1e-300, 1e-20, 1e-8, 0.3, 0.693, 0.6932, 1.0, 5.0, 40.0, 700.0]
EPS = torch.finfo(torch.float64).eps
"""Second derivatives of a sigmoid cancel, σ − 1 against σ: their error is of this size, relative to their largest."""


def log_sigmoid(x):
    return -mpmath.log1p(mpmath.exp(-x))


def log1mexp(x):
    return mpmath.log(-mpmath.expm1(-x))


def test_log_sigmoid_matches_mpmath_to_second_order():
    value, first, second = orders(catalog.log_sigmoid, torch.tensor(LINE, dtype=torch.float64))
    assert_close(value, exact(log_sigmoid, LINE), rtol=1e-15)
    assert_close(first, exact(lambda x: 1 / (1 + mpmath.exp(x)), LINE), rtol=1e-15)
    sigmoids = exact(lambda x: -1 / (1 + mpmath.exp(x)) / (1 + mpmath.exp(-x)), LINE)
    assert_close(second, sigmoids, rtol=1e-14, atol=EPS)


@pytest.mark.parametrize("beta", [1.0, 0.1, 3.0])
def test_softplus_matches_mpmath_to_second_order(beta):
    points = [x / beta for x in LINE]
    value, first, second = orders(lambda x: catalog.softplus(x, beta), torch.tensor(points, dtype=torch.float64))
    b = mpmath.mpf(beta)
    # The rounding of β x, up to 700, is an error of that size times 1e-16 in the exponent.
    assert_close(value, exact(lambda x: mpmath.log1p(mpmath.exp(b * x)) / b, points), rtol=1e-13)
    assert_close(first, exact(lambda x: 1 / (1 + mpmath.exp(-b * x)), points), rtol=1e-13)
    sigmoids = exact(lambda x: b / (1 + mpmath.exp(b * x)) / (1 + mpmath.exp(-b * x)), points)
    assert_close(second, sigmoids, rtol=1e-13, atol=beta * EPS)


def test_softplus_has_no_threshold():
    x = torch.tensor([19.99, 20.01, 30.0], dtype=torch.float64)
    assert (catalog.softplus(x) > x).all()


def test_softplus_differentiates_beta():
    x = torch.linspace(-3, 3, 7, dtype=torch.float64, requires_grad=True)
    beta = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(catalog.softplus, (x, beta))
    assert torch.autograd.gradgradcheck(catalog.softplus, (x, beta))


def test_log1mexp_matches_mpmath_to_second_order():
    value, first, second = orders(catalog.log1mexp, torch.tensor(HALF_LINE, dtype=torch.float64))
    assert_close(value, exact(log1mexp, HALF_LINE), rtol=1e-15)
    assert_close(first, exact(lambda x: 1 / mpmath.expm1(x), HALF_LINE), rtol=1e-14)
    inner = slice(1, None)  # at 1e-300 the second derivative, 1e600, is out of range
    assert_close(
        second[inner], exact(lambda x: -1 / mpmath.expm1(x) - 1 / mpmath.expm1(x) ** 2, HALF_LINE)[inner], 1e-14
    )


def test_log1mexp_at_zero_and_outside_its_domain():
    value, first, second = orders(catalog.log1mexp, torch.tensor([0.0, -0.0, torch.inf, -1.0]))
    inf = torch.inf
    assert value[:3].tolist() == [-inf, -inf, 0.0]
    assert first[:3].tolist() == [inf, inf, 0.0]
    assert second[:3].tolist() == [-inf, -inf, 0.0]
    assert value[3].isnan()


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize(
    ("op", "reference", "points"),
    [(catalog.log_sigmoid, log_sigmoid, LINE), (catalog.log1mexp, log1mexp, [0.01, 0.25, 0.69, 0.7, 4.0])],
    ids=["log_sigmoid", "log1mexp"],
)
def test_low_precision_results_keep_dtype_and_accuracy(op, reference, points, dtype):
    x = torch.tensor(points, dtype=dtype)
    value, first, _ = orders(op, x)
    assert value.dtype == first.dtype == dtype
    eps = torch.finfo(dtype).eps
    tiny = torch.finfo(dtype).tiny
    assert_close(value.double(), exact(reference, x.tolist()), rtol=4 * eps, atol=tiny)
    assert_close(first.double(), exact(reference, x.tolist(), 1), rtol=8 * eps, atol=tiny)


@pytest.mark.parametrize("op", [catalog.log_sigmoid, catalog.softplus, catalog.log1mexp], ids=lambda op: op.__name__)
def test_derivatives_agree_in_every_mode(op):
    x = torch.tensor([0.1, 0.6, 0.8, 3.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(op, x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(op, x)
    expected = orders(op, x)[1]
    assert_close(torch.func.vmap(torch.func.grad(op))(x.detach()), expected, rtol=1e-14)
    compiled = torch.compile(op, backend="aot_eager", fullgraph=True)
    assert_close(torch.autograd.grad(compiled(x).sum(), x)[0], expected, rtol=1e-14)

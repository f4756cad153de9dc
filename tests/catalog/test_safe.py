"""Safe functions: finite derivatives at the singular point, those of the plain function elsewhere."""

import mpmath
import pytest
import torch
from tests.catalog.reference import DTYPES, assert_close, exact, orders

from pullback import catalog

float64 = torch.float64


def test_where_safe_differentiates_f_only_where_the_mask_is_true():
    x = torch.tensor([0.0, 4.0], dtype=float64)
    value, first, second = orders(lambda x: catalog.where_safe(x > 0, torch.log, x, otherwise=-5.0), x)
    assert value.tolist() == [-5.0, mpmath.log(4)]
    assert first.tolist() == [0.0, 0.25]
    assert second.tolist() == [0.0, -0.0625]
    assert orders(lambda x: torch.where(x > 0, torch.sqrt(x), 0.0), x)[1][
        0
    ].isnan()  # the gradient that where_safe avoids


def test_where_safe_evaluates_f_at_inside_and_differentiates_otherwise():
    other = torch.tensor([7.0, 8.0], requires_grad=True)
    seen = []

    def f(x):
        seen.append(x.tolist())
        return 1 / (x - 1)

    x = torch.tensor([1.0, 3.0])
    out = catalog.where_safe(x != 1, f, x, other, inside=5.0)
    assert out.tolist() == [7.0, 0.5]
    assert seen == [[5.0, 3.0]]
    assert torch.autograd.grad(out.sum(), other)[0].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_safe_sqrt_has_zero_derivatives_at_zero(dtype):
    x = torch.tensor([0.0, 0.25, 9.0, torch.inf], dtype=dtype)
    value, first, second = orders(catalog.safe_sqrt, x)
    assert torch.equal(value, torch.sqrt(x))
    assert_close(first, torch.tensor([0.0, 1.0, 1 / 6, 0.0], dtype=dtype), rtol=torch.finfo(dtype).eps)
    assert_close(second, torch.tensor([0.0, -2.0, -1 / 108, 0.0], dtype=dtype), rtol=4 * torch.finfo(dtype).eps)


def test_safe_sqrt_of_a_negative_number_is_nan():
    assert catalog.safe_sqrt(torch.tensor(-1.0)).isnan()


POINTS = [-1 + 1e-12, -0.9, -0.3, -1e-9, 0.2, 0.999, 1 - 1e-12, 1 - 2**-52]


def test_safe_acos_is_accurate_near_plus_and_minus_1():
    value, first, second = orders(catalog.safe_acos, torch.tensor(POINTS, dtype=float64))
    assert_close(value, exact(mpmath.acos, POINTS), rtol=1e-15)
    assert_close(first, exact(lambda x: -1 / mpmath.sqrt(1 - x * x), POINTS), rtol=1e-15)
    assert_close(second, exact(lambda x: -x / (1 - x * x) ** mpmath.mpf(1.5), POINTS), rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_safe_acos_has_zero_derivatives_at_and_beyond_1(dtype):
    x = torch.tensor([1.0, -1.0, 1.0 + torch.finfo(dtype).eps, -2.0, torch.inf], dtype=dtype)
    value, first, second = orders(catalog.safe_acos, x)
    assert torch.equal(value, torch.tensor([0.0, torch.pi, 0.0, torch.pi, 0.0], dtype=dtype))
    assert not first.any()
    assert not second.any()
    assert catalog.safe_acos(torch.tensor(torch.nan, dtype=dtype)).isnan()


def hessian_of(f, x):
    return torch.func.hessian(f)(x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_safe_norm_has_zero_derivatives_at_zero(dtype):
    x = torch.zeros(3, dtype=dtype)
    assert catalog.safe_norm(x) == 0
    assert not torch.func.grad(catalog.safe_norm)(x).any()
    assert not torch.func.hessian(catalog.safe_norm)(x).any()
    rows = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=dtype, requires_grad=True)
    (g,) = torch.autograd.grad(catalog.safe_norm(rows, dim=-1).sum(), rows)
    assert_close(g, torch.tensor([[0.0, 0.0], [0.6, 0.8]], dtype=dtype), rtol=2 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dim", [None, -1, 0, (0, 2)])
@pytest.mark.parametrize("keepdim", [False, True])
def test_safe_norm_matches_vector_norm_away_from_zero(dim, keepdim):
    x = torch.randn(3, 4, 2, dtype=float64, requires_grad=True)
    ours, native = catalog.safe_norm(x, dim, keepdim), torch.linalg.vector_norm(x, 2, dim, keepdim)
    assert_close(ours, native, rtol=1e-14)
    weights = torch.randn_like(native)
    first = [torch.autograd.grad((out * weights).sum(), x, create_graph=True)[0] for out in (ours, native)]
    assert_close(*first, rtol=1e-13)
    along = torch.randn_like(x)
    second = [torch.autograd.grad((g * along).sum(), x)[0] for g in first]
    assert_close(*second, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("size", [1e-30, 1e30], ids=str)
def test_safe_norm_and_normalize_do_not_overflow_or_underflow(size):
    x = torch.tensor([3.0, 4.0], requires_grad=True)
    norm = catalog.safe_norm(x * size)
    assert_close(norm.detach(), torch.tensor(5 * size), rtol=1e-6)
    assert_close(torch.autograd.grad(norm / size, x)[0], torch.tensor([0.6, 0.8]), rtol=1e-6)
    assert_close(catalog.safe_normalize(x * size).detach(), torch.tensor([0.6, 0.8]), rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_safe_normalize_has_zero_derivatives_at_zero(dtype):
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], dtype=dtype)
    jacobian = torch.func.jacrev(catalog.safe_normalize)(x)
    assert catalog.safe_normalize(x)[0].tolist() == [0.0, 0.0]
    assert not jacobian[0].any()
    expected = torch.tensor([[0.64, -0.48], [-0.48, 0.36]], dtype=dtype) / 5
    assert_close(jacobian[1, :, 1], expected, rtol=0, atol=torch.finfo(dtype).eps / 2)
    assert torch.func.jacrev(torch.func.jacrev(catalog.safe_normalize))(x).isfinite().all()


@pytest.mark.parametrize("dim", [0, -1])
def test_safe_normalize_matches_normalize_away_from_zero(dim):
    x = torch.randn(3, 4, dtype=float64, requires_grad=True)
    assert_close(catalog.safe_normalize(x, dim), torch.nn.functional.normalize(x, dim=dim), rtol=1e-14)
    assert torch.autograd.gradcheck(catalog.safe_normalize, (x, dim), check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(catalog.safe_normalize, (x, dim))


@pytest.mark.parametrize("op", [catalog.safe_sqrt, catalog.safe_acos, catalog.safe_norm], ids=lambda op: op.__name__)
def test_derivatives_agree_in_every_mode(op):
    x = torch.tensor([0.1, 0.6, 0.8], dtype=float64, requires_grad=True)
    assert torch.autograd.gradcheck(op, x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(op, x)


def test_compiled_safe_norm_has_zero_gradient_at_zero():
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    compiled = torch.compile(lambda x: catalog.safe_norm(x, 1), backend="aot_eager", fullgraph=True)
    (g,) = torch.autograd.grad(compiled(x).sum(), x)
    assert_close(g, torch.tensor([[0.0, 0.0], [0.6, 0.8]]), rtol=1e-6)

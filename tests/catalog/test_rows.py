"""softmax, log_softmax and logsumexp against mpmath to second order, also where PyTorch's gradients cancel."""

from functools import partial
from itertools import combinations_with_replacement

import mpmath
import pytest
import torch
from tests.catalog.reference import DTYPES, assert_close

from pullback import catalog

float64, inf, nan = torch.float64, torch.inf, torch.nan
OPS = {"softmax": catalog.softmax, "log_softmax": catalog.log_softmax, "logsumexp": catalog.logsumexp}
NATIVE = {
    "softmax": partial(torch.softmax, dim=-1),
    "log_softmax": partial(torch.log_softmax, dim=-1),
    "logsumexp": partial(torch.logsumexp, dim=-1),
}
ROWS = {
    "sure": [-3.0, 1.5, 40.0],
    "very sure": [-99.0, 0.25, 100.0],
    "mild": [0.5, -1.25, 0.75],
    "equal": [0.5, 0.5, 0.5],
    "two equal": [-1.0, 2.0, 2.0],
    "exactly half": [-60.0, 1.0, 1.0],
    "negative": [-100.5, -117.0, -100.0],
    "one": [2.5],
}
DIGITS = 350  # e^−200 beside 1, and second differences of that
by_op = pytest.mark.parametrize("name", OPS)
by_row = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)


def textbook(name, c):
    """Return Σ c_i f_i as a function of mpmath numbers, by the definition."""

    def f(*xs):
        total = mpmath.fsum(mpmath.exp(x) for x in xs)
        if name == "logsumexp":
            return c[0] * mpmath.log(total)
        results = [mpmath.exp(x) / total if name == "softmax" else x - mpmath.log(total) for x in xs]
        return mpmath.fsum(a * r for a, r in zip(c, results, strict=True))

    return f


def exact(name, row, c, orders):
    """Return a partial derivative of Σ c_i f_i."""
    with mpmath.workdps(DIGITS):
        return mpmath.diff(textbook(name, c), tuple(mpmath.mpf(x) for x in row), orders, h=mpmath.mpf(10) ** -90)


def size_of_second(name, row, c):
    """Return the sums of the magnitudes of the terms that second derivatives are made of, where they cancel.

    ∂²p_k / ∂x_i ∂x_j = p_k ((δ_ki − p_i) (δ_kj − p_j) − p_i (δ_ij − p_j)), which has roots: at p = 1/2 for i = j = k.
    """
    if name != "softmax":
        return torch.zeros(())
    with mpmath.workdps(DIGITS):
        powers = [mpmath.exp(x) for x in row]
        others = [mpmath.fsum(powers[:i] + powers[i + 1 :]) for i in range(len(row))]
        p, rest = (torch.tensor([float(e / mpmath.fsum(powers)) for e in of], dtype=float64) for of in (powers, others))
    one = torch.eye(len(row), dtype=float64)
    slopes = one * rest + (1 - one) * p  # |δ_ki − p_i|
    weights = torch.tensor(c, dtype=float64).abs() * p
    return torch.einsum("k,ki,kj->ij", weights, slopes, slopes) + weights.sum() * p[:, None] * slopes


def cotangents(name, n):
    if name == "logsumexp":
        return [[1.0]]
    return [[float(i == k) for i in range(n)] for k in range(n)] + [[0.75, -1.5, 0.625][:n]]


@by_op
@by_row
@pytest.mark.parametrize("dtype", [float64, torch.float32], ids=str)
def test_value_and_gradient_match_mpmath(name, row, dtype):
    eps = torch.finfo(dtype).eps
    for c in cotangents(name, len(row)):
        x = torch.tensor(row, dtype=dtype, requires_grad=True)
        out = OPS[name](x)
        (g,) = torch.autograd.grad(out, x, torch.tensor(c, dtype=dtype).reshape(out.shape))
        units = [tuple(int(i == j) for i in range(len(row))) for j in range(len(row))]
        right = torch.tensor([float(exact(name, row, c, unit)) for unit in units], dtype=float64)
        assert_close(g.double(), right, rtol=4 * eps, atol=torch.finfo(dtype).tiny)
        if sum(c) == max(c) == 1:  # one entry of the value
            value = textbook(name, c)
            with mpmath.workdps(DIGITS):
                wanted = float(value(*(mpmath.mpf(x) for x in row)))
            got = out.reshape(-1)[c.index(1.0)].double()
            assert_close(got, torch.tensor(wanted, dtype=float64), rtol=2 * eps, atol=torch.finfo(dtype).tiny)


@by_op
@by_row
def test_second_derivatives_match_mpmath(name, row):
    n = len(row)
    for c in cotangents(name, n)[-2:]:
        x = torch.tensor(row, dtype=float64, requires_grad=True)
        out = OPS[name](x)
        (g,) = torch.autograd.grad(out, x, torch.tensor(c, dtype=float64).reshape(out.shape), create_graph=True)
        hessian = torch.stack([torch.autograd.grad(g[j], x, retain_graph=True)[0] for j in range(n)])
        right = torch.zeros(n, n, dtype=float64)
        for i, j in combinations_with_replacement(range(n), 2):
            orders = tuple(int(k == i) + int(k == j) for k in range(n))
            right[i, j] = right[j, i] = float(exact(name, row, c, orders))
        allowed = 1e-14 * (right.abs() + size_of_second(name, row, c)) + 1e-300
        assert ((hessian - right).abs() <= allowed).all(), (hessian - right) / allowed


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_gradient_of_saturated_row_is_nonzero_where_pytorch_gives_0(name):
    x = torch.tensor(ROWS["sure"], requires_grad=True)
    g = torch.tensor([0.0, 0.0, 1.0])
    (theirs,) = torch.autograd.grad(NATIVE[name](x), x, g)
    (ours,) = torch.autograd.grad(OPS[name](x), x, g)
    assert theirs[2] == 0
    assert ours[2].item() == pytest.approx(1.9083e-17, rel=1e-3)


@by_op
@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_narrow_dtypes_round_once(name, dtype):
    torch.manual_seed(0)
    x = (torch.randn(64, 9) * torch.logspace(-2, 1.5, 64)[:, None]).to(dtype)
    wide = x.double().requires_grad_()
    narrow = x.clone().requires_grad_()
    g = torch.randn(OPS[name](x).shape).to(dtype)
    pairs = [(OPS[name](narrow), OPS[name](wide))]
    pairs += zip(
        torch.autograd.grad(pairs[0][0], narrow, g), torch.autograd.grad(pairs[0][1], wide, g.double()), strict=True
    )
    for got, right in pairs:
        assert got.dtype == dtype
        # Half a unit, and what float32 inside of the 16-bit formats may be off before it is rounded.
        assert_close(got.double(), right, rtol=0.505 * torch.finfo(dtype).eps, atol=torch.finfo(dtype).smallest_normal)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@by_op
def test_infinities_and_nan_match_pytorch(name, dtype):
    rows = [[inf, 1.0], [-inf, -inf], [inf, inf], [inf, -inf], [nan, 1.0], [nan, inf], [-inf, 1.0], [-inf, nan]]
    rows += [[torch.finfo(dtype).max, -torch.finfo(dtype).max], [0.0, -0.0]]
    x = torch.tensor(rows, dtype=dtype)
    eps = torch.finfo(dtype).eps
    assert_close(OPS[name](x), NATIVE[name](x), rtol=2 * eps)


def test_logsumexp_gradient_has_no_nan_for_infinite_rows():
    x = torch.tensor([[inf, 1.0], [-inf, -inf], [-inf, 1.0]], requires_grad=True)
    (g,) = torch.autograd.grad(catalog.logsumexp(x).sum(), x, create_graph=True)
    assert g.tolist() == [[0.0, 0.0], [0.0, 0.0], [0.0, 1.0]]
    (second,) = torch.autograd.grad(g.sum(), x)
    assert second.tolist() == [[0.0, 0.0]] * 3


def test_masked_entries_have_zero_gradient():
    x = torch.tensor([1.0, -inf, 2.0, -inf], dtype=float64, requires_grad=True)
    kept = x.detach()[[0, 2]].requires_grad_()
    for name, op in OPS.items():
        g = (
            torch.tensor([0.3, 0.0, 0.6, 0.0], dtype=float64)
            if name != "logsumexp"
            else torch.tensor(0.3, dtype=float64)
        )
        (got,) = torch.autograd.grad(op(x), x, g)
        (right,) = torch.autograd.grad(op(kept), kept, g[[0, 2]] if g.dim() else g)
        assert got[[0, 2]].tolist() == right.tolist()
        assert got[[1, 3]].tolist() == [0.0, 0.0]


def test_softmax_gradient_of_a_constant_cotangent_is_0():
    x = torch.tensor([ROWS["sure"], [0.0, 3.0, 1.0]], requires_grad=True)
    (g,) = torch.autograd.grad(catalog.softmax(x), x, torch.full((2, 3), 0.7))
    assert g.tolist() == [[0.0] * 3] * 2


@by_op
@pytest.mark.parametrize("dim", [0, 1, 2, -1, -3])
@pytest.mark.few(5)
def test_any_dimension_and_strides_match_pytorch(name, dim):
    torch.manual_seed(0)
    x = torch.randn(3, 4, 5, dtype=float64)
    for given in (x, x.transpose(0, 2), x[:, ::2], x[:1].expand(3, 4, 5)):
        a, b = given.clone().requires_grad_(), given.clone().requires_grad_()
        ours, theirs = OPS[name](a, dim), getattr(torch, name)(b, dim)
        g = torch.randn(theirs.shape, dtype=float64)
        assert_close(OPS[name](given, dim), theirs.detach(), rtol=1e-14, atol=1e-15)
        assert_close(*(torch.autograd.grad(o, i, g)[0] for o, i in ((ours, a), (theirs, b))), rtol=1e-12, atol=1e-14)


def test_logsumexp_keepdim():
    x = torch.randn(3, 4)
    assert catalog.logsumexp(x, 0, keepdim=True).shape == (1, 4)
    assert torch.equal(catalog.logsumexp(x, 0, keepdim=True)[0], catalog.logsumexp(x, 0))


@by_op
def test_empty_and_scalar_inputs_match_pytorch(name):
    for shape in ((3, 0), (0, 3), (0,), ()):
        x = torch.full(shape, 1.5, requires_grad=True)
        out = OPS[name](x)
        assert_close(out, NATIVE[name](x), rtol=0)
        assert torch.autograd.grad(out.sum(), x)[0].shape == shape


def test_integer_input_and_invalid_dim_raise():
    with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        catalog.softmax(torch.tensor([1, 2]))
    with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        catalog.log_softmax(torch.tensor([1, 2]))
    for op in OPS.values():
        with pytest.raises(IndexError, match="Dimension out of range"):
            op(torch.ones(2), 3)
    assert catalog.logsumexp(torch.tensor([1, 1])).item() == pytest.approx(1.6931472)  # as PyTorch's, of integers


@by_op
def test_derivatives_agree_in_every_mode(name):
    op = OPS[name]
    torch.manual_seed(0)
    x = (3 * torch.randn(4, 5, dtype=float64)).requires_grad_()
    assert torch.autograd.gradcheck(op, x, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(op, x)
    with torch.no_grad():
        x[0, 2] = 40.0  # a saturated row: the transforms stay accurate too
    weights = torch.linspace(-1, 2, 5, dtype=float64) if name != "logsumexp" else torch.tensor(1.0, dtype=float64)
    loss = lambda row: (op(row) * weights).sum()  # noqa: E731 - one expression, named by its use
    (expected,) = torch.autograd.grad(sum(loss(row) for row in x), x)
    assert_close(torch.func.vmap(torch.func.grad(loss))(x.detach()), expected, rtol=1e-14)
    compiled = torch.compile(lambda x: (op(x) * weights).sum(), backend="aot_eager", fullgraph=True)
    assert_close(torch.autograd.grad(compiled(x), x)[0], expected, rtol=1e-14)
    hessians = torch.func.vmap(torch.func.hessian(loss))(x.detach())
    (g,) = torch.autograd.grad(loss(x[0]), x, create_graph=True)
    (second,) = torch.autograd.grad(g[0, 2], x)
    assert_close(hessians[0, 2], second[0], rtol=1e-13)

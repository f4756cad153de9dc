"""Saved tensors that change between forward and backward are read as PyTorch would, or raise."""

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

import pullback
from pullback.errors import DerivativeError

COLUMNS = 16


def pointwise(x, w):
    return torch.exp(x) * w


def over_rows(x, w):
    return torch.softmax(x * w, -1)


def in_two(x, w):
    return torch.exp(x) @ torch.sin(w)


def loss(x, w):
    return (x * w).exp().sum()


FORMULAS = {"pointwise": (pointwise, {}), "over rows": (over_rows, {}), "two kernels": (in_two, {})}
FORMULAS["by chunks"] = loss, {"chunk": 3}
if_not_of_chunks = pytest.mark.parametrize("case", list(FORMULAS)[:3])
of_all = pytest.mark.parametrize("case", FORMULAS)


def made(case):
    formula, options = FORMULAS[case]
    return pullback.function(formula, **options), formula


def leaves():
    """Tensors whose values are exact in bfloat16."""
    return [torch.randn(COLUMNS, COLUMNS).bfloat16().float().requires_grad_() for _ in range(2)]


def warm(op, n=3):
    """Call the op often enough that later calls run in C++ where possible."""
    for _ in range(n):
        x, w = leaves()
        op(x, w).sum().backward()


def backward_after(op, change):
    x, w = leaves()
    out = op(x, w).sum()
    change(x)
    out.backward()
    return x.grad


@pytest.fixture(params=["Python", "C++"])
def ops(request):
    """Calls in Python, and in C++ where possible."""
    return request.getfixturevalue("on" if request.param == "C++" else "native")


@of_all
@pytest.mark.parametrize("shape", [(0,), (1,), (COLUMNS,), (COLUMNS, 4), (COLUMNS, COLUMNS, 2)], ids=str)
def test_saved_tensor_with_data_of_another_shape_raises(ops, case, shape):
    op, _ = made(case)
    warm(op)
    with pytest.raises(DerivativeError, match=r"(?s)was given shape.*do not set its `\.data`"):
        backward_after(op, lambda x: setattr(x, "data", torch.zeros(shape)))


@if_not_of_chunks
@pytest.mark.parametrize(
    "changed",
    [
        lambda t: torch.randn(t.shape),
        lambda t: torch.randn(t.shape).T,
        lambda t: torch.randn(2 * COLUMNS, 2 * COLUMNS)[::2, 1::2],
        lambda t: torch.randn(1, COLUMNS).expand(t.shape),
        lambda t: torch.randn(COLUMNS * COLUMNS + 3)[3:].view(t.shape),
        lambda t: torch.randn(t.shape).double(),
        lambda t: torch.randn(t.shape).bfloat16(),
    ],
    ids=["other numbers", "transposed", "with steps", "expanded", "with an offset", "float64", "bfloat16"],
)
def test_saved_tensor_with_replaced_data_is_read_as_in_pytorch(ops, case, changed):
    op, formula = made(case)
    warm(op)
    torch.manual_seed(1)
    x, w = leaves()
    kept = op(x, w).sum()
    other = changed(x.detach())
    y, v = other.detach().float().requires_grad_(), w.detach().clone().requires_grad_()
    x.data = other
    if case == "over rows":  # it saves its result, which stays unchanged
        kept.backward()
        return
    kept.backward()
    formula(y, v).sum().backward()
    torch.testing.assert_close(x.grad.float(), y.grad, rtol=2e-5, atol=1e-6)


@of_all
@pytest.mark.parametrize("size", [4, 64])
def test_saved_tensor_with_resized_storage_raises(ops, case, size):
    op, _ = made(case)
    warm(op)
    with pytest.raises(DerivativeError, match=f"resized to {size} bytes"):
        backward_after(op, lambda x: x.untyped_storage().resize_(size))


@of_all
def test_saved_tensor_with_restored_storage_is_read(ops, case):
    op, formula = made(case)
    warm(op)

    def away_and_back(x):
        before = x.detach().clone()
        x.untyped_storage().resize_(0)
        x.untyped_storage().resize_(before.untyped_storage().nbytes())
        x.data.copy_(before)

    torch.manual_seed(1)
    found = backward_after(op, away_and_back)
    torch.manual_seed(1)
    torch.testing.assert_close(found, backward_after(formula, lambda x: None), rtol=1e-5, atol=1e-6)


UNPACKED = {
    "bfloat16": lambda t: t.bfloat16(),
    "float16": lambda t: t.half(),
    "float64": lambda t: t.double(),
    "transposed": lambda t: t.t().contiguous().t(),
    "with steps": lambda t: torch.stack([t, t], -1)[..., 0],
    "a negative view": lambda t: torch.complex(t, -t).conj().imag if t.is_floating_point() else t,
    "sparse": lambda t: t.to_sparse(),
    "a parameter": lambda t: torch.nn.Parameter(t) if t.is_floating_point() else t,
}


@of_all
@pytest.mark.parametrize("changed", UNPACKED)
def test_unpack_hook_may_change_dtype_and_layout(ops, case, changed):
    op, formula = made(case)
    warm(op)
    torch.manual_seed(1)
    x, w = leaves()
    with saved_tensors_hooks(lambda t: t.detach().clone(), UNPACKED[changed]):
        out = op(x, w).sum()
    out.backward()
    torch.manual_seed(1)
    y, v = leaves()
    formula(y, v).sum().backward()
    rounded = case == "over rows" and changed in ("bfloat16", "float16")  # it saves its result
    tolerance = 0.05 if rounded else 1e-5
    torch.testing.assert_close(x.grad, y.grad, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(w.grad, v.grad, rtol=tolerance, atol=tolerance)


@of_all
@pytest.mark.parametrize("changed", [lambda t: t[:1], lambda t: t.flatten(), lambda t: t.to("meta")])
def test_unpack_hook_returning_another_shape_or_device_raises(ops, case, changed):
    op, _ = made(case)
    warm(op)
    x, w = leaves()
    with saved_tensors_hooks(lambda t: t, changed):
        out = op(x, w).sum()
    with pytest.raises(DerivativeError, match="have hooks for saved tensors return what they were given"):
        out.backward()


@of_all
@pytest.mark.parametrize("which", [0, 1])
def test_in_place_write_to_an_input_raises_pytorchs_error(ops, case, which):
    op, _ = made(case)
    warm(op)
    given = leaves()
    out = op(*given).sum()
    with torch.no_grad():
        given[which].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_packed_mask_is_read_from_the_unpacked_tensor(ops):
    """Masks of 4096 numbers or more are saved as packed bits."""

    def formula(x):
        y = x.sin()
        return torch.where(y > 0.3, x.exp(), y), y.amax(-1)

    def spread(x):
        return torch.stack([x] * 2, -1)[..., 0]

    def gradient(f):
        x = torch.linspace(-3, 3, 8192, dtype=torch.float64).view(64, 128).requires_grad_()
        with saved_tensors_hooks(lambda x: x, spread):
            out, largest = f(x)
        return torch.autograd.grad(out.sum() + largest.sum(), x)[0]

    op = pullback.function(formula, backend="native")
    for _ in range(3):
        torch.testing.assert_close(gradient(op), gradient(formula))

"""Operands of every dtype and broadcast pattern in a loop, on AVX-512 and AVX2, by g++ and clang++."""

import shutil

import pytest
import torch
from torch.autograd import grad
from torch.fx.experimental.proxy_tensor import make_fx

import pullback
from pullback.graph import bits
from pullback.kernels import build
from pullback.kernels.native import is_kernel, lowered

NUMBERS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
ROWS, COLUMNS = 12, (40, 5)  # whole vectors and a tail; a tail alone
READ = {
    "dense": lambda rows, columns: (rows, columns),
    "one for each row": lambda rows, columns: (rows, 1),
    "one for each column": lambda rows, columns: (1, columns),
    "one in all": lambda rows, columns: (1, 1),
}


@pytest.fixture(params=["g++", pytest.param("clang++", marks=pytest.mark.slow)])
def compilers(request, monkeypatch, vectors):
    """As `vectors`, by one compiler or the other."""
    found = shutil.which(request.param)
    if found is None:
        pytest.skip(f"no {request.param} here")
    monkeypatch.setattr(build, "compiler", lambda: found)


def number(*shape, dtype):
    """Numbers from 1 to 2, of both signs."""
    return ((1 + torch.rand(shape)) * torch.randn(shape).sign()).to(dtype)


def with_gradients(function):
    """Return a function of a cotangent and inputs that gives the value and the gradient of each input that has one."""

    def both(g, *inputs):
        live = [x.detach().requires_grad_(x.is_floating_point()) for x in inputs]
        out = function(*live)
        return [out.detach(), *grad(out, [x for x in live if x.requires_grad], g)]

    return both


def assert_accurate(found, function, given):
    """Compare with float64: at most twice PyTorch's error in this dtype, and a few ulp of the largest number.

    That is one of a result or, since sums cancel, of what is summed.
    """
    summed = max(x.abs().max().item() for x in given if x.is_floating_point())
    exact = function(*(x.double() if x.is_floating_point() else x for x in given))
    for mine, theirs, right in zip(found, function(*given), exact, strict=True):
        assert mine.dtype == theirs.dtype
        error, own = ((y.double() - right).abs().max().item() for y in (mine, theirs))
        assert error <= 2 * own + 8 * torch.finfo(mine.dtype).eps * max(right.abs().max().item(), summed)


def assert_right(function, given):
    """Compare a function that returns a list with its kernels."""
    (module,) = lowered([make_fx(function, tracing_mode="fake")(*given)], [False])
    assert any(is_kernel(node.target) for node in module.graph.nodes)
    assert_accurate(module(*given), function, given)


def masked_quotient(x, y, m):
    return (x / y).masked_fill(m, 0.0)


def masked_share(x, y, m):
    e = (x * y).masked_fill(m, 0.0)
    return e / (e.square().sum(-1, keepdim=True) + 1)


def broadcast(dtype):
    """Yield operands of every broadcast pattern."""
    apart = [(40, of_numbers, of_masks) for of_numbers in READ.values() for of_masks in READ.values()]
    for columns, of_numbers, of_masks in [*apart, *((n, read, read) for n in (64, 5) for read in READ.values())]:
        x, y = number(ROWS, columns, dtype=dtype), number(*of_numbers(ROWS, columns), dtype=dtype)
        yield x, y, torch.rand(of_masks(ROWS, columns)) < 0.3


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_numbers_and_masks_of_every_broadcast_pattern(compilers, dtype):
    for given in broadcast(dtype):
        assert_right(lambda *xs: [masked_quotient(*xs)], given)


@pytest.mark.slow
@pytest.mark.parametrize("formula", [masked_quotient, masked_share])
@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
def test_gradients_of_every_broadcast_pattern(compilers, dtype, formula):
    for x, y, m in broadcast(dtype):
        assert_right(with_gradients(formula), [number(*x.shape, dtype=dtype), x, y, m])


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.few(2)
def test_masks_saved_as_packed_bits(compilers, monkeypatch, dtype):
    monkeypatch.setattr(bits, "FEWEST", 0)
    op = pullback.function(lambda x, y: torch.where(x.cumsum(0) > 0, x / y, y * 2))
    for columns in COLUMNS:
        for read in READ.values():
            x, y = number(ROWS, columns, dtype=dtype), number(*read(ROWS, columns), dtype=dtype)
            kept = op(x.requires_grad_(), y).grad_fn.saved_tensors
            assert kept[-1].dtype == torch.uint8
            mask, g = x.cumsum(0) > 0, number(ROWS, columns, dtype=dtype)  # in float64 a few signs differ
            right = with_gradients(lambda x, y: torch.where(mask, x / y, y * 2))  # noqa: B023
            assert_accurate(with_gradients(op)(g, x, y), right, [g, x, y])


def test_gradient_of_a_row_norm(compilers):
    x, g = number(64, 16, dtype=torch.float32), number(64, dtype=torch.float32)
    norm = with_gradients(lambda x: torch.linalg.vector_norm(x, dim=-1))
    op = pullback.function(lambda x: torch.linalg.vector_norm(x, dim=-1))
    assert_accurate(with_gradients(op)(g, x), norm, [g, x])


def test_mask_bytes_above_1_are_true(vectors):
    x, y = number(ROWS, 40, dtype=torch.float32), number(ROWS, 40, dtype=torch.float32)
    for shape in ((ROWS, 40), (ROWS, 1), (1, 40)):
        m = torch.randint(1, 256, shape).mul(torch.rand(shape) < 0.5).to(torch.uint8)
        assert m.max() > 1
        assert_right(lambda *xs: [masked_quotient(*xs)], [x, y, m.view(torch.bool)])


def test_unaligned_tensors(vectors):
    for read in READ.values():
        for columns in COLUMNS:
            shape = read(ROWS, columns)
            memory = bytearray(4 * shape[0] * shape[1] + 1)
            y = torch.frombuffer(memory, dtype=torch.float32, offset=1).view(shape)
            y.copy_(number(*shape, dtype=torch.float32))
            assert y.data_ptr() % 4
            assert_right(lambda x, y: [torch.exp(x) * y], [number(ROWS, columns, dtype=torch.float32), y])

"""Masks saved as packed bits are unpacked as they were compared, in every layout and dtype."""

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch.autograd import grad

import pullback
from pullback.graph import bits
from pullback.kernels import bit_packing as bit_passes
from pullback.kernels import build, native

SIZES = [(1,), (7,), (8,), (9,), (15,), (16,), (17,), (255,), (4096,), (4097,), (3, 5), (5, 24), (9, 33), (2, 3, 4), ()]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def _few_too(monkeypatch):
    monkeypatch.setattr(bits, "FEWEST", 0)


@pytest.fixture
def passes(monkeypatch):
    """Requests for separate packing passes, which region kernels did not fuse."""
    asked = []
    monkeypatch.setattr(native, "passes", lambda: asked.append(1) or bit_passes.passes())
    return asked


def chosen(x, a, c):
    return torch.where(x.cumsum(0) > 0, a * 2, c)  # cumsum is expensive to recompute


def live(*shape, dtype=torch.float32, count=3):
    shapes = shape if isinstance(shape[0], tuple) else [shape] * count
    return [torch.randn(s).to(dtype).requires_grad_() for s in shapes]


def grads(out, inputs, g):
    return grad(out, inputs, g, allow_unused=True, materialize_grads=True)


def kept_in_bits(out):
    return sum(t.nbytes for t in out.grad_fn.saved_tensors if t.dtype == torch.uint8)


def assert_as_eager(op, formula, inputs, g=None, n=None):
    """Compare value and gradients, which only select, bit for bit; and the bytes that are saved."""
    mine, theirs = op(*inputs), formula(*inputs)
    assert kept_in_bits(mine) == (((theirs.numel() if n is None else n) + 7) // 8)
    g = torch.randint(-3, 4, theirs.shape).to(theirs.dtype) if g is None else g  # small integers, whose sums are exact
    for a, b in zip([mine, *grads(mine, inputs, g)], [theirs, *grads(theirs, inputs, g)], strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.few(4)
def test_packed_masks_of_whole_and_partial_bytes_and_vectors(vectors, dtype, passes):
    op = pullback.function(chosen)
    for size in SIZES:
        if size:
            assert_as_eager(op, chosen, live(*size, dtype=dtype))
    assert not passes


def test_packed_bits_equal_numpy_packbits(vectors):
    for n in (0, 1, 7, 8, 9, 4095, 70001):
        mask = torch.rand(n) > 0.5
        right = torch.from_numpy(numpy.packbits(mask.numpy(), bitorder="little"))
        for functions in ({f: f for f in (bits.pack, bits.unpack)}, bit_passes.passes()):
            assert torch.equal(functions[bits.pack](mask, (1,)), right)
            assert torch.equal(functions[bits.unpack](right, (n,), (1,)), mask)
    mask = torch.rand(6, 35, 2) > 0.5
    lain = mask.permute(1, 2, 0)
    for functions in ({f: f for f in (bits.pack, bits.unpack)}, bit_passes.passes()):
        for given in (lain, lain.contiguous()):
            made = functions[bits.pack](given, lain.stride())
            assert torch.equal(made, torch.from_numpy(numpy.packbits(mask.numpy().ravel(), bitorder="little")))
            back = functions[bits.unpack](made, lain.shape, lain.stride())
            assert torch.equal(back, lain)
            assert back.stride() == lain.stride()


def test_packing_source_begins_with_the_precompiled_header(native):
    head = "".join(f'#include "{name}"\n' for name in ("types.h", build.header(), "functions.h", "loop.h"))
    assert bit_passes._source("Bits", "bool*").startswith(head)  # otherwise the precompiled header is not used


@pytest.mark.parametrize("columns", [33, 40, 64])
@pytest.mark.parametrize("of", ["row", "column", "number"])
def test_packed_masks_of_rows_that_share_bytes(native, columns, of, passes):
    def formula(x, b, a, c):
        return torch.where(x.cumsum(0) + b > 0, a, c)

    shape = {"row": (columns,), "column": (300, 1), "number": ()}[of]
    inputs = live((300, columns), shape, (300, columns), shape)
    op = pullback.function(formula)
    assert_as_eager(op, formula, inputs)
    assert_as_eager(op, formula, inputs, torch.ones(()).expand(300, columns))
    assert_as_eager(op, formula, inputs, torch.randint(-3, 4, (columns, 300)).float().T)
    assert bool(passes) == (of == "column")  # its gradient sums each row


@pytest.mark.parametrize("lie", [lambda x: x.mT, lambda x: x[::2], lambda x: x[:, 1:], lambda x: x.flip(0)])
def test_packed_masks_of_strided_inputs(native, lie):
    whole = live(70, 41)
    laid = [lie(x).detach().requires_grad_() for x in whole]
    op = pullback.function(chosen)
    assert_as_eager(op, chosen, laid)
    mine, theirs = op(*laid), chosen(*laid)
    for a, b in zip(grads(mine.sum(), laid, None), grads(theirs.sum(), laid, None), strict=True):
        assert torch.equal(a, b)


def test_mask_with_other_strides_than_its_operands_takes_a_pass(native, passes):
    def formula(x, a):
        return a.mT * (x.cumsum(0) > 0)

    assert_as_eager(pullback.function(formula), formula, live((30, 41), (41, 30)))
    assert passes


def test_packed_masks_of_channels_last_tensors(native):
    def formula(x, w, a):
        return F.relu(F.conv2d(x, w)) + a

    inputs = [
        x.detach().to(memory_format=torch.channels_last).requires_grad_()
        for x in live((2, 3, 9, 9), (5, 3, 3, 3), (2, 5, 7, 7))
    ]
    op = pullback.function(formula)
    for given in (inputs, live((2, 3, 9, 9), (5, 3, 3, 3), (2, 5, 7, 7))):
        mine, theirs = op(*given), formula(*given)
        assert kept_in_bits(mine) == (theirs.numel() + 7) // 8
        g = torch.randn(theirs.shape)
        for a, b in zip(grad(mine, given, g), grad(theirs, given, g), strict=True):
            assert torch.allclose(a, b, atol=1e-5)


def test_packed_masks_on_several_threads(native):
    def formula(x, b, a, c):
        return torch.where(x.cumsum(0) + b > 0, a, c)

    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        for shape in [(2**17 + 3,), (2**12, 33), (2**12, 40)]:
            inputs = live(shape, shape[-1:], shape, shape)
            assert_as_eager(pullback.function(formula), formula, inputs)
    finally:
        torch.set_num_threads(threads)


def test_row_kernels_leave_packing_to_passes(native, passes):
    def best(x, w, a):
        z = x @ w
        return torch.where(z == z.amax(-1, keepdim=True), a, 0.0)

    x, w, a = (torch.randint(-3, 4, s).float().requires_grad_() for s in ((40, 8), (8, 33), (40, 33)))
    assert_as_eager(pullback.function(best), best, [x, w, a], torch.randn(40, 33))

    def normed(x, a):
        y = torch.where(x.cumsum(0) > 0, a, 0.0)
        return y / y.square().sum(-1, keepdim=True).sqrt()

    inputs = [x.double().detach().requires_grad_() for x in live(40, 33, count=2)]
    mine, theirs = pullback.function(normed)(*inputs), normed(*inputs)
    assert kept_in_bits(mine) == 40 * 33 // 8
    g = torch.randn(40, 33, dtype=torch.float64)
    assert torch.allclose(grad(mine, inputs[1], g)[0], grad(theirs, inputs[1], g)[0], rtol=1e-12)
    assert passes


CLIPPED = {  # cumsum, even of one number, is expensive to recompute
    "relu": lambda x, a: F.relu(x.cumsum(0)) + a,
    "relu6": lambda x, a: F.relu6(x.cumsum(0)) + a,
    "hardtanh": lambda x, a: F.hardtanh(x.cumsum(0), -0.25, 0.75) + a,
    "leaky relu": lambda x, a: F.leaky_relu(x.cumsum(0), 0.3) + a,
    "threshold": lambda x, a: torch.ops.aten.threshold(x.cumsum(0), 0.1, 20.0) + a,
    "clamp": lambda x, a: x.cumsum(0).clamp(-0.25, 0.75) + a,
    "clamp_min": lambda x, a: x.cumsum(0).clamp_min(0.25) + a,
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CLIPPED)
@pytest.mark.few(6)
def test_clipping_ops_with_packed_masks_have_pytorchs_derivative(native, name, dtype, passes):
    formula = CLIPPED[name]
    special = [0.0, -0.0, float("inf"), float("-inf"), float("nan"), -1.0, 6.0, -0.25, 0.75, 0.1, 0.25, 0.3]
    x = torch.cat([torch.tensor(special), torch.linspace(-1, 8, 90)]).to(dtype)
    inputs = [
        torch.stack([x, x.nextafter(x.new_tensor(9.0))]).view(1, -1).requires_grad_(),
        *live(1, 204, dtype=dtype, count=1),
    ]
    op = pullback.function(formula)
    g = torch.randn(1, 204).to(dtype)
    mine, theirs = op(*inputs), formula(*inputs)
    is_rounded = name in ("threshold", "leaky relu") and dtype.itemsize == 2
    assert kept_in_bits(mine) == (0 if is_rounded else 26)
    (x, _), (right, _) = grads(mine, inputs, g), grads(theirs, inputs, g)
    assert torch.equal(x, right)
    assert torch.allclose(mine, theirs, rtol=0.01, equal_nan=True)
    assert not passes  # a lone `where` is a kernel too, if it reads bits

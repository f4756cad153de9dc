"""Results of Triton kernels, in a stand-in for Triton on the CPU."""

import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pullback.kernels.eager import lower
from pullback.kernels.layout import Layout
from pullback.kernels.native import is_kernel, lowered
from pullback.triton import kernel as triton_kernel
from tests.kernels import stand_in, test_lowerings
from tests.kernels.gpu_graphs import EXTREMES, LAYOUTS, ZEROS, graph_on_gpu

GPU = ("cpu", "cuda")


@pytest.fixture(scope="module", autouse=True)
def _stand_in(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        stand_in.put_in_place(patch)
        patch.setenv("PULLBACK_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


def kernels_of(function, *tensors, exact=False):
    """Return the kernels of a function that returns a list, and a callable that runs them on CPU tensors."""
    (module,) = lowered([graph_on_gpu(function, *tensors)], [exact], GPU)
    return [node.target.kernel for node in module.graph.nodes if is_kernel(node.target)], lower(module)


@functools.cache
def both(dtype, exact=False):
    """Return the results of our kernels and of PyTorch's for every op of `test_lowerings`, by name."""
    x, y = test_lowerings.inputs(dtype, 2)
    unary, binary = test_lowerings.UNARY, test_lowerings.BINARY
    names = [name for name in (*unary, *binary) if not exact or name in test_lowerings.EXACT]
    calls = {name: (unary[name], (x,)) if name in unary else (binary[name], (x, y)) for name in names}
    function = lambda x, y: [f(*(x, y)[: len(given)]) for f, given in calls.values()]  # noqa: E731
    kernels, run = kernels_of(function, x, y, exact=exact)
    assert kernels
    return {name: (o, f(*given)) for (name, (f, given)), o in zip(calls.items(), run(x, y), strict=True)}


ON_GPU = {
    "relu": lambda x: torch.where(x == 0, 0.0, torch.relu(x)),
    "hardtanh_backward": lambda g, x: torch.where((x <= -0.5) | (x >= 2), 0.0, g),
}
"""Ops whose CUDA kernels differ from the CPU kernels in PyTorch, as observed on an H200."""


def right_of(name, dtype, theirs):
    """Return PyTorch's result on a GPU; `theirs` is its result on the CPU."""
    given = test_lowerings.inputs(dtype, 1 if name in test_lowerings.UNARY else 2)
    return ON_GPU[name](*given) if name in ON_GPU else theirs


@pytest.mark.parametrize("name", [*test_lowerings.UNARY, *test_lowerings.BINARY])
@pytest.mark.parametrize("dtype", test_lowerings.DTYPES, ids=str)
def test_op_is_as_accurate_as_pytorch(name, dtype):
    ours, theirs = both(dtype)[name]
    if theirs.dtype == torch.bool:
        assert torch.equal(ours, theirs)
    else:
        theirs = right_of(name, dtype, theirs)
        test_lowerings.assert_as_good(ours, theirs, *test_lowerings.right_and_size(name, dtype, theirs.dtype))


@pytest.mark.parametrize("name", test_lowerings.EXACT)
@pytest.mark.parametrize("dtype", test_lowerings.DTYPES, ids=str)
def test_exact_op_equals_pytorch_bitwise(name, dtype):
    ours, theirs = both(dtype, exact=True)[name]
    theirs = right_of(name, dtype, theirs)
    same = (ours == theirs) & (ours.signbit() == theirs.signbit())
    assert bool((same | (ours.isnan() & theirs.isnan())).all())


@pytest.mark.parametrize("dtype", test_lowerings.DTYPES, ids=str)
def test_signed_zeros_match_cuda(dtype):
    """Signs observed from PyTorch's kernels on an H200; the CPU kernels keep a zero that equals the bound."""
    x, y = (t.to(dtype) for t in ZEROS)
    _, run = kernels_of(lambda x, y: [f(x, y) for f in EXTREMES.values()], x, y, exact=True)
    found = {name: "".join("+-"[s] for s in out.signbit()) for name, out in zip(EXTREMES, run(x, y), strict=True)}
    assert found == {
        "relu": "++++",
        "clamp_min 0": "++++",
        "clamp_max -0": "----",
        "clamp 0, 1": "++++",
        "clamp -1, -0": "----",
        "relu6": "++++",
        "maximum": "+++-",
        "minimum": "+---",
    }


@settings(max_examples=30)
@given(st.data())
def test_inputs_of_any_layout_match_pytorch(data):
    shape = data.draw(st.tuples(st.sampled_from([1, 2, 3, 40]), st.sampled_from([1, 2, 7, 64])))
    dtypes = data.draw(st.tuples(*[st.sampled_from(test_lowerings.DTYPES)] * 3))
    names = data.draw(st.tuples(*[st.sampled_from([*LAYOUTS])] * 3))
    again = data.draw(st.booleans())
    made = [LAYOUTS[n](torch.randn(shape).to(d)) for n, d in zip(names, dtypes, strict=True)]
    x, y, z = made if not again else [made[0], made[1], made[0]]

    def function(x, y, z):
        whole = x * 0.5 + y * z + torch.zeros(shape)
        return [whole, torch.where(x > y, whole - x, y), x < y]

    right = function(*[t.double().expand(shape) for t in (x, y, z)])
    dense = [torch.randn_like(t.contiguous()) for t in (x, y, z)]
    for recorded in (dense, (x, y, z)):  # traced with one set of strides, called with another
        _, run = kernels_of(function, *recorded)
        for ours, theirs, exact in zip(run(x, y, z), function(*recorded), right, strict=True):
            assert (ours.shape, ours.stride(), ours.dtype) == (theirs.shape, theirs.stride(), theirs.dtype)
            eps = max(torch.finfo(dtype).eps for dtype in dtypes)
            assert torch.allclose(ours.double(), exact.double(), rtol=4 * eps, atol=16 * eps)


def launches(kernel):
    return kernel._run.launches


def test_expanded_cotangent_is_read_without_a_copy():
    def slope(x, g):
        return [g * torch.sigmoid(x) * 2]

    x = torch.randn(30, 70)
    (kernel,), run = kernels_of(slope, x, torch.randn(30, 70))
    g = torch.tensor(3.0).expand(30, 70)
    assert torch.allclose(run(x, g)[0], slope(x, g)[0])
    ((_, (_, read, *_)),) = launches(kernel)
    assert read is g


def test_programs_cover_exactly_all_elements():
    (kernel,), run = kernels_of(lambda x: [torch.exp(x) + 1], torch.randn(2049))
    x = torch.randn(2049)
    assert torch.allclose(run(x)[0], torch.exp(x) + 1)
    ((grid, (_, _, *steps, columns, total, dense, far, block)),) = launches(kernel)
    assert (grid, steps, columns, total, dense, far, block) == ((3, 1, 1), [0, 0], 2049, 2049, True, False, 1024)


def test_kernel_is_warmed_up_with_the_launch_signature():
    x, y = torch.randn(3, 4), torch.randn(4).bfloat16()
    (kernel,), run = kernels_of(lambda x, y: [torch.exp(x) + y], x, y)
    run(x, y)
    (arguments, ahead), (launched, options) = kernel._run.warmed
    assert arguments[:3] == (torch.float32, torch.bfloat16, torch.float32)
    assert arguments[3:] == launched[3:]
    assert ahead == options
    assert options["enable_fp_fusion"] is False


def test_launches_use_a_kernel_specialised_to_the_arguments():
    """A kernel that Triton returned for other arguments would launch, and read the wrong memory."""
    whole, y = torch.randn(31, 70), torch.randn(30, 70)
    (kernel,), run = kernels_of(lambda x, y: [torch.exp(x) * y], whole[:30], y)
    rows = [whole[:30], whole[1:], whole.flatten()[1:2101].view(30, 70), whole[:1].expand(30, 70), whole[:30]]
    for x in [*rows, *rows]:
        assert torch.allclose(run(x, y)[0], torch.exp(x) * y)
    assert len(launches(kernel)) == 10
    assert len(kernel._run.warmed) == 1 + 3  # ahead; aligned, as two are, not aligned, as two are, and expanded


@pytest.mark.parametrize(
    ("size", "steps", "far"),
    [
        ((1, 2**31 - 1024), None, False),
        ((1, 2**31 - 1023), None, True),
        ((2**20, 2**11), (2**11, 1), True),
        ((2, 5), (2**31 - 5, 1), False),
        ((2, 5), (2**31 - 4, 1), True),
        ((2, 5), (0, 0), False),
    ],
)
def test_indices_beyond_32_bits_take_64_bits(size, steps, far):
    assert triton_kernel._is_far(Layout(*size, steps)) is far


def test_kernel_with_64_bit_indices_is_right(monkeypatch):
    monkeypatch.setattr(triton_kernel, "_INDEX", 2000)
    x, y = torch.randn(30, 70), torch.randn(70)
    (kernel,), run = kernels_of(lambda x, y: [torch.exp(x) + y], x, y)
    assert torch.allclose(run(x, y)[0], torch.exp(x) + y)
    assert launches(kernel)[0][1][-2] is True


def test_where_computes_both_branches():
    def pieces(x):
        far = x.expm1().log1p() * 2
        return [torch.where(x > 1, far, torch.where(x < -1, torch.tanh(x).exp(), torch.sin(x) * torch.cos(x)))]

    x = torch.tensor([-2.0, -0.0, 0.5, 2.0, torch.nan, torch.inf])
    (kernel,), run = kernels_of(pieces, x)
    assert torch.allclose(run(x)[0], pieces(x)[0], equal_nan=True)
    assert "if " not in kernel.source[kernel.source.index("on = ") :].replace("if DENSE", "")


def test_equal_terms_are_computed_once():
    x = torch.randn(5)
    (kernel,), _ = kernels_of(lambda x: [torch.exp(x) * 2, torch.exp(x) + 1], x)
    assert kernel.source.count("exp(x0)") == 1


def test_scalar_constants_keep_sign_and_digits():
    def numbers(x, m):
        return [x.masked_fill(m, -0.0) * 1, x.masked_fill(m, -math.inf) + 0.1, x.masked_fill(m, math.nan) * (-x)]

    x, m = torch.tensor([0.0, -0.0, 1.0, 2.0], dtype=torch.float64), torch.tensor([True, False, True, False])
    _, run = kernels_of(numbers, x, m)
    for ours, theirs in zip(run(x, m), numbers(x, m), strict=True):
        assert torch.equal(ours.nan_to_num(7), theirs.nan_to_num(7))
        assert torch.equal(ours.signbit() & ~ours.isnan(), theirs.signbit() & ~theirs.isnan())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_exact_16_bit_graph_rounds_each_result(dtype):
    def quantised(x):
        return [torch.round(x * 0.3 + 0.7) * 0.7 - x]

    (x,) = test_lowerings.inputs(dtype, 1)
    ours, fused = (kernels_of(quantised, x, exact=exact)[1](x)[0].nan_to_num() for exact in (True, False))
    assert torch.equal(ours, quantised(x)[0].nan_to_num())
    assert not torch.equal(fused, ours)  # the fused kernel rounds once

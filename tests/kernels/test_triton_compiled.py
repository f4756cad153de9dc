"""Code that Triton and the assembler generate for kernels; needs Triton, but no GPU."""

import inspect
import re
from contextlib import nullcontext

import pytest
import torch

from pullback.errors import RunnerError
from pullback.kernels.decompositions import decompose
from pullback.kernels.eager import lower
from pullback.kernels.lowerings import LOWERINGS
from pullback.kernels.native import is_kernel, lowered
from pullback.kernels.regions import regions_of, value_of
from pullback.triton import build as triton_build
from pullback.triton.source import triton_source_of
from tests.kernels import test_lowerings
from tests.kernels.gpu_graphs import LAYOUTS, graph_on_gpu

triton = pytest.importorskip("triton")
ASTSource = pytest.importorskip("triton.compiler").ASTSource
GPUTarget = pytest.importorskip("triton.backends.compiler").GPUTarget

DEVICES = ("cpu", "cuda")
NVIDIA = {"sm_80": 80, "sm_90": 90}
POINTERS = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.bool: "*i1",
}


@pytest.fixture(autouse=True)
def _cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))


def regions(function, *tensors, exact=False):
    graph = graph_on_gpu(function, *tensors)
    return regions_of((graph if exact else decompose(graph, DEVICES)).graph, exact, devices=DEVICES)


def compiled(function, *tensors, exact=False, **options):
    """Return the compiled code of the one region of a function, by stage."""
    (region,) = regions(function, *tensors, exact=exact)
    return made_of(region, **options)


def made_of(region, target=80, dense=True, far=False, block=1024):
    run = triton_build.kernel_of(triton_source_of(region))
    types = [POINTERS[value_of(node).dtype] for node in (*region.inputs, *region.outputs)]
    names = list(inspect.signature(run.fn).parameters)
    constants = {"DENSE": dense, "WIDE": far, "BLOCK": block}
    signature = dict(zip(names, types, strict=False))
    signature |= {name: "constexpr" if name in constants else "i32" for name in names[len(types) :]}
    gpu = GPUTarget("cuda", target, 32) if isinstance(target, int) else GPUTarget("hip", target, 64)
    options = triton_build.options() if isinstance(target, int) else {"enable_fp_fusion": False}
    return triton.compile(ASTSource(run, signature, constants), target=gpu, options=options).asm


def every_op(x, y):
    return [f(x) for f in test_lowerings.UNARY.values()] + [f(x, y) for f in test_lowerings.BINARY.values()]


@pytest.mark.parametrize("dtype", test_lowerings.DTYPES, ids=str)
@pytest.mark.parametrize("target", [*NVIDIA.values(), "gfx942"])
def test_every_op_compiles(target, dtype):
    x = torch.randn(50).to(dtype)
    found = regions(every_op, x, x.clone())
    nodes = found[0].nodes[0].graph.output_node().all_input_nodes
    left_to_pytorch = {target for target, lowering in LOWERINGS.items() if not lowering.in_triton}
    results = {y for y in nodes if y.op == "call_function" and y.target not in left_to_pytorch}
    assert len(results) > 40
    assert results <= {y for region in found for y in region.outputs}
    for region in found:
        made = made_of(region, target=target, dense=False, block=128)
        assert len(made["hsaco" if target == "gfx942" else "cubin"]) > 1000


def arithmetic(x, y):
    return [x * y + x, (x + y) * 0.3 - x * 0.7]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("target", NVIDIA.values(), ids=NVIDIA)
def test_multiply_add_is_not_contracted_to_fma(target, dtype):
    made = compiled(arithmetic, torch.randn(50).to(dtype), torch.randn(50).to(dtype), target=target)
    assert re.search(r"\bmul(\.rn)?\.f(32|64)", made["ptx"])
    assert "fma" not in made["ptx"]
    assert re.search(r"[FD]MUL", made["sass"])
    assert re.search(r"[FD]ADD", made["sass"])
    assert not re.search(r"[FD]FMA", made["sass"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("target", NVIDIA.values(), ids=NVIDIA)
def test_division_and_sqrt_round_correctly(target, dtype):
    kind = f"f{8 * dtype.itemsize}"
    roots = lambda x, y: [x / y + torch.sqrt(x), torch.rsqrt(x) * torch.reciprocal(y)]  # noqa: E731
    ptx = compiled(roots, torch.randn(50).to(dtype), torch.randn(50).to(dtype), target=target)["ptx"]
    assert {f"div.rn.{kind}", f"sqrt.rn.{kind}"} <= set(re.findall(rf"(?:div|sqrt|rcp|rsqrt)[.\w]*{kind}", ptx))
    assert not re.search(r"approx|full|ftz", ptx)


CALLED = ["exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "erf", "atan"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_functions_call_libdevice(dtype):
    made = compiled(lambda x: [getattr(torch, name)(x) for name in CALLED], torch.randn(50).to(dtype))
    called = set(re.findall(r'symbol = "(\w+)"', made["ttir"]))
    assert called == {f"__nv_{name}{'f' if dtype == torch.float32 else ''}" for name in CALLED}
    assert ".extern .func" not in made["ptx"]  # all of them are there
    # approximations remain only where libdevice corrects them; subnormal numbers are kept everywhere else
    rest = re.findall(r"\S*(?:approx|full|ftz)\S*", made["ptx"])
    assert set(rest) <= {"ex2.approx.f32", "ex2.approx.ftz.f32", "rcp.approx.ftz.f64", "rcp.approx.ftz.f32"}


def test_float64_constants_keep_all_digits():
    made = compiled(lambda x: [x * 0.1 + torch.exp(x)], torch.randn(50, dtype=torch.float64))
    assert "0d3FB999999999999A" in made["ptx"]


@pytest.mark.parametrize("target", NVIDIA.values(), ids=NVIDIA)
def test_exact_16_bit_graph_rounds_each_result(target):
    x = torch.randn(50).bfloat16()
    texts = [compiled(lambda x: [x * 0.3 + 0.7 - x], x, exact=e, target=target)["ptx"] for e in (False, True)]
    # a float32 difference rounded to 16 bits equals the 16-bit difference
    fused, exact = (len(re.findall(r"cvt\.rn\.bf16|(?:sub|fma)\.rn\.bf16", text)) for text in texts)
    assert exact == 3 * fused > 0


def test_indices_take_32_or_64_bits():
    x = torch.randn(30, 70)
    near, far = (compiled(lambda x: [torch.exp(x) + 1], x, dense=False, far=far)["ptx"] for far in (False, True))
    assert not re.search(r"(?:div|rem|mul\.lo)\.[su]64", near)
    assert re.search(r"(?:div|rem)\.[su]64", far)


class NoDriver:
    """The part of a driver that Triton queries when it compiles."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


def mixed(x, y):
    return [x * 0.5 + y / 3, torch.where(x > y, torch.sqrt(x.abs()), -x), (x < y) & (x > -1)]


@pytest.fixture
def _no_driver(monkeypatch):
    monkeypatch.setattr(triton_build, "on", lambda device: nullcontext())
    monkeypatch.setattr(triton_build, "_made", {})
    monkeypatch.setattr(triton.runtime.driver, "_active", NoDriver())


@pytest.mark.usefixtures("_no_driver")
@pytest.mark.parametrize("shape", [(30, 70), (70,), (30, 1), ()])
def test_kernel_is_compiled_ahead_of_its_launch(shape):
    x, y = torch.randn(30, 70), torch.randn(shape)
    (module,) = lowered([graph_on_gpu(mixed, x, y)], [False], DEVICES)
    (kernel,) = [node.target.kernel for node in module.graph.nodes if is_kernel(node.target)]
    ((made, *_),) = kernel._run.device_caches.values()
    (metadata,) = [compiled.metadata for compiled in made.values()]
    assert (metadata.enable_fp_fusion, metadata.enable_reflect_ftz) == (False, False)


@pytest.mark.usefixtures("_no_driver")
def test_triton_compile_error_is_a_runner_error(monkeypatch):
    monkeypatch.setattr(triton_build, "options", lambda: {"no_such_option": 1})
    with pytest.raises(RunnerError, match=r"Triton cannot compile a kernel.*no_such_option"):
        lowered([graph_on_gpu(mixed, torch.randn(5), torch.randn(5))], [False], DEVICES)


@pytest.mark.usefixtures("_no_driver")
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # of lanes that a mask leaves out
@pytest.mark.parametrize("dtype", test_lowerings.DTYPES, ids=str)
@pytest.mark.parametrize("layout", [*LAYOUTS])
def test_triton_interpreter_agrees_with_pytorch(monkeypatch, layout, dtype):
    """The interpreter has no libdevice."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setattr(triton_build, "compile_ahead", lambda *_: None)
    x, y = torch.randn(30, 70).to(dtype), LAYOUTS[layout](torch.randn(30, 70).to(dtype))
    (module,) = lowered([graph_on_gpu(mixed, x, y)], [False], DEVICES)
    eps = torch.finfo(dtype).eps
    for ours, right in zip(lower(module)(x, y), mixed(x.double(), y.double().expand(30, 70)), strict=True):
        assert torch.allclose(ours.double(), right.double(), rtol=2 * eps, atol=2 * eps)

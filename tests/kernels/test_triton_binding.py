"""Selection of nodes for Triton kernels, and fallbacks where Triton cannot compile."""

import stat
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from pullback import caches
from pullback.errors import RunnerError
from pullback.kernels import backend
from pullback.kernels.decompositions import decompose
from pullback.kernels.eager import lower
from pullback.kernels.native import is_kernel, lowered, single_kernel
from pullback.kernels.regions import regions_of
from pullback.triton import build as triton_build
from pullback.triton.kernel import TritonKernel
from tests.kernels import stand_in
from tests.kernels.gpu_graphs import graph_on_gpu

aten = torch.ops.aten
DEVICES = ("cpu", "cuda")


@pytest.fixture
def _triton(monkeypatch):
    stand_in.put_in_place(monkeypatch)


def gate(x):
    return [torch.sigmoid(x) * torch.rsqrt(1 + torch.exp(x))]


def kernels_in(module):
    return [node.target.kernel for node in module.graph.nodes if is_kernel(node.target)]


def by(name, graph):
    """Kernels that a backend makes for a graph."""
    ((module, _),) = backend.lower([graph], [False], name)
    return kernels_in(module)


@pytest.mark.usefixtures("_triton")
def test_native_and_auto_make_triton_kernels_for_gpu_graphs(monkeypatch):
    monkeypatch.setattr(backend, "_is_there", lambda: True)
    for name in ("native", "auto"):
        (kernel,) = by(name, graph_on_gpu(gate, torch.randn(5)))
        assert isinstance(kernel, TritonKernel)
    assert by("eager", graph_on_gpu(gate, torch.randn(5))) == []


@pytest.mark.usefixtures("_triton")
def test_triton_kernels_are_not_called_from_the_cpp_node():
    (module,) = lowered([graph_on_gpu(gate, torch.randn(5))], [False], DEVICES)
    assert kernels_in(module)
    assert single_kernel(module) is None


@pytest.mark.usefixtures("_triton")
def test_reductions_are_left_to_pytorch_and_pointwise_ops_are_fused():
    def norm(x, w):
        return [x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w, (x * w).sum(), (x * w).sum(0)]

    x, w = torch.randn(80, 33), torch.randn(33)
    (module,) = lowered([graph_on_gpu(norm, x, w)], [False], DEVICES)
    assert len(kernels_in(module)) == 2
    assert {aten.mean.dim, aten.sum.default, aten.sum.dim_IntList} <= {node.target for node in module.graph.nodes}
    for ours, theirs in zip(lower(module)(x, w), norm(x, w), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def traced(function, *devices):
    """The graph of a function of a tensor of 5 numbers on each device; the device "number" means a CPU scalar."""
    with FakeTensorMode():
        fakes = [torch.empty([] if d == "number" else 5, device="cpu" if d == "number" else d) for d in devices]
        return make_fx(function)(*fakes).graph


def test_region_is_on_one_device():
    def two(x, y):
        return [torch.exp(x) * 2, torch.exp(y) * 3]

    found = regions_of(traced(two, "cuda:0", "cuda:1"), devices=DEVICES)
    assert [str(region.device) for region in found] == ["cuda:0", "cuda:1"]
    assert [str(region.device) for region in regions_of(traced(two, "cuda:0", "cpu"))] == ["cpu"]
    assert len(regions_of(traced(two, "cuda", "cpu"), devices=DEVICES)) == 2


def test_op_with_a_cpu_scalar_is_left_to_pytorch():
    def scaled(x, s):
        return [torch.exp(x * s) * 2 + torch.where(x > 0, x, 0.0)]

    graph = traced(scaled, "cuda", "number")
    (region,) = regions_of(graph, devices=DEVICES)
    (product,) = [node for node in graph.nodes if len(node.all_input_nodes) == 2 and node.target == aten.mul.Tensor]
    assert product in region.inputs
    assert {aten.exp.default, aten.where.self} <= {node.target for node in region.nodes}


def test_division_by_a_scalar_is_not_exact_on_a_gpu():
    divided = lambda x: [x / 3 + 1 - x]  # noqa: E731
    there, here = (regions_of(traced(divided, d), exact=True, devices=DEVICES) for d in ("cuda", "cpu"))
    assert [len(region.nodes) for region in there + here] == [2, 3]


def test_log_sigmoid_buffer_is_empty_on_a_gpu():
    with FakeTensorMode():
        fake = torch.empty(3, 4, device="cuda")
        module = make_fx(lambda x: [*aten.log_sigmoid_forward(x)])(fake)
    results = decompose(module, DEVICES).graph.output_node().args[0]
    assert [tuple(node.meta["val"].shape) for node in results] == [(3, 4), (0,)]
    assert results[1].target == aten.new_empty.default


def slope(x, g):
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        out = F.logsigmoid(x) * F.softplus(x) + F.mish(x)
        return [out, *torch.autograd.grad(out, x, g)]


@pytest.mark.usefixtures("_triton")
def test_decomposed_ops_match_float64():
    x, g = torch.randn(40), torch.randn(40)
    (module,) = lowered([graph_on_gpu(slope, x, g)], [False], DEVICES)
    assert len(kernels_in(module)) == 1
    for ours, right in zip(lower(module)(x, g), slope(x.double(), g.double()), strict=True):
        assert torch.allclose(ours.double(), right, rtol=1e-5, atol=1e-6)


def test_native_without_triton_raises_and_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(RunnerError, match=r"no Triton.*pip install triton"):
        by("native", graph_on_gpu(gate, torch.randn(5)))


@pytest.fixture
def _auto(monkeypatch):
    """Let "auto" compile on any machine."""
    monkeypatch.setattr(backend, "_is_there", lambda: True)
    monkeypatch.setattr(backend, "_warned", set())


@pytest.mark.usefixtures("_auto")
def test_auto_without_triton_warns_once(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.warns(UserWarning, match="no Triton"):
        assert by("auto", graph_on_gpu(gate, torch.randn(5))) == []
    assert by("auto", graph_on_gpu(gate, torch.randn(6))) == []  # a second warning would be an error


@pytest.mark.usefixtures("_auto", "_triton")
def test_failing_compilation_falls_back_under_auto_and_raises_under_native(monkeypatch):
    def fail(*_, **__):
        raise ValueError("no space left\non this device")

    monkeypatch.setattr(stand_in.Jit, "warmup", fail)
    with pytest.warns(UserWarning, match=r"Triton cannot compile a kernel \(ValueError: no space left\)"):
        assert by("auto", graph_on_gpu(gate, torch.randn(5))) == []
    with pytest.raises(RunnerError, match="Triton cannot compile"):
        by("native", graph_on_gpu(gate, torch.randn(5)))


@pytest.mark.usefixtures("_triton")
def test_triton_source_is_stored_in_the_cache():
    (kernel,) = by("native", graph_on_gpu(gate, torch.randn(5)))
    path = Path(kernel._run.function.__code__.co_filename)
    assert path.parent == caches.root() / "sources"
    assert path.read_text() == kernel.source
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert caches.clear("sources") == 1


@pytest.mark.usefixtures("_triton")
def test_tampered_source_in_the_cache_is_not_run(monkeypatch):
    (kernel,) = by("native", graph_on_gpu(gate, torch.randn(5)))
    path = Path(kernel._run.function.__code__.co_filename)
    path.write_text("raise SystemExit")
    monkeypatch.setattr(triton_build, "_made", {})
    by("native", graph_on_gpu(gate, torch.randn(5)))
    assert path.read_text() == kernel.source


@pytest.mark.usefixtures("_triton")
def test_world_writable_cache_folder_raises():
    folder = caches.root() / "sources"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(RunnerError, match="written to by others"):
        by("native", graph_on_gpu(gate, torch.randn(5)))

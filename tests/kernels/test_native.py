"""Native C++ kernels: fusion, layouts, the build and its cache, and fallbacks."""

import contextlib
import io
import os
import stat
import subprocess
import sys
import textwrap
import time

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.proxy_tensor import make_fx

import pullback
from pullback import caches
from pullback.cli import program
from pullback.errors import OptionError, RunnerError
from pullback.kernels import backend, build, layout
from pullback.kernels import build as headers
from pullback.kernels import progress as notice
from pullback.kernels.eager import lower
from pullback.kernels.native import is_kernel, lowered
from pullback.kernels.regions import regions_of
from pullback.stable.piecewise import emit, parse_piecewise
from tests.wrappers import Wrapper


def gate(x):
    return torch.sigmoid(x) * torch.rsqrt(1 + torch.exp(x))


def graph_of(function, *tensors):
    """Return the graph of a function that returns a list."""
    return make_fx(function, tracing_mode="fake")(*tensors)


def kernels_in(module):
    return [node.target.kernel for node in module.graph.nodes if is_kernel(node.target)]


def gradient(op, *tensors, g=None):
    leaves = [x.detach().requires_grad_() for x in tensors]
    out = op(*leaves)
    return torch.autograd.grad(out, leaves, torch.ones_like(out) if g is None else g)


def test_pointwise_formula_is_one_kernel_forward_and_one_backward(native):
    op = pullback.function(gate)
    x = torch.randn(1000, requires_grad=True)
    assert torch.allclose(op(x), gate(x), rtol=1e-6, atol=0)
    assert torch.allclose(gradient(op, x)[0], gradient(gate, x.double())[0].float(), rtol=1e-5, atol=1e-7)
    ((kernels),) = op._plans.plans.values()
    assert kernels.joint.saved == (0,)  # the input alone


def test_value_is_the_same_with_and_without_grad(native):
    op = pullback.function(gate)
    x = torch.randn(37, requires_grad=True)
    with torch.no_grad():
        value = op(x)
    assert torch.equal(op(x), value)


def test_pointwise_ops_around_reductions_are_fused(native):
    def norm(x, w):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w

    op = pullback.function(norm)
    x, w = torch.randn(16, 33, dtype=torch.float64), torch.randn(33, dtype=torch.float64)
    assert torch.allclose(op(x, w), norm(x, w))
    for ours, theirs in zip(gradient(op, x, w), gradient(norm, x, w), strict=True):
        assert torch.allclose(ours, theirs)
    assert torch.autograd.gradcheck(op, (x.requires_grad_(), w.requires_grad_()))
    assert torch.autograd.gradgradcheck(op, (x, w))


def test_region_does_not_depend_on_itself():
    def there_and_back(x):
        a = torch.exp(x) + 1
        return [(a * a.sum(-1, keepdim=True)) + a, torch.sin(a) * 2]

    graph = graph_of(there_and_back, torch.randn(3, 4))
    before, after = regions_of(graph.graph)
    assert torch.ops.aten.exp.default in {node.target for node in before.nodes}
    assert len(after.nodes) == 4  # the readers of the sum, and ops that can be fused with them
    assert set(after.inputs) - set(before.outputs) == set(
        graph.graph.find_nodes(op="call_function", target=torch.ops.aten.sum.dim_IntList)
    )


def test_in_place_ops_are_not_fused(native):
    def filled(x):
        differences = x[:, None] - x[None, :]
        differences.diagonal().fill_(1)
        return [1 / differences + differences]

    x = torch.randn(4)
    graph = graph_of(filled, x)
    assert regions_of(graph.graph) == []
    assert torch.equal(lower(lowered([graph], [False])[0])(x)[0], filled(x)[0])
    y = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(pullback.function(torch.linalg.svdvals), (y,))


def test_regions_do_not_depend_on_each_other(native):
    def crossed(x, y):
        a, b = torch.exp(x) + 1, torch.exp(y) + 1
        return [a + b.sum(1)[:, None].expand(4, 4)[:, :1].expand(4, 4) * 2, b + a.sum(0) * 3]

    x, y = torch.randn(4, 4), torch.randn(4, 4)
    graph = graph_of(crossed, x, y)
    for ours, theirs in zip(lower(lowered([graph], [False])[0])(x, y), crossed(x, y), strict=True):
        assert torch.allclose(ours, theirs)


@pytest.mark.parametrize("wide", [False, True])
def test_where_skips_branches_that_no_lane_takes(native, wide):
    def pieces(x):
        far = (x.double() if wide else x).expm1().log1p().to(x.dtype)
        return [torch.where(x > 1, far, torch.where(x < -1, torch.tanh(x).exp(), torch.sin(x) * torch.cos(x)))]

    graph = graph_of(pieces, torch.randn(10))
    module = lowered([graph], [False])[0]
    (kernel,) = kernels_in(module)
    assert kernel.source.count("if (const M") >= 3
    for x in (torch.randn(10), torch.full((10,), 2.0), torch.full((10,), -2.0), torch.full((10,), torch.nan)):
        module = lowered([graph_of(pieces, x)], [False])[0]
        assert torch.allclose(lower(module)(x)[0], pieces(x)[0], rtol=1e-6, equal_nan=True)


def chain(x, y):
    far = torch.where(x > 1, torch.log1p(torch.exp(x)), torch.tanh(torch.exp(x)).log())
    return [far * y, torch.sigmoid(x * y).log().exp(), torch.abs(-x).exp().log() + torch.abs(x).exp() * y]


@pytest.mark.parametrize("n", [1, 15, 255, 256, 300, 4096, 4100, 5001])
def test_chain_of_functions_is_split_into_loops(native, n):
    x, y = torch.randn(n), torch.randn(n)
    module = lowered([graph_of(chain, x, y)], [False])[0]
    (kernel,) = kernels_in(module)
    assert kernel.source.count("k++") >= 3
    for got, right in zip(lower(module)(x, y), chain(x.double(), y.double()), strict=True):
        assert torch.allclose(got.double(), right, rtol=1e-5, atol=1e-6)


def test_loop_splitting_recomputes_nothing(native):
    module = lowered([graph_of(chain, torch.randn(9), torch.randn(9))], [False])[0]
    (kernel,) = kernels_in(module)
    assert kernel.source.count("abs(") == 1  # |x| and |-x|
    assert kernel.source.count("exp(") == 4


SHAPES = st.lists(st.sampled_from([0, 1, 2, 3, 5, 16, 17, 33]), min_size=0, max_size=4)


@st.composite
def tensors_like(draw, shape, dtype):
    """Draw a tensor that broadcasts to a shape, in some layout."""
    size = [n if draw(st.booleans()) else draw(st.sampled_from([n, 1])) for n in shape]
    size = size[draw(st.integers(0, len(size))) :] if draw(st.booleans()) else size
    order = draw(st.permutations(range(len(size))))
    gap = draw(st.sampled_from([1, 1, 2]))
    offset = draw(st.sampled_from([0, 0, 1, 3]))
    whole = torch.randn(*[size[i] for i in order], gap, dtype=torch.float32).to(dtype)
    view = whole[..., 0].permute([order.index(i) for i in range(len(size))])
    flat = torch.cat([torch.zeros(offset, dtype=dtype), whole.flatten()])
    return flat.as_strided(view.shape, view.stride(), view.storage_offset() + offset)


@settings(max_examples=25)
@given(data=st.data())
def test_drawn_layouts_match_pytorch(native_for_hypothesis, data):
    is_read_right(data)


@pytest.mark.slow
@settings(max_examples=500)
@given(data=st.data())
def test_many_drawn_layouts_match_pytorch(native_for_hypothesis, data):
    is_read_right(data)


def is_read_right(data):
    """Assert that a kernel agrees with PyTorch on tensors of drawn layouts."""
    shape = data.draw(SHAPES)
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]))
    full = data.draw(tensors_like(shape, dtype)).expand(shape)
    others = [data.draw(tensors_like(shape, dtype)) for _ in range(2)]
    if data.draw(st.booleans()):
        others[0] = others[1]

    def mixed(x, y, z):
        return [(x + y) * z - x, x > y]

    graph = graph_of(mixed, full, *others)
    ours = lower(lowered([graph], [True])[0])(full, *others)
    traced = [node.meta["val"] for node in graph.graph.output_node().args[0]]
    for o, t, like in zip(ours, mixed(full, *others), traced, strict=True):
        assert o.shape == t.shape
        # for overlapping inputs, PyTorch's fake tensors have other strides than the real result
        assert o.stride() == like.stride() or not o.numel()
        assert torch.equal(o, t)


@pytest.fixture(scope="module")
def native_for_hypothesis():
    try:
        build.require()
    except RunnerError as error:
        pytest.skip(str(error))


@settings(max_examples=60)
@given(data=st.data())
def test_kernel_accepts_other_strides_than_the_example(native_for_hypothesis, data):
    shape = data.draw(SHAPES)

    def mixed(x, y):
        return [x * y + y]

    made_of = [torch.randn(shape), torch.randn(shape)]
    run = lower(lowered([graph_of(mixed, *made_of)], [False])[0])
    other = data.draw(tensors_like(shape, torch.float32)).expand(shape)
    assert torch.equal(run(made_of[0], other)[0], mixed(made_of[0], other)[0])


@pytest.mark.parametrize(
    ("shape", "out", "inputs", "expected"),
    [
        ((4, 8), (8, 1), [(8, 1)], (1, 32, None)),
        ((4, 8), (8, 1), [(0, 0)], (1, 32, (0, 0))),
        ((4, 8), (8, 1), [(0, 1)], (4, 8, (0, 1))),
        ((4, 8), (8, 1), [(1, 0)], (4, 8, (1, 0))),
        ((4, 8), (1, 4), [(1, 4)], (1, 32, None)),
        ((4, 8), (8, 1), [(1, 4)], None),
        ((2, 3, 8), (24, 8, 1), [(8, 0, 1)], None),
        ((2, 3, 8), (24, 8, 1), [(24, 8, 1), (0, 0, 1)], (6, 8, (8, 1, 0, 1))),
        ((5,), (1,), [(3,)], (5, 1, (3, 0))),
        ((), (), [()], (1, 1, None)),
        ((1, 1), (1, 1), [(7, 0)], (1, 1, (0, 0))),
    ],
)
def test_loops_are_merged(shape, out, inputs, expected):
    found = layout.layout_of(shape, out, inputs)
    assert (None if found is None else (found.rows, found.columns, found.steps)) == expected


def test_empty_tensors_reach_no_kernel(native):
    op = pullback.function(gate)
    x = torch.randn(0, 3, requires_grad=True)
    assert op(x).shape == (0, 3)
    assert gradient(op, x)[0].shape == (0, 3)


def test_expanded_cotangent_is_read_within_bounds(native):
    op = pullback.function(gate)
    x = torch.randn(1000, requires_grad=True)
    op(x).sum().backward()
    assert torch.allclose(x.grad, gradient(gate, x.double())[0].float(), rtol=1e-5, atol=1e-7)


def test_cotangent_with_the_negative_bit(native):
    op = pullback.function(gate)
    x = torch.randn(7, requires_grad=True)
    g = torch.randn(7, dtype=torch.complex64).conj().imag
    assert g.is_neg()
    assert torch.allclose(gradient(op, x, g=g)[0], gradient(gate, x, g=g.resolve_neg())[0], rtol=1e-5)


def test_efficient_zero_tensor_as_cotangent_and_input(native):
    op = pullback.function(gate)
    x = torch.randn(7, requires_grad=True)
    assert torch.equal(gradient(op, x, g=torch._efficientzerotensor((7,)))[0], torch.zeros(7))
    assert torch.equal(op(torch._efficientzerotensor((7,))), gate(torch.zeros(7)))


def test_wrapper_subclass_as_cotangent(native):
    op = pullback.function(gate)
    x, g = torch.randn(7, requires_grad=True), torch.randn(7)
    (ours,) = gradient(op, x, g=Wrapper(g))
    assert torch.allclose(ours.inner, gradient(gate, x, g=g)[0], rtol=1e-5)


def test_dispatch_modes_see_the_ops_of_a_backward(native):
    from torch.utils.flop_counter import FlopCounterMode

    op = pullback.function(lambda x, w: torch.mm(torch.exp(x) + 1, w) * 2)
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    out = op(x, w).sum()
    with FlopCounterMode(display=False) as counter:
        out.backward()
    assert counter.get_total_flops() == 2 * 2 * 4**3


def test_relaxed_value_equals_eager_bitwise(native):
    with pullback.backend("auto"):
        op = pullback.function(derivative_of=lambda x: x)(lambda x: torch.round(x * 0.3 + 0.7) / 3)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            x = torch.randn(500).to(dtype).requires_grad_()
            assert torch.equal(op(x), torch.round(x * 0.3 + 0.7) / 3)


def test_auto_backend_keeps_the_bits_of_ops_without_stable_forms(native):
    x = torch.randn(5000, requires_grad=True)
    with pullback.backend("auto"):
        op = pullback.function(stable=False)(gate)
        assert torch.equal(op(x), gate(x))
        assert torch.equal(gradient(op, x)[0], gradient(gate, x)[0])


def test_backend_option_of_an_op(native):
    x = torch.randn(5000)
    eager = pullback.function(backend="eager", stable=False)(gate)
    assert torch.equal(eager(x), gate(x))
    with pytest.raises(OptionError, match="one of auto, native, inductor, eager"):
        pullback.function(backend="cuda")(gate)
    with pytest.raises(OptionError, match="not 'fast'"):
        pullback.set_backend("fast")


def test_changed_backend_makes_new_plans(native):
    op = pullback.function(stable=False)(gate)
    x = torch.randn(5000, requires_grad=True)
    op(x)
    with pullback.backend("eager"):
        assert torch.equal(op(x), gate(x))
    assert torch.allclose(op(x), gate(x))


@pytest.fixture
def bare(monkeypatch, native, empty_cache, shared_cache):
    """The state of a process that has compiled only the headers."""
    monkeypatch.setattr(headers, "folder", lambda: shared_cache / "headers")
    for name in ("_loaded", "_locks"):
        monkeypatch.setattr(build, name, {})
    monkeypatch.setattr(backend, "_warned", set())
    build.compiler.cache_clear()
    yield
    build.compiler.cache_clear()


def test_kernel_is_stored_and_loaded_from_the_cache(bare, monkeypatch):
    op = pullback.function(gate)
    op(torch.randn(5, requires_grad=True))
    folder = caches.root() / "kernels"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    kept = sorted(path.name for path in folder.glob("*.so"))
    assert len(kept) == 2
    assert not list(folder.glob("making-*"))
    monkeypatch.setattr(build, "_loaded", {})
    monkeypatch.setattr(build, "_call", lambda *_: pytest.fail("compiled again"))
    assert torch.allclose(pullback.function(gate)(torch.ones(5, requires_grad=True)), gate(torch.ones(5)))


def test_kernel_being_compiled_by_another_process_is_awaited(bare, monkeypatch):
    op = pullback.function(gate)
    op(torch.randn(5))
    (kernel,) = (caches.root() / "kernels").glob("*.so")
    content = kernel.read_bytes()
    kernel.unlink()
    monkeypatch.setattr(build, "_loaded", {})
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("compiled again"))

    @contextlib.contextmanager
    def lock(path):
        kernel.write_bytes(content)
        yield

    monkeypatch.setattr("filelock.FileLock", lock)
    assert torch.allclose(pullback.function(gate)(torch.ones(5)), gate(torch.ones(5)))


@pytest.mark.slow
def test_damaged_kernel_is_recompiled(tmp_path, shared_cache):
    (tmp_path / "headers").symlink_to(shared_cache / "headers")
    program = """
        import torch, pullback
        print(pullback.function(backend="native")(lambda x: torch.exp(x) * 2 + 1)(torch.zeros(5)))
        """
    first = run(program, PULLBACK_CACHE_DIR=str(tmp_path))
    (path,) = (tmp_path / "kernels").glob("*.so")
    path.write_bytes(b"no library")
    assert run(program, PULLBACK_CACHE_DIR=str(tmp_path)) == first
    assert path.stat().st_size > 1000


def test_world_writable_cache_folder_raises(bare):
    folder = caches.root() / "kernels"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(RunnerError, match="written to by others"):
        pullback.function(gate)(torch.ones(5))


def test_missing_compiler_warns_once(bare, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    backend._is_there.cache_clear()
    try:
        with pullback.backend("auto"):
            with pytest.warns(UserWarning, match="no C\\+\\+ compiler"):
                assert torch.allclose(pullback.function(gate)(torch.ones(5)), gate(torch.ones(5)))
            pullback.function(gate)(torch.ones(6))  # a second warning would be an error
        with pytest.raises(RunnerError, match="no C\\+\\+ compiler"):
            pullback.function(gate)(torch.ones(5))
    finally:
        backend._is_there.cache_clear()


def test_failing_compiler_falls_back_with_a_warning(bare, monkeypatch, tmp_path):
    failing = tmp_path / "c++"
    failing.write_text("#!/bin/sh\necho 'error: no space left on device' >&2\nexit 1\n")
    failing.chmod(0o755)
    monkeypatch.setenv("CXX", str(failing))
    with pullback.backend("auto"), pytest.warns(UserWarning, match="no space left"):
        assert torch.allclose(pullback.function(gate)(torch.ones(5)), gate(torch.ones(5)))


def test_unwritable_cache_falls_back_with_a_warning(bare, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path / "file"))
    with pullback.backend("auto"), pytest.warns(UserWarning, match="cannot be kept"):
        assert torch.allclose(pullback.function(gate)(torch.ones(5)), gate(torch.ones(5)))


def run(program, **environment):
    text = textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=120, env=os.environ | environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_processes_and_threads_share_one_compilation(tmp_path):
    program = """
        import threading, torch, pullback
        op = pullback.function(backend="native")(lambda x: torch.exp(x) * 2 + 1)
        x = torch.ones(40000)
        results = []
        threads = [threading.Thread(target=lambda: results.append(op(x))) for _ in range(4)]
        [t.start() for t in threads]; [t.join() for t in threads]
        assert len(results) == 4 and all(torch.allclose(r, torch.exp(x) * 2 + 1) for r in results)
        """
    environment = {"PULLBACK_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", textwrap.dedent(program)]
    processes = [subprocess.Popen(command, env=os.environ | environment) for _ in range(2)]
    assert [p.wait(timeout=120) for p in processes] == [0, 0]
    assert len(list((tmp_path / "kernels").glob("*.so"))) == 1
    assert len(list((tmp_path / "headers").glob("*.gch"))) == 1


@pytest.mark.slow
def test_result_does_not_depend_on_the_number_of_threads(tmp_path):
    out = run(
        """
        import torch, pullback
        op = pullback.function(backend="native")(lambda x, b: torch.tanh(x) * b + 1)
        x, b = torch.randn(300, 1000), torch.randn(1000)
        torch.set_num_threads(1)
        one = op(x, b)
        torch.set_num_threads(2)
        print(torch.equal(op(x, b), one))
        narrow = x[:, :7]
        print(torch.equal(op(narrow, b[:7]), torch.stack([op(row, b[:7]) for row in narrow])))
        print(len({line.split()[-1] for line in open("/proc/self/maps") if "gomp" in line}))
        """,
        PULLBACK_CACHE_DIR=str(tmp_path),
    )
    assert out.split() == ["True", "True", "1"]  # one thread pool, PyTorch's


def test_sleef_functions_exist_in_libtorch():
    import ctypes
    import re

    library = ctypes.CDLL(str(next((build.TORCH / "lib").glob("libtorch_cpu.*"))))
    text = (build._INCLUDE / "functions.h").read_text()
    named = re.findall(r"SLEEF2?\((\w+), (\w+)\)", text)
    assert len(named) > 10
    lanes = {"avx512.h": ("f16", "d8"), "avx2.h": ("f8", "d4")}
    missing = [
        f"Sleef_{name}{kind}_{accuracy}"
        for name, accuracy in named
        for kind in lanes[build.header()]
        if not hasattr(library, f"Sleef_{name}{kind}_{accuracy}")
    ]
    assert not missing


def test_compile_builds_kernels_ahead_of_time(bare, monkeypatch):
    op = pullback.function(gate)
    assert op.compile(torch.randn(5)) is op
    monkeypatch.setattr(build, "_call", lambda *_: pytest.fail("compiled at the call"))
    x = torch.randn(5, requires_grad=True)
    op(x).sum().backward()
    assert torch.allclose(op(x.detach()), gate(x.detach()))
    with pytest.raises(OptionError, match="runs op by op, since"):
        pullback.function(lambda x: x.view(-1)).compile(torch.randn(5))
    ruled = pullback.function(lambda x: x * 2).vjp(lambda g, out, x: 2 * g)
    with pytest.raises(OptionError, match="has a rule"):
        ruled.compile(torch.randn(5))
    with pytest.raises(OptionError, match="has not been called yet"):
        pullback.function(gate).compile()


@pytest.mark.parametrize("seconds", [0.0, 0.3])
def test_long_compilation_is_announced_on_a_terminal(monkeypatch, seconds):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(notice, "AFTER", 0.1)
    with notice.noticed("compiling 2 kernels"):
        time.sleep(seconds)
    assert ("compiling 2 kernels" in screen.getvalue()) == bool(seconds)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with notice.noticed("compiling 2 kernels"):
        time.sleep(seconds)
    assert sys.stderr.getvalue() == ""


def test_cache_info_and_clear(bare):
    runner = CliRunner()
    assert runner.invoke(program, ["cache", "info"]).output.splitlines()[1:] == [
        "kernels: 0, 0 KiB",
        "headers: 0, 0 KiB",
        "sources: 0, 0 KiB",
        "nodes: 0, 0 KiB",
        "certificates: 0, 0 KiB",
    ]
    pullback.function(gate)(torch.randn(5))
    certificates = caches.root() / "certificates"
    certificates.mkdir()
    (certificates / "one.stable.toml").write_text("")
    assert "kernels: 1, " in runner.invoke(program, ["cache", "info"]).output
    assert runner.invoke(program, ["cache", "clear"]).output == "removed 1 kernel\n"
    assert not list((caches.root() / "kernels").iterdir())
    assert (certificates / "one.stable.toml").exists()
    assert "removed 1 certificate\n" in runner.invoke(program, ["cache", "clear", "--certificates"]).output


@pytest.mark.slow
def test_higher_order_derivatives_are_kernels(native):
    def chain(f, x):
        out = [f(x)]
        for _ in range(3):
            out.append(torch.autograd.grad(out[-1], x, torch.ones_like(x), create_graph=True)[0])
        return out

    op = pullback.function(gate)
    x = torch.randn(50, dtype=torch.float64, requires_grad=True)
    ours = chain(op, x)
    for value, right in zip(ours, chain(gate, x), strict=True):
        assert torch.allclose(value, right, rtol=1e-10, atol=1e-14)
        assert "_Kernels" in type(value.grad_fn).__name__
    assert torch.autograd.gradgradcheck(op, (x[:5].detach().requires_grad_(),))


def test_second_derivative_that_is_zero_everywhere(native):
    """The trace holds it as an efficient zero tensor without a device."""
    op = pullback.function(torch.abs)
    x, g = (torch.randn(3, 4, requires_grad=True) for _ in range(2))
    (gradient,) = torch.autograd.grad(op(x), x, g, create_graph=True)
    by_x, by_g = torch.autograd.grad(gradient, (x, g), torch.full_like(x, 2.0))
    assert torch.equal(by_x, torch.zeros(3, 4))
    assert torch.equal(by_g, 2 * x.sign())


def test_zero_second_derivative_of_a_scalar(native):
    """For a scalar, PyTorch moves the zeros to the scalar's device."""
    op = pullback.function(torch.nn.functional.l1_loss)
    x, y, g = (torch.tensor(v, requires_grad=True) for v in (0.5, 2.0, 3.0))
    gradients = torch.autograd.grad(op(x, y), (x, y), g, create_graph=True)
    ones = [torch.ones(()) for _ in gradients]
    assert torch.autograd.grad(gradients, (x, y, g), ones) == (0.0, 0.0, 0.0)


def test_gradient_independent_of_the_input_is_none(native):
    """For autograd a count of nonzeros depends on its input, but its derivative is None."""
    op = pullback.function(lambda x: torch.linalg.norm(x, 0))
    x = torch.tensor([0.0, 2.0, 3.0], requires_grad=True)
    y = op(x)
    assert y.item() == 2.0
    assert torch.autograd.grad(y, x, create_graph=True, allow_unused=True) == (None,)


def test_second_derivative_of_a_stable_op_uses_its_stable_form(native):
    from pullback.catalog import tanh

    x = torch.tensor([12.0, 20.0, 40.0], requires_grad=True)
    (g,) = torch.autograd.grad(tanh(x).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x, create_graph=True)
    (t,) = torch.autograd.grad(h.sum(), x)
    wide = x.detach().double()
    assert torch.allclose(g.double(), 1 / torch.cosh(wide) ** 2, rtol=1e-6)
    assert torch.allclose(h.double(), -2 * torch.tanh(wide) / torch.cosh(wide) ** 2, rtol=1e-6)
    assert torch.isfinite(t).all()


FACTOR = 2.0


def test_capture_changed_before_double_backward_raises(native, monkeypatch):
    op = pullback.function(lambda x: torch.exp(x * FACTOR))
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    y = op(x)
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    with pytest.raises(pullback.DerivativeError, match="has changed between"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


PIECES = """x <= -2.0: exp(x) * x  [float64]
x <= 1.0: poly(x, 1, 0, 0.5, 1e-9, 1e-10, 1.0, -0.5, 0.25)
otherwise: x - exp(x)"""


def test_piecewise_form_is_one_kernel(native):
    """With polynomials and a piece in float64, which is narrowed to float32 before the selection."""
    form = emit(parse_piecewise(PIECES.splitlines(), ("x",)), ["x"], torch.float32, "form")
    x = torch.linspace(-5, 5, 300)
    module = lowered([graph_of(lambda x: [form(x)], x)], [False])[0]
    (kernel,) = [node.target.kernel for node in module.graph.nodes if node.op == "call_function"]
    assert is_kernel(kernel.call)
    assert kernel.source.count("narrow(") == 1
    assert torch.allclose(lower(module)(x)[0], form(x), rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "formula",
    [
        lambda x: torch.where(x > 0.3, x * x, x * 3),
        lambda x: torch.where(x >= 0.3, x * x, x * 3),
        lambda x: torch.clamp(x, -0.3, 0.7) * 2,
        lambda x: torch.where(x == 0.1, 2 * x, x.abs()),
    ],
)
@pytest.mark.few(3)
def test_scalar_is_rounded_to_the_16_bit_dtype_it_is_compared_with(native, dtype, formula):
    x = torch.linspace(-1, 1, 64, dtype=dtype)
    x = torch.cat([x, torch.tensor([0.3, -0.3, 0.7, 0.1], dtype=dtype)])
    op = pullback.function(backend="native")(formula)
    for ours, theirs in zip(derived(op, x), derived(formula, x), strict=True):
        assert torch.equal(ours, theirs)


def derived(function, x):
    x = x.clone().requires_grad_()
    y = function(x)
    return y, *torch.autograd.grad(y.sum(), x)


def test_condition_is_computed_before_the_branch_it_guards(native):
    """The exponential of one branch precedes the comparison with a tanh, which is in another loop."""
    op, formula = pullback.function(guarded), guarded
    x = torch.linspace(-2, 2, 65).bfloat16().requires_grad_()
    (mine,), (theirs,) = (torch.autograd.grad(f(x).float().sum(), x) for f in (op, formula))
    torch.testing.assert_close(mine, theirs)


def guarded(x):
    return torch.where(torch.tanh(x) > 0.3, x * 2, x.exp())


def test_op_whose_fake_dtype_differs_from_its_kernel(native):
    """PyTorch's `smooth_l1_loss_backward` of float16 and bfloat16 returns float16; fake tensors have float32."""

    def formula(x, y):
        return torch.nn.functional.smooth_l1_loss(x.sin() * x, y, reduction="none")

    x, y = torch.linspace(-3, 3, 800).half().requires_grad_(), torch.linspace(0, 1, 800).bfloat16()
    (ours,) = torch.autograd.grad(pullback.function(formula)(x, y).sum(), x)
    (right,) = torch.autograd.grad(formula(x.double(), y.double()).sum(), x)
    torch.testing.assert_close(ours, right, rtol=4e-3, atol=4e-3)


def test_pytorch_op_beside_a_packed_mask(native):
    """Masks of 4096 numbers or more are saved as packed bits, which have no node in the trace."""

    def formula(x):
        rows = torch.nn.functional.embedding(x.to(torch.int64).abs() % 2, x)
        return rows.min() - rows

    x = torch.linspace(0.5, 8, 1500).view(300, 5).half().requires_grad_()
    assert torch.equal(pullback.function(formula, stable=False, backend="native")(x), formula(x))

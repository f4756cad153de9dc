"""Small calls in C++: they do what the Function in Python does, or leave the call to it."""

import copy
import gc
import inspect
import io
import os
import pickle
import stat
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import pytest
import torch
from torch.autograd import grad

import pullback
from pullback import caches
from pullback.bind import node
from pullback.errors import RunnerError
from pullback.kernels import build
from pullback.kernels.extension import Extension

NAME = "CppFunction"
"""The type in Python of a node that is made in C++."""


@pytest.fixture(scope="module")
def _module(tmp_path_factory):
    """The module, compiled once."""
    try:
        build.require()
    except RunnerError as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patch:
        if "PULLBACK_CACHE_DIR" not in os.environ:
            patch.setenv("PULLBACK_CACHE_DIR", str(tmp_path_factory.mktemp("node")))
        if not node.EXTENSION.wait():
            pytest.skip(f"the node cannot be compiled here: {node.EXTENSION.trouble() or 'no headers of Python'}")


@pytest.fixture
def on(_module, native, monkeypatch):
    monkeypatch.setenv("PULLBACK_NODE", "on")


def gate(x):
    return torch.sigmoid(x) * torch.rsqrt(1 + torch.exp(x))


def wave(x, y):
    return torch.sin(x) * y.exp() + x * y**2


def both(x, y):
    s = torch.sin(x) * y
    return s, torch.exp(s) + x


def scaled(x, scale, mode="a"):
    return torch.tanh(x) * scale


def parts(x):
    s = torch.sin(x) * x
    return s, s > 0.5


def in_cpp(formula, *args, **options):
    """Return an op whose calls like this one run in C++."""
    op = pullback.function(**options)(formula)
    for _ in range(2):
        op(*args)
    assert op._plans.table is not None
    return op


def in_python(formula, *args, **options):
    """Return the same, whose calls run in the Function."""
    op = pullback.function(**options)(formula)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PULLBACK_NODE", "off")
        op(*args)
    return op


def leaf(*shape, seed=0, dtype=torch.float64, needs=True):
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return x.requires_grad_(needs)


def is_in_cpp(out):
    return type(out.grad_fn).__name__ == NAME


def same(ours, theirs):
    return all(
        (a is None and b is None) or (torch.equal(a, b) and a.stride() == b.stride() and a.dtype == b.dtype)
        for a, b in zip(ours, theirs, strict=True)
    )


CASES = [
    (gate, ("x",)),
    (wave, ("x", "y")),
    (both, ("x", "y")),
    (parts, ("x",)),
    (lambda x, y, z: (x * y).exp() / (1 + z * z) - y, ("x", "y", "z")),
    (lambda x: torch.where(x > 0, x, torch.expm1(x)), ("x",)),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (8,), (1,), (3, 5), (2, 1, 1031)])
@pytest.mark.parametrize("case", range(len(CASES)))
def test_bits_are_those_of_the_function(on, case, shape, dtype):
    formula, names = CASES[case]
    xs = [leaf(*shape, seed=i, dtype=dtype) for i in range(len(names))]
    ours, theirs = (make(formula, *xs) for make in (in_cpp, in_python))
    results = []
    for op in (ours, theirs):
        out = op(*xs)
        outs = [y for y in (out if isinstance(out, tuple) else (out,))]
        assert is_in_cpp(outs[0]) == (op is ours)
        live = [y for y in outs if y.requires_grad]
        gs = [leaf(*y.shape, seed=10 + i, dtype=y.dtype, needs=False) for i, y in enumerate(live)]
        gradients = grad(live, xs, gs, retain_graph=True)
        sums = grad([y.sum() for y in live], xs)
        results.append([*(y.detach() for y in outs), *gradients, *sums])
        assert [y.requires_grad for y in outs] == [y.requires_grad for y in outs]
    assert same(*results)


@pytest.mark.parametrize("needs", [(True, False), (False, True), (True, True)])
def test_only_some_inputs_require_grad(on, needs):
    xs = [leaf(7, seed=i, needs=n) for i, n in enumerate(needs)]
    ours, theirs = in_cpp(wave, *xs)(*xs), in_python(wave, *xs)(*xs)
    assert is_in_cpp(ours)
    assert [f is None for f, _ in ours.grad_fn.next_functions] == [f is None for f, _ in theirs.grad_fn.next_functions]
    live = [x for x in xs if x.requires_grad]
    for wanted in (live, live[-1:]):
        assert same(*(grad(out, wanted, torch.ones(7, dtype=torch.float64), retain_graph=True) for out in (ours, theirs)))


def test_layouts_other_than_row_major(on):
    for make in (lambda x: x.t(), lambda x: x.reshape(2, 3, 5, 4).to(memory_format=torch.channels_last)):
        x = make(leaf(6, 20, needs=False).detach()).requires_grad_()
        ours, theirs = in_cpp(gate, x)(x), in_python(gate, x)(x)
        assert is_in_cpp(ours)
        assert ours.stride() == x.stride()
        for g in (torch.randn_like(x), torch.randn(x.shape, dtype=x.dtype)):
            assert same(*(grad(out, x, g, retain_graph=True) for out in (ours, theirs)))


def test_numbers_are_part_of_what_is_computed(on):
    x = leaf(5)
    op = in_cpp(scaled, x, 2.0)
    for scale in (2.0, 3.0, -0.0, 0.0, 2, True):
        for _ in range(2):
            out = op(x, scale)
            assert torch.equal(grad(out, x, torch.ones_like(x))[0], grad(in_python(scaled, x, scale)(x, scale).sum(), x)[0])
    assert is_in_cpp(op(x, 3.0))
    assert is_in_cpp(op(x, 2.0))
    assert torch.equal(op(x, scale=2.0, mode="b"), op(x, 2.0))


def test_a_tensor_that_was_written_to_is_an_error(on):
    x, y = leaf(3), leaf(3, seed=1)
    out = in_cpp(wave, x, y)(x, y)
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_a_graph_is_freed_by_its_backward(on):
    x = leaf(3)
    out = in_cpp(gate, x)(x).sum()
    first = grad(out, x, retain_graph=True)
    assert same(first, grad(out, x))
    with pytest.raises(RuntimeError, match="second time"):
        grad(out, x)


def test_inputs_are_let_go_after_the_backward(on):
    x = leaf(3)
    op = in_cpp(gate, x)
    middle = x * 2
    gone = weakref.ref(middle)
    out = op(middle)
    del middle
    assert gone() is not None
    out.sum().backward()
    assert gone() is None


def test_hooks_on_saved_tensors(on):
    x, y = leaf(3), leaf(3, seed=1)
    expected = grad(in_python(wave, x, y)(x, y).sum(), (x, y))
    op = in_cpp(wave, x, y)
    seen = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append("pack") or t.clone(), lambda t: t):
        out = op(x, y)
    assert is_in_cpp(out)
    assert same(grad(out.sum(), (x, y)), expected)
    assert seen == ["pack", "pack"]
    with torch.autograd.graph.save_on_cpu():
        assert same(grad(op(x, y).sum(), (x, y)), expected)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.repeat(2)[::2] * 0 + t):
        out = op(x, y)
    assert same(grad(out.sum(), (x, y)), expected)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: 1 / 0, lambda t: t), pytest.raises(ZeroDivisionError):
        op(x, y)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: 1 / 0):
        out = op(x, y)
    with pytest.raises(ZeroDivisionError):
        out.sum().backward()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(on, reentrant):
    x = leaf(3)
    op = pullback.function(gate)
    for _ in range(3):  # the first forward is in Python, what follows is not
        out = torch.utils.checkpoint.checkpoint(lambda t: op(op(t)), x, use_reentrant=reentrant)
        assert torch.allclose(grad(out.sum(), x)[0] if not reentrant else _backward(out, x), grad(gate(gate(x)).sum(), x)[0])


def _backward(out, x):
    x.grad = None
    out.sum().backward()
    return x.grad


def test_cotangents_of_every_kind(on):
    x = leaf(4, 6)
    op, python = in_cpp(gate, x), in_python(gate, x)
    gs = [
        torch.randn(6, 4, dtype=torch.float64).t(),
        torch.randn(4, 12, dtype=torch.float64)[:, ::2],
        torch.randn(6, dtype=torch.float64).expand(4, 6),
        torch.tensor(2.0, dtype=torch.float64).expand(4, 6),
        torch.randn(4, 6, dtype=torch.complex128).conj().imag,
        torch.randn(4, 6, dtype=torch.float32),
        torch.nn.Parameter(torch.randn(4, 6, dtype=torch.float64)),
        torch.randn(4, 6, dtype=torch.float64).to_sparse(),
        torch._efficientzerotensor((4, 6), dtype=torch.float64),
    ]
    for g in gs:
        outs = [f(x) for f in (op, python)]
        assert is_in_cpp(outs[0])
        assert same(*(grad(out, x, g) for out in outs))


class Marked(torch.Tensor):
    """A subclass that changes nothing."""


class Logged(torch.Tensor):
    """A wrapper whose ops are seen."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        opened = torch.utils._pytree.tree_map(lambda a: a.inner if isinstance(a, cls) else a, (args, kwargs or {}))
        out = func(*opened[0], **opened[1])
        return torch.utils._pytree.tree_map(lambda a: cls(a) if isinstance(a, torch.Tensor) else a, out)


def test_subclasses(on):
    x = leaf(3)
    op, python = in_cpp(gate, x), in_python(gate, x)
    g = torch.randn(3, dtype=torch.float64)
    marked = x.detach().as_subclass(Marked).requires_grad_()
    assert not is_in_cpp(op(marked))
    ours, theirs = (grad(f(x), x, g.as_subclass(Marked))[0] for f in (op, python))
    assert torch.allclose(ours, theirs.as_subclass(torch.Tensor))
    ours, theirs = (grad(f(x), x, Logged(g))[0] for f in (op, python))
    assert type(ours) is type(theirs) is Logged
    assert torch.equal(ours.inner, theirs.inner)
    assert type(op(Logged(x.detach()))) is Logged


def test_an_output_without_a_cotangent(on):
    x, y = leaf(3), leaf(3, seed=1)
    for which in (0, 1):
        outs = [op(x, y)[which] for op in (in_cpp(both, x, y), in_python(both, x, y))]
        assert is_in_cpp(outs[0])
        assert same(*(grad(out.sum(), (x, y)) for out in outs))


def test_derivatives_of_higher_order(on):
    x, y, g = leaf(3), leaf(3, seed=1), leaf(3, seed=2)
    results = []
    for op in (in_cpp(wave, x, y), in_python(wave, x, y)):
        (gx,) = grad(op(x, y), x, g, create_graph=True)
        second = grad(gx.sum(), (x, y, g), create_graph=True)
        third = grad(sum(s.sum() for s in second), (x, y))
        results.append([gx, *second, *third])
    assert same(*results)
    assert torch.autograd.gradcheck(op, (x, y))
    assert torch.autograd.gradgradcheck(op, (x, y))


def test_what_a_formula_reads_has_changed_before_the_second_derivative(on, monkeypatch):
    x = leaf(3)
    out = in_cpp(lambda x: torch.exp(x * FACTOR), x)(x)
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    with pytest.raises(pullback.DerivativeError, match="has changed between"):
        grad(out.sum(), x, create_graph=True)


def test_a_batch_of_cotangents(on):
    x = leaf(3)
    eye = torch.eye(3, dtype=torch.float64)
    outs = [op(x) for op in (in_cpp(gate, x), in_python(gate, x))]
    assert same(*(grad(out, x, eye, is_grads_batched=True, retain_graph=True) for out in outs))
    assert same(*([torch.func.vmap(lambda v, out=out: grad(out, x, v, retain_graph=True)[0])(eye)] for out in outs))


def test_modes_see_the_ops_of_a_backward(on):
    class Counting(torch.utils._python_dispatch.TorchDispatchMode):
        seen = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.seen += 1
            return func(*args, **(kwargs or {}))

    x = leaf(3)
    op = in_cpp(gate, x)
    out = op(x)
    with Counting() as counting:
        grad(out, x, torch.ones_like(x))
        backward = counting.seen
        assert not is_in_cpp(op(x))
    assert backward > 3
    assert counting.seen > backward


FACTOR = 2.0


def helper(x):
    return x * 2


def test_what_a_formula_reads_is_watched(on, monkeypatch):
    x = leaf(3)

    def reading(x):
        return torch.exp(helper(x) * FACTOR)

    op = in_cpp(reading, x)
    assert is_in_cpp(op(x))
    assert torch.allclose(op(x), reading(x))
    for change in (
        lambda: monkeypatch.setitem(globals(), "FACTOR", 3.0),
        lambda: monkeypatch.setitem(globals(), "helper", lambda x: x * 3),
        lambda: monkeypatch.setattr(helper, "__code__", (lambda x: x * 4).__code__),
        lambda: monkeypatch.setattr(torch, "exp", torch.sin),
        lambda: monkeypatch.undo(),
    ):
        change()
        for _ in range(3):
            out = op(x)
            assert torch.allclose(out, reading(x))
            assert torch.allclose(grad(out.sum(), x)[0], grad(reading(x).sum(), x)[0])


def test_a_closure_a_default_and_the_default_dtype_are_watched(on):
    x = leaf(3)
    factor = 2.0

    def closed(x, y=None, *, z=3.0):
        return torch.exp(x * factor) * z

    op = in_cpp(closed, x)
    assert is_in_cpp(op(x))
    factor = 4.0
    assert torch.allclose(op(x), closed(x))
    for _ in range(2):
        op(x)
    closed.__kwdefaults__["z"] = 5.0
    assert torch.allclose(op(x), closed(x))
    for _ in range(2):
        assert is_in_cpp(op(x)) or _ == 0
    torch.set_default_dtype(torch.float64)
    try:
        assert not is_in_cpp(op(x))
    finally:
        torch.set_default_dtype(torch.float32)


def test_another_backend_and_new_forms_are_noticed(on):
    x = leaf(3, dtype=torch.float32)
    op = in_cpp(gate, x)
    with pullback.backend("eager"):
        assert not is_in_cpp(op(x))
        assert torch.equal(in_python(gate, x, stable=False)(x), gate(x))
    for _ in range(3):
        out = op(x)
    assert is_in_cpp(out)
    op._plans.forget()
    assert op._plans.table is None
    assert not is_in_cpp(op(x))
    op.vjp(lambda g, out, x: g * 5)
    assert torch.equal(grad(op(x).sum(), x)[0], torch.full((3,), 5.0))


def test_other_kinds_of_call_are_left_to_python(on):
    x = leaf(3, 4)
    op = in_cpp(gate, x)
    others = [
        leaf(4, 3),
        leaf(3, 4, dtype=torch.float32),
        leaf(3, 4, needs=False),
        leaf(3, 8, needs=False)[:, ::2].requires_grad_(),
        leaf(4, 3, needs=False).t().requires_grad_(),
    ]
    for other in others:
        for _ in range(3):
            assert torch.equal(op(other), in_python(gate, other)(other))
    y = leaf(3, 4)
    two = in_cpp(wave, x, y)
    assert is_in_cpp(two(x, y))
    assert not is_in_cpp(two(x, x))
    assert torch.allclose(grad(two(x, x).sum(), x)[0], grad(wave(x, x).sum(), x)[0])
    x.note = 1  # harmless, but it could be a method
    assert not is_in_cpp(op(x))
    x.exp = lambda: 1 / 0
    assert torch.allclose(op(x), gate(x))
    with pytest.raises(TypeError):
        op(y, y)
    with pytest.raises((TypeError, AttributeError)):
        op("text")


def test_contexts_are_left_to_python(on):
    x = leaf(3)
    op = in_cpp(gate, x)
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            out = op(x)
        assert not out.requires_grad
        assert out.is_inference() == (context is torch.inference_mode)
    with torch.inference_mode():
        born = torch.randn(3, dtype=torch.float64)
    assert torch.equal(op(born), in_python(gate, born)(born))
    with torch.autocast("cpu"):
        assert not is_in_cpp(op(x))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.detach(), torch.ones_like(x))
        assert torch.autograd.forward_ad.unpack_dual(op(dual)).tangent is not None
    with torch.device("cpu"):
        assert not is_in_cpp(op(x))
    with pytest.warns(UserWarning, match="Anomaly"), torch.autograd.detect_anomaly():
        assert not is_in_cpp(op(x))
    assert torch.allclose(torch.func.grad(lambda t: op(t).sum())(x.detach()), grad(gate(x).sum(), x)[0])
    assert torch.allclose(torch.func.hessian(lambda t: op(t).sum())(x.detach()).diagonal(), _second(gate, x))
    with pytest.warns(DeprecationWarning, match="jit.trace"):
        traced = torch.jit.trace(lambda t: op(t), x, check_trace=False)
    assert "sigmoid" in str(traced.graph)
    fake = torch._subclasses.FakeTensorMode()
    with fake:
        assert type(op(torch.randn(3, dtype=torch.float64, requires_grad=True))).__name__ == "FakeTensor"
    assert type(op(fake.from_tensor(x))).__name__ == "FakeTensor"
    assert is_in_cpp(op(x))


def _second(f, x):
    (first,) = grad(f(x).sum(), x, create_graph=True)
    return grad(first.sum(), x)[0]


def test_what_compiled_autograd_is_asked_for():
    from torch._dynamo.compiled_autograd import AutogradCompilerInstance

    assert list(inspect.signature(AutogradCompilerInstance.proxy_call).parameters)[1:] == ["fn", "args", "output_metadata"]


def test_compiled_by_dynamo_the_op_is_its_formula(on):
    x = leaf(3)
    op = in_cpp(gate, x)
    compiled = torch.compile(lambda t: op(t) * 2, fullgraph=True, backend="aot_eager")
    assert torch.allclose(grad(compiled(x).sum(), x)[0], 2 * grad(gate(x).sum(), x)[0])


@pytest.mark.parametrize("fullgraph", [True, False])
def test_compiled_autograd_takes_a_graph_that_was_made_before(on, fullgraph):
    from torch._dynamo import compiled_autograd

    x, y = leaf(3), leaf(3, seed=1)
    first, second = in_cpp(both, x, y), in_cpp(wave, x, y)
    for op, formula in ((first, both), (second, wave), (first, both)):
        live = [t.detach().clone().requires_grad_() for t in (x, y)]
        out = op(*live)
        out = out[1] if isinstance(out, tuple) else out
        assert is_in_cpp(out)
        with compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=fullgraph)):
            (out * 2).sum().backward()
        right = formula(x, y)
        right = right[1] if isinstance(right, tuple) else right
        assert all(
            torch.allclose(t.grad, g) for t, g in zip(live, grad((right * 2).sum(), (x, y)), strict=True)
        )


def test_hooks_and_retained_gradients(on):
    x = leaf(3)
    op = in_cpp(gate, x)
    results = []
    for f in (op, in_python(gate, x)):
        seen = []
        middle = x * 2
        middle.retain_grad()
        middle.register_hook(lambda g, seen=seen: seen.append(g) or g * 3)
        out = f(middle)
        out.retain_grad()
        out.register_hook(lambda g, seen=seen: seen.append(g) or g * 2)
        out.grad_fn.register_hook(lambda gxs, gs, seen=seen: seen.extend((*gxs, *gs)))
        out.grad_fn.register_prehook(lambda gs, seen=seen: seen.extend(gs))
        out.sum().backward()
        results.append([*seen, x.grad, middle.grad, out.grad])
        x.grad = None
    assert same(*results)


def test_writing_to_an_output_or_a_view_of_it(on):
    x = leaf(3, 4)
    op = in_cpp(gate, x)
    results = []
    for f in (op, in_python(gate, x)):
        out = f(x)
        out.mul_(2)
        out[1].add_(x[0])
        out.view(-1)[3:5].sin_()
        results.append([out.detach(), *grad(out.sum(), x)])
    assert same(*results)


def test_an_output_is_copied_and_kept_as_any(on):
    x = leaf(3)
    out = in_cpp(gate, x)(x)
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(out)
    assert torch.equal(copy.deepcopy(out.detach()), out)
    assert torch.equal(pickle.loads(pickle.dumps(out.detach())), out)
    kept = io.BytesIO()
    torch.save(out, kept)
    assert torch.equal(torch.load(io.BytesIO(kept.getvalue())), out)
    assert not out.is_leaf
    assert out._version == 0
    assert not out._is_view()


def test_the_profiler_and_a_printed_tensor_name_the_op(on):
    x = leaf(3)
    op = in_cpp(gate, x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        out = op(x)
        out.sum().backward()
    names = {event.name for event in profile.events()}
    assert {"gate", "gateBackward"} <= names
    assert "grad_fn=<gateBackward>" in repr(out)


def test_threads(on):
    x, y = leaf(2000), leaf(2000, seed=1)
    op = in_cpp(wave, x, y)
    expected = grad(in_python(wave, x, y)(x, y).sum(), (x, y))
    shared = op(x, y).sum()
    wrong = []

    def work():
        for _ in range(100):
            for out in (op(x, y).sum(), shared):
                if not same(grad(out, (x, y), retain_graph=True), expected):
                    wrong.append(out)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_nothing_is_kept(on):
    def resident():
        with open("/proc/self/statm") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    x = leaf(8)
    op = in_cpp(gate, x)

    def calls(n):
        for _ in range(n):
            op(x).sum().backward()
            op(x)
            x.grad = None

    calls(2000)
    gc.collect()
    objects, grown = len(gc.get_objects()), []
    for _ in range(3):
        before = resident()
        calls(10_000)
        grown.append(resident() - before)
    gc.collect()
    assert min(grown) < 2**16  # the process may grow for other reasons
    assert len(gc.get_objects()) - objects < 50


def test_an_op_that_goes_takes_its_table_along(on):
    x = leaf(3)

    def made():
        op = None

        def formula(x):
            return torch.exp(x) + torch.sin(x) * 2

        op = in_cpp(formula, x)
        formula.op = op  # a cycle through the table: it holds the formula
        return op(x), weakref.ref(op._plans), weakref.ref(formula)

    out, plans, formula = made()
    gc.collect()
    assert formula() is not None  # the graph can still be differentiated twice
    assert torch.allclose(_second(lambda t: out, x), _second(lambda t: torch.exp(t) + torch.sin(t) * 2, x))
    del out
    gc.collect()
    assert plans() is None
    assert formula() is None


def run(program, **environment):
    text = textwrap.dedent(program)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", text], capture_output=True, text=True, timeout=300, env=os.environ | environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


PROGRAM = """
    import os, time, torch, pullback
    from pullback.bind import node
    torch.set_num_threads(1)
    op = pullback.function(backend="native")(lambda x: torch.exp(x) * x)
    x = torch.ones(5, requires_grad=True)
    start = time.perf_counter()
    op(x).sum().backward()
    {}
    """


def test_it_is_compiled_in_the_background_once(on, tmp_path):
    """By two processes at once, one of which has ended long before; a later one uses it from its second call on."""
    environment = {"PULLBACK_CACHE_DIR": str(tmp_path), "PULLBACK_NODE": "on"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(PROGRAM.format("op(x)"))],
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for _ in range(2)
    ]
    assert [p.communicate(timeout=120)[0] for p in processes] == [b"", b""]
    assert len(list((tmp_path / "nodes").glob("making-*"))) == 1
    waiting = PROGRAM.format("print(node.EXTENSION.wait()); op(x); print(op(x).grad_fn.name(), len(os.listdir('/proc/self/task')))")
    assert run(waiting, **environment).split()[:2] == ["True", "<lambda>Backward"]
    folder = tmp_path / "nodes"
    for _ in range(50):
        if not list(folder.glob("making-*")):
            break
        time.sleep(0.1)
    assert sorted(path.suffix for path in folder.iterdir()) == [".lock", ".so"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert run(PROGRAM.format("op(x); print(op(x).grad_fn.name())"), **environment) == "<lambda>Backward\n"
    (module,) = folder.glob("*.so")
    module.write_bytes(b"damaged")
    assert run(PROGRAM.format("op(x); print(type(op(x).grad_fn).__name__)"), **environment) == "_KernelsBackward\n"
    assert not module.exists()


def test_it_can_be_turned_off(on, tmp_path):
    environment = {"PULLBACK_CACHE_DIR": str(tmp_path), "PULLBACK_NODE": "off"}
    assert run(PROGRAM.format("op(x); op.compile(x); print(type(op(x).grad_fn).__name__)"), **environment) == "_KernelsBackward\n"
    assert not (tmp_path / "nodes").exists()


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """A module that does not compile, in a cache of its own."""
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "cpp").mkdir()
    source = tmp_path / "cpp" / "module.cpp"
    source.write_text("#error no such PyTorch\n")
    return Extension(source, "_broken")


def test_what_does_not_compile_is_noted_and_not_tried_again(broken, monkeypatch):
    try:
        build.require()
    except RunnerError as error:
        pytest.skip(str(error))
    assert not broken.wait()
    assert "no such PyTorch" in broken.trouble()
    again = Extension(broken._source, "_broken")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("compiled again"))
    assert not again.wait()


def test_what_cannot_be_made_is_not_missed(broken, monkeypatch, tmp_path):
    monkeypatch.setattr("pullback.kernels.extension._python_headers", lambda: tmp_path)
    assert not broken.wait()
    assert not caches.root().exists() or not list((caches.root() / "nodes").glob("making-*"))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path / "file"))
    other = Extension(broken._source, "_broken")
    monkeypatch.undo()
    monkeypatch.setenv("PULLBACK_CACHE_DIR", str(tmp_path / "file"))
    assert not other.wait()
    assert not other.is_there()


def test_a_folder_that_others_may_write_to_is_not_trusted(broken, monkeypatch):
    folder = caches.root() / "nodes"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert not broken.wait()
    (folder / f"{broken._key}.so").write_bytes(b"anything")
    assert not broken.is_there()

"""One plan for calls that differ only in sizes; every size gives the formula's result."""

import gc
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

import pullback
from pullback import plans
from pullback.kernels import build
from pullback.kernels import memory as reuse

POINTWISE = {
    "gate": lambda x, y: torch.sigmoid(x) * y + torch.tanh(y),
    "row": lambda x, y: x * y.exp(),
    "column": lambda x, y: torch.sin(x) * y,
    "number": lambda x, y: x.exp() * y,
}
"""Formulas of two tensors, some of them broadcast."""
ACROSS = {
    "norm": lambda x, w: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w,
    "softmax": lambda x, w: torch.softmax(x * w, -1),
    "mean": lambda x, w: (x * w).sigmoid().mean(),
    "product": lambda x, w: F.gelu(x @ torch.diag(w)),
    "transposed": lambda x, w: (x * w).T.exp() + 1,
    "pair": lambda x, w: (x * w, (x + w).sum(0)),
}
SIZED = {
    "divided by a size": lambda x: x / x.shape[0],
    "divided by a length": lambda x: x.exp() * len(x),
    "branching": lambda x: x.exp() if x.shape[-1] > 3 else x.sin() * 2,
    "branching on elements": lambda x: x.exp() if x.numel() % 2 else x.sin() * 2,
    "asking for a type": lambda x: x.exp() if isinstance(x.shape[0], int) and x.shape[0] > 3 else x.sin() * 2,
    "by its name": lambda x: x.exp() * len(str(x.shape[0])) + x.sin() * float(f"{x.shape[-1]}"),
    "halved": lambda x: x.exp().reshape(2, -1) * 2 if x.shape[0] % 2 == 0 else x * 2,
    "numbered": lambda x: x.exp() * torch.arange(x.shape[0]).unsqueeze(-1),
    "cut": lambda x: x[:, 3:].exp() * 2,
    "cut from the end": lambda x: x[:, :-1].exp() * 2,
    "mean": lambda x: x.exp().mean(),
    "spread": lambda x: x.exp().var(0, correction=0),
    "zeros": lambda x: x.exp() + torch.zeros(x.shape[-1]),
    "row after row": lambda x: sum(row.exp() for row in x),
    "unbound": lambda x: x.unbind(0)[-1].exp() * 2,
    "in chunks": lambda x: x.chunk(2, 0)[0].exp() * 2,
    "the last of three chunks": lambda x: x.exp() * x.chunk(3, 0)[-1].mean(),
    "all but some": lambda x: x.exp() * x[:, 6:].sum(-1, keepdim=True),
    "flat": lambda x: x.exp().flatten() * 2,
    "a size with it": lambda x: (x.exp() * 2, x.shape[0], str(x.shape)),
    "by its stride": lambda x: x.exp() * x.stride(0),
    "contiguous": lambda x: x.exp() if x.is_contiguous() else x.sin() * 2,
    "broadcast": lambda x: torch.broadcast_shapes((1, 1), x.shape)[0] * x.exp(),
    "cumulative": lambda x: x.cumsum(0) * 2,
    "sorted": lambda x: x.sort(0)[0].exp() * 2,
    "to the norm": lambda x: F.normalize(x, dim=-1) * 2,
    "scaled by a layer norm": lambda x: F.layer_norm(x, x.shape[-1:]) * 2,
}
"""Formulas that use sizes."""


HABITS = {
    "product": lambda x, y: torch.tanh(x) * y + y.exp(),
    "sum": lambda x, y: (x * y).sum(-1, keepdim=True) * x,
    "loss": lambda x, y: (x.sigmoid() - y).square().mean(),
    "by a size": lambda x, y: (x * y.exp()) / x.shape[0] if x.shape[0] else x * y,
    "by places": lambda x, y: torch.where(x > 0, x, y) + (x if x.shape[-1] > y.numel() else y),
}
OPS = {name: pullback.function(backend="eager")(formula) for name, formula in HABITS.items()}
"""Shared between examples, so that plans persist from one to the next."""


def leaf(*shape, dtype=torch.float64):
    return torch.randn(shape, dtype=dtype, requires_grad=True)


def agree(op, *inputs):
    """Compare a call and its gradients with the formula's."""
    expected, got = op._formula(*inputs), op(*inputs)
    ours, theirs = (o if isinstance(o, tuple) else (o,) for o in (got, expected))
    assert [type(a) for a in ours] == [type(b) for b in theirs]
    for a, b in zip(ours, theirs, strict=True):
        if not isinstance(b, torch.Tensor):
            assert a == b
            continue
        torch.testing.assert_close(a, b, equal_nan=True)
        assert a.stride() == b.stride()
        if b.requires_grad:
            g = torch.randn_like(b)
            mine, formulas = (torch.autograd.grad(t, inputs, g, retain_graph=True, allow_unused=True) for t in (a, b))
            torch.testing.assert_close(mine, formulas, equal_nan=True)


def traces(monkeypatch):
    """Count traces of single sizes, and traces for all sizes."""
    counted = {"itself": 0, "all": 0}
    make = plans.make_plan

    def counting(*args):
        counted["itself" if args[-1] is plans.trace_ops else "all"] += 1
        return make(*args)

    monkeypatch.setattr(plans, "make_plan", counting)
    return counted


def general(op):
    return [kind._general for kind in op._plans._sizes._kinds.values() if kind._general is not None]


@pytest.fixture(params=["eager", "native"])
def backend(request):
    if request.param == "native":
        request.getfixturevalue("native")


@pytest.mark.usefixtures("native")
def test_hundreds_of_sizes_take_eight_traces(monkeypatch):
    monkeypatch.setattr(plans, "MAX_PLANS", 64)
    op, counted = pullback.function(POINTWISE["gate"]), traces(monkeypatch)
    for n in torch.randperm(500).tolist():
        agree(op, leaf(n + 2), leaf(n + 2))
    assert counted == {"itself": 7, "all": 1}
    assert len(op._plans.plans) == 64


@pytest.mark.usefixtures("native")
@pytest.mark.slow
def test_few_kernels_are_compiled_where_a_size_is_a_constant(monkeypatch):
    op, compiled, compile_ = pullback.function(SIZED["mean"]), [], build._compile
    monkeypatch.setattr(build, "_compile", lambda *args: compiled.append(args) or compile_(*args))
    for n in range(8, 40):
        agree(op, leaf(n, 2 * n))
    assert len(compiled) <= 9  # one forward, and one backward per trace


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("name", POINTWISE)
@pytest.mark.few(2)
def test_broadcast_tensors_of_many_sizes_share_a_trace(name, monkeypatch):
    op, counted = pullback.function(POINTWISE[name]), traces(monkeypatch)
    for n, m in [(i, 20 + i * i) for i in range(8, 24)]:
        y = {"gate": (n, m), "row": (m,), "column": (n, 1), "number": ()}[name]
        agree(op, leaf(n, m), leaf(*y))
    assert counted["all"] == 1
    assert counted["itself"] == 7


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("name", ACROSS)
@pytest.mark.few(2)
def test_reductions_and_products_of_many_sizes_share_a_trace(name, monkeypatch):
    op, counted = pullback.function(ACROSS[name]), traces(monkeypatch)
    for n in range(18, 32):
        agree(op, leaf(n, 17), leaf(17))
    assert general(op)
    assert counted == {"itself": 7, "all": 1}
    for m in range(19, 30):  # now row lengths vary, too
        agree(op, leaf(2 * m, m), leaf(m))
    assert counted["all"] == 2
    assert counted["itself"] == 14


@pytest.mark.parametrize("name", SIZED)
@pytest.mark.few(3)
def test_size_dependent_formula_is_right_for_every_size(name):
    op = pullback.function(SIZED[name])
    for i in range(10):
        agree(op, leaf(2 + i, 4 + 2 * i))
    for n, m in [(3, 9), (6, 6), (12, 7), (1, 8), (7, 1), (1, 1), (7, 12), (30, 4)]:
        agree(op, leaf(n, m))


def test_op_without_symbolic_support_is_traced_per_size_silently(capfd):
    op = pullback.function(lambda x: (x @ x.t()).trace())
    for n in range(2, 14):
        x = torch.randn(n, n + 3, requires_grad=True)
        (g,) = torch.autograd.grad(op(x), x)
        torch.testing.assert_close(g, 2 * x.detach())
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", SIZED)
def test_size_dependent_formula_without_grad_is_right_for_every_size(name):
    op = pullback.function(backend="eager")(SIZED[name])
    for n, m in [*((2 + i, 4 + 2 * i) for i in range(10)), (3, 9), (6, 6), (1, 8), (7, 1), (7, 12)]:
        agree(op, leaf(n, m).detach())


@pytest.mark.usefixtures("native")
def test_calls_without_grad_of_many_sizes_share_a_trace(monkeypatch):
    op, counted = pullback.function(POINTWISE["gate"]), traces(monkeypatch)
    for n in range(2, 30):
        agree(op, leaf(n).detach(), leaf(n).detach())
    assert counted == {"itself": 7, "all": 1}


@pytest.mark.usefixtures("native")
@pytest.mark.slow
def test_higher_derivatives_of_many_sizes_share_traces(monkeypatch):
    op, counted = pullback.function(lambda x: torch.sin(x) * x), traces(monkeypatch)
    for n in range(2, 26):
        x = leaf(n)
        found = []
        for f in (op, op._formula):
            out = f(x)
            for _ in range(3):
                (out,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            found.append(out)
        torch.testing.assert_close(*found)
    assert counted["all"] == 3  # one for value and gradient, and one for each further order


def test_dtype_requires_grad_and_scalars_stay_in_the_key():
    op = pullback.function(backend="eager")(lambda x, of, scale: torch.tanh(x) * of["y"] * scale)
    variants = [
        (torch.float64, True, True, 2.0),
        (torch.float64, True, False, 2.0),
        (torch.float64, False, True, 2.0),
        (torch.float32, True, True, 2.0),
        (torch.float64, True, True, 3.0),
        (torch.float64, True, True, 0.0),
        (torch.float64, True, True, -0.0),
        (torch.int64, False, True, 2.0),
    ]
    for n in range(2, 14):
        for dtype, of_x, of_y, scale in variants:
            x = torch.randn(n).mul(5).to(dtype).requires_grad_(of_x)
            y = torch.randn(n, dtype=torch.float64, requires_grad=of_y)
            inputs = [t for t in (x, y) if t.requires_grad]
            out, expected = (f(x, {"y": y}, scale) for f in (op, op._formula))
            assert torch.equal(out, expected)
            assert torch.equal(out.signbit(), expected.signbit())
            grads = [torch.autograd.grad(t.sum(), inputs, allow_unused=True) for t in (out, expected)]
            torch.testing.assert_close(*grads)
    assert len(general(op)) == len(variants)


@pytest.mark.parametrize("kernels", ["eager", "native"])
def test_batched_cotangents_of_many_sizes(kernels):
    """Batched backwards run ATen ops, which take sizes as arguments."""
    op = pullback.function(backend=kernels)(ACROSS["norm"])
    for n in range(18, 32):
        x, w = leaf(n, 17), leaf(17)
        gs = torch.randn(3, n, 17, dtype=torch.float64)
        mine, formulas = (torch.autograd.grad(f(x, w), (x, w), gs, is_grads_batched=True) for f in (op, op._formula))
        torch.testing.assert_close(mine, formulas)
    assert general(op)


def test_compiled_autograd_of_a_plan_for_many_sizes():
    from torch._dynamo import compiled_autograd

    op = pullback.function(backend="eager")(ACROSS["norm"])
    for n in range(18, 30):
        x, w = leaf(n, 17), leaf(17)
        out, right = op(x, w), torch.autograd.grad(op._formula(x, w).sum(), (x, w))
        if general(op):
            with compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True)):
                out.sum().backward()
            torch.testing.assert_close((x.grad, w.grad), right)
    assert general(op)


def test_frequent_size_runs_in_cpp_among_many_sizes(on, monkeypatch):
    monkeypatch.setattr(plans, "MAX_PLANS", 64)
    op = pullback.function(POINTWISE["gate"])
    for n in range(2, 128):
        for _ in range(2):
            agree(op, leaf(n), leaf(n))
    hot = leaf(5), leaf(5)
    for _ in range(64):
        op(*hot)
    assert type(op(*hot).grad_fn).__name__ == "CppFunction"
    agree(op, *hot)


def test_changed_capture_drops_the_plan_for_many_sizes():
    scale = 1.0
    op = pullback.function(lambda x: x.exp() * scale)
    for n in range(2, 14):
        agree(op, leaf(n))
    assert general(op)
    scale = 2.0
    for n in range(14, 26):
        agree(op, leaf(n))
    assert general(op)


@settings(max_examples=30)
@given(
    st.sampled_from(sorted(HABITS)),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.sampled_from("abcde")), min_size=10, max_size=30),
)
@pytest.mark.slow
def test_random_and_coinciding_sizes_match_the_formula(name, calls):
    op = OPS[name]
    for n, m, how in calls:
        x = {"a": leaf(n, m), "b": leaf(m, n).T, "c": leaf(n, m, 2)[..., 0], "d": leaf(n, 1), "e": leaf(1, m)}[how]
        y = {"a": leaf(n, m), "b": leaf(m), "c": leaf(n, 1), "d": leaf(n, m), "e": leaf()}[how]
        agree(op, x.detach().requires_grad_(), y)


def test_plan_for_many_sizes_keeps_no_tensor():
    op, seen = pullback.function(lambda x, y: torch.tanh(x) * y), []
    for n in range(2, 14):
        x, y = leaf(n), leaf(n)
        seen += [weakref.ref(x), weakref.ref(y)]
        op(x, y)
    del x, y
    gc.collect()
    assert general(op)
    assert not any(ref() is not None for ref in seen)


def norm(x, w):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


def layer(x, w):
    z = x @ w
    return z * torch.sigmoid(z), (z * z).sum(0)


def loss(x, w):
    return F.cross_entropy(x @ w, torch.zeros(1, dtype=torch.int64).expand(x.shape[:1]), reduction="sum")


def first(outputs):
    return outputs[0] if isinstance(outputs, tuple) else outputs


def log_softmax(x, w):
    return F.log_softmax(x @ w, -1)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize(("formula", "is_one"), [(norm, True), (layer, True), (log_softmax, True), (loss, False)])
@pytest.mark.few(2)
def test_row_sums_and_overwritten_memory_for_many_sizes(formula, is_one, monkeypatch):
    """Kernels that sum over rows and overwrite private tensors, at many numbers of rows."""
    monkeypatch.setattr(reuse, "_LARGE", 0)
    op, counted = pullback.function(formula, stable=False, backend="native"), traces(monkeypatch)
    for i, rows in enumerate((64, 70, 65, 200, 131, 90, 77, 100, 66, 300, 129, 64, 257)):
        inner, columns = 20 + i % 5, 31 + i % 7
        x, w = (
            leaf(rows, columns if formula is norm else inner),
            leaf(columns) if formula is norm else leaf(inner, columns),
        )
        agree(op, x, w)
        once = [torch.autograd.grad(first(f(x, w)).sum(), (x, w)) for f in (op, formula)]  # the graph is freed
        torch.testing.assert_close(*once)
    assert bool(general(op)) == is_one
    if is_one:
        assert counted == {"itself": 7, "all": 1}

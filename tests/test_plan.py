"""The plan of calls with one key."""

import threading
import types

import numpy as np
import pytest
import torch

import pullback
from pullback import plan as plan_module
from pullback import plans as plans_module
from pullback.plan import InlinePlan, KernelPlan, in_layout

D = torch.float64


def leaf(*shape):
    return torch.randn(*shape, dtype=D, generator=torch.Generator().manual_seed(0)).requires_grad_()


def made(formula, *args, **kwargs):
    op = pullback.function(formula)
    op(*args, **kwargs)
    (plan,) = op._plans.plans.values()
    return plan


def test_traceable_formula_has_a_kernel_plan():
    plan = made(lambda x: x.sin() * 2, leaf(3))
    assert isinstance(plan, KernelPlan)


@pytest.mark.parametrize(
    ("formula", "make_args", "why"),
    [
        (lambda x: x * 2, lambda: [torch.ones(3)], "no gradient is asked for"),
        (lambda x: x.detach() * 2, lambda: [leaf(3)], "no output depends on an input that requires grad"),
        (lambda x, o: x * 2, lambda: [leaf(3), object()], "an argument is an object of type object"),
        (lambda x, y: y.conj() * x, lambda: [leaf(3), torch.ones(3, dtype=torch.complex128).conj()], "conjugated"),
        (lambda x: x.view(-1), lambda: [leaf(3)], "a view of an input"),
    ],
)
def test_inline_plan_says_why(formula, make_args, why):
    plan = made(formula, *make_args())
    assert isinstance(plan, InlinePlan)
    assert why in plan.why


def test_untraceable_derivative_runs_inline():
    class Captures(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * (2 if g.sum() > 0 else 3)

    apply = Captures.apply
    plan = made(lambda x: apply(x * 1), leaf(3))
    assert isinstance(plan, InlinePlan)


@pytest.mark.parametrize("value", [None, 3, "text", [], (1.0, 2.0)])
def test_formula_without_tensor_result_raises(value):
    op = pullback.function(lambda x: value)
    if value == []:
        assert op(leaf(3)) == []
    else:
        with pytest.raises(pullback.FormulaError, match="a formula returns tensors"):
            op(leaf(3))


def test_call_without_tensor_raises_and_names_the_types():
    with pytest.raises(pullback.FormulaError, match="is called with str, where a tensor is wanted"):
        pullback.function(lambda x: x * 2)("text")


@pytest.mark.parametrize("where", ["dict", "list", "module"])
def test_captured_cache_filled_by_a_formula_holds_real_tensors(where):
    table = {"dict": {}, "list": [None] * 9, "module": types.SimpleNamespace(of={})}[where]

    def scaled(x):
        kept = table.of if where == "module" else table
        if isinstance(kept, list) or len(x) not in kept:
            kept[len(x)] = torch.arange(len(x), dtype=x.dtype)
        return x * kept[len(x)]

    op = pullback.function(scaled)
    op.graph(leaf(3))
    for _ in range(2):
        (g,) = torch.autograd.grad(op(x := leaf(3)).sum(), x)
        assert type(g) is torch.Tensor
        assert g.tolist() == [0, 1, 2]


def test_side_effects_happen_once_per_call():
    count, draws = [0], np.random.RandomState(0)

    def drawn(x):
        count[0] += 1
        return x * float(draws.rand())

    op, right = pullback.function(drawn), np.random.RandomState(0)
    for i in range(3):
        assert op(torch.ones(1)).item() == pytest.approx(right.rand())
        assert count == [i + 1]


def test_failing_call_is_not_used_as_example():
    op = pullback.function(lambda x: x * x)
    with pytest.raises(TypeError):
        op("text")
    op(leaf(3))
    assert "mul" in op.explain()


def test_results_keep_their_structure():
    op = pullback.function(lambda x, n: {"a": (x * n, [x + 1, n]), "b": None, "c": "text"})
    for _ in range(2):
        result = op(leaf(2), 3)
        assert result["a"][1][1] == 3
        assert result["b"] is None
        assert result["c"] == "text"
        assert result["a"][0].requires_grad


def test_number_of_plans_is_bounded(monkeypatch):
    monkeypatch.setattr(plans_module, "MAX_PLANS", 64)
    op = pullback.function(lambda x, n: x * n)
    x = leaf(3)
    for n in range(plans_module.MAX_PLANS + 20):
        assert torch.equal(op(x, n), x * n)
        (g,) = torch.autograd.grad(op(x, n).sum(), x)
        assert g.tolist() == [n] * 3
    assert len(op._plans.plans) == plans_module.MAX_PLANS


def test_changed_capture_drops_the_plans():
    scale = 1.0
    op = pullback.function(lambda x: x * scale)
    x = leaf(3)
    for scale in (1.0, 2.0, 3.0):
        assert torch.equal(op(x), x * scale)
    assert len(op._plans.plans) == 1


def test_double_backward_after_a_changed_capture_raises():
    scale = 1.0
    op = pullback.function(lambda x: (x * scale).exp())
    x = leaf(3)
    y = op(x)
    scale = 2.0
    assert torch.equal(torch.autograd.grad(y.sum(), x, retain_graph=True)[0], x.exp())
    with pytest.raises(pullback.DerivativeError, match="has changed between the call and its derivative"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


def test_plans_keep_no_tensor_of_a_call():
    import weakref

    op = pullback.function(lambda pair, x: pair[0] * pair[1] * x)
    tensors = [leaf(3) for _ in range(3)]
    seen = [weakref.ref(t) for t in tensors]
    op(tensors[:2], tensors[2])
    assert len(op._plans.plans) == 1
    del tensors
    assert [ref() for ref in seen] == [None] * 3


def test_concurrent_first_calls_trace_once(monkeypatch):
    traced = []
    original = plan_module.joint_of

    def counting(*args, **options):
        traced.append(threading.get_ident())
        return original(*args, **options)

    monkeypatch.setattr(plan_module, "joint_of", counting)
    op = pullback.function(lambda x: (x.sin() * x).exp())
    in_threads(lambda i: op(leaf(3)), 8)
    assert len(traced) == 1


def test_concurrent_first_calls_of_different_ops():
    ops = [pullback.function(lambda x, n=n: torch.sin(x * n)) for n in range(8)]
    x = leaf(3)
    for result, n in zip(in_threads(lambda i: torch.autograd.grad(ops[i](x).sum(), x)[0], 8), range(8), strict=True):
        assert torch.equal(result, torch.cos(x * n) * n)
    assert not torch.fx._symbolic_trace.is_fx_tracing()


def in_threads(work, n):
    barrier, results, errors = threading.Barrier(n), [None] * n, []

    def run(i):
        barrier.wait()
        try:
            results[i] = work(i)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    return results


@pytest.mark.parametrize("stride", [(3, 1), (1, 4)])
@pytest.mark.parametrize(
    "g",
    [
        torch.arange(12.0).view(4, 3),
        torch.arange(12.0).view(3, 4).t(),
        torch.ones(()).expand(4, 3),
        torch.arange(12.0).view(4, 3).to_sparse(),
        torch.randn(4, 3, dtype=torch.complex64).conj(),
        torch.randn(4, 3, dtype=torch.complex64).conj().imag,
        torch.zeros(0, 3),
    ],
    ids=["rows", "columns", "expanded", "sparse", "conjugate", "negative", "empty"],
)
def test_in_layout_copies_cotangents_to_the_stride(g, stride):
    brought = in_layout(g, stride)
    dense = g.to_dense() if g.is_sparse else g
    assert torch.equal(brought, dense)
    assert brought.stride() == stride or not g.numel()
    assert not brought.is_neg()
    assert not brought.is_conj()

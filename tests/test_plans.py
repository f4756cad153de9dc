"""The cache of an op's plans: one plan per key, dropped when a capture changes."""

import threading

import pytest
import torch

import pullback
from pullback import plans
from pullback.call import Call
from pullback.plan import Functions, InlinePlan, KernelPlan, make_plan
from pullback.plans import MAX_TRACES, Plans

SCALE = 2.0


def scaled(x):
    return x * SCALE


def call(*shape):
    return Call((torch.ones(shape, requires_grad=True),), {}, grad=True)


@pytest.fixture
def made():
    return Plans("scaled", lambda call: Functions(scaled, scaled, scaled), (scaled, None))


def test_plan_is_made_once_per_key(made):
    first = made.of(call(2), True)
    assert isinstance(first, KernelPlan)
    assert made.of(call(2), True) is first
    assert made.known(call(2).key) is first
    assert made.known(call(3).key) is None
    assert made.of(call(3), True) is not first


def test_changed_global_drops_the_plans(made, monkeypatch):
    first = made.of(call(2), True)
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    assert made.known(call(2).key) is None
    assert made.of(call(2), True) is not first
    assert list(made.plans) == [call(2).key]


def numbered(x, n):
    return x * n


KEPT = 64


@pytest.fixture
def of_numbers(monkeypatch):
    """Plans of an op with one key for each number, in a cache of `KEPT` plans."""
    monkeypatch.setattr("pullback.plans.MAX_PLANS", KEPT)
    plans = Plans("numbered", lambda call: Functions(numbered, numbered, numbered), (numbered, None))
    x = torch.ones(2, requires_grad=True)
    return plans, lambda n: plans.of(Call((x, n), {}, grad=True), True)


def test_oldest_plan_is_evicted(of_numbers):
    made, of = of_numbers
    first = of(0)
    for n in range(1, KEPT):
        of(n)
    assert of(0) is first
    assert isinstance(of(KEPT), KernelPlan)
    assert len(made.plans) == KEPT
    again = of(0)
    assert again is not first
    assert isinstance(again, KernelPlan)


def test_calls_beyond_max_traces_run_inline_with_one_warning(of_numbers):
    made, of = of_numbers
    for n in range(MAX_TRACES - 1):
        assert isinstance(of(n), KernelPlan)
    with pytest.warns(UserWarning, match="numbered has been called in many ways"):
        last = of(MAX_TRACES - 1)
    plan = of(MAX_TRACES)
    assert isinstance(plan, InlinePlan)
    assert "more than 128 ways" in plan.why
    assert of(MAX_TRACES - 1) is last
    assert len(made.plans) == KEPT


def test_concurrent_first_calls_trace_once(monkeypatch):
    counted, gate = [], threading.Barrier(4)

    def counting(*args):
        counted.append(args)
        return make_plan(*args)

    make_plan = plans.make_plan
    monkeypatch.setattr(plans, "make_plan", counting)
    op, results = pullback.function(scaled), []

    def first_call():
        gate.wait()
        results.append(op(torch.ones(2, requires_grad=True)))

    threads = [threading.Thread(target=first_call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [out.tolist() for out in results] == [[2.0, 2.0]] * 4
    assert len(counted) == 1


def test_first_call_is_kept_as_example_without_values(made):
    assert made.example is None
    made.of(Call((torch.full((2,), 7.0, requires_grad=True),), {}, grad=True), True)
    (x,), kwargs = made.example()
    assert x.tolist() == [1, 1]
    assert kwargs == {}


@pytest.mark.parametrize(("save", "kept"), [("min", 0), ("fast", 1), (None, 1)])
def test_save_option_selects_memory_or_speed(save, kept):
    """With PyTorch's kernels; the backward of sin² x reads sin x and cos x."""
    op = pullback.function(save=save, stable=False)(lambda x: torch.sin(x).square())
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    computed = [s for s in op.saved(x) if s.name == "computed"]
    assert len(computed) == kept
    (g,) = torch.autograd.grad(op(x).sum(), x)
    torch.testing.assert_close(g, torch.sin(2 * x.detach()))


def test_save_fast_with_compiled_kernels(native):
    op = pullback.function(save="fast", stable=False)(lambda x: torch.sin(x).square())
    assert [s.name for s in op.saved(torch.randn(5))].count("computed") == 1


def test_invalid_save_option_raises():
    with pytest.raises(pullback.OptionError, match=r'save is "min" or "fast", not True\.'):
        pullback.function(save=True)(torch.sin)


def test_large_gradient_graphs_are_left_to_autograd(native, monkeypatch):
    """The gradient of cumprod has a node for each step, and each order several times as many."""
    made = []
    monkeypatch.setattr(plans, "make_plan", lambda *a: made.append(a) or make_plan(*a))
    monkeypatch.setattr(plans, "_MOST_NODES", 60, raising=False)
    monkeypatch.setattr("pullback.kernels.regions.FEWEST", 1000)  # to avoid compiling

    def third(function):
        x = torch.linspace(0.5, 1.5, 4, dtype=torch.float64).requires_grad_()
        g = function(x).sum()
        for _ in range(3):
            (g,) = torch.autograd.grad(g.sum(), x, create_graph=True)
        return g

    torch.testing.assert_close(third(pullback.function(lambda x: x.cumprod(0))), third(lambda x: x.cumprod(0)))
    assert len(made) == 2

"""Calls in C++ happen only in plain eager mode with a known key; all others run in Python."""

import inspect
import math

import pytest
import torch
from torch.autograd import grad

import pullback
from tests.node._node import both, gate, in_cpp, in_python, is_in_cpp, leaf, wave


def test_dispatch_modes_see_the_ops_of_a_backward(on):
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


def test_changed_captures_are_noticed(on, monkeypatch):
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


def test_changed_closure_default_argument_and_default_dtype_are_noticed(on):
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


@pytest.mark.parametrize(("before", "after"), [(0.0, -0.0), (1, 1.0), (1, True)])
def test_change_to_an_equal_keyword_default_is_noticed(on, before, after):
    def formula(x, *, z=before):
        return torch.exp(x) * (1 / z if z and z is not True else 5.0 if z else math.copysign(1.0, z)) + isinstance(
            z, int
        )

    x = leaf(3)
    op = in_cpp(formula, x)
    assert is_in_cpp(op(x))
    for z in (after, before):
        formula.__kwdefaults__["z"] = z
        for _ in range(3):
            assert torch.equal(op(x), formula(x))


def test_changed_backend_forgotten_plans_and_new_rule_are_noticed(on):
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


def test_calls_with_other_keys_run_in_python(on):
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


def test_modes_transforms_and_tracers_run_in_python(on):
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
    with pytest.warns((DeprecationWarning, FutureWarning), match="jit.trace"):
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


def test_dynamo_compiles_the_formula(on):
    x = leaf(3)
    op = in_cpp(gate, x)
    compiled = torch.compile(lambda t: op(t) * 2, fullgraph=True, backend="aot_eager")
    assert torch.allclose(grad(compiled(x).sum(), x)[0], 2 * grad(gate(x).sum(), x)[0])


def test_compiled_autograd_proxy_call_has_the_expected_signature():
    from torch._dynamo.compiled_autograd import AutogradCompilerInstance

    parameters = inspect.signature(AutogradCompilerInstance.proxy_call).parameters
    assert list(parameters) == ["self", "fn", "args", "output_metadata"]


@pytest.mark.parametrize("fullgraph", [True, False])
def test_compiled_autograd_runs_a_graph_with_cpp_nodes(on, fullgraph):
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
        assert all(torch.allclose(t.grad, g) for t, g in zip(live, grad((right * 2).sum(), (x, y)), strict=True))


def test_capture_changed_before_double_backward_raises(on, monkeypatch):
    x = leaf(3)
    out = in_cpp(lambda x: torch.exp(x * FACTOR), x)(x)
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    with pytest.raises(pullback.DerivativeError, match="has changed between"):
        grad(out.sum(), x, create_graph=True)

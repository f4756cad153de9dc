"""Graphs in kernels of PyTorch's Inductor."""

import warnings

import pytest
import torch

import pullback
from pullback import _torch
from pullback.kernels import backend as backends


def norm(x, w):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


def derivatives(function, x, w):
    y = function(x, w)
    gradients = torch.autograd.grad(y.sin().sum(), (x, w), create_graph=True)
    return y, *gradients, *torch.autograd.grad(sum(g.square().sum() for g in gradients), (x, w))


def test_every_order_is_that_of_the_formula():
    op = pullback.function(backend="inductor")(norm)
    x, w = torch.randn(6, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    for ours, native in zip(derivatives(op, x, w), derivatives(norm, x, w), strict=True):
        torch.testing.assert_close(ours, native)
    with torch.no_grad():
        torch.testing.assert_close(op(x, w), norm(x, w))


def test_other_settings_make_other_kernels(monkeypatch):
    made = []
    compile_graph = _torch.compiled_by_inductor
    monkeypatch.setattr(_torch, "compiled_by_inductor", lambda *given: made.append(1) or compile_graph(*given))
    op = pullback.function(backend="inductor")(lambda x: x.cumsum(0).exp())
    x = torch.randn(4)
    op(x)
    op(x)
    assert len(made) == 1
    torch.use_deterministic_algorithms(True)
    try:
        op(x)
    finally:
        torch.use_deterministic_algorithms(False)
    assert len(made) == 2


def test_what_inductor_cannot_compile_runs_in_pytorchs_kernels(monkeypatch):
    def fails(*_):
        raise ValueError("no lowering\nand much more")

    monkeypatch.setattr(_torch, "compiled_by_inductor", fails)
    monkeypatch.setattr(backends, "_said", set())
    op = pullback.function(backend="inductor")(lambda x: x.exp() * 2)
    x = torch.randn(3, requires_grad=True)
    with pytest.warns(UserWarning, match=r"Inductor cannot compile a graph \(ValueError: no lowering\)\.$"):
        y = op(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (g,) = torch.autograd.grad(op(x.detach().clone().requires_grad_()).sum(), x, allow_unused=True)
    assert g is None
    assert torch.equal(y, x.exp() * 2)


def test_inductor_compiles_a_graph_alone():
    """Relies on `torch._inductor.standalone_compile`: see `pullback/_torch.py`."""
    graph = _torch.trace_ops(lambda x: [x.t(), x + 1], torch.ones(2, 3))
    run = _torch.compiled_by_inductor(graph, [_torch.traced_value(n) for n in graph.graph.find_nodes(op="placeholder")])
    x = torch.randn(2, 3)
    view, result = run(x)
    assert view.data_ptr() == x.data_ptr()
    assert view.stride() == (1, 3)
    assert torch.equal(result, x + 1)

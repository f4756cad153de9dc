"""The autograd node of a call in C++ behaves like any other node."""

import copy
import gc
import io
import os
import pickle
import threading
import weakref

import pytest
import torch
from torch.autograd import grad

import pullback
from tests.node._node import gate, in_cpp, in_python, is_in_cpp, leaf, same, wave


def test_cpp_node_is_an_autograd_node(on):
    x = leaf(3)
    out = in_cpp(gate, x)(x)
    assert isinstance(out.grad_fn, torch.autograd.graph.Node)
    assert torch.autograd.graph.get_gradient_edge(out).node is out.grad_fn
    assert [f.name() for f, _ in out.grad_fn.next_functions] == ["torch::autograd::AccumulateGrad"]
    assert not isinstance(x, torch.autograd.graph.Node)


def test_chain_of_50000_nodes(on):
    x = leaf(2)
    op = in_cpp(gate, x)
    for _ in range(2):  # the second graph is freed without a backward
        out = x
        for _ in range(50_000):
            out = op(out)
        if x.grad is None:
            out.sum().backward()
    assert torch.isfinite(x.grad).all()


def test_input_modified_before_backward_raises(on):
    x, y = leaf(3), leaf(3, seed=1)
    out = in_cpp(wave, x, y)(x, y)
    with torch.no_grad():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_backward_frees_the_graph(on):
    x = leaf(3)
    out = in_cpp(gate, x)(x).sum()
    first = grad(out, x, retain_graph=True)
    assert same(first, grad(out, x))
    with pytest.raises(RuntimeError, match="second time"):
        grad(out, x)


def test_backward_frees_the_inputs(on):
    x = leaf(3)
    op = in_cpp(gate, x)
    middle = x * 2
    gone = weakref.ref(middle)
    out = op(middle)
    del middle
    assert gone() is not None
    out.sum().backward()
    assert gone() is None


def test_saved_tensor_hooks_are_called(on):
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
def test_checkpoint_recomputes_the_op(on, reentrant):
    x = leaf(3)
    op = pullback.function(gate)
    for _ in range(3):  # only the first forward runs in Python
        x.grad = None
        torch.utils.checkpoint.checkpoint(lambda t: op(op(t)), x, use_reentrant=reentrant).sum().backward()
        assert torch.allclose(x.grad, grad(gate(gate(x)).sum(), x)[0])


def test_tensor_and_node_hooks_and_retain_grad(on):
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


def test_in_place_writes_to_an_output_or_its_view(on):
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


def test_output_can_be_copied_pickled_and_saved(on):
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


def test_profiler_and_repr_name_the_op(on):
    x = leaf(3)
    op = in_cpp(gate, x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        out = op(x)
        out.sum().backward()
    names = {event.name for event in profile.events()}
    assert {"gate", "gateBackward"} <= names
    assert "grad_fn=<gateBackward>" in repr(out)


def test_calls_and_backwards_from_several_threads(on):
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


def test_calls_leak_no_memory(on):
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


def test_freed_op_frees_its_table(on):
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
    (first,) = grad(out.sum(), x, create_graph=True)
    assert torch.allclose(grad(first.sum(), x)[0], torch.exp(x) - torch.sin(x) * 2)
    del out, first
    gc.collect()
    assert plans() is None
    assert formula() is None

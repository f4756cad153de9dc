"""The gradient reuses the memory of the cotangent only if nothing else refers to it."""

import numpy as np
import pytest
import torch
from torch.autograd import grad

from tests.node._node import gate, in_cpp, is_in_cpp, leaf, wave

N = 40


@pytest.fixture
def op(on):
    return in_cpp(gate, leaf(N))


def expected(x, g):
    return grad(gate(x), x, g)[0]


def weighted(y, w):
    """A loss whose cotangent of y is w, held by the autograd engine alone."""
    return (y * w).sum()


def allocated(step):
    """Return how many bytes the backward of the node allocates in a step."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
    (node,) = [e for e in seen.events() if e.name == "gateBackward"]
    return node.cpu_memory_usage


def test_gradient_reuses_the_memory_of_the_cotangent(op):
    x, w = leaf(N), leaf(N, seed=1, needs=False)
    y = op(x)
    assert is_in_cpp(y)
    loss, found = weighted(y, w), []
    assert allocated(lambda: found.append(grad(loss, x, retain_graph=True)[0])) == 0
    y.register_hook(lambda g: None)  # a tensor that Python has seen stays
    assert allocated(lambda: found.append(grad(loss, x)[0])) == N * x.element_size()
    for g in found:
        torch.testing.assert_close(g, expected(x, w))


def test_two_gradients_do_not_share_memory(on):
    x, y, w = leaf(N), leaf(N, seed=1), leaf(N, seed=2, needs=False)
    a, b = grad(weighted(in_cpp(wave, x, y)(x, y), w), [x, y])
    assert a.data_ptr() != b.data_ptr()
    for mine, right in zip((a, b), grad(wave(x, y), [x, y], w), strict=True):
        torch.testing.assert_close(mine, right)


def kept_by_a_hook(op, x, w, held):
    y = op(x)
    y.register_hook(lambda g: held.append(g))
    return grad(weighted(y, w), x)[0]


def kept_by_a_hook_of_the_node(op, x, w, held):
    y = op(x)
    y.grad_fn.register_prehook(lambda gs: held.append(gs[0]))
    return grad(weighted(y, w), x)[0]


def seen_after_the_node(op, x, w, held):
    y = op(x)
    y.grad_fn.register_hook(lambda ours, given: held.append(given[0]))
    return grad(weighted(y, w), x)[0]


def retained(op, x, w, held):
    y = op(x)
    y.retain_grad()
    weighted(y, w).backward()
    held.append(y.grad)
    return x.grad


def asked_for(op, x, w, held):
    y = op(x)
    g, of_y = grad(weighted(y, w), [x, y])
    held.append(of_y)
    return g


def shared_with_another_branch(op, x, w, held):
    b = torch.zeros(N, dtype=x.dtype, requires_grad=True)
    weighted(op(x) + b, w).backward()
    held.append(b.grad)
    return x.grad


def viewed(op, x, w, held):
    y = op(x)
    y.register_hook(lambda g: held.append(g.view(2, -1).view(-1)))
    return grad(weighted(y, w), x)[0]


def given_as_it_is(op, x, w, held):
    held.append(w)
    return grad(op(x), x, w)[0]


def of_an_array(op, x, w, held):
    array = w.numpy().copy()
    held.append(torch.from_numpy(array))
    y = op(x)
    y.register_hook(lambda g: torch.from_numpy(array))
    return grad(weighted(y, w), x)[0]


def a_part_of_what_is_held(op, x, w, held):
    whole = torch.cat([w, w])
    held.append(whole[:N])
    y = op(x)
    y.register_hook(lambda g: whole.narrow(0, 0, N))
    return grad(weighted(y, w), x)[0]


WAYS = [
    kept_by_a_hook,
    kept_by_a_hook_of_the_node,
    seen_after_the_node,
    retained,
    asked_for,
    shared_with_another_branch,
    viewed,
    given_as_it_is,
    of_an_array,
    a_part_of_what_is_held,
]


@pytest.mark.parametrize("way", WAYS, ids=lambda f: f.__name__)
def test_cotangent_referenced_elsewhere_is_not_overwritten(op, way):
    x, w, held = leaf(N), leaf(N, seed=1, needs=False), []
    g = way(op, x, w, held)
    assert torch.equal(held[0].detach(), w)
    assert g.data_ptr() != held[0].data_ptr()
    torch.testing.assert_close(g, expected(x, w))


def test_input_as_cotangent_is_not_overwritten(op):
    x = leaf(N)
    before = x.detach().clone()
    (g,) = grad(op(x), x, x.detach())
    assert torch.equal(x.detach(), before)
    torch.testing.assert_close(g, expected(x, before))


def test_backward_passes_over_a_retained_graph_agree(op):
    x, w = leaf(N), leaf(N, seed=1, needs=False)
    loss = weighted(op(x), w)
    for _ in range(3):
        torch.testing.assert_close(grad(loss, x, retain_graph=True)[0], expected(x, w))


def test_numpy_memory_is_not_overwritten(op):
    """Even if no tensor refers to it any more."""
    x, array = leaf(N), np.ones(N)
    y = op(x)
    y.register_hook(lambda g: torch.from_numpy(array))
    grad(y.sum(), x)
    assert (array == 1).all()

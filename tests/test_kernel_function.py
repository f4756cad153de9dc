"""Plain eager mode: kernels inside one autograd node."""

import threading

import pytest
import torch
from torch.autograd import grad

import pullback

D = torch.float64


def leaf(*shape, seed=0):
    return torch.randn(*shape, dtype=D, generator=torch.Generator().manual_seed(seed)).requires_grad_()


def formula(x, y):
    return torch.sin(x) * y.exp() + x * y**2


@pullback.function
def op(x, y):
    return formula(x, y)


def test_formula_is_one_autograd_node():
    out = op(leaf(3), leaf(3))
    assert [f for f, _ in out.grad_fn.next_functions if f is not None and "Accumulate" not in f.name()] == []


def test_values_and_gradients_equal_the_formula_bitwise():
    x, y = leaf(50), leaf(50, seed=1)
    ours, native = op(x, y), formula(x, y)
    assert torch.equal(ours, native)
    assert all(map(torch.equal, grad(ours.sum(), [x, y]), grad(native.sum(), [x, y])))


def test_retained_graph_gives_the_same_gradients():
    x, y = leaf(3), leaf(3, seed=1)
    out = op(x, y).sum()
    first = grad(out, [x, y], retain_graph=True)
    second = grad(out, [x, y], retain_graph=True)
    assert all(map(torch.equal, first, second))
    grad(out, x)
    with pytest.raises(RuntimeError, match="second time"):
        grad(out, x)


def test_gradients_accumulate_over_calls():
    x, y = leaf(3), leaf(3, seed=1)
    for _ in range(2):
        op(x, y).sum().backward()
    assert torch.equal(x.grad, 2 * grad(formula(x, y).sum(), x)[0])


def test_same_tensor_as_both_inputs():
    x = leaf(3)
    for create_graph in (False, True):
        ours = grad(op(x, x).sum(), x, create_graph=create_graph)[0]
        native = grad(formula(x, x).sum(), x, create_graph=create_graph)[0]
        assert torch.allclose(ours, native, rtol=1e-14, atol=0)
    assert torch.allclose(grad(ours.sum(), x)[0], grad(native.sum(), x)[0], rtol=1e-13, atol=0)


@pytest.mark.parametrize("orders", [1, 2, 3])
def test_input_computed_from_another_input(orders):
    x = leaf(3)
    results = []
    for f in (op, formula):
        y = x * x
        out = f(x, y)
        for _ in range(orders):
            (out,) = grad(out.sum(), x, create_graph=True)
        results.append(out)
    assert torch.allclose(*results, rtol=1e-12, atol=0)


def test_nested_calls_of_the_same_op():
    x = leaf(3)
    results = []
    for f in (op, formula):
        (first,) = grad(f(f(x, x), f(x, x.sin())).sum(), x, create_graph=True)
        results.append(grad(first.sum(), x)[0])
    assert torch.allclose(*results, rtol=1e-12, atol=0)


def test_gradients_only_for_inputs_that_require_grad():
    x, y = leaf(3), leaf(3, seed=1).detach()
    assert torch.equal(grad(op(x, y).sum(), x)[0], grad(formula(x, y).sum(), x)[0])
    assert not op(x.detach(), y).requires_grad


def test_input_that_starts_to_require_grad_later():
    x, y = leaf(3), leaf(3, seed=1).detach()
    op(x, y)
    y.requires_grad_()
    assert torch.equal(grad(op(x, y).sum(), y)[0], grad(formula(x, y).sum(), y)[0])


def test_no_grad_and_inference_mode_record_nothing():
    x, y = leaf(3), leaf(3, seed=1)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            out = op(x, y)
        assert not out.requires_grad
        assert torch.equal(out, formula(x, y))


def test_double_backward_differentiates_the_cotangent():
    x, y, g = leaf(3), leaf(3, seed=1), leaf(3, seed=2)
    results = []
    for f in (op, formula):
        (gx,) = grad(f(x, y), x, g, create_graph=True)
        results.append(grad(gx.sum(), [x, y, g]))
    assert all(torch.allclose(a, b, rtol=1e-12, atol=0) for a, b in zip(*results, strict=True))


def test_input_modified_before_backward_raises():
    x, y = leaf(3), leaf(3, seed=1)
    out = op(x, y)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


def test_threads_may_share_an_op():
    x, y = leaf(20), leaf(20, seed=1)
    expected = grad(formula(x, y).sum(), [x, y])
    wrong = []

    def work():
        for _ in range(50):
            if not all(map(torch.equal, grad(op(x, y).sum(), [x, y]), expected)):
                wrong.append(threading.get_ident())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_sparse_cotangent_equals_its_dense_form():
    weight = leaf(6, 2)
    twice = pullback.function(lambda w: w * w)
    index = torch.tensor([1, 3, 3])
    (ours,) = grad(torch.nn.functional.embedding(index, twice(weight), sparse=True).sum(), weight)
    (native,) = grad(torch.nn.functional.embedding(index, weight * weight).sum(), weight)
    assert torch.equal(ours, native)


def test_op_as_method_with_keywords():
    class Layer(torch.nn.Module):
        scale = 2.0

        @pullback.function
        def forward(self, x, *, power=1):
            return (x * self.scale) ** power

    layer, x = Layer(), leaf(3)
    assert torch.equal(layer(x, power=2), (2 * x) ** 2)
    layer.scale = 3.0
    assert torch.allclose(grad(layer(x, power=2).sum(), x)[0], 18 * x, rtol=1e-14)


class Tagged(torch.Tensor):
    """A user's subclass that overrides nothing."""


@pytest.mark.parametrize("backend", ["auto", "eager"])
def test_subclass_cotangent_gives_a_plain_gradient(backend):
    op = pullback.function(backend=backend)(lambda x: torch.sigmoid(x) * x)
    x = torch.randn(6, 8, requires_grad=True)
    for create_graph in (False, True):
        for _ in range(3):
            (g,) = torch.autograd.grad(op(x), x, torch.ones(6, 8).as_subclass(Tagged), create_graph=create_graph)
            assert type(g) is torch.Tensor

"""Gradient modifiers: the value is the input bit for bit, the gradient is the rule's."""

import pytest
import torch
from tests.catalog.reference import DTYPES, bits, extremes

import pullback
from pullback import catalog

MODIFIERS = {
    "reverse": (lambda x: catalog.reverse_grad(x, 0.5), lambda g: -0.5 * g),
    "scale": (lambda x: catalog.scale_grad(x, 3.0), lambda g: 3.0 * g),
    "clip": (lambda x: catalog.clip_grad(x, 0.75), lambda g: g.clamp(-0.75, 0.75)),
}
every = pytest.mark.parametrize("name", MODIFIERS)


@every
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_value_is_the_input_and_gradient_is_the_rules(name, dtype):
    op, rule = MODIFIERS[name]
    x = extremes(dtype).requires_grad_()
    out = op(x)
    assert out.data_ptr() != x.data_ptr()
    assert torch.equal(bits(out.detach()), bits(x.detach()))
    g = torch.linspace(-2, 2, len(x), dtype=dtype)
    assert torch.equal(torch.autograd.grad(out, x, g)[0], rule(g))


def test_scale_grad_of_large_values_does_not_overflow():
    x = torch.tensor([60000.0], dtype=torch.float16, requires_grad=True)
    (g,) = torch.autograd.grad(catalog.scale_grad(x, 1024.0), x)
    assert g.tolist() == [1024.0]


@every
def test_vmap_of_grad_gives_the_rules_gradient(name):
    op, rule = MODIFIERS[name]
    x = torch.tensor([0.5, -2.0, 3.0])
    pulled = torch.func.vmap(torch.func.grad(lambda t: op(t) * t.detach()))(x)
    assert torch.equal(pulled, rule(x))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo itself does
@every
def test_compiled_gradient_is_the_rules(name):
    op, rule = MODIFIERS[name]
    x = torch.tensor([0.5, -2.0, 3.0], requires_grad=True)
    compiled = torch.compile(lambda t: op(t) * 2, backend="aot_eager", fullgraph=True)
    (g,) = torch.autograd.grad(compiled(x).sum(), x)
    assert torch.equal(g, rule(torch.full((3,), 2.0)))


def test_linear_modifiers_have_the_transposed_tangent():
    x, t = torch.tensor([0.5, -2.0]), torch.tensor([1.0, 4.0])
    assert torch.func.jvp(lambda x: catalog.reverse_grad(x, 0.5), (x,), (t,))[1].tolist() == [-0.5, -2.0]
    assert torch.func.jvp(lambda x: catalog.scale_grad(x, 3.0), (x,), (t,))[1].tolist() == [3.0, 12.0]


def test_clip_grad_raises_in_forward_mode():
    x = torch.tensor([0.5, -2.0])
    with pytest.raises(pullback.DerivativeError, match="not linear in the cotangent"):
        torch.func.jvp(lambda x: catalog.clip_grad(x, 1.0), (x,), (x,))


def test_second_derivative_applies_the_modifier_twice():
    x = torch.tensor([2.0], requires_grad=True)
    (g,) = torch.autograd.grad(catalog.reverse_grad(x, 0.5) ** 3, x, create_graph=True)
    assert g.tolist() == [-0.5 * 3 * 4]
    (gg,) = torch.autograd.grad(g, x)
    assert gg.tolist() == [-0.5 * 6 * 2 * -0.5]  # -0.5 · 3 y², and y is again x through the op


def test_stop_grad_copies_and_has_no_gradient_or_tangent():
    x = torch.tensor([0.5, -0.0, torch.inf], requires_grad=True)
    out = catalog.stop_grad(x)
    assert not out.requires_grad
    assert out.data_ptr() != x.data_ptr()
    assert torch.equal(bits(out), bits(x.detach()))
    (g,) = torch.autograd.grad((catalog.stop_grad(x)[:2] * x[:2]).sum(), x)
    assert g.tolist() == [0.5, 0.0, 0.0]
    assert torch.func.jvp(catalog.stop_grad, (x.detach(),), (torch.ones(3),))[1].tolist() == [0.0, 0.0, 0.0]

"""The Functions of a ruled op: which one a call uses, and what it saves."""

import pytest
import torch
from torch.func import grad, vmap

import pullback
from tests.compose.test_compile import compiled

X = torch.tensor([0.5, -1.25], dtype=torch.float64)


def leaf():
    return X.clone().requires_grad_()


@pullback.function
def flipped(x, y):
    return x * y, (x > y).to(torch.int64)


@flipped.vjp
def _(g, out, x, y):
    return -3 * g[0], None


def saved_by(function, *args):
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(tuple(t.shape)) or t, lambda t: t):
        function(*args)
    return kept


def test_eager_mode_and_transforms_use_separate_functions():
    assert type(flipped(leaf(), X)[0].grad_fn).__name__ == "_EagerBackward"
    names = []
    grad(lambda x: names.append(type(flipped(x, X)[0].grad_fn).__name__) or flipped(x, X)[0].sum())(X)
    assert "_Eager" not in names[0]
    with torch.overrides.BaseTorchFunctionMode():
        assert type(flipped(leaf(), X)[0].grad_fn).__name__ == "_TransformableBackward"


def test_call_without_grad_has_no_grad_fn():
    assert flipped(X, X)[0].grad_fn is None
    with torch.no_grad():
        assert flipped(leaf(), X)[0].grad_fn is None


def test_returned_input_gets_the_rules_gradient_and_integers_none():
    @pullback.function
    def same(x):
        return x, x.to(torch.int64)

    @same.vjp
    def _(g, out, x):
        assert g[1] is None
        return 5 * g[0]

    x = leaf()
    out, whole = same(x)
    assert not whole.requires_grad
    assert torch.autograd.grad(out.sum(), x)[0].tolist() == [5, 5]


def test_inputs_unused_by_the_rule_are_not_saved():
    assert saved_by(flipped, leaf(), X) == []

    @pullback.function
    def reads(x, y):
        return x * y

    @reads.vjp
    def _(g, out, x, y):
        return g * y, None

    assert saved_by(reads, leaf(), X) == [(2,)]


@pytest.mark.parametrize("transform", [lambda f: grad(lambda t: f(t).sum()), vmap], ids=["grad", "vmap"])
def test_export_of_a_transform_raises(transform):
    class Module(torch.nn.Module):
        def forward(self, x):
            return transform(lambda t: flipped(t * 1, t)[0])(x)

    with pytest.raises(Exception, match=r"would be lost: torch\.compile and torch\.export record no rule"):
        torch.export.export(Module(), (X,), strict=False)


def test_replaced_defaults_apply_to_the_next_call():
    def scaled(x, factor=2.0):
        return x * factor

    op = pullback.function(scaled)
    op.vjp(lambda g, out, x, factor: (g * factor, None))
    x = torch.ones(2, requires_grad=True)
    for factor in (2.0, 5.0, -0.0):
        scaled.__defaults__ = (factor,)
        out = op(x)
        assert out.tolist() == scaled(x).tolist()
        assert torch.autograd.grad(out.sum(), x)[0].tolist() == [factor, factor]


def pulled(f):
    x = leaf()
    out = f(x)
    return out.detach(), torch.autograd.grad(out.sum(), x)[0]


RETURNED = {"the input": lambda x: x, "a view": lambda x: x.view(-1), "an alias": lambda x: x.detach()}
WORLDS = {
    "eager": lambda f: pulled(f),
    "no grad": lambda f: (f(X), None),
    "vjp": lambda f: (torch.func.vjp(f, X)[0], None),
    "jvp": lambda f: torch.func.jvp(f, (X,), (torch.ones_like(X),)),
    "vmap": lambda f: (torch.func.vmap(lambda x: f(x[None])[0])(X), None),
    "compile": lambda f: pulled(compiled(f)),
}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("returned", RETURNED)
def test_write_to_the_result_does_not_change_the_input(returned, world):
    @pullback.function
    def reversing(x):
        return RETURNED[returned](x)

    @reversing.vjp(linear=True)
    def _(g, out, x):
        return -g

    def f(x):
        before = x * 1
        after = reversing(before)
        after.mul_(2)
        return before + after

    value, derivative = WORLDS[world](f)
    assert torch.equal(value, 3 * X)
    assert derivative is None or torch.equal(derivative, torch.full_like(X, -1))

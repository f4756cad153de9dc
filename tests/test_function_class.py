"""`pullback.AutogradFunction` in place of `torch.autograd.Function`."""

import pytest
import torch
from torch.func import grad, jvp, vmap
from torch.utils.checkpoint import checkpoint

import pullback


class Sine(pullback.AutogradFunction):
    """Old style, only a forward."""

    @staticmethod
    def forward(ctx, x, scale=2.0):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x.sin() * scale


class NewSine(pullback.AutogradFunction):
    """New style, only a forward."""

    @staticmethod
    def forward(x, scale=2.0):
        return x.sin() * scale


class Minus3(pullback.AutogradFunction):
    """New style, with a backward that differs from autodiff's."""

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return -3 * g


class OldMinus3(pullback.AutogradFunction):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return -3 * g


class NumpyCube(pullback.AutogradFunction):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(x.detach().numpy() ** 3)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * torch.from_numpy(3 * x.detach().numpy() ** 2)


class OnceCube(NumpyCube):
    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g * x**2


class SavedIntermediate(pullback.AutogradFunction):
    @staticmethod
    def forward(ctx, x):
        e = torch.exp(-x * x)
        ctx.save_for_backward(x, e)
        return e * 1

    @staticmethod
    def backward(ctx, g):
        x, e = ctx.saved_tensors
        return -2 * x * e * g


X = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64)


def leaf():
    return X.clone().requires_grad_()


def compiled(function):
    torch._dynamo.reset()
    return torch.compile(function, backend="aot_eager", fullgraph=True)


@pytest.mark.parametrize("function", [Sine, NewSine])
def test_forward_without_backward_is_derived(function):
    x = leaf()
    (g,) = torch.autograd.grad(function.apply(x).sum(), x, create_graph=True)
    (gg,) = torch.autograd.grad(g.sum(), x)
    torch.testing.assert_close(g.detach(), 2 * X.cos())
    torch.testing.assert_close(gg, -2 * X.sin())
    torch.testing.assert_close(grad(lambda t: function.apply(t, 3.0).sum())(X), 3 * X.cos())
    torch.testing.assert_close(jvp(function.apply, (X,), (X,))[1], 2 * X * X.cos())
    torch.testing.assert_close(vmap(grad(function.apply))(X), 2 * X.cos())
    torch.testing.assert_close(compiled(grad(lambda t: function.apply(t).sum()))(X), 2 * X.cos())


@pytest.mark.parametrize("function", [Minus3, OldMinus3])
def test_defined_backward_is_used(function):
    x = leaf()
    (g,) = torch.autograd.grad(function.apply(x).sum(), x)
    assert g.tolist() == [-3, -3, -3]
    (g,) = torch.autograd.grad(compiled(function.apply)(x).sum(), x)
    assert g.tolist() == [-3, -3, -3]


def test_new_style_class_supports_vmap():
    assert grad(lambda t: Minus3.apply(t).sum())(X).tolist() == [-3, -3, -3]
    assert vmap(grad(Minus3.apply))(X).tolist() == [-3, -3, -3]


@pytest.mark.parametrize("function", [Minus3, OldMinus3, NumpyCube, OnceCube])
def test_compiled_transform_that_loses_the_backward_raises(function):
    with pytest.raises(Exception, match="would be lost"):
        compiled(grad(lambda t: function.apply(t).sum()))(X)


@pytest.mark.parametrize("function", [Minus3, OldMinus3])
def test_compiled_transform_of_a_computed_input_raises_or_is_right(function):
    def second(t):
        return grad(lambda u: grad(lambda v: (function.apply(v.sin()) ** 2).sum())(u).sum())(t)

    with pytest.raises(Exception, match="would be lost"):
        compiled(second)(X)
    if function is Minus3:  # `torch.func` itself rejects the old style
        torch._dynamo.reset()
        assert torch.equal(torch.compile(second, backend="aot_eager")(X), second(X))  # after a graph break


@pytest.mark.parametrize("function", [Minus3, OldMinus3])
def test_export_under_vmap_raises(function):
    class Model(torch.nn.Module):
        def forward(self, x):
            return vmap(function.apply)(x)

    with pytest.raises(pullback.DerivativeError, match="would be lost"):
        torch.export.export(Model(), (X,), strict=False)


@pytest.mark.parametrize("function", [Minus3, OldMinus3])
def test_double_backward_of_a_compiled_call_raises(function):
    x = leaf()
    torch._dynamo.reset()
    y = torch.compile(lambda t: function.apply(t.sin()), backend="eager", fullgraph=True)(x)
    with pytest.raises(pullback.DerivativeError, match="cannot be differentiated again"):
        torch.autograd.grad(y.sum(), x, create_graph=True)
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], -3 * X.cos())


@pytest.mark.parametrize("function", [Minus3, OldMinus3])
def test_training_an_exported_program_raises(function):
    class Model(torch.nn.Module):
        def forward(self, x):
            return function.apply(x)

    exported = torch.export.export(Model(), (X,)).module()
    assert torch.equal(exported(X), X)
    with pytest.raises(pullback.DerivativeError, match="would be lost"):
        exported(leaf())


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("function", [Minus3, OldMinus3])
def test_export_of_a_trainable_model_raises(function, strict):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones((), dtype=torch.float64))

        def forward(self, x):
            return function.apply(x * self.scale)

    with pytest.raises(Exception, match="would be lost"):
        torch.export.export(Model(), (X,), strict=strict)
    with torch.no_grad():
        assert torch.equal(torch.export.export(Model(), (X,), strict=strict).module()(X), X)


@pytest.mark.parametrize("function", [Minus3, OldMinus3])
def test_symbolic_trace_records_one_op(function):
    x = leaf()
    traced = torch.fx.symbolic_trace(lambda x: function.apply(x * 1))
    (g,) = torch.autograd.grad(traced(x).sum(), x)
    assert g.tolist() == [-3, -3, -3]


@pytest.mark.parametrize("function", [NumpyCube, OnceCube, SavedIntermediate])
def test_hidden_dependence_raises_in_second_order(function):
    x = leaf()
    (g,) = torch.autograd.grad(function.apply(x).sum(), x, create_graph=True)
    with pytest.raises((pullback.DerivativeError, RuntimeError), match=r"no derivative itself|once_differentiable"):
        g.sum().backward()
    with pytest.raises((pullback.DerivativeError, RuntimeError), match=r"no derivative itself|once_differentiable"):
        torch.autograd.functional.hessian(lambda t: function.apply(t).sum(), X)


@pytest.mark.parametrize("twice", [lambda f: grad(grad(f)), lambda f: torch.func.jacrev(torch.func.jacrev(f))])
def test_once_differentiable_raises_in_second_order_under_transforms(twice):
    """PyTorch silently returns 0 there."""

    class Once(pullback.AutogradFunction):
        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g):
            return g * 3 * ctx.saved_tensors[0] ** 2

    assert torch.equal(vmap(grad(Once.apply))(X), 3 * X**2)
    with pytest.raises(pullback.DerivativeError, match="Once"):
        twice(Once.apply)(X[0])
    with pytest.raises(pullback.DerivativeError, match="Once"):
        vmap(twice(Once.apply))(X)


def test_write_to_an_input_raises():
    class Doubled(pullback.AutogradFunction):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2)

    with pytest.raises(pullback.FormulaError, match="does not write"):
        Doubled.apply(leaf() * 1)


@pytest.mark.parametrize(
    "reading",
    [
        lambda x: x.sin() if x.sum() > 0 else x,
        lambda x: x * x.max().item(),
        lambda x: torch.from_numpy(x.detach().numpy() ** 2),
    ],
    ids=["a branch", "item", "numpy"],
)
def test_forward_that_reads_values_raises_in_either_style(reading):
    class New(pullback.AutogradFunction):
        @staticmethod
        def forward(x):
            return reading(x)

    class Old(pullback.AutogradFunction):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.shape = x.shape
            return reading(x)

    for cls in (New, Old):
        with pytest.raises(pullback.FormulaError, match=rf"{cls.__name__} needs the value .*or a `backward`"):
            cls.apply(leaf())


def test_forward_may_read_needs_input_grad():
    class Asking(pullback.AutogradFunction):
        @staticmethod
        def forward(ctx, x, y):
            return x * y if ctx.needs_input_grad[1] else x * y * 2

    x, y = leaf(), leaf()
    assert torch.equal(Asking.apply(x, y), x * y)
    assert torch.equal(Asking.apply(x, y.detach()), 2 * x * y)
    assert torch.equal(Asking.apply(x, y), x * y)


def test_attributes_of_ctx_belong_to_one_call():
    class Scaled(pullback.AutogradFunction):
        @staticmethod
        def forward(ctx, x, k):
            ctx.k = k + 1
            ctx.save_for_backward(x)
            return x.sin() * ctx.k

    x = leaf()
    for k in (1, 2.5, 1):
        (gradient,) = torch.autograd.grad(Scaled.apply(x, k).sum(), x)
        assert torch.allclose(gradient, x.cos() * (k + 1))


def test_non_differentiable_outputs_stay_so():
    class WithArgmax(pullback.AutogradFunction):
        @staticmethod
        def forward(ctx, x):
            y, weight = x * x, x.exp()
            ctx.mark_non_differentiable(weight)
            return y, weight

    y, weight = WithArgmax.apply(leaf())
    assert y.requires_grad
    assert not weight.requires_grad


def test_apply_of_the_base_class_raises():
    with pytest.raises(pullback.FormulaError, match="has no `forward`"):
        pullback.AutogradFunction.apply(X)


def test_jvp_of_jvp_differentiates_the_jvp():
    class Cubic(pullback.AutogradFunction):
        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            (ctx.x,) = inputs
            ctx.save_for_forward(*inputs)

        @staticmethod
        def jvp(ctx, t):
            (x,) = ctx.saved_tensors
            return t * 3 * ctx.x * x

    x = torch.tensor([0.5, -1.25], dtype=torch.float64)
    ones = torch.ones_like(x)

    def first(x):
        return torch.func.jvp(Cubic.apply, (x,), (ones,))[1]

    assert torch.equal(first(x), 3 * x * x)
    assert torch.equal(torch.func.jvp(first, (x,), (ones,))[1], 6 * x)


def test_ctx_may_have_another_name():
    class Named(pullback.AutogradFunction):
        @staticmethod
        def forward(context, x):
            return x * x

    class Defined(pullback.AutogradFunction):
        @staticmethod
        def forward(whatever, x):
            return x * x

        @staticmethod
        def backward(whatever, g):
            return -3 * g

    (g,) = torch.autograd.grad(Named.apply(x := leaf()).sum(), x)
    assert torch.equal(g, 2 * X)
    (g,) = torch.autograd.grad(Defined.apply(x := leaf()).sum(), x)
    assert g.tolist() == [-3, -3, -3]


def test_keyword_arguments_of_apply():
    class Times(pullback.AutogradFunction):
        @staticmethod
        def forward(ctx, x, k=2.0):
            ctx.k = k
            return x * k

        @staticmethod
        def backward(ctx, g):
            return g * ctx.k, None

    assert torch.autograd.grad(Times.apply(x := leaf(), k=3.0).sum(), x)[0].tolist() == [3, 3, 3]


def test_methods_may_be_classmethods():
    class Scaled(pullback.AutogradFunction):
        slope = -3.0

        @classmethod
        def forward(cls, x):
            return x.clone()

        @classmethod
        def setup_context(cls, ctx, inputs, output):
            ctx.factor = cls.slope

        @classmethod
        def backward(cls, ctx, g):
            return cls.slope * g

        @classmethod
        def jvp(cls, ctx, t):
            return ctx.factor * t

    assert torch.autograd.grad(Scaled.apply(x := leaf()).sum(), x)[0].tolist() == [-3, -3, -3]
    assert grad(lambda t: Scaled.apply(t).sum())(X).tolist() == [-3, -3, -3]
    assert vmap(grad(Scaled.apply))(X).tolist() == [-3, -3, -3]
    assert jvp(Scaled.apply, (X,), (torch.ones_like(X),))[1].tolist() == [-3, -3, -3]


@pytest.mark.parametrize("kept", [lambda x: [x], lambda x: {"x": (x, 1)}])
def test_jvp_may_read_tensors_in_containers_on_ctx(kept):
    class Square(pullback.AutogradFunction):
        @staticmethod
        def forward(x):
            return x * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.kept = kept(inputs[0])

        @staticmethod
        def jvp(ctx, t):
            (x, *_) = ctx.kept if isinstance(ctx.kept, list) else ctx.kept["x"]
            return 2 * x * t

    def first(x):
        return jvp(Square.apply, (x,), (torch.ones_like(x),))[1]

    assert torch.equal(first(X), 2 * X)
    assert torch.equal(jvp(first, (X,), (torch.ones_like(X),))[1], 2 * torch.ones_like(X))


def test_saved_tensors_are_unpacked_once():
    class Norm(pullback.AutogradFunction):
        @staticmethod
        def forward(ctx, x):
            r = torch.rsqrt(x.pow(2).mean(-1, keepdim=True))
            ctx.save_for_backward(x, r)
            return x * r

        @staticmethod
        def backward(ctx, g):
            x, r = ctx.saved_tensors
            return r * (g - x * r**2 * (g * x).mean(-1, keepdim=True))

    x = leaf()
    (native,) = torch.autograd.grad((x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)) * X).sum(), x)
    for create_graph in (False, True):
        out = checkpoint(Norm.apply, x, use_reentrant=False)
        (g,) = torch.autograd.grad((out * X).sum(), x, create_graph=create_graph)
        assert torch.allclose(g, native)
    freed = []  # as hooks do that store tensors on disk
    with torch.autograd.graph.saved_tensors_hooks(lambda t: [t], lambda kept: freed.append(0) or kept.pop()):
        out = Norm.apply(x)
    assert torch.allclose(torch.autograd.grad((out * X).sum(), x)[0], native)
    assert freed

"""Double backward through rules that leave PyTorch, or through opaque residuals, always raises."""

import numpy as np
import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jvp, vmap
from torch.utils.flop_counter import FlopCounterMode

import pullback
from tests.compose.test_transforms import summed

X = torch.tensor([0.5, -1.25, 2.0], dtype=torch.float64)
ONES = torch.ones_like(X)


@pullback.function
def through_numpy(x):
    return torch.from_numpy(np.sin(x.detach().numpy()))


@through_numpy.vjp
def _(g, out, x):
    return torch.from_numpy(g.detach().numpy() * np.cos(x.detach().numpy()))


@pullback.function(residuals=True)
def with_residual(x):
    return x.sin(), x.cos() * torch.ones(()).item()  # through a Python number, which autograd cannot follow


@with_residual.vjp
def _(g, out, cosine, x):
    return g * cosine


OPS = pytest.mark.parametrize("op", [through_numpy, with_residual], ids=lambda op: op.__name__)


def leaf():
    return X.clone().requires_grad_()


def create_graph(op):
    x = leaf()
    (g,) = torch.autograd.grad(op(x).sum(), x, create_graph=True)
    return torch.autograd.grad(g.sum(), x)


def create_graph_beside_another_way(op):
    """The sine gives a gradient too, so that the engine would not notice a missing one."""
    x = leaf()
    (g,) = torch.autograd.grad((op(x) + x.sin()).sum(), x, create_graph=True)
    return torch.autograd.grad(g.sum(), x)


def backward_create_graph(op):
    x = leaf()
    op(x).backward(ONES, create_graph=True)  # a cotangent that does not require grad
    g, x.grad = x.grad, None
    return torch.autograd.grad(g.sum() + x.sum(), x)


def batched(op):
    x = leaf()
    (rows,) = torch.autograd.grad(op(x), x, torch.eye(3, dtype=x.dtype), is_grads_batched=True, create_graph=True)
    return torch.autograd.grad(rows.sum(), x)


def forward_over_reverse(op):
    with forward_ad.dual_level():
        x = forward_ad.make_dual(leaf(), ONES)
        return torch.autograd.grad(op(x).sum(), x, create_graph=True)


WAYS = [
    create_graph,
    create_graph_beside_another_way,
    backward_create_graph,
    batched,
    forward_over_reverse,
    lambda op: hessian(summed(op))(X),
    lambda op: grad(summed(grad(summed(op))))(X),
    lambda op: jvp(grad(summed(op)), (X,), (ONES,)),
    lambda op: jvp(lambda x: jvp(op, (x,), (ONES,))[1], (X,), (ONES,)),
    lambda op: create_graph(grad(summed(op))),
    lambda op: torch.autograd.functional.hessian(lambda x: op(x).sum(), X),
    lambda op: torch.autograd.functional.hessian(lambda x: op(x).sum(), X, vectorize=True),
    lambda op: torch.autograd.gradgradcheck(op, leaf()),
]


@OPS
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph=True")
def test_second_derivative_raises(op, way):
    with pytest.raises(pullback.DerivativeError, match=op.__name__):
        way(op)


@OPS
def test_first_derivative_with_create_graph_is_right(op):
    x = leaf()
    (g,) = torch.autograd.grad(op(x).sum(), x, create_graph=True)
    assert torch.allclose(g, X.cos(), rtol=1e-15)


def test_first_derivative_with_opaque_residuals_is_right_under_transforms():
    assert torch.equal(grad(summed(with_residual))(X), X.cos())
    assert torch.equal(vmap(grad(with_residual))(X), X.cos())
    assert torch.equal(jvp(with_residual, (X,), (ONES,))[1], X.cos())


def test_numpy_formula_raises_under_transforms():
    for transform in (grad(summed(through_numpy)), vmap(through_numpy)):
        with pytest.raises(pullback.DerivativeError, match="outside of the transform"):
            transform(X)


def test_integer_residuals_allow_double_backward():
    @pullback.function(residuals=True)
    def largest(x):
        values, indices = x.max(-1)
        return values, indices

    @largest.vjp
    def _(g, out, indices, x):
        return torch.zeros_like(x).scatter(-1, indices.unsqueeze(-1), g.unsqueeze(-1)) * x.square() / out.square()

    x = leaf()
    (g,) = torch.autograd.grad(largest(x), x, create_graph=True)
    (h,) = torch.autograd.grad(
        g.sum(), x
    )  # g = x²/out²; its derivative 2x/out² − 2x²/out³ is 0 at the maximum, where x = out
    assert torch.equal(h, torch.zeros_like(x))


def slope_of_numpy(x):
    return torch.from_numpy(3 * x.detach().numpy() ** 2)


def slope_of_items(x):
    return torch.tensor([3 * v**2 for v in x.detach().tolist()])


def cube_by_rule(slope):
    return pullback.function(lambda x: x**3).vjp(lambda g, out, x: g * slope(x))


def cube_by_class(slope):
    class Cube(pullback.AutogradFunction):
        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            return g * slope(ctx.saved_tensors[0])

    return Cube.apply


AT = torch.tensor([1.0, 2.0])


@pytest.mark.parametrize("cube", [cube_by_rule, cube_by_class])
@pytest.mark.parametrize("slope", [slope_of_numpy, slope_of_items])
@pytest.mark.parametrize(
    "around",
    [lambda: torch.autocast("cpu"), lambda: FlopCounterMode(display=False), forward_ad.dual_level],
    ids=["autocast", "a dispatch mode", "a dual level"],
)
def test_double_backward_through_numpy_raises_in_every_mode(around, slope, cube):
    op, x = cube(slope), AT.clone().requires_grad_()
    with around():
        (g,) = torch.autograd.grad((op(x) * x).sum(), x, create_graph=True)
    assert torch.equal(g, 4 * AT**3)
    with pytest.raises(pullback.DerivativeError, match="has no derivative itself"):
        torch.autograd.grad(g.sum(), x)


@pytest.mark.parametrize("cube", [cube_by_rule, cube_by_class])
def test_double_backward_through_item_raises_under_transforms(cube):
    op = cube(lambda x: 3 * x.item() ** 2)

    def f(x):
        return op(x) * x

    x = torch.tensor(2.0)
    assert torch.func.grad(f)(x) == 32
    for twice in (torch.func.grad(torch.func.grad(f)), torch.func.jacrev(torch.func.jacrev(f))):
        with pytest.raises(pullback.DerivativeError, match="has no derivative itself"):
            twice(x)


def test_differentiating_a_numpy_jvp_raises():
    op = pullback.function(lambda x: x**3)
    op.vjp(lambda g, out, x: g * slope_of_numpy(x)).jvp(lambda t, out, x: t[0] * slope_of_numpy(x))
    with forward_ad.dual_level():
        assert torch.equal(forward_ad.unpack_dual(op(forward_ad.make_dual(AT, torch.ones(2)))).tangent, 3 * AT**2)
    with forward_ad.dual_level():
        x = forward_ad.make_dual(AT.clone().requires_grad_(), torch.ones(2))
        value = (op(x) * x).sum()
        with pytest.raises(pullback.DerivativeError, match="has no derivative itself"):
            torch.autograd.grad(value, x)
    with forward_ad.dual_level():
        x = AT.clone().requires_grad_()
        tangent = forward_ad.unpack_dual(op(forward_ad.make_dual(x, torch.ones(2))) * x).tangent
        with pytest.raises(pullback.DerivativeError, match="has no derivative itself"):
            torch.autograd.grad(tangent.sum(), x)


@pullback.function
def straight_through(x):
    return x.round()


@straight_through.vjp
def _(g, out, x):
    return g


class StraightThrough(pullback.AutogradFunction):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, g):
        return g


@pytest.mark.parametrize("op", [straight_through, StraightThrough.apply], ids=["rule", "class"])
def test_rule_returning_its_cotangent_is_differentiable(op):
    x, v = leaf(), ONES.clone().requires_grad_()
    (g,) = torch.autograd.grad(op(x), x, v, create_graph=True)
    assert torch.equal(torch.autograd.grad(g, v, X)[0], X)  # the tangent, by two backwards
    eye = torch.eye(len(X), dtype=X.dtype)
    assert torch.equal(torch.autograd.grad(op(x), x, eye, is_grads_batched=True, create_graph=True)[0], eye)
    (g,) = torch.autograd.grad(op(x), x, ONES, create_graph=True)
    assert not g.requires_grad


def test_rule_returning_its_cotangent_is_differentiable_under_a_dual_level():
    hessian = torch.autograd.functional.hessian(
        lambda x: straight_through(x).sum(), X, vectorize=True, outer_jacobian_strategy="forward-mode"
    )
    assert torch.equal(hessian, torch.zeros(3, 3, dtype=X.dtype))

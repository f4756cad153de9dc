"""Captured tensors of a ruled op get no gradient from its rule: the call raises if they need one."""

import pytest
import torch
from torch.autograd import forward_ad

import pullback
from pullback import DerivativeError

REFUSED = "is not an argument: its rule gives gradients to arguments alone"


def reading(w, residuals=False, by="vjp"):
    """Return an op that multiplies by the captured tensor `w`."""

    @pullback.function(residuals=residuals)
    def scaled(x):
        return (x * w, w) if residuals else x * w

    if by == "vjp":
        return scaled.vjp(lambda g, out, *rest: g * w.detach())
    return scaled.jvp(lambda tangents, out, *rest: tangents[0] * w.detach())


def x(requires_grad=True):
    return torch.ones(3, requires_grad=requires_grad)


def w(requires_grad=True):
    return torch.full((3,), 2.0, requires_grad=requires_grad)


@pytest.mark.parametrize("by", ["vjp", "jvp"])
@pytest.mark.parametrize("residuals", [False, True])
@pytest.mark.parametrize("moves", [False, True], ids=["a constant argument", "an argument that requires grad"])
def test_captured_leaf_raises_by_name(moves, residuals, by):
    with pytest.raises(DerivativeError, match=rf"scaled depends on a tensor of shape \(3,\) \(w\) .*{REFUSED}"):
        reading(w(), residuals, by)(x(moves))


def test_captured_module_parameter_raises():
    linear = torch.nn.Linear(3, 2)
    op = pullback.function(lambda x: linear(x)).vjp(lambda g, out, x: g @ linear.weight.detach())
    with pytest.raises(DerivativeError, match=rf"depends on a tensor of shape \((2, 3|2,)\) .*{REFUSED}"):
        op(x())


def test_captured_intermediate_raises():
    with pytest.raises(DerivativeError, match=REFUSED):
        reading(w() * 2)(x())


@pytest.mark.parametrize(
    "transformed",
    [
        lambda: torch.func.grad(lambda w: reading(w)(x(False)).sum())(w(False)),
        lambda: torch.func.grad(lambda x, w: reading(w)(x).sum())(x(False), w()),
        lambda: torch.func.jvp(lambda w: reading(w)(x(False)), (w(False),), (w(False),)),
        lambda: torch.func.jvp(lambda x, w: reading(w)(x), (x(False), w(False)), (w(False), w(False))),
        lambda: torch.func.jacrev(lambda w: reading(w)(x(False)))(w(False)),
        lambda: torch.func.vmap(torch.func.grad(lambda w: reading(w)(x(False)).sum()))(torch.ones(2, 3)),
        lambda: torch.func.grad(lambda w: torch.func.vmap(lambda x: reading(w)(x))(torch.ones(2, 3)).sum())(w(False)),
        lambda: torch.func.grad(lambda w: torch.func.grad(lambda x: reading(w)(x).sum())(x(False)).sum())(w(False)),
        lambda: torch.func.vmap(lambda x: reading(w())(x))(torch.ones(2, 3)),
    ],
)
def test_captured_tensor_raises_under_transforms(transformed):
    with pytest.raises(DerivativeError, match=REFUSED):
        transformed()


def test_captured_dual_tensor_raises():
    with forward_ad.dual_level(), pytest.raises(DerivativeError, match=REFUSED):
        reading(forward_ad.make_dual(w(False), torch.ones(3)))(x(False))


def test_captured_dual_tensor_raises_under_vmap():
    with forward_ad.dual_level(), pytest.raises(DerivativeError, match=REFUSED):
        torch.vmap(reading(forward_ad.make_dual(w(False), torch.ones(3))))(torch.ones(2, 3))


@pytest.mark.parametrize("by", ["vjp", "jvp"])
def test_captured_constant_is_allowed(by):
    op = reading(w(False), by=by)
    (gradient,) = torch.autograd.grad(op(leaf := x()).sum(), leaf)
    assert torch.equal(gradient, w(False))
    assert torch.equal(torch.func.grad(lambda x: op(x).sum())(x(False)), w(False))
    assert torch.equal(torch.func.vmap(op)(torch.ones(2, 3)), torch.full((2, 3), 2.0))
    with forward_ad.dual_level():
        dual = op(forward_ad.make_dual(x(False), torch.ones(3)))
        assert torch.equal(forward_ad.unpack_dual(dual).tangent, w(False))


def test_captured_detached_tensor_is_allowed():
    at = w()
    op = pullback.function(lambda x: x * at.detach() + at.data).vjp(lambda g, out, x: g * at.detach())
    (gradient,) = torch.autograd.grad(op(leaf := x()).sum(), leaf)
    assert torch.equal(gradient, at.detach())
    assert torch.equal(torch.func.grad(lambda x: op(x).sum())(x(False)), at.detach())


def test_captured_tensor_is_allowed_without_grad():
    op = reading(w())
    with torch.no_grad():
        assert torch.equal(op(x()), w(False))
        assert torch.equal(torch.func.vmap(op)(torch.ones(2, 3)), torch.full((2, 3), 2.0))
        assert torch.equal(torch.compile(lambda x: op(x), backend="eager", fullgraph=True)(x()), w(False))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_captured_tensor_raises_under_compile(backend):
    op = reading(w())
    with pytest.raises(Exception, match=REFUSED):
        torch.compile(lambda x: op(x), backend=backend, fullgraph=True)(x())


def multiplied(x):
    x.mul_(2)
    return x * 3


def put(x):
    x[0] = 1.0
    return x * 3


def filled(x):
    torch.mul(x, 2, out=x)
    return x * 3


@pytest.mark.parametrize("formula", [multiplied, put, filled])
def test_compiled_formula_that_writes_to_an_input_raises(formula):
    op = pullback.function(formula).vjp(lambda g, out, x: g * 3)
    with pytest.raises(Exception, match="writes in place to an input"):
        torch.compile(lambda x: op(x * 1), backend="eager", fullgraph=True)(x())


def test_capture_check_neither_draws_nor_writes():
    scale, seen = torch.full((3,), 2.0), torch.zeros(3)

    def formula(x):
        seen.add_(x)
        return x * torch.rand_like(x) * scale

    op, results = pullback.function(formula).vjp(lambda g, out, x: g), []
    for call in (op, torch.compile(lambda x: op(x), backend="eager", fullgraph=True)):
        torch.manual_seed(0)
        seen.zero_()
        results.append([call(x()).detach(), torch.rand(1), seen.clone()])
    assert all(map(torch.equal, *results))


def test_residual_of_a_captured_tensor_has_no_grad_fn():
    at = w()

    @pullback.function(residuals=True)
    def op(x):
        return x * 2, at * 3

    op.vjp(lambda g, out, saved, x: g * 2 if saved.grad_fn is None else None)
    (gradient,) = torch.autograd.grad(op(leaf := x()).sum(), leaf)
    assert torch.equal(gradient, torch.full((3,), 2.0))


@pytest.mark.parametrize(
    ("of", "argument"),
    [
        (lambda m, x: m(x), lambda layer: layer),
        (lambda m, x: m(x), lambda layer: lambda x: x @ layer.weight.t()),
        (lambda m, x: m[0](x), lambda layer: [layer]),
        (lambda m, x: m.weight @ x, lambda layer: layer),
    ],
    ids=["a module", "a function", "a list", "an attribute"],
)
def test_parameter_reached_through_an_argument_raises(of, argument):
    layer = torch.nn.Linear(3, 3)
    op = pullback.function(of).vjp(lambda g, out, m, x: (None, g @ layer.weight.detach()))
    with pytest.raises(DerivativeError, match=REFUSED):
        op(argument(layer), x())


class Tracking(torch.nn.Module):
    """A module whose op reads a parameter only to update a buffer, as a Function may."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(w(False))
        self.register_buffer("mean", torch.ones(()))
        self.register_buffer("scratch", torch.ones(3))

    @pullback.function
    def act(self, x):
        self.mean.mul_(0.9).add_(self.w.norm(), alpha=0.1)
        torch.mul(self.w, 2.0, out=self.scratch)
        self.w.numpy()
        return x.round()

    act.vjp(lambda g, out, module, x: (None, g))


def test_buffer_updated_from_a_parameter_has_no_grad_fn():
    module = Tracking()
    for _ in range(2):
        (gradient,) = torch.autograd.grad((module.act(x() * module.w) * module.mean).sum(), module.w)
        assert torch.equal(gradient, module.mean.expand(3))
        assert not module.mean.requires_grad
        assert not module.scratch.requires_grad


def test_formula_may_differentiate_internally():
    def force(x):
        return torch.func.grad(lambda z: (z**4).sum())(x)

    def leaf_of_its_own(x):
        with torch.enable_grad():
            z = x.detach().requires_grad_()
            return torch.autograd.grad((z**4).sum(), z, create_graph=True)[0]

    at = torch.tensor([1.0, 2.0])
    for formula in (force, leaf_of_its_own):
        op = pullback.function(formula).vjp(lambda g, out, x: g * 12 * x**2)
        assert torch.equal(torch.autograd.grad(op(leaf := at.clone().requires_grad_()).sum(), leaf)[0], 12 * at**2)
        with torch.autocast("cpu"):
            assert torch.equal(op(at), 4 * at**3)
    assert torch.equal(
        torch.vmap(pullback.function(force).vjp(lambda g, out, x: g))(at.expand(2, 2)), (4 * at**3).expand(2, 2)
    )
    op = pullback.function(force).vjp(lambda g, out, x: g * 12 * x**2)
    assert torch.equal(torch.func.grad(lambda x: op(x).sum())(at), 12 * at**2)


def test_metadata_of_a_captured_tensor_may_be_read():
    def like(w):
        def formula(x):
            y = x.to(w.dtype) + torch.zeros(w.shape, dtype=w.dtype) + torch.ones_like(w) + x.to(w).expand_as(w)
            return torch.where(x > w, y, -y)

        return pullback.function(formula).vjp(lambda g, out, x: g)

    assert torch.equal(like(w())(x()), torch.full((3,), -3.0))
    assert torch.equal(torch.func.grad(lambda w: like(w)(x(False)).sum())(w(False)), torch.zeros(3))


def test_write_to_a_differentiated_input_raises():
    op = pullback.function(lambda x: x.mul_(2))
    op.vjp(lambda g, out, x: 2 * g)
    x = torch.ones(2, requires_grad=True)
    for given in (x, x * 1):
        with pytest.raises(DerivativeError, match="writes in place to an input of shape"):
            op(given)
    assert op(torch.ones(2)).tolist() == [2, 2]


def test_write_to_a_differentiated_input_raises_under_transforms():
    def counting(x, n):
        n += 1
        return 2 * x

    def writing(x, n):
        return x.mul_(2)

    def under(op, transform):
        n = torch.zeros(())
        transform(lambda x: op(x * 1, n).sum(), torch.ones(2))
        return n.item()

    func = torch.func
    transforms = [
        lambda f, x: func.grad(f)(x),
        lambda f, x: func.jvp(f, (x,), (x,)),
        lambda f, x: func.hessian(f)(x),
        lambda f, x: func.grad(lambda x: func.vmap(f)(x[None]).sum())(x),
        lambda f, x: func.jvp(lambda y: func.jvp(lambda z: f(y) * z.sum(), (x,), (x,))[1], (x,), (x,)),
    ]
    for formula in (counting, writing):
        op = pullback.function(formula)
        op.vjp(lambda g, out, x, n: (2 * g, None))
        for transform in transforms:
            if formula is counting:
                assert under(op, transform) >= 1
            else:
                with pytest.raises(DerivativeError, match="writes in place to an input of shape"):
                    under(op, transform)

"""The jet: the value bit for bit, and the given derivatives."""

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vmap

from pullback import _torch
from pullback.graph.trace import simplify
from pullback.stable.jet import first_order, jet
from tests.test_relaxed import BITS, points, same_bits

DTYPES = pytest.mark.parametrize("dtype", BITS, ids=lambda dtype: str(dtype).removeprefix("torch."))


def second_order(value, slope, curvature):
    return jet(value, {(0,): slope, (0, 0): curvature})


cubed_apart = second_order(lambda x: x * 1, lambda x: 3 * x * x, lambda x: 6 * x)
"""The value x with the derivatives of x³, so that a lost derivative shows."""
root = second_order(lambda x: x.sqrt(), lambda x: 0.5 / x.sqrt(), lambda x: -0.25 / (x * x.sqrt()))
steeper = second_order(lambda x: x * x.sqrt(), lambda x: 1.5 * x.sqrt(), lambda x: 0.75 / x.sqrt())


def reverse(f, x):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(f(x).sum(), x, create_graph=True)[0]


def forward(f, x):
    return jvp(f, (x,), (torch.ones_like(x),))[1]


def dual(f, x):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, torch.ones_like(x)))).tangent


def functional(f, x):
    return grad(lambda t: f(t).sum())(x)


def twice_recorded(f, x):
    x = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
    return torch.autograd.grad(g.sum(), x)[0]


FIRST = {"reverse": reverse, "forward": forward, "dual": dual, "functional": functional}
SECOND = {
    "recorded twice": twice_recorded,
    "forward over functional": lambda f, x: forward(lambda t: functional(f, t), x),
    "forward over forward": lambda f, x: forward(lambda t: forward(f, t), x),
    "functional over forward": lambda f, x: functional(lambda t: forward(f, t), x),
    "functional over functional": lambda f, x: functional(lambda t: functional(f, t), x),
    "dual over functional": lambda f, x: dual(lambda t: functional(f, t), x),
    "hessian of one at a time": lambda f, x: vmap(hessian(f))(x),
    "reverse of forward": lambda f, x: vmap(jacrev(jacfwd(f)))(x),
}


@DTYPES
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("order", [1, 2])
def test_jet_value_is_exact(dtype, requires_grad, order):
    """Also where derivatives are infinite or NaN."""

    def value(x):
        return x * torch.where(x > 1, -1, 1)

    def slope(x):
        return 1 / x - 1 / (x - 1.5)

    f = first_order(value, [slope]) if order == 1 else second_order(value, slope, lambda x: slope(x) * float("nan"))
    x = points(dtype)
    assert same_bits(f(x.clone().requires_grad_(requires_grad)).detach(), value(x))


@DTYPES
def test_jet_value_is_exact_in_transforms(dtype):
    x = points(dtype)
    for way in (vmap(root), lambda x: torch.func.vjp(root, x)[0], lambda x: jvp(root, (x,), (x,))[0]):
        assert same_bits(way(x), x.sqrt())


@pytest.mark.parametrize("mode", FIRST)
@DTYPES
def test_first_derivative_is_the_given_one(mode, dtype):
    x = points(dtype)
    x = x[x.isfinite() & (3 * x * x).isfinite()]
    assert torch.equal(FIRST[mode](cubed_apart, x).detach(), 3 * x * x)


@pytest.mark.parametrize("mode", SECOND)
@DTYPES
def test_second_derivative_is_the_given_one(mode, dtype):
    x = torch.tensor([0.0, -0.0, 0.5, -1.25, 3.0, 100.0], dtype=dtype)
    assert torch.equal(SECOND[mode](cubed_apart, x), 6 * x)


@pytest.mark.parametrize("mode", FIRST)
def test_infinite_first_derivative_does_not_spread(mode):
    x = torch.tensor([0.0, 1.0, 4.0])
    assert FIRST[mode](root, x).tolist() == [float("inf"), 0.5, 0.25]
    assert FIRST[mode](lambda t: -root(t), x).tolist() == [float("-inf"), -0.5, -0.25]


@pytest.mark.parametrize("mode", SECOND)
def test_infinite_second_derivative_does_not_spread(mode):
    x = torch.tensor([0.0, 1.0, 4.0])
    assert SECOND[mode](root, x).tolist() == [float("-inf"), -0.25, -0.03125]
    assert SECOND[mode](steeper, x).tolist() == [float("inf"), 0.75, 0.375]


@pytest.mark.parametrize("mode", FIRST)
def test_infinite_second_derivative_does_not_affect_the_first(mode):
    assert FIRST[mode](steeper, torch.tensor([0.0, 1.0, 4.0])).tolist() == [0.0, 1.5, 3.0]


@pytest.mark.parametrize("mode", FIRST)
def test_nan_does_not_spread(mode):
    x = torch.tensor([float("nan"), 2.0])
    assert FIRST[mode](cubed_apart, x)[0].isnan()
    assert FIRST[mode](cubed_apart, x)[1] == 12
    nowhere = second_order(lambda x: x * 1, lambda x: torch.where(x > 1, torch.nan, x), lambda x: x)
    g = FIRST[mode](nowhere, torch.tensor([0.5, 2.0]))
    assert g[0] == 0.5
    assert g[1].isnan()


softplus = second_order(torch.nn.functional.softplus, torch.sigmoid, lambda x: torch.sigmoid(x) * torch.sigmoid(-x))
cosine = second_order(torch.cos, lambda x: -torch.sin(x), lambda x: -torch.cos(x))


@pytest.mark.parametrize("mode", FIRST)
def test_first_derivative_at_infinity_is_the_given_one(mode):
    x = torch.tensor([float("inf"), float("-inf"), 2.0])
    assert FIRST[mode](cubed_apart, x).tolist() == [float("inf"), float("inf"), 12]
    assert FIRST[mode](softplus, x)[:2].tolist() == [1, 0]
    assert FIRST[mode](lambda t: -softplus(-t), x)[:2].tolist() == [0, 1]


@pytest.mark.parametrize("mode", SECOND)
def test_second_derivative_at_infinity_is_zero(mode):
    x = torch.tensor([float("inf"), float("-inf"), 0.0])
    assert SECOND[mode](softplus, x).tolist() == [0, 0, 0.25]


@pytest.mark.parametrize("mode", FIRST)
def test_derivative_without_limit_at_infinity_is_nan(mode):
    x = torch.tensor([float("inf"), float("-inf"), 0.5])
    found = FIRST[mode](cosine, x)
    assert found[:2].isnan().all()
    assert found[2] == -torch.sin(x[2])


@pytest.mark.parametrize("other", [2.0, -3.0])
def test_infinite_input_does_not_affect_the_other_derivatives(other):
    """Of softplus(x) y."""
    f = jet(
        lambda x, y: torch.nn.functional.softplus(x) * y,
        {
            (0,): lambda x, y: torch.sigmoid(x) * y,
            (1,): lambda x, y: torch.nn.functional.softplus(x) + 0 * y,
            (0, 0): lambda x, y: torch.sigmoid(x) * torch.sigmoid(-x) * y,
            (0, 1): lambda x, y: torch.sigmoid(x) + 0 * y,
            (1, 1): lambda x, y: 0 * y,
        },
    )
    inf = float("inf")
    x, y = torch.tensor([inf, -inf]), torch.tensor([other, other])
    assert f(x, y).tolist() == [inf * other, 0]
    assert grad(lambda x, y: f(x, y).sum(), 0)(x, y).tolist() == [other, 0]
    assert grad(lambda x, y: f(x, y).sum(), 1)(x, y).tolist() == [inf, 0]
    assert vmap(grad(grad(f, 1), 0))(x, y).tolist() == [1, 0]
    assert vmap(grad(grad(f, 0), 1))(x, y).tolist() == [1, 0]
    assert jvp(lambda x: f(x, y), (x,), (torch.ones(2),))[1].tolist() == [other, 0]


def recorded(f, x, n):
    x = x.clone().requires_grad_()
    out = f(x)
    for _ in range(n):
        (out,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    return out.detach()


def nested(derivative):
    def of_order(f, x, n):
        return f(x) if n == 0 else derivative(lambda t: of_order(f, t, n - 1), x)

    return of_order


ORDERS = {"recorded": recorded, "functional": nested(functional), "forward": nested(forward)}


@pytest.mark.parametrize("mode", ORDERS)
@DTYPES
@pytest.mark.few(2)
def test_jet_carries_four_orders_and_raises_beyond(mode, dtype):
    """The value x with the derivatives of x⁴ + x."""
    factors = [lambda x: 4 * x**3 + 1, lambda x: 12 * x * x, lambda x: 24 * x, lambda x: 24 + 0 * x]
    f = jet(lambda x: x * 1, {(0,) * n: factor for n, factor in enumerate(factors, 1)})
    x = torch.tensor([0.0, 0.5, -2.0], dtype=dtype)
    for n, factor in enumerate(factors, 1):
        assert torch.equal(ORDERS[mode](f, x, n), factor(x))
    with pytest.raises(RuntimeError, match="polygamma"):
        ORDERS[mode](f, x, 5)


@pytest.mark.parametrize("mode", ORDERS)
def test_non_finite_third_derivative_is_nan_and_does_not_spread(mode):
    f = jet(lambda x: x * 1, {(0,): lambda x: 2 * x, (0, 0): lambda x: 2 + 0 * x, (0, 0, 0): lambda x: 1 / x})
    x = torch.tensor([0.0, 4.0])
    assert ORDERS[mode](f, x, 1).tolist() == [0, 8]
    assert ORDERS[mode](f, x, 2).tolist() == [2, 2]
    third = ORDERS[mode](f, x, 3)
    assert third[0].isnan()
    assert third[1] == 0.25


product = jet(
    lambda x, y: x - y,
    {
        (0,): lambda x, y: 2 * x * y,
        (1,): lambda x, y: x * x + 0 * y,
        (0, 0): lambda x, y: 2 * y + 0 * x,
        (0, 1): lambda x, y: 2 * x + 0 * y,
        (1, 1): lambda x, y: 0 * x * y,
    },
)
"""The value x − y with the derivatives of x² y."""


@pytest.mark.parametrize(
    "shapes", [((3,), (3,)), ((), (3,)), ((1,), (3,)), ((3, 1), (1, 2)), ((2, 3), ()), ((0,), (1,)), ((1, 1), (4,))]
)
def test_jet_broadcasts_its_inputs(shapes):
    x, y = (torch.randn(shape) for shape in shapes)
    assert torch.equal(product(x, y), x - y)
    ours = grad(lambda x, y: product(x, y).sum(), (0, 1))(x, y)
    right = grad(lambda x, y: (x * x * y).sum(), (0, 1))(x, y)
    for a, b in zip(ours, right, strict=True):
        torch.testing.assert_close(a, b)
    for argnums in (0, 1):
        cross = hessian(lambda x, y: product(x, y).sum(), (argnums, 1 - argnums))(x, y)
        expected = hessian(lambda x, y: (x * x * y).sum(), (argnums, 1 - argnums))(x, y)
        torch.testing.assert_close(cross, expected)


def test_jet_of_inputs_without_grad():
    x, y = torch.randn(3, requires_grad=True), torch.randn(3)
    assert torch.equal(torch.autograd.grad(product(x, y).sum(), x)[0], 2 * x.detach() * y)
    assert not product(x.detach(), y).requires_grad


def test_same_tensor_as_both_inputs():
    x = torch.tensor([0.5, -2.0])
    torch.testing.assert_close(grad(lambda t: product(t, t).sum())(x), 3 * x * x)
    torch.testing.assert_close(vmap(hessian(lambda t: product(t, t)))(x), 6 * x)


def test_infinite_mixed_derivative_is_infinite():
    mixed = jet(
        lambda x, y: x * y,
        {
            (0,): lambda x, y: y + 0 * x,
            (1,): lambda x, y: x + 0 * y,
            (0, 0): lambda x, y: 0 * x,
            (0, 1): lambda x, y: 1 / (x * y),
            (1, 1): lambda x, y: 0 * x,
        },
    )
    zero, one = torch.tensor(0.0), torch.tensor(1.0)
    assert grad(mixed, (0, 1))(zero, one) == (1, 0)
    assert grad(grad(mixed, 0), 1)(zero, one) == float("inf")
    assert grad(grad(mixed, 0), 1)(one, one) == 1


def test_value_of_one_input_has_the_shape_of_all():
    """Its slope, of the shape of all, would otherwise be summed over elements that the value does not have."""
    f = first_order(
        lambda x, y: -2 * y, [lambda x, y: torch.zeros_like(x + y), lambda x, y: -2 * torch.ones_like(x + y)]
    )
    for shape in ((), (1,), (3,)):
        y = torch.randn(shape, requires_grad=True)
        out = f(torch.randn(3), y)
        assert out.shape == (3,)
        assert torch.equal(torch.autograd.grad(out.sum(), y)[0], torch.full(shape, -6.0 if shape != (3,) else -2.0))


def test_graph_of_a_first_derivative_is_the_slope():
    """The graphs of second derivatives are made so: what a jet adds for infinite inputs would be in their kernels."""
    f = first_order(lambda x, y: x.sin() * y, [lambda x, y: x.cos() * y, lambda x, y: x.sin()])

    def gradient(x, y, g):
        x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
        return torch.autograd.grad(f(x, y), (x, y), g)

    graph = _torch.trace_ops(gradient, *torch.randn(3, 4)).graph
    simplify(graph)
    targets = sorted(str(node.target) for node in graph.nodes if node.op == "call_function")
    assert targets == ["aten.cos.default", *["aten.mul.Tensor"] * 3, "aten.sin.default"]

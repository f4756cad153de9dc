"""Formulas in place of operators whose rules are wrong in a nesting: their values, and their derivatives to order 3."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

import pullback
from pullback.nesting import Replacing, table
from pullback.nesting.table import ROWS, derivative
from pullback.plan import InlinePlan

pytestmark = pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated")
NESTINGS = ("f", "r", "ff", "fr", "rf", "rr", "fff", "ffr", "frf", "frr", "rff", "rfr", "rrf", "rrr")
NAMES = [row.names[0] for row in ROWS]
HAS = {name: table.found(name) is not None for name in NAMES}
STEP, REACH = 2.0**-6, 5


def numeric(function, order):
    """The derivative of the polynomial through eleven values around 0."""
    at = np.arange(-REACH, REACH + 1)
    values = [float(function(torch.tensor(k * STEP, dtype=torch.float64))) for k in at]
    middle = np.polynomial.polynomial.Polynomial(np.linalg.solve(np.vander(at, increasing=True).astype(float), values))
    return middle.deriv(order)(0) / STEP**order


@pytest.mark.parametrize("row", [pytest.param(row, id=row.names[0]) for row in ROWS if HAS[row.names[0]]])
def test_every_nesting_of_a_formula_is_the_numeric_derivative_of_the_operator(row):
    operator = table.found(row.names[0])
    expected = [numeric(lambda t: row.sample(operator, t), order) for order in (1, 2, 3)]
    for modes in NESTINGS:
        found = derivative(lambda t: row.sample(row.formula, t), modes)
        assert found == pytest.approx(expected[len(modes) - 1], rel=1e-5, abs=1e-5), modes


def eager_derivatives(function, order):
    """Derivatives at 0 by eager reverse mode, the last one without a graph."""
    t = torch.zeros((), dtype=torch.float64, requires_grad=True)
    y = function(t)
    for k in range(order):
        y = torch.autograd.grad(y, t, create_graph=k < order - 1)[0] if y.requires_grad else torch.zeros(())
    return float(y)


AS_IT_STANDS = {"nn.functional.poisson_nll_loss", "scatter_reduce", "nn.functional.linear_cross_entropy"}
"""Samples that write in place, or close over a tensor, so that an op computes them as PyTorch does in eager mode."""


@pytest.mark.parametrize("backend", ["eager", "auto"])
@pytest.mark.parametrize("row", [pytest.param(row, id=row.names[0]) for row in ROWS if HAS[row.names[0]]])
def test_an_op_is_right_in_eager_reverse_mode_to_third_order(row, backend):
    sample, operator = row.sample, table.found(row.names[0])
    op = pullback.function(lambda t: sample(operator, t), backend=backend)
    eager_derivatives(op, 1)
    if any(isinstance(plan, InlinePlan) for plan in op._handler.plans.plans.values()):
        assert row.names[0] in AS_IT_STANDS
        return
    for order in (1, 2, 3):
        expected = numeric(lambda t: sample(operator, t), order)
        assert eager_derivatives(op, order) == pytest.approx(expected, rel=1e-5, abs=1e-5), order


def test_first_two_orders_of_an_op_are_right_as_they_are_and_stay_so_bit_for_bit(monkeypatch):
    f = lambda x: torch.nn.functional.layer_norm(x, (5,)).sin()  # noqa: E731
    x = torch.randn(3, 5, requires_grad=True)

    def both():
        (first,) = torch.autograd.grad(pullback.function(f)(x).square().sum(), x, create_graph=True)
        return first, torch.autograd.grad(first.square().sum(), x)[0]

    mended = both()
    monkeypatch.setattr("pullback.nesting.is_wrong", lambda number, order: False)
    monkeypatch.setattr("pullback.kernel_function.is_wrong", lambda number, order: False)
    assert all(map(torch.equal, mended, both()))


OPERATORS = {
    "nn.functional.layer_norm", "native_layer_norm", "nn.functional.batch_norm", "native_batch_norm",
    "nn.functional.instance_norm", "cumprod", "prod",
    "linalg.vander", "logaddexp", "logaddexp2", "logcumsumexp", "pow", "__rpow__", "float_power", "ldexp", "sinc",
    "special.i1", "polar", "logit", "nn.functional.poisson_nll_loss", "linalg.solve", "linalg.tensorsolve",
    "linalg.det", "linalg.slogdet", "logdet", "linalg.householder_product", "cholesky_inverse", "cholesky_solve",
    "triangular_solve", "scatter_reduce", "as_strided_scatter", "nn.functional.linear_cross_entropy",
}  # fmt: skip
ENTRIES = {
    f"{e.name}.{e.variant_test_name}" if e.variant_test_name else e.name: e for e in op_db if e.name in OPERATORS
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.complex128])
@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_formula_has_the_value_of_the_operator(name, dtype, monkeypatch):
    entry = ENTRIES[name]
    if dtype not in entry.supported_backward_dtypes("cpu"):
        return
    warnings.simplefilter("ignore")
    monkeypatch.setattr("pullback.nesting.is_wrong", lambda number, order: True)
    torch.manual_seed(0)
    compared = 0
    for sample in entry.sample_inputs("cpu", dtype, requires_grad=False):
        arguments = (sample.input, *sample.args)
        copies = [a.clone() if isinstance(a, torch.Tensor) else a for a in arguments]
        expected = entry.op(*copies, **sample.kwargs)
        with Replacing():
            found = entry.op(*arguments, **sample.kwargs)
        torch.testing.assert_close(found, expected, equal_nan=True)
        compared += 1
    assert compared


def forward(f):
    return lambda x: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1]


def test_operators_of_a_model_are_replaced():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Tanh()).double()
    inputs = torch.randn(2, 3, dtype=torch.float64)

    def energy(x):
        return model(x).square().sum()

    expected = torch.autograd.functional.hessian(energy, inputs)  # reverse over reverse, which is right
    found = torch.func.jacfwd(torch.func.jacfwd(pullback.nestable(energy)))(inputs)
    torch.testing.assert_close(found, expected)
    native = torch.func.jacfwd(torch.func.jacfwd(energy))(inputs)
    assert not torch.allclose(native, expected)  # else the row goes by itself, and this test


@pytest.mark.parametrize("write", [lambda x: x.cumprod_(0), lambda x: x.pow_(2), lambda x: x.sinc_()])
def test_method_in_place_is_replaced(write):
    def f(t):
        x = torch.stack([2 + t, t, 3 + t]).clone()
        return write(x).sum()

    zero = torch.zeros((), dtype=torch.float64)
    expected = numeric(f, 2)
    assert float(forward(forward(pullback.nestable(f)))(zero)) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_products_that_are_scattered_refuse_forward_mode():
    index = torch.tensor([0, 0])

    def f(t):
        return torch.ones(1, dtype=t.dtype).scatter_reduce(0, index, torch.stack([2 + t, 3 + t]), "prod")[0]

    zero = torch.zeros((), dtype=torch.float64)
    assert float(torch.func.grad(pullback.nestable(f))(zero)) == 5
    with pytest.raises(pullback.DerivativeError, match="no forward mode"):
        forward(pullback.nestable(f))(zero)


def test_operator_that_pytorch_has_mended_is_left_alone(monkeypatch):
    mended = table.Row(("exp",), lambda x: x.exp(), lambda op, t: op(t))
    wrong = table.Row(("exp",), lambda x: x.exp() + x**3, lambda op, t: op(t))
    assert not any(map(mended.is_wrong_in, table.NESTINGS))
    assert list(filter(wrong.is_wrong_in, table.NESTINGS)) == ["fff", "ffr", "rff", "rrr"]
    monkeypatch.setattr(table, "ROWS", (mended, wrong))
    assert [table.is_wrong(number, order) for number in (0, 1) for order in (2, 3, None)] == [False] * 4 + [True] * 2


def _energy(x, weight):
    return torch.layer_norm(x, (3,), weight).square().sum()


@pytest.mark.parametrize("op", [pullback.function(_energy), pullback.function(derivative_of=_energy)(_energy)])
def test_an_op_replaces_what_its_levels_need(op):
    x, weight = torch.randn(2, 3, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    native = torch.autograd.functional.hessian(lambda x: torch.layer_norm(x, (3,), weight).square().sum(), x)
    torch.testing.assert_close(torch.func.jacfwd(torch.func.jacfwd(op))(x, weight), native)
    torch.testing.assert_close(torch.func.jacrev(torch.func.jacfwd(op))(x, weight), native)
    by_native = torch.func.grad(lambda x: torch.layer_norm(x, (3,), weight).square().sum())(x)
    assert torch.equal(torch.func.grad(op)(x, weight), by_native)  # of first order: the same operators


@pytest.mark.parametrize(
    "taken", [torch.func.hessian, lambda f, argnums: torch.func.jacrev(torch.func.jacrev(f, argnums), argnums)]
)
@pytest.mark.parametrize("of", [pullback.nestable, pullback.function])
def test_second_derivatives_by_weight_and_input(of, taken):
    def f(x, weight):
        return torch.layer_norm(x, (3,), weight).exp().sum()

    given = torch.randn(2, 3, dtype=torch.float64), torch.rand(3, dtype=torch.float64)
    expected = torch.autograd.functional.hessian(f, given)
    found = taken(of(f), argnums=(0, 1))(*given)
    for row, right in zip(found, expected, strict=True):
        torch.testing.assert_close(list(row), list(right))


def test_gradients_of_samples_that_are_differentiated_again():
    op = pullback.function(lambda x, weight: torch.layer_norm(x, (3,), weight).exp().sum())
    x, weight = torch.randn(2, 1, 3, dtype=torch.float64), torch.rand(3, dtype=torch.float64)

    def total(gradients):
        return torch.stack(list(gradients)).square().sum()

    by_vmap, by_loop = (x.clone().requires_grad_() for _ in range(2))
    of_weight = torch.func.grad(op, argnums=1)
    total(torch.func.vmap(of_weight, in_dims=(0, None))(by_vmap, weight)).backward()
    weights = [weight.clone().requires_grad_() for _ in x]
    losses = [torch.layer_norm(x, (3,), w).exp().sum() for x, w in zip(by_loop, weights, strict=True)]
    total(torch.autograd.grad(sum(losses), weights, create_graph=True)).backward()
    torch.testing.assert_close(by_vmap.grad, by_loop.grad)


def test_dual_numbers_need_no_probe(monkeypatch):
    monkeypatch.setattr(table, "ROWS", (table.Row(("exp",), torch.exp, lambda op, t: op(t)),))
    with torch.autograd.forward_ad.dual_level():
        assert table.is_wrong(0, None)
    assert not table.is_wrong(0, None)


def test_weights_train_through_a_tangent():
    op = pullback.function(lambda x, weight: torch.layer_norm(x @ weight, (3,)).sin().sum())
    x, v = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    weight = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    _, tangent = torch.func.jvp(lambda x: op(x, weight), (x,), (v,))
    (found,) = torch.autograd.grad(tangent, weight)
    moved = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(torch.layer_norm(moved @ weight, (3,)).sin().sum(), moved, create_graph=True)
    (expected,) = torch.autograd.grad((slope * v).sum(), weight)  # reverse over reverse, which is right
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("of", [lambda f: pullback.nestable(f), lambda f: pullback.function(f)])
def test_compiled_nesting(of):
    def energy(x):
        return torch.layer_norm(x, (3,)).exp().sum()

    x, v = torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    wrapped = of(energy)

    def curvature(x):
        return torch.func.jvp(lambda y: torch.func.jvp(wrapped, (y,), (v,))[1], (x,), (v,))[1]

    found = torch.compile(curvature, backend="aot_eager", fullgraph=True)(x)
    hessian = torch.autograd.functional.hessian(energy, x)
    torch.testing.assert_close(found, torch.einsum("ij,ijkl,kl", v, hessian, v))


def test_values_that_are_no_numbers_are_those_of_the_operator():
    inf = math.inf
    a = torch.tensor([-inf, -inf, inf, 1.0, math.nan, 0.0])
    b = torch.tensor([-inf, 2.0, 1.0, inf, 1.0, 0.0])
    with Replacing():
        torch.testing.assert_close(
            torch.logaddexp(a, b), torch.maximum(a, b) + torch.tensor([0, 0, 0, 0, 0, math.log(2)]), equal_nan=True
        )
        assert torch.arange(4).cumprod(0).dtype == torch.int64
        assert torch.empty(0).prod() == 1
        assert torch.empty(0, 2).cumprod(0).shape == (0, 2)

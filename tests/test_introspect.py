"""`op.graph`, `op.saved` and `op.explain`."""

import inspect

import pytest
import torch

import pullback
from pullback.introspect import input_names


@pullback.function
def gate(x, scale=1.0):
    return torch.sigmoid(x) * torch.rsqrt(1 + torch.exp(x)) * scale


@pullback.function(derivative_of=lambda x: torch.clamp(x, -1, 1))
def round_ste(x):
    return torch.round(x)


@pullback.function
def clip_grad(x, bound: float):
    return x.clone()


@clip_grad.vjp(linear=False)
def _(g, out, x, bound):
    return g.clamp(-bound, bound), None


X = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64)
G, H = torch.ones_like(X), torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)


def test_graphs_of_every_order_compute_the_derivative():
    def vjp(x, g):
        return torch.func.vjp(gate.__wrapped__, x)[1](g)[0]

    assert torch.equal(gate.graph(X, order=0)(X)[0], gate.__wrapped__(X))
    torch.testing.assert_close(gate.graph(X, order=1)(X, G)[0], vjp(X, G))
    for ours, native in zip(gate.graph(X, order=2)(X, G, H), torch.func.vjp(vjp, X, G)[1](H), strict=True):
        torch.testing.assert_close(ours, native)


def test_graph_without_arguments_uses_the_first_call():
    @pullback.function
    def cube(x):
        return x**3

    with pytest.raises(pullback.OptionError, match="not been called"):
        cube.graph()
    cube(X)
    assert cube.graph(order=1)(X, G)[0].tolist() == (3 * X**2).tolist()


def test_saved_lists_tensors_and_which_are_alive_anyway():
    saved = gate.saved(X)
    assert [s.name for s in saved if s.alive] == ["x"]
    assert sum(s.bytes for s in saved if not s.alive) == 4 * X.nbytes or len(saved) > 1
    assert clip_grad.saved(X, 0.5) == []


def test_explain_shows_derivative_saved_tensors_and_domain():
    page = gate.explain(X)
    for part in ("torch.sigmoid(x)", "sigmoid(x)", "Saved for backward", "Kinks: none.", "rsqrt: its argument"):
        assert part in page
    assert "inside one autograd node" in page
    assert "clamp at its bounds" in round_ste.explain(X)
    assert "given by a rule" in clip_grad.explain(X, 0.5)


def test_graph_of_a_rule_raises():
    with pytest.raises(pullback.OptionError, match="is a rule"):
        clip_grad.graph(X, 0.5, order=1)


def test_explain_says_why_a_call_runs_inline():
    class Scale:
        factor = 2.0

    holder = Scale()

    @pullback.function
    def scaled(x):
        return x * holder.factor

    assert "may change between calls" in scaled.explain(X)


def test_input_names_spell_out_containers():
    def total(first, *rest, weights):
        return first + sum(rest) + weights["w"]

    names = input_names(inspect.signature(total), (X, X, X), {"weights": {"w": X}})
    assert names == ["first", "rest", "rest", "weights['w']"]


def test_repr_names_kind_and_signature():
    assert repr(gate) == "<pullback.function gate(x, scale=1.0): derived>"
    assert "relaxed" in repr(round_ste)
    assert "ruled" in repr(clip_grad)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 2, bias=False, dtype=torch.float64)

    @pullback.function
    def act(self, x):
        return self.inner(x).exp()

    @pullback.function
    def forward(self, x):
        return self.inner(x).exp()


@pytest.mark.parametrize("explain", [lambda m: m.act.explain(X), lambda m: m.forward.explain(m, X)])
def test_parameters_are_named_as_in_the_module(explain):
    page = explain(Layer())
    assert "self.inner.weight" in page
    assert "_param_constant" not in page
    assert "self.inner.weight: float64 [3, 2], 48 bytes, kept by the caller" in page


def test_introspection_of_a_bound_op():
    layer = Layer()
    assert [s.name for s in layer.act.saved(X)] == [s.name for s in Layer.act.saved(layer, X)]
    assert torch.equal(layer.act.graph(X)(X)[0], layer(X))


def test_captured_tensors_have_their_names():
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
    assert "mul(g, weight)" in pullback.function(lambda x: x * weight).explain(X)


def test_explain_shows_vjp_and_jvp():
    op = pullback.function(lambda x: x.clone())

    @op.vjp
    def _(g, out, x):
        return -3 * g

    @op.jvp
    def _(tangents, out, x):
        return -3 * tangents[0]

    page = op.explain(X)
    assert "return -3 * g" in page
    assert "return -3 * tangents[0]" in page


def test_explain_of_an_untraceable_formula_has_no_derivative():
    seen = {}

    @pullback.function
    def chosen(x):
        seen["n"] = 1
        return x.sin() if x.sum() > 0 else x.cos()

    page = chosen.explain(torch.ones(3, requires_grad=True))
    assert "Derivative (vjp), of the formula: PyTorch's, of which no graph can be made." in page
    assert "Runs op by op" in page

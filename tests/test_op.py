"""Ops made by `pullback.function`, in plain eager mode."""

import copy
import inspect

import pytest
import torch

import pullback


@pullback.function
def gate(x):
    return torch.sigmoid(x) * torch.rsqrt(1 + torch.exp(x))


@pullback.function(derivative_of=lambda x: x)
def round_ste(x):
    return torch.round(x)


@pullback.function
def clip_grad(x, bound: float):
    return x.clone()


@clip_grad.vjp
def _(g, out, x, bound):
    return g.clamp(-bound, bound), None


def leaf(*shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(*shape, dtype=dtype, generator=generator).requires_grad_()


def test_derived_orders_equal_autograd_bitwise():
    x = leaf(5)
    ours, native = gate(x), torch.sigmoid(x) * torch.rsqrt(1 + torch.exp(x))
    for _ in range(4):
        assert torch.equal(ours, native)
        (ours,) = torch.autograd.grad(ours.sum(), x, create_graph=True)
        (native,) = torch.autograd.grad(native.sum(), x, create_graph=True)


def test_relaxed_op_has_the_hard_value_and_the_soft_derivative():
    x = torch.tensor([-0.3, -0.0, 0.5, 3e38, torch.inf], requires_grad=True)
    y = round_ste(x)
    assert torch.equal(y.view(torch.int32), torch.round(x).view(torch.int32))
    (g,) = torch.autograd.grad(y.sum(), x)
    assert g.tolist() == [1, 1, 1, 1, 0]  # zero where the relaxation is not finite


def test_ruled_op_has_the_rules_gradient():
    x = leaf(3)
    (g,) = torch.autograd.grad((clip_grad(x, 0.5) * 3).sum(), x)
    assert g.tolist() == [0.5, 0.5, 0.5]


def test_nonlinear_rule_raises_in_forward_mode():
    x = leaf(3).detach()
    with pytest.raises(pullback.DerivativeError, match="linear in the cotangent"):
        torch.func.jvp(lambda t: clip_grad(t, 0.5), (x,), (x,))


def test_changed_closure_variable_is_noticed():
    scale = 2.0

    @pullback.function
    def scaled(x):
        return x * scale

    x = leaf(3)
    assert torch.equal(scaled(x), 2 * x)
    scale = 5.0
    assert torch.equal(scaled(x), 5 * x)


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3,), 2.0, dtype=torch.float64))
        self.power = 2
        self.bound = 0.5

    @pullback.function
    def forward(self, x):
        return self.weight * x**self.power

    @pullback.function
    def clip(self, x):
        return x.clone()

    @clip.vjp(linear=False)
    def _(g, out, self, x):  # noqa: N805 - a rule takes the inputs last
        return None, g.clamp(-self.bound, self.bound)


def test_decorated_methods_read_the_current_state_of_self():
    module, x = Scaled(), leaf(3)
    gx, gw = torch.autograd.grad(module(x).sum(), [x, module.weight])
    assert torch.equal(gx, 4 * x)
    assert torch.equal(gw, x * x)
    module.power = 3
    (gx,) = torch.autograd.grad(module(x).sum(), x)
    torch.testing.assert_close(gx, 6 * x * x)
    (gx,) = torch.autograd.grad((3 * module.clip(x)).sum(), x)
    assert gx.tolist() == [0.5, 0.5, 0.5]


def test_nested_arguments_and_results():
    @pullback.function
    def mixed(pair, name=None, *, options, scale=1.0):
        x, y = pair
        return {"sum": x * scale + y, "parts": [x * y, (y * 2,)], "name": name, "n": len(options)}

    x, y = leaf(3), leaf(3).detach().exp().requires_grad_()
    out = mixed((x, y), "pair", options={"a": 1, "b": None}, scale=3.0)
    assert out["name"] == "pair"
    assert out["n"] == 2
    total = out["sum"].sum() + out["parts"][0].sum() + out["parts"][1][0].sum()
    gx, gy = torch.autograd.grad(total, [x, y])
    torch.testing.assert_close(gx, 3 + y)
    torch.testing.assert_close(gy, 3 + x)


class Doubled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3,), 2.0))

    @pullback.function
    def forward(self, x):
        return x * self.weight


class Around(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) + 1


class Flipped(torch.nn.Module):
    @pullback.function
    def forward(self, x):
        return x.clone()

    @forward.vjp
    def forward(g, out, self, x):  # noqa: N805 - a rule takes the inputs last
        return None, -g


def test_symbolic_trace_of_a_module_whose_forward_is_an_op():
    for module in (Doubled(), Around(Doubled())):
        traced = torch.fx.symbolic_trace(module)
        x = leaf(3)
        assert torch.equal(traced(x), module(x))
        assert torch.autograd.grad(traced(x).sum(), x)[0].tolist() == [2, 2, 2]


def test_symbolic_trace_of_a_root_with_a_ruled_forward_raises():
    with pytest.raises(pullback.DerivativeError, match=r"trace a module around this"):
        torch.fx.symbolic_trace(Flipped())
    x = leaf(3)
    around = torch.fx.symbolic_trace(Around(Flipped()))
    assert torch.autograd.grad(around(x).sum(), x)[0].tolist() == [-1, -1, -1]


def test_bound_op_has_the_identity_of_its_object():
    module, other = Scaled(), Scaled()
    assert module.clip == module.clip
    assert module.clip != other.clip
    assert len({module.clip, module.clip, other.clip}) == 2
    assert module.clip.__self__ is module
    assert module.clip.kind == "ruled"
    assert "Scaled.clip" in repr(module.clip)
    assert str(inspect.signature(module.clip)) == "(x)"
    assert copy.copy(module.clip) == module.clip
    assert isinstance(copy.deepcopy(module.clip).__self__, Scaled)
    assert copy.deepcopy(module.clip).__self__ is not module


@pytest.mark.parametrize("option", ["stable", "residuals"])
def test_non_bool_option_raises(option):
    with pytest.raises(pullback.OptionError, match=f"{option} is True or False, not 'no'"):
        pullback.function(**{option: "no"})


def test_relaxation_with_other_parameters_raises():
    with pytest.raises(pullback.OptionError, match="derivative_of is 3: it has to be a function"):
        pullback.function(derivative_of=3)
    for soft in (lambda x: x, lambda x, low, high: x, lambda x, low, *, high: x):
        with pytest.raises(pullback.OptionError, match=r"takes the same arguments"):
            pullback.function(derivative_of=soft)(lambda x, low=0.0: x.round())
    for soft in (torch.clamp, torch.relu, lambda x, low: x, lambda *args: args[0], lambda x, low=1.0, *, eps=0: x):
        assert pullback.function(derivative_of=soft)(lambda x, low: x.round()).kind == "relaxed"
    assert pullback.function(derivative_of=lambda x: x)(torch.round).kind == "relaxed"


def test_ops_of_torch_cond_and_lstm():
    branches = pullback.function(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)))
    x = torch.ones(3, requires_grad=True)
    assert torch.equal(torch.autograd.grad(branches(x).sum(), x)[0], x.detach().cos())

    def lstm(x, h, c, w, u):
        return torch.lstm(x, (h, c), [w, u], False, 1, 0.0, True, False, False)[0]

    given = [torch.randn(*s, requires_grad=True) for s in ((2, 1, 3), (1, 1, 2), (1, 1, 2), (8, 3), (8, 2))]
    ours, right = (torch.autograd.grad(f(*given).sum(), given) for f in (pullback.function(lstm), lstm))
    assert all(map(torch.equal, ours, right))

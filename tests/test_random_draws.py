"""Relaxed ops with random numbers: value and derivative use one draw, or the call raises."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.func import grad, grad_and_value, jvp, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import pullback
from pullback._torch import is_dispatched_op
from pullback.relaxed import RANDOM
from tests.compose.test_compile import compiled

X, W = torch.randn(2, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def one_hot(x, generator=None):
    return torch.zeros_like(x).scatter(-1, x.argmax(-1, keepdim=True), 1.0)


@pullback.function(derivative_of=lambda x: F.gumbel_softmax(x, 0.5))
def hard_gumbel(x):
    return one_hot(F.gumbel_softmax(x, 0.5))


def native_gumbel(x):
    return F.gumbel_softmax(x, 0.5, hard=True)


def masked(x, generator=None):
    return x * torch.bernoulli(torch.full_like(x, 0.5), generator=generator)


@pullback.function(derivative_of=masked)
def masked_sign(x, generator=None):
    return masked(x, generator).sign()


def recorded(op, create_graph=False):
    x = X.clone().requires_grad_()
    y = op(x)
    return y.detach(), x, torch.autograd.grad((y * W).sum(), x, create_graph=create_graph)[0]


def by_autograd(op):
    y, _, g = recorded(op)
    return y, g


def second_order(op):
    _, x, g = recorded(op, create_graph=True)
    return g.detach(), torch.autograd.grad((g * W).sum(), x)[0]


def by_dual(op):
    with forward_ad.dual_level():
        return tuple(forward_ad.unpack_dual(op(forward_ad.make_dual(X, W))))


def per_row(randomness):
    return lambda op: vmap(lambda x, w: grad_and_value(lambda t: (op(t) * w).sum())(x), randomness=randomness)(X, W)


WAYS = {
    "autograd": by_autograd,
    "create_graph": second_order,
    "checkpoint": lambda op: by_autograd(lambda x: checkpoint(op, x, use_reentrant=False)),
    "func.grad": lambda op: grad_and_value(lambda x: (op(x) * W).sum())(X),
    "grad of grad": lambda op: (grad(lambda x: (grad(lambda t: (op(t) * W).sum())(x) * W).sum())(X),),
    "jvp": lambda op: jvp(op, (X,), (W,)),
    "dual": by_dual,
    "vmap, different": per_row("different"),
    "vmap, same": per_row("same"),
    "value alone": lambda op: (op(X),),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("way", WAYS)
def test_hard_gumbel_softmax_matches_pytorch(way):
    """The generator ends in the same state, too."""
    results = []
    for op in (hard_gumbel, native_gumbel):
        torch.manual_seed(3)
        results.append((*WAYS[way](op), torch.rand(1)))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-15)


@pytest.mark.parametrize("way", ["autograd", "jvp"])
def test_generator_argument_is_replayed(way):
    generator = torch.Generator().manual_seed(5)
    y, g = WAYS[way](lambda x: masked_sign(x, generator))
    assert 0 < (y == 0).sum() < y.numel()
    assert torch.equal(g == 0, y == 0)
    expected = torch.Generator().manual_seed(5)
    masked(X, expected)
    assert torch.equal(generator.get_state(), expected.get_state())


def test_captured_generator_is_replayed():
    generator = torch.Generator().manual_seed(5)
    op = pullback.function(derivative_of=lambda x: masked(x, generator))(lambda x: masked(x, generator).sign())
    y, g = by_autograd(op)
    assert torch.equal(g == 0, y == 0)


def test_draw_in_the_relaxation_alone_advances_the_generator():
    """Each call draws anew."""
    op = pullback.function(derivative_of=masked)(lambda x, generator=None: x.sign())
    torch.manual_seed(0)
    _, first = by_autograd(op)
    _, second = by_autograd(op)
    torch.manual_seed(0)
    for g in (first, second):
        assert torch.equal(g, masked(torch.ones_like(X)) * W)


class Model(torch.nn.Module):
    def forward(self, x):
        return masked_sign(x)


TRACED = {
    "make_fx": lambda: make_fx(lambda x: masked_sign(x))(X),
    "make_fx, symbolic": lambda: make_fx(lambda x: masked_sign(x), tracing_mode="symbolic")(X),
    "make_fx of grad": lambda: make_fx(grad(lambda x: masked_sign(x).sum()))(X),
    "export": lambda: torch.export.export(Model(), (X,), strict=False),
    "export, strict": lambda: torch.export.export(Model(), (X,), strict=True),
    "compile": lambda: compiled(lambda x: masked_sign(x))(X),
    "compile of the op": lambda: compiled(masked_sign)(X),
    "compile of grad": lambda: compiled(grad(lambda x: masked_sign(x).sum()))(X),
    "compile, gumbel": lambda: compiled(lambda x: hard_gumbel(x))(X),
}


@pytest.mark.parametrize("way", TRACED)
def test_draws_in_value_and_relaxation_raise_in_a_graph(way):
    with pytest.raises(Exception, match="both draw random numbers"):
        TRACED[way]()


def test_draw_in_the_relaxation_alone_is_kept_in_a_graph():
    op = pullback.function(derivative_of=masked)(lambda x, generator=None: x.sign())
    for run in (make_fx(lambda x: op(x))(X), compiled(lambda x: op(x))):
        y, g = by_autograd(run)
        assert torch.equal(y, X.sign())
        assert torch.equal((g / W).unique(), torch.tensor([0.0, 1.0], dtype=torch.float64))


def test_unknown_device_raises(monkeypatch):
    op = pullback.function(derivative_of=masked)(lambda x, generator=None: masked(x).sign())
    monkeypatch.setattr("pullback.relaxed._DEFAULT", {})
    with pytest.raises(pullback.DerivativeError, match="draws random numbers on cpu"):
        grad(lambda x: op(x).sum())(X)


def test_public_random_functions_are_known_by_name():
    """PyTorch tags ATen ops that draw."""
    public = {name for name in (*dir(torch), *dir(torch.Tensor), *dir(F)) if not name.startswith("_")}
    tagged = set()
    for name in public:
        packet = getattr(torch.ops.aten, name, None)
        overloads = [getattr(packet, o) for o in packet.overloads()] if is_dispatched_op(packet) else []
        if any(torch.Tag.nondeterministic_seeded in op.tags for op in overloads):
            tagged.add(name.removesuffix("_"))
    assert "bernoulli" in tagged
    assert tagged <= RANDOM

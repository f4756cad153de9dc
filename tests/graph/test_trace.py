"""Traced graphs compute their formulas and keep no tensor of the traced call."""

import contextlib
import gc
import subprocess
import sys
import threading
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree
from torch.utils.checkpoint import checkpoint

import pullback
from pullback import _torch
from pullback.graph.facts import facts_of

X = torch.linspace(-2, 2, 12).view(3, 4)
Y = torch.linspace(-1, 3, 12).view(4, 3).t()
W = torch.linspace(-1, 1, 4)


def autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x @ x.t()).exp() + x.sum()


def detached(x):
    return x * x.detach() + x.exp().data


def hooked(x):
    y = x.sin()
    if y.requires_grad:
        y.register_hook(lambda g: g * 2)
    return y.exp()


def in_place(x):
    y = x * 2
    y.mul_(x).sigmoid()
    return y.add_(1.0).exp()


def views(x):
    a, b = x.split([1, 2])
    return [a.unsqueeze(-1).expand(1, 4, 2).sum(-1), b[:, 1:].t() * 3, x.unbind(1)[1].exp()]


def constants(x):
    return x * torch.tensor(2.0) + torch.tensor([1.0, 2.0, 3.0, 4.0]) + torch.zeros(4) + torch.full((3, 1), 0.5)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * x


FORMULAS = {
    "gate": lambda x: torch.sigmoid(x) * torch.rsqrt(1 + torch.exp(x)),
    "two, of other layouts": lambda x, y: x * torch.sigmoid(y) - y,
    "three": lambda x, y, w: F.softplus(x * w) / (1 + y.abs()),
    "numbers": lambda x: (2 / (x.square() + 1)).pow(3) * 0.5 - 1,
    "branches": lambda x, y: torch.where(x > y, x, 0.0).clamp(-1, 1).masked_fill(x > 0, 3.0),
    "integers": lambda x: x.round().to(torch.int64).float() * x,
    "dtypes": lambda x: (x.double().exp() * x).to(torch.bfloat16),
    "rows": lambda x: F.softmax(x, -1) + F.log_softmax(x, 0) + x.logsumexp(1, keepdim=True),
    "norm": lambda x, y, w: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * w,
    "products": lambda x: F.linear(x, x, x[:, 0]) @ x,
    "no gradient": lambda x: x.detach() * 2,
    "nothing": lambda x: x,
    "activations": lambda x: F.gelu(x) + F.silu(x) + F.elu(x) + F.hardswish(x) + F.logsigmoid(x) + F.relu(x).log1p(),
    "a checkpoint": lambda x: checkpoint(torch.sin, x.exp(), use_reentrant=False),
    "a Function": lambda x: Cube.apply(x.exp()),
    "a transform": lambda x: torch.func.vmap(lambda row: row.exp() * row.sum())(x),
    "a gradient": lambda x: torch.func.grad(lambda t: t.exp().sum())(x),
    **{f.__name__: f for f in (autocast, detached, hooked, in_place, views, constants)},
}
UNUSUAL = {
    "a value": lambda x: x * x.sum().item(),
    "a branch": lambda x: x if x.sum() > 0 else -x,
    "a captured tensor": lambda x: x * W,
    "a parameter": lambda x, p=torch.nn.Parameter(W): x * p,  # noqa: B008
    "random": lambda x: x * torch.rand_like(x),
    "complex": lambda x: torch.fft.fft(x).real,
    "sizes by values": lambda x: x[x > 0],
    "a list": lambda x: x * x.tolist()[0][0],
    "another device": lambda x: torch.zeros(3, 4, device="meta"),
    "caught": lambda x: _caught(x),
    "all caught": lambda x: _all_caught(x),
    "another thread": lambda x: _in_a_thread(x),
}


def _caught(x):
    try:
        return x * x.sum().item()
    except Exception:  # this formula swallows errors: a trace must notice
        return x


def _all_caught(x):
    try:
        return x * x.sum().item()
    except BaseException:
        return x


def _in_a_thread(x):
    def run():
        with contextlib.suppress(Exception):
            x.sin()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return x.cos()


@pytest.mark.parametrize("name", UNUSUAL)
def test_op_of_unusual_formula_raises_or_matches_it(name):
    formula = UNUSUAL[name]
    torch.manual_seed(0)
    theirs = formula(X)
    op = pullback.function(stable=False)(formula)
    for _ in range(2):
        torch.manual_seed(0)
        try:
            ours = op(X.clone().requires_grad_())
        except pullback.FormulaError:
            return
        assert torch.equal(ours, theirs) if theirs.device.type == "cpu" else ours.is_meta


def with_gradient(function):
    """A function that returns the results and the gradients of its differentiable results."""

    def both(*given):
        xs = [x.detach().requires_grad_(x.is_floating_point()) for x in given]
        with torch.enable_grad():
            outs = [out for out in _pytree.tree_leaves(function(*xs)) if isinstance(out, torch.Tensor)]
        roots = [out for out in outs if out.requires_grad]
        leaves = [x for x in xs if x.requires_grad]
        ones = [torch.ones_like(r) for r in roots]
        return [outs, torch.autograd.grad(roots, leaves, ones, allow_unused=True) if roots else []]

    return both


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.few(36)
def test_graph_computes_the_formula_and_gradients(name, dtype):
    function = with_gradient(FORMULAS[name])
    given = [x.to(dtype) for x in (X, Y, W)[: FORMULAS[name].__code__.co_argcount]]
    graph = _torch.trace_ops(function, *given)
    for ours, theirs in zip(_pytree.tree_leaves(graph(*given)), _pytree.tree_leaves(function(*given)), strict=True):
        torch.testing.assert_close(ours, theirs)
        assert ours is theirs is None or ours.stride() == theirs.stride()


def test_graph_and_facts_keep_no_tensor_alive():
    x = torch.ones(3, 1)
    tensor = weakref.ref(x)
    graph = _torch.trace_ops(with_gradient(constants), x)
    facts = facts_of(lambda x: [constants(x)], [x], "constants")
    del x
    assert graph is not None
    assert _torch.is_fake(facts.outputs[0])
    gc.collect()
    assert tensor() is None


def test_making_an_op_imports_neither_dynamo_nor_sympy():
    code = """
import sys, pullback
from tests.graph.formulas import gate
pullback.function(gate)
print([name for name in ("torch._dynamo", "torch._inductor", "sympy", "networkx") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize(
    "reduced",
    [
        lambda x: x.amax(-1),
        lambda x: x.sum(0, keepdim=True),
        lambda x: x.exp().logsumexp(-1),
        lambda x: x.softmax(-1),
        lambda x: torch.gather(x, 0, torch.zeros((), dtype=torch.int64)),
    ],
)
def test_scalar_may_be_reduced_over_its_last_dimension(reduced):
    x = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    op = pullback.function(stable=False)(lambda x: reduced(x) * x)
    ours, theirs = op(x), reduced(x) * x
    assert torch.equal(ours, theirs)
    gradients = [torch.autograd.grad(out, x)[0] for out in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-14, atol=1e-15)


def test_interrupted_tensor_repr_restores_the_functorch_state():
    """PyTorch tries the overloads of `clamp` in turn, and the error message of one shows the tensor."""
    x = torch.rand(3)
    _torch.trace_ops(lambda x: [torch.ops.aten.clamp(x, x.new_full((), 0.75))], x)
    assert torch.func.grad(torch.square)(torch.tensor(3.0)) == 6

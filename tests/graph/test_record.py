"""Graphs that are recorded here are those of `make_fx`."""

import contextlib
import gc
import subprocess
import sys
import threading
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch.utils.checkpoint import checkpoint

import pullback
from pullback import _torch, catalog
from pullback.graph import record
from pullback.graph.blank import Blank
from pullback.graph.facts import facts_of
from pullback.graph.record import trace_ops
from tests.compose.opinfo import entries
from tests.graph.same_graphs import differences, samples, with_gradient

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
GIVEN_UP = {
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
    except Exception:  # this formula swallows errors: the recorder must notice
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.few(36)
def test_graphs_are_those_of_make_fx(name, dtype):
    formula = FORMULAS[name]
    given = [x.to(dtype) for x in (X, Y, W)[: formula.__code__.co_argcount]]
    assert differences(formula, *given) == ""
    assert differences(with_gradient(formula), *given) == ""


@pytest.mark.parametrize("name", GIVEN_UP)
def test_what_is_unusual_is_left_to_make_fx(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert not isinstance(record._recorded(GIVEN_UP[name], (X,)), fx.GraphModule)


@pytest.mark.parametrize("given", [(X, X), (X, X[0]), (X.to_sparse(),), (torch.ones(2, dtype=torch.complex64),)])
def test_unusual_tensors_are_left_to_make_fx(given):
    assert record._recorded(lambda *xs: xs[0] + 1, given) is None


def test_nothing_is_recorded_inside_of_another_trace():
    found = []

    def traced(x):
        found.append(record._recorded(torch.sin, (X,)))
        return x.cos()

    _torch.trace_ops(traced, X)
    record.trace_ops(traced, X)
    assert found == [None, None]


@pytest.mark.parametrize("name", sorted(n for n in dir(catalog) if isinstance(getattr(catalog, n), pullback.Op)))
def test_graphs_of_the_catalogue_are_those_of_make_fx(name):
    op = getattr(catalog, name)
    took = [given for given in ((X / 4,), (X / 4, Y / 4), (X, -1), (X, torch.tensor([0, 3, 1]))) if _takes(op, given)]
    for given in took[:1]:
        tensors = [t for t in given if isinstance(t, torch.Tensor)]
        rest = [t for t in given if not isinstance(t, torch.Tensor)]
        assert not differences(with_gradient(lambda *xs, rest=rest: op._formula(*xs, *rest)), *tensors)


def _takes(op, given):
    try:
        op._formula(*given)
    except Exception:  # whatever an op of the catalogue raises of inputs that it does not take
        return False
    return True


SHARDS = 8


@pytest.mark.parametrize("shard", [0, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, SHARDS))])
def test_graphs_of_the_operator_database_are_those_of_make_fx(shard):
    recorded = total = 0
    for name, entry in list(entries().items())[shard::SHARDS]:
        for function, tensors in samples(entry):
            found = differences(with_gradient(function), *tensors)
            assert not found, f"{name}: {found}"
            recorded += found is not None
            total += 1
    assert recorded > 0.25 * total


def test_values_are_never_read():
    reads = ["tolist()", "numpy()", "data_ptr()", "item()", "__dlpack__()", "clone().sum().__bool__()", "is_pinned()"]
    for read in reads:
        assert record._recorded(lambda x, read=read: eval(f"x.{read}", {"x": x}) and x, (X[:1, :1],)) is None, read


def test_blank_tensors_look_like_those_that_they_stand_for():
    seen = []

    def look(x):
        seen.append((x.shape, x.stride(), x.dtype, x.device, x.layout, x.is_cpu, x.is_meta, x.is_cuda, x.get_device()))
        seen.append((x.numel(), x.nbytes, x.itemsize, x.is_contiguous(), x.is_floating_point(), x.storage_offset()))
        seen.append((x.requires_grad, x.is_leaf, x.is_sparse, x.is_quantized, x.is_nested, x.is_inference(), x.ndim))
        return x.sin()

    for x in (X, Y, X[1:, ::2], X.expand(2, 3, 4)):
        seen.clear()
        look(x)
        real = list(seen)
        seen.clear()
        assert record._recorded(look, (x,)) is not None
        assert seen == real


def test_a_graph_keeps_no_tensor_of_the_call_alive():
    x = torch.ones(3, 1)
    tensor = weakref.ref(x)
    graph = record._recorded(with_gradient(constants), (x,))
    facts = facts_of(lambda x: [constants(x)], [x], "constants")
    del x
    assert graph is not None
    assert type(facts.outputs[0]) is Blank
    gc.collect()
    assert tensor() is None


def test_a_tensor_kept_beyond_the_run_says_so():
    kept = []
    record.trace_ops(lambda x: kept.append(x) or x.sin(), X)
    assert type(kept[0]) is Blank
    with pytest.raises(RuntimeError, match="beyond the run"):
        kept[0] + 1


def test_a_first_call_imports_neither_dynamo_nor_sympy():
    code = """
import sys, torch, pullback
from tests.graph.formulas import gate
x = torch.randn(64).requires_grad_()
pullback.function(gate)(x).sum().backward()
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
def test_a_number_may_be_reduced_over_its_last_dimension(reduced):
    x = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    op = pullback.function(stable=False)(lambda x: reduced(x) * x)
    ours, theirs = op(x), reduced(x) * x
    assert torch.equal(ours, theirs)
    gradients = [torch.autograd.grad(out, x)[0] for out in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-14, atol=1e-15)


def test_a_run_that_ends_in_the_middle_of_a_message_leaves_functorch_as_it_was():
    """PyTorch tries the overloads of `clamp` in turn, and its message about one shows the tensor."""
    x = torch.rand(3)
    trace_ops(lambda x: [torch.ops.aten.clamp(x, x.new_full((), 0.75))], x)
    assert torch.func.grad(torch.square)(torch.tensor(3.0)) == 6

"""`torch.compile` of a function that calls an op, differentiated by autograd; and compiled autograd."""

import pytest
import torch

import pullback
from tests.compose._contexts import cells, context, gradient, judge, leaf
from tests.compose._ops import OURS, X

ALL = dict.fromkeys(OURS, "RuntimeError")
AGAIN = r"does not currently support double backward"
"""Error of AOTAutograd for every compiled function, PyTorch's ops included."""


def compiled(function, backend="aot_eager", **options):
    """Compile without graph breaks."""
    torch._dynamo.reset()
    return torch.compile(function, backend=backend, fullgraph=True, **options)


@context("compile", "aot_eager")
def aot_eager(op):
    return gradient(compiled(lambda x: op(x)))


@context("compile", "the op itself, aot_eager")
def the_op_itself(op):
    return gradient(compiled(op))


@context("compile", "a module, aot_eager")
def a_module(op):
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(X.clone())

        def forward(self):
            return op(self.weight)

    module = Module()
    y = compiled(module)()
    y.sum().backward()
    return y, module.weight.grad


@context("compile", "dynamic shapes, aot_eager")
def dynamic(op):
    function = compiled(lambda x: op(x), dynamic=True)
    for size in (7, 3):
        x = torch.ones(size, dtype=torch.float64, requires_grad=True)
        assert torch.equal(torch.autograd.grad(function(x).sum(), x)[0], torch.full_like(x, 3))
    return gradient(function)


@context("compile", "twice in a row, aot_eager")
def twice_in_a_row(op):
    """The derivative of x³ applied twice, by the chain rule, from the value of the first op."""
    x = leaf()
    y, z = compiled(lambda x: (op(x), op(op(x) * 0 + x)))(x)
    assert torch.equal(y, z)
    return y, torch.autograd.grad(z.sum(), x)[0]


@context("compile", "after an eager call, aot_eager")
def after_an_eager_call(op):
    gradient(op)
    function = compiled(lambda x: op(x) * 1)
    first = gradient(function)
    assert torch.equal(gradient(op)[1], first[1])
    return gradient(function)


@context("compile", "inductor", needs_compiler=True)
def inductor(op):
    return gradient(compiled(lambda x: op(x), backend="inductor"))


@context("compile", "inductor, dynamic shapes", needs_compiler=True, tested=("derived", "relaxed"))
def inductor_dynamic(op):
    return gradient(compiled(lambda x: op(x), backend="inductor", dynamic=True))


@context("compile", "autocast inside, aot_eager")
def autocast_inside(op):
    def function(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return op(x)

    return gradient(compiled(function))


@context("compile", "checkpoint inside, aot_eager")
def checkpoint_inside(op):
    return gradient(compiled(lambda x: torch.utils.checkpoint.checkpoint(op, x, use_reentrant=False)))


@context("compile", "no_grad, aot_eager", order=0)
def no_grad(op):
    with torch.no_grad():
        return compiled(lambda x: op(x))(leaf()), None


@context("compile", "autograd.grad of the result, create_graph", order=2, says=AGAIN, refused=ALL)
def create_graph(op):
    x = leaf()
    (g,) = torch.autograd.grad(compiled(lambda x: op(x))(x).sum(), x, create_graph=True)
    return torch.autograd.grad(g.sum(), x)[0]


@context(
    "compile",
    "eager backend, create_graph",
    order=2,
    refused=dict.fromkeys(("ruled", "ruled by jvp"), "DerivativeError"),
)
def create_graph_of_the_eager_backend(op):
    x = leaf()
    (g,) = torch.autograd.grad(compiled(lambda x: op(x), backend="eager")(x).sum(), x, create_graph=True)
    return torch.autograd.grad((g + x).sum(), x)[0] - 1


@context("compile", "compiled autograd, aot_eager")
def compiled_autograd(op):
    x = leaf()
    y = op(x)
    torch._dynamo.reset()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True)):
        y.sum().backward()
    return y, x.grad


@context("compile", "compiled autograd of a compiled forward")
def compiled_autograd_of_compiled(op):
    x = leaf()
    y = compiled(lambda x: op(x))(x)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager", fullgraph=True)):
        y.sum().backward()
    return y, x.grad


@cells("compile")
@pytest.mark.few(8)
def test_derivative_is_kept_or_refused_under_compile(row, column):
    judge(row, column)


def test_method_resumes_after_a_graph_break(capsys):
    class Doubling(torch.nn.Module):
        @pullback.function
        def act(self, x):
            print("a break")
            return x * 2

        def forward(self, x):
            for _ in range(2):
                x = self.act(x)
            return x

    torch._dynamo.reset()
    assert torch.equal(torch.compile(Doubling(), backend="aot_eager")(torch.ones(2)), torch.full((2,), 4.0))
    assert "a break" in capsys.readouterr().out

"""Unused outputs have no cotangent, which differs from a cotangent of zeros."""

from itertools import combinations

import pytest
import torch
from torch.autograd import grad

import pullback
from tests.node._node import in_cpp, is_in_cpp

D = torch.float64


@pytest.fixture(params=["eager", "native", "on"])
def backend(request):
    if request.param != "eager":
        request.getfixturevalue(request.param)
    return request.param


def leaf(*values):
    return torch.tensor(values, dtype=D, requires_grad=True)


def root(x, y):
    return torch.sqrt(x), 2 * x


def logarithm(x, y):
    return torch.log(x) * y, x + y


def power(x, y):
    return x**0.25, x**2, y * x


def quotient(x, y):
    return y / x, x * y, x - 1


def euclidean(x, y):
    return torch.sqrt((x * x).sum(-1)), x * y


def norm(x, y):
    return torch.linalg.vector_norm(x, dim=-1), (x * y).sum(-1)


def apart(x, y):
    return torch.rsqrt(x), torch.exp(y)


def named(x, y):
    return {"root": torch.sqrt(x), "rest": [x * y, torch.sqrt(y)]}


def marked(x, y):
    return torch.sqrt(x), x > 0, x * y


def products(x, y):
    return torch.sqrt(x) @ y, x @ x


def pieces(x, y):
    a, b = torch.stack([torch.sqrt(x), x * y]).unbind()
    return a, b * b, x.cumsum(0)


FORMULAS = [root, logarithm, power, quotient, euclidean, norm, apart, named, marked, products, pieces]
CASES = [("eager", f) for f in FORMULAS] + [
    (b, f) for b in ("native", "on") for f in (root, power, euclidean, products)
]
"""Each in PyTorch's kernels; some compiled, which takes a second each."""


def outputs_of(result):
    leaves = torch.utils._pytree.tree_leaves(result)
    return [out for out in leaves if out.requires_grad]


def subsets(n):
    return [used for k in range(1, n + 1) for used in combinations(range(n), k)]


def same(ours, theirs):
    pairs = list(zip(ours, theirs, strict=True))
    assert [a is None for a, _ in pairs] == [b is None for _, b in pairs]
    for a, b in pairs:
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-15, equal_nan=True)
    return True


def gradients(f, used, x, y, **options):
    outs = outputs_of(f(x, y))
    outs = [outs[i] for i in used]
    return grad(outs, [x, y], [torch.ones_like(out) for out in outs], allow_unused=True, **options)


@pytest.mark.parametrize(("backend", "formula"), CASES, indirect=["backend"])
@pytest.mark.few(7)
def test_gradients_of_every_set_of_outputs(backend, formula):
    x, y = leaf(0.0, 0.0, 0.0), leaf(0.5, 0.0, 2.0)
    op = pullback.function(stable=False)(formula)
    for used in subsets(len(outputs_of(formula(x, y)))):
        theirs = gradients(formula, used, x, y)
        for _ in range(2):  # the second may run in C++
            assert same(gradients(op, used, x, y), theirs)


@pytest.mark.parametrize("formula", [logarithm, power])
def test_some_of_the_calls_run_in_cpp(on, formula):
    x, y = leaf(0.0, 0.0, 0.0), leaf(0.5, 0.0, 2.0)
    assert is_in_cpp(in_cpp(formula, x, y, stable=False)(x, y)[0])


@pytest.mark.parametrize(("backend", "formula"), CASES, indirect=["backend"])
@pytest.mark.few(4)
def test_second_derivatives_of_every_set_of_outputs(backend, formula):
    x, y = leaf(0.3, 1e-30, 1.0), leaf(0.5, 0.7, 2.0)
    op = pullback.function(stable=False)(formula)
    for used in subsets(len(outputs_of(formula(x, y)))):
        for twice in [(0,), (1,), (0, 1)]:
            results = []
            for f in (op, formula):
                first = gradients(f, used, x, y, create_graph=True)
                live = [first[i] for i in twice if first[i] is not None and first[i].requires_grad]
                ones = [torch.ones_like(g) for g in live]
                results.append([*first, *(grad(live, [x, y], ones, allow_unused=True) if live else [])])
            assert same(*results)


class _Dropped(torch.autograd.Function):
    """The identity, whose backward gives no gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return None


@pytest.mark.parametrize("create_graph", [False, True])
def test_undefined_cotangent_at_backward(backend, create_graph):
    op = pullback.function(lambda x: torch.sqrt(x) * x.exp())
    for _ in range(2):
        x = leaf(0.0, 0.0)
        out = op(x)
        (gx,) = grad((_Dropped.apply(out) + 2 * x).sum(), x, create_graph=create_graph)
        assert gx.tolist() == [2, 2]
        assert grad(_Dropped.apply(op(x)).sum(), x, allow_unused=True, create_graph=create_graph) == (None,)
    assert is_in_cpp(out) == (backend == "on")


def test_input_of_unused_outputs_gets_no_grad(backend):
    op = pullback.function(apart)
    for _ in range(2):
        x, y = leaf(0.0), leaf(1.0)
        op(x, y)[1].sum().backward()
        assert x.grad is None
        torch.testing.assert_close(y.grad.detach(), y.detach().exp())


def test_second_derivative_of_one_of_two_gradients(backend):
    """The square of the derivative of log at 1e-30 overflows in float32."""
    op = pullback.function(lambda x, y: x * torch.log(y))
    x, y = (torch.tensor([v], requires_grad=True) for v in (1e-30, 1e-30))
    for _ in range(2):
        gx, gy = grad(op(x, y).sum(), [x, y], create_graph=True)
        for first, second in ((gx, y), (gy, x)):
            (mixed,) = grad(first.sum(), second, retain_graph=True)
            torch.testing.assert_close(mixed, 1 / y.detach(), rtol=1e-6, atol=0)


def test_retained_graph_with_different_used_outputs(backend):
    op = pullback.function(stable=False)(power)
    x, y = leaf(0.0, 1.0), leaf(2.0, 3.0)
    for _ in range(2):
        results = []
        for f in (op, power):
            outs = f(x, y)
            sums = [outs[1], outs[0] + outs[1], outs[2] * outs[0], outs[2], outs[0] + outs[1] + outs[2]]
            results.append(
                [g for out in sums for g in grad(out.sum(), [x, y], retain_graph=True, allow_unused=True)],
            )
        assert same(*results)


def test_in_place_writes_to_an_output(backend):
    op = pullback.function(stable=False)(root)
    x, y = leaf(0.0, 4.0), leaf(1.0, 1.0)
    for _ in range(2):
        results = []
        for f in (op, root):
            outs = f(x, y)
            outs[1].mul_(3)
            outs[1][0] = x[1]
            results.append([grad(out.sum(), x, retain_graph=True)[0] for out in outs])
        assert same(*results)


def test_node_hooks_see_none_for_an_unused_output(backend):
    op = pullback.function(stable=False)(root)
    x, y = leaf(0.0), leaf(1.0)
    for _ in range(2):
        seen = []
        out = op(x, y)
        out[1].register_hook(lambda g: g * 5)
        out[1].grad_fn.register_prehook(seen.extend)
        (gx,) = grad(out[1].sum(), x)
        assert gx.tolist() == [10]
        assert seen == [None, torch.tensor([5.0], dtype=D)]


def test_batched_cotangents_of_one_output(backend):
    op = pullback.function(stable=False)(power)
    x, y, gs = leaf(0.0, 1.0), leaf(2.0, 3.0), torch.eye(2, dtype=D)
    for create_graph in (False, True):
        for _ in range(2):
            results = [
                grad(f(x, y)[1], [x, y], gs, is_grads_batched=True, allow_unused=True, create_graph=create_graph)
                for f in (op, power)
            ]
            assert same(*results)


def test_restricted_plan_for_many_sizes(backend):
    op = pullback.function(stable=False)(norm)
    for n in range(2, 14):
        x, y = torch.zeros(n, 3, dtype=D, requires_grad=True), torch.ones(n, 3, dtype=D, requires_grad=True)
        for used in subsets(2):
            assert same(gradients(op, used, x, y), gradients(norm, used, x, y))


def test_unused_outputs_of_a_relaxed_op(backend):
    op = pullback.function(derivative_of=lambda x, y: (torch.sqrt(x), x * y))(lambda x, y: (x.sign(), (x * y).round()))
    x, y = leaf(0.0, 1.0), leaf(2.0, 3.0)
    for create_graph in (False, True):
        for used in subsets(2):
            theirs = gradients(lambda x, y: (torch.sqrt(x), x * y), used, x, y)
            assert same(gradients(op, used, x, y, create_graph=create_graph), theirs)


def test_unused_outputs_of_a_jvp_rule():
    @pullback.function
    def op(x):
        return torch.sqrt(x), 2 * x

    @op.jvp
    def _(tangents, out, x):
        return tangents[0] / (2 * out[0]), 2 * tangents[0]

    x = leaf(0.0, 0.0)
    for create_graph in (False, True):
        assert grad(op(x)[1].sum(), x, create_graph=create_graph)[0].tolist() == [2, 2]
    assert grad(_Dropped.apply(op(x)[0]).sum(), x, allow_unused=True) == (None,)
    x = x.detach()
    assert torch.func.grad(lambda x: op(x)[1].sum())(x).tolist() == [2, 2]
    assert torch.func.jvp(lambda x: op(x)[1], (x,), (x + 1,))[1].tolist() == [2, 2]


def test_jvp_rule_gets_zero_tangents_for_constant_inputs():
    op = pullback.function(lambda x, y: x * y)
    op.jvp(lambda tangents, out, x, y: tangents[0] * y + x * tangents[1])
    x = torch.ones(2)
    assert torch.func.jvp(lambda x: op(x, torch.full((2,), 3.0)), (x,), (x,))[1].tolist() == [3, 3]


def test_undefined_cotangent_of_a_chunked_loss():
    op = pullback.function(chunk=4)(lambda x: torch.sqrt(x).sum())
    x = torch.zeros(16, 2, dtype=D, requires_grad=True)
    (gx,) = grad(_Dropped.apply(op(x)) + 2 * x.sum(), x)
    assert gx.unique().tolist() == [2]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # PyTorch asks for it
def test_compiled_autograd_omits_unused_outputs(backend):
    from torch._dynamo import compiled_autograd

    op = pullback.function(stable=False)(root)
    x, y = leaf(0.0, 0.0), leaf(1.0, 1.0)
    for _ in range(2):
        out = op(x, y)
    with compiled_autograd._enable(torch.compile(backend="aot_eager")):
        (gx,) = grad(out[1].sum(), x)
    torch._dynamo.reset()
    assert gx.tolist() == [2, 2]


def test_unused_outputs_of_a_graph_left_to_autograd():
    """The backward of cumprod writes in place, so that it cannot be restricted."""
    op = pullback.function(stable=False)(lambda x, y: (x.cumprod(0), torch.sqrt(x) * y))
    x, y = leaf(0.0, 2.0, 3.0), leaf(1.0, 0.0, 1.0)
    for used in subsets(2):
        theirs = gradients(lambda x, y: (x.cumprod(0), torch.sqrt(x) * y), used, x, y)
        for create_graph in (False, True):
            assert same(gradients(op, used, x, y, create_graph=create_graph), theirs)

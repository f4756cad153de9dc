"""Calls in C++: values and gradients equal those of the Python Function bit for bit."""

import pytest
import torch
from torch.autograd import grad

import pullback
from tests.node._node import both, gate, in_cpp, in_python, is_in_cpp, leaf, parts, same, scaled, wave
from tests.wrappers import Wrapper

CASES = [
    (gate, ("x",)),
    (wave, ("x", "y")),
    (both, ("x", "y")),
    (parts, ("x",)),
    (lambda x, y, z: (x * y).exp() / (1 + z * z) - y, ("x", "y", "z")),
    (lambda x: torch.where(x > 0, x, torch.expm1(x)), ("x",)),
    (torch.sin, ("x",)),  # one op, which is PyTorch's
    (lambda x, y: y / x, ("x", "y")),
    (torch.nn.functional.softplus, ("x",)),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(), (8,), (1,), (3, 5), (2, 1, 1031)])
@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.few(9)
def test_cpp_call_equals_the_python_function_bitwise(on, case, shape, dtype):
    formula, names = CASES[case]
    xs = [leaf(*shape, seed=i, dtype=dtype) for i in range(len(names))]
    ours, theirs = (make(formula, *xs) for make in (in_cpp, in_python))
    results = []
    for op in (ours, theirs):
        out = op(*xs)
        outs = out if isinstance(out, tuple) else (out,)
        assert is_in_cpp(outs[0]) == (op is ours)
        live = [y for y in outs if y.requires_grad]
        gs = [leaf(*y.shape, seed=10 + i, dtype=y.dtype, needs=False) for i, y in enumerate(live)]
        gradients = grad(live, xs, gs, retain_graph=True)
        sums = grad([y.sum() for y in live], xs)
        results.append([*(y.detach() for y in outs), *gradients, *sums])
    assert same(*results)


@pytest.mark.parametrize("needs", [(True, False), (False, True), (True, True)])
def test_gradients_only_for_inputs_that_require_grad(on, needs):
    xs = [leaf(7, seed=i, needs=n) for i, n in enumerate(needs)]
    ours, theirs = in_cpp(wave, *xs)(*xs), in_python(wave, *xs)(*xs)
    assert is_in_cpp(ours)
    assert [f is None for f, _ in ours.grad_fn.next_functions] == [f is None for f, _ in theirs.grad_fn.next_functions]
    live = [x for x in xs if x.requires_grad]
    g = torch.ones(7, dtype=torch.float64)
    for wanted in (live, live[-1:]):
        assert same(*(grad(out, wanted, g, retain_graph=True) for out in (ours, theirs)))


def test_transposed_and_channels_last_layouts(on):
    for make in (lambda x: x.t(), lambda x: x.reshape(2, 3, 5, 4).to(memory_format=torch.channels_last)):
        x = make(leaf(6, 20, needs=False).detach()).requires_grad_()
        ours, theirs = in_cpp(gate, x)(x), in_python(gate, x)(x)
        assert is_in_cpp(ours)
        assert ours.stride() == x.stride()
        for g in (torch.randn_like(x), torch.randn(x.shape, dtype=x.dtype)):
            assert same(*(grad(out, x, g, retain_graph=True) for out in (ours, theirs)))


def test_scalar_arguments_are_part_of_the_key(on):
    x = leaf(5)
    op = in_cpp(scaled, x, 2.0)
    for scale in (2.0, 3.0, -0.0, 0.0, 2, True):
        for _ in range(2):
            results = [f(x, scale) for f in (op, in_python(scaled, x, scale))]
            assert same(*(grad(out, x, torch.ones_like(x)) for out in results))
    assert is_in_cpp(op(x, 3.0))
    assert is_in_cpp(op(x, 2.0))
    assert torch.equal(op(x, scale=2.0, mode="b"), op(x, 2.0))


def test_cotangents_of_every_layout_and_dtype(on):
    x = leaf(4, 6)
    op, python = in_cpp(gate, x), in_python(gate, x)
    gs = [
        torch.randn(6, 4, dtype=torch.float64).t(),
        torch.randn(4, 12, dtype=torch.float64)[:, ::2],
        torch.randn(6, dtype=torch.float64).expand(4, 6),
        torch.tensor(2.0, dtype=torch.float64).expand(4, 6),
        torch.randn(4, 6, dtype=torch.complex128).conj().imag,
        torch.randn(4, 6, dtype=torch.float32),
        torch.nn.Parameter(torch.randn(4, 6, dtype=torch.float64)),
        torch.randn(4, 6, dtype=torch.float64).to_sparse(),
        torch._efficientzerotensor((4, 6), dtype=torch.float64),
    ]
    for g in gs:
        outs = [f(x) for f in (op, python)]
        assert is_in_cpp(outs[0])
        assert same(*(grad(out, x, g) for out in outs))


class Marked(torch.Tensor):
    """A subclass that changes nothing."""


def test_tensor_subclasses_as_input_and_cotangent(on):
    x = leaf(3)
    op, python = in_cpp(gate, x), in_python(gate, x)
    g = torch.randn(3, dtype=torch.float64)
    marked = x.detach().as_subclass(Marked).requires_grad_()
    assert not is_in_cpp(op(marked))
    ours, theirs = (grad(f(x), x, g.as_subclass(Marked))[0] for f in (op, python))
    assert torch.allclose(ours, theirs.as_subclass(torch.Tensor))
    ours, theirs = (grad(f(x), x, Wrapper(g))[0] for f in (op, python))
    assert type(ours) is type(theirs) is Wrapper
    assert torch.equal(ours.inner, theirs.inner)
    assert type(op(Wrapper(x.detach()))) is Wrapper


def test_output_without_a_cotangent(on):
    x, y = leaf(3), leaf(3, seed=1)
    for which in (0, 1):
        outs = [op(x, y)[which] for op in (in_cpp(both, x, y), in_python(both, x, y))]
        assert is_in_cpp(outs[0])
        assert same(*(grad(out.sum(), (x, y)) for out in outs))


def test_higher_order_derivatives_match_python(on):
    x, y, g = leaf(3), leaf(3, seed=1), leaf(3, seed=2)
    results = []
    for op in (in_cpp(wave, x, y), in_python(wave, x, y)):
        (gx,) = grad(op(x, y), x, g, create_graph=True)
        second = grad(gx.sum(), (x, y, g), create_graph=True)
        third = grad(sum(s.sum() for s in second), (x, y))
        results.append([gx, *second, *third])
    assert same(*results)
    assert torch.autograd.gradcheck(op, (x, y))
    assert torch.autograd.gradgradcheck(op, (x, y))


@pytest.mark.parametrize("options", [{}, {"stable": False}])
@pytest.mark.parametrize("formula", [gate, wave, torch.nn.functional.gelu])
@pytest.mark.few(2)
def test_gradients_with_create_graph_run_in_cpp(on, monkeypatch, formula, options):
    """The backward is a C++ call too, bitwise equal to Python's."""
    xs = [leaf(3, 4, seed=i) for i in range(2 if formula is wave else 1)]
    directions = [leaf(3, 4, seed=4 + i, needs=False) for i in range(len(xs))]
    for needs in (True, False):
        g, results = leaf(3, 4, seed=3, needs=needs), []
        for node in ("off", "on"):
            monkeypatch.setenv("PULLBACK_NODE", node)
            op = pullback.function(backend="native", **options)(lambda *xs: formula(*xs) * 1)
            for _ in range(3):
                gradients = grad(op(*xs), xs, g, create_graph=True)
            assert [is_in_cpp(y) for y in gradients] == [node == "on"] * len(xs)
            second = grad(gradients, [*xs, *[g] * needs], directions, create_graph=True)
            third = grad(sum(s.sum() for s in second), xs)
            results.append([*gradients, *second, *third])
        assert same(*results)
        right = grad(grad(formula(*xs), xs, g, create_graph=True), [*xs, *[g] * needs], directions)
        assert all(map(torch.allclose, second, right))


def test_batched_cotangents_match_python(on):
    x = leaf(3)
    eye = torch.eye(3, dtype=torch.float64)
    outs = [op(x) for op in (in_cpp(gate, x), in_python(gate, x))]
    assert same(*(grad(out, x, eye, is_grads_batched=True, retain_graph=True) for out in outs))
    assert same(*([torch.func.vmap(lambda v, out=out: grad(out, x, v, retain_graph=True)[0])(eye)] for out in outs))

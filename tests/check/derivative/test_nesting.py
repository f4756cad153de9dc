"""Every nesting of forward and reverse mode gives one derivative, and the numeric one tells which are wrong."""

from __future__ import annotations

import pytest
import torch

from pullback.check.derivative.nesting import Nesting, batched_nestings, compare_nestings, linearized, nestings

# PyTorch's own, by its `linearize`.
pytestmark = pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node:UserWarning")


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def directions(inputs, order):
    return [[normal(*x.shape, seed=1 + k + 10 * i, dtype=x.dtype) for i, x in enumerate(inputs)] for k in range(order)]


def compared(phi, *inputs, order):
    tried = [*nestings(order), *batched_nestings(order)]
    return compare_nestings(phi, inputs, directions(inputs, order), nestings(order - 1)[0], tried)


def wrong_modes(nested):
    return {nesting.modes for nesting in nested.wrong}


def test_there_are_all_nestings_and_one_level_of_dual_numbers():
    assert sorted(n.modes for n in nestings(2) if n.interface == "torch.func") == ["ff", "fr", "rf", "rr"]
    assert sorted(n.modes for n in nestings(3) if n.interface == "autograd") == ["frr", "rfr", "rrf", "rrr"]
    assert str(Nesting("fr", "torch.func")) == "forward over reverse (torch.func)"


ALL = [
    *(nesting for order in (1, 2, 3) for nesting in (*nestings(order), *batched_nestings(order))),
    *(linearized(order) for order in (2, 3)),
]


@pytest.mark.parametrize("nesting", ALL, ids=str)
def test_nesting_gives_the_closed_form(nesting):
    """Σ x⁴ has the derivatives 4 Σ x³u, 12 Σ x²uv and 24 Σ x u v w."""
    x = normal(5)
    order = len(nesting.modes)
    factor = {1: 4 * x**3, 2: 12 * x**2, 3: 24 * x}[order]
    vs = directions([x], order)
    for (v,) in vs:
        factor = factor * v
    torch.testing.assert_close(nesting.derivative(lambda x: (x**4).sum(), [x], vs), factor.sum())


@pytest.mark.parametrize("order", [2, 3])
def test_two_inputs_and_complex_numbers_agree(order):
    def phi(x, z):
        return ((x.exp() * z * z).real * (z * z).imag).sum()

    nested = compared(phi, normal(3), normal(3, seed=5, dtype=torch.complex128), order=order)
    assert not nested.wrong
    assert not nested.refused
    assert len(nested.right) == len(nestings(order)) + len(batched_nestings(order))


class Doubled(torch.autograd.Function):
    """x³ whose jvp loses its own derivative."""

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * x * g

    @staticmethod
    def jvp(ctx, tx):
        (x,) = ctx.saved_tensors
        return 3 * x.detach() ** 2 * tx


def test_numeric_derivative_tells_the_wrong_nestings():
    nested = compared(lambda x: Doubled.apply(x).sum(), normal(4), order=2)
    assert wrong_modes(nested) == {"rf", "ff"}
    assert {n.modes for n in nested.right} == {"rr", "fr"}
    assert all(abs(nested.values[n] - nested.expected) > 0.1 for n in nested.wrong)


class Batched(torch.autograd.Function):
    """x³ whose rule for a batch loses a factor: only batches of directions show it."""

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return Slope.apply(*ctx.saved_tensors, g)


class Slope(torch.autograd.Function):
    """3 x² g."""

    @staticmethod
    def forward(x, g):
        return 3 * x * x * g

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, before = ctx.saved_tensors
        return 6 * x * before * g, 3 * x * x * g

    @staticmethod
    def vmap(info, dims, x, g):
        return x * x * g, 0 if dims[1] == 0 else dims[0]


def test_batches_of_directions_run_the_rule_for_batches():
    nested = compared(lambda x: Batched.apply(x).sum(), normal(4), order=2)
    assert {str(n) for n in nested.wrong} == {"reverse over reverse (vmap)"}


def test_refusal_is_no_wrong_derivative():
    class Plain(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 3 * x * x * g

    nested = compared(lambda x: Plain.apply(x).sum(), normal(4), order=3)
    assert not nested.wrong
    assert [str(n) for n in nested.right] == ["reverse over reverse over reverse (autograd)"]
    assert {n.interface for n in nested.refused} == {"autograd", "torch.func", "vmap"}


@pytest.mark.parametrize("order", [2, 3])
def test_kink_accuses_nobody(order):
    """relu(x)² has a kink in its first derivative, relu(x)³ in its second."""
    nested = compare_nestings(
        lambda x: (x.relu() ** order).sum(), [torch.zeros(3, dtype=torch.float64)],
        directions([torch.zeros(3)], order), nestings(order - 1)[0], nestings(order),
    )  # fmt: skip
    assert not nested.wrong

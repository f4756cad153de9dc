"""Graphs with symbolic sizes: formulas that are proven general, and formulas that are refused."""

import pytest
import torch

from pullback.graph.symbolic import Extent, NotGeneralError, SymbolicTrace, as_inputs, at


def traced(function, *tensors, varying=None):
    symbolic = SymbolicTrace(len(tensors), {n for x in tensors for n in x.shape} if varying is None else varying)
    return symbolic, symbolic.trace(function, *tensors)


def at_sizes(symbolic, module, *tensors):
    module, formulas = as_inputs(module)
    numbers = symbolic.numbers(tensors)
    return module(*(numbers[formula] for formula in formulas), *tensors)


def test_symbolic_graph_computes_other_sizes():
    def function(x, y):
        return [(x * y).sum(0), y.expand_as(x) + 1, x.mean()]

    symbolic, module = traced(function, torch.randn(5, 7), torch.randn(7))
    assert as_inputs(module)[1]
    for n, m in [(5, 7), (2, 3), (9, 4)]:
        x, y = torch.randn(n, m), torch.randn(m)
        for got, expected in zip(at_sizes(symbolic, module, x, y), function(x, y), strict=True):
            torch.testing.assert_close(got, expected)


def test_mean_divides_by_the_size_of_the_call():
    def slope(x, g):
        leaf = x.detach().requires_grad_()
        with torch.enable_grad():
            out = leaf.mean()
        return list(torch.autograd.grad(out, leaf, g))

    symbolic, module = traced(slope, torch.randn(5, 7), torch.ones(()))
    (g,) = at_sizes(symbolic, module, torch.randn(10, 3), torch.ones(()))
    torch.testing.assert_close(g, torch.full((10, 3), 1 / 30))


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: [x * x.shape[0]], "asks for `shape`"),
        (lambda x: [x * len(str(x.size()))], "asks for `size`"),
        (lambda x: [x * 2 if isinstance(x.numel(), int) else x], "asks for `numel`"),
        (lambda x: [x * 2 if x.is_contiguous() else x], "asks for `is_contiguous`"),
        (lambda x: [x[:, 3:] * 2], "depends on sizes"),
        (lambda x: [x.reshape(5, -1) * 2], "depends on sizes"),
        (lambda x: [sum(row for row in x)], "depends on sizes|asks for"),
        (lambda x: [x + torch.ones(7)], "depends on sizes"),
        (lambda x: [x.to(torch.complex64)], "not all its tensors are real"),
        (lambda x: [torch.ones(11).expand(7, 11) + x.sum()], "equal by chance"),
    ],
)
def test_size_dependent_formula_is_refused(function, why):
    varying = {5, 7} if "chance" not in why else {5, 11}
    with pytest.raises(NotGeneralError, match=why):
        traced(function, torch.randn(*sorted(varying)), varying=varying)


def test_rank_and_dtype_may_be_read():
    traced(lambda x: [x * x.dim() if x.is_floating_point() and x.dtype.itemsize < 8 else x], torch.randn(5, 7))


def test_graph_does_not_hold_for_other_layouts_and_broadcast_patterns():
    symbolic, _ = traced(lambda x, y: [x * y], torch.randn(5, 7), torch.randn(7))
    assert symbolic.numbers([torch.randn(4, 3), torch.randn(3)]) is not None
    assert symbolic.numbers([torch.randn(4, 3), torch.randn(4)]) is None
    assert symbolic.numbers([torch.randn(3, 4).T, torch.randn(3)]) is None
    assert symbolic.numbers([torch.randn(1, 3), torch.randn(3)]) is None
    assert symbolic.numbers([torch.randn(0, 3), torch.randn(3)]) is None
    fixed, _ = traced(lambda x: [x.exp()], torch.randn(5, 7), varying={5})
    assert fixed.numbers([torch.randn(6, 7)]) is not None
    assert fixed.numbers([torch.randn(6, 8)]) is None


def test_extent_is_an_int_with_a_distinct_repr():
    n = Extent(4, "n")
    assert n == 4
    assert repr([n]) != repr([4])
    assert eval(repr(n)) == 4
    assert at([n, (n, 4), {"a": n}], {"n": 9}) == [9, (9, 4), {"a": 9}]
    assert type(at(n, {"n": 9})) is int

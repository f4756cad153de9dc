"""Which nodes of a graph become one kernel."""

import time

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import pullback
from pullback.kernels.regions import regions_of


def test_no_region_waits_for_one_of_rows_that_waits_for_it(native):
    """`s` waits for rows that are reduced, and the second reduction of these for `m`: they are no loop."""

    def formula(x, y):
        largest = x.amax(-1, keepdim=True)
        s, m = largest.sum().sin().exp(), y.sin().exp()
        return s, (x * m * largest).sum(-1)

    x, y = torch.randn(16, 32, dtype=torch.float64), torch.randn((), dtype=torch.float64)
    for ours, right in zip(pullback.function(formula)(x, y), formula(x, y), strict=True):
        torch.testing.assert_close(ours, right)


def test_regions_of_a_long_graph_take_no_longer_than_its_trace():
    def formula(x):
        for _ in range(400):
            x = x.sin().cumsum(0) * x
        return x

    started = time.perf_counter()
    graph = make_fx(formula, tracing_mode="fake")(torch.ones(17)).graph
    traced = time.perf_counter()
    found = regions_of(graph)
    assert time.perf_counter() - traced < traced - started
    assert (
        sum(len(region.nodes) for region in found) == 798
    )  # but for the first sine and the last product, which are alone


@pytest.mark.slow
def test_a_long_loop_is_several_kernels(native):
    """Compilers take more than twice the time for twice as many operations."""

    def euler(x):
        for _ in range(50):
            x = x + 0.01 * torch.sin(x)
        return x

    x = torch.randn(65, requires_grad=True)
    found = regions_of(make_fx(euler, tracing_mode="fake")(x.detach()).graph)
    assert [len(region.nodes) for region in found] == [64, 64, 22]
    ((ours,), (right,)) = (torch.autograd.grad(f(x).sum(), x) for f in (pullback.function(euler), euler))
    torch.testing.assert_close(ours, right)

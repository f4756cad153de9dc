"""Regions: the nodes of a graph that become one kernel."""

import time

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import pullback
from pullback.kernels.regions import regions_of


def test_pointwise_and_row_regions_form_no_cycle(native):
    """`s` depends on reduced rows, whose second reduction depends on `m`: `s` and `m` must not be fused."""

    def formula(x, y):
        largest = x.amax(-1, keepdim=True)
        s, m = largest.sum().sin().exp(), y.sin().exp()
        return s, (x * m * largest).sum(-1)

    x, y = torch.randn(16, 32, dtype=torch.float64), torch.randn((), dtype=torch.float64)
    for ours, right in zip(pullback.function(formula)(x, y), formula(x, y), strict=True):
        torch.testing.assert_close(ours, right)


def test_region_search_takes_no_longer_than_the_trace():
    def formula(x):
        for _ in range(400):
            x = x.sin().cumsum(0) * x
        return x

    started = time.perf_counter()
    graph = make_fx(formula, tracing_mode="fake")(torch.ones(17)).graph
    traced = time.perf_counter()
    found = regions_of(graph)
    assert time.perf_counter() - traced < traced - started
    assert sum(len(region.nodes) for region in found) == 798  # all but the first sine and the last product


@pytest.mark.slow
def test_long_chain_is_split_into_kernels(native):
    """Compile time grows faster than linearly with the number of operations."""

    def euler(x):
        for _ in range(50):
            x = x + 0.01 * torch.sin(x)
        return x

    x = torch.randn(65, requires_grad=True)
    found = regions_of(make_fx(euler, tracing_mode="fake")(x.detach()).graph)
    assert [len(region.nodes) for region in found] == [64, 64, 22]
    ((ours,), (right,)) = (torch.autograd.grad(f(x).sum(), x) for f in (pullback.function(euler), euler))
    torch.testing.assert_close(ours, right)

"""Large results request huge pages, which Linux maps much faster; results beyond 2³¹ numbers are right."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

import pullback
from pullback.kernels.native import is_kernel

from .test_sums import lowered

SMAPS = Path("/proc/self/smaps")


def available():
    """Return the available memory in bytes."""
    lines = Path("/proc/meminfo").read_text().splitlines() if Path("/proc/meminfo").exists() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")), 0)


def is_of_large_pages(tensor):
    """Whether the mapping at the middle of a tensor is advised to use huge pages."""
    at, flags = tensor.data_ptr() + tensor.nbytes // 2, None
    for line in SMAPS.read_text().splitlines():
        begin, dash, rest = line.split(" ")[0].partition("-")
        if dash and rest:
            inside = int(begin, 16) <= at < int(rest, 16)
        elif line.startswith("VmFlags:") and inside:
            flags = line.split()[1:]
    assert flags is not None
    return "hg" in flags


@pytest.mark.parametrize("over_rows", [False, True])
def test_large_results_use_huge_pages(native, over_rows):
    """In a fresh process: the allocator may reuse memory of huge pages for small results."""
    if not SMAPS.exists() or not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("there are no large pages here")
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        assert pool.submit(_are_of_large_pages, over_rows).result() == [False, True]


def _are_of_large_pages(over_rows):
    def function(x):
        return [x * x + x.sum(1, keepdim=True)] if over_rows else [x * x + 1]

    made = []
    with pullback.backend("native"):
        for rows in (64, 2**11):  # 1 MiB and 32 MiB
            x = torch.randn(rows, 2**11, dtype=torch.float64)
            made.append(lowered(function, x)[1](x)[0])
            torch.testing.assert_close(made[-1], function(x)[0])
        return list(map(is_of_large_pages, made))


@pytest.mark.slow
@pytest.mark.skipif(available() < 8 * 2**30, reason="it takes 2 GB of memory")
def test_indices_beyond_32_bits(native):
    """A matrix of more than 2³¹ numbers, from a column and a row: its far end reads the right operands."""
    rows, columns = 2**16 + 1, 2**15 + 1
    x, y = torch.arange(rows, dtype=torch.float32).unsqueeze(1), torch.arange(columns, dtype=torch.float32)
    graph, run = lowered(lambda x, y: [x + 2 * y > 65000], x, y)
    assert any(is_kernel(node.target) for node in graph.nodes)
    (above,) = run(x, y)
    assert above.numel() > 2**31
    for part in (slice(0, 3), slice(rows - 3, rows), slice(65_000, 65_003)):
        assert torch.equal(above[part], x[part] + 2 * y > 65000)

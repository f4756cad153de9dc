"""Large results are asked to lie in large pages, which Linux maps in much less time."""

from pathlib import Path

import pytest
import torch

from .test_sums import lowered

SMAPS = Path("/proc/self/smaps")


def is_of_large_pages(tensor):
    """Whether the mapping that the middle of a tensor lies in has been asked to be."""
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
def test_large_results_are(native, over_rows):
    if not SMAPS.exists() or not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("there are no large pages here")

    def function(x):
        return [x * x + x.sum(1, keepdim=True)] if over_rows else [x * x + 1]

    made = {}
    for rows in (64, 2**11):  # 1 MiB and 32 MiB
        x = torch.randn(rows, 2**11, dtype=torch.float64)
        made[rows] = lowered(function, x)[1](x)[0]
        torch.testing.assert_close(made[rows], function(x)[0])
    assert is_of_large_pages(made[2**11])
    assert not is_of_large_pages(made[64])

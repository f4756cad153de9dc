"""Random programs from fixed seeds, the same on every machine. `make fuzz` runs others."""

import pytest

from tests.adversary.worker import batch

TRIALS = {"eager": 10, "native": 4}
"""Trials of a seed, by backend: fewer with native kernels, which have to be compiled."""


@pytest.mark.parametrize("seed", range(14, 22))
@pytest.mark.parametrize("backend", TRIALS)
def test_random_programs(backend, seed, native, tmp_path):
    passed = batch(backend, seed, TRIALS[backend], tmp_path, shrink=False)
    assert passed, (tmp_path / "found").read_text()

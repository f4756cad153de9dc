"""Random programs from fixed seeds: the same for everybody. `make fuzz` runs others."""

import pytest

from tests.adversary.worker import batch

TRIALS = {"eager": 10, "native": 4}
"""Kernels of our own are compiled first."""


@pytest.mark.parametrize("seed", range(14, 22))
@pytest.mark.parametrize("backend", TRIALS)
def test_random_programs(backend, seed, native, tmp_path):
    passed = batch(backend, seed, TRIALS[backend], tmp_path, shrink=False)
    assert passed, (tmp_path / "found").read_text()

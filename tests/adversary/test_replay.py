"""Random programs from fixed seeds, the same on every machine. `make fuzz` takes new seeds."""

import pytest

from tests.adversary.worker import batch

TRIALS = {"eager": 10, "native": 4}
"""Trials per seed, by backend: fewer with native kernels, which are compiled."""


@pytest.mark.parametrize("seed", range(14, 22))
@pytest.mark.parametrize("backend", TRIALS)
def test_op_agrees_with_pytorch_on_random_programs(backend, seed, native, tmp_path):
    passed = batch(backend, seed, TRIALS[backend], tmp_path, shrink=False)
    assert passed, (tmp_path / "found").read_text()

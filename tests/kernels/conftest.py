"""Fixtures for the tests of kernels."""

import pytest
import torch

from pullback.kernels import bit_packing as bit_passes
from pullback.kernels import build


@pytest.fixture(params=["AVX512", "AVX2"])
def vectors(request, monkeypatch, native):
    """Compile kernels for AVX-512 or for AVX2."""
    if torch.backends.cpu.get_cpu_capability() not in ("AVX512", request.param):
        pytest.skip(f"no {request.param} here")
    monkeypatch.setattr(build, "_machine", lambda: build._OF_CAPABILITY[request.param])
    monkeypatch.setattr(build, "header", lambda: build._OF_CAPABILITY[request.param][0])
    bit_passes.passes.cache_clear()
    yield
    bit_passes.passes.cache_clear()

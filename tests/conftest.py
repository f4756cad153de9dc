"""Tests run on one thread, from the same random state, and leave no global setting of PyTorch changed."""

import os
import sys

import hypothesis
import pytest
import torch

from pullback.bind import node
from pullback.errors import RunnerError
from pullback.kernels import build, headers
from pullback.kernels.backend import backend, set_backend

# eager: results are those of the formulas, bit for bit. `native`, below, is for tests of the other; all can be run so
BACKEND = os.environ.get("PULLBACK_TEST_BACKEND", "eager")
set_backend(BACKEND)

# tests compile it, and use it, where they ask for it (`on`, below); "wait" has all of them use it
os.environ.setdefault("PULLBACK_NODE", "off")

os.environ["PULLBACK_STRICT"] = "1"  # a fault of ours is raised, here and in what tests start

torch.set_num_threads(1)  # before any operation: a forked child of a process that ran threaded ones can hang

hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _strict():
    """Start from a seed; float32 stays the default dtype, so that a test means float64 where it says so."""
    torch.manual_seed(0)
    set_backend(BACKEND)
    yield
    assert torch.get_default_dtype() is torch.float32
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.fixture(autouse=True)
def _forget_modules_of_temporary_files():
    """What a test imports from its temporary folder is gone for the next one, which may use the same name."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if "pytest-of-" in str(getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path, monkeypatch):
    """What a test keeps is gone after it, and nothing is read that the user keeps."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def _headers(tmp_path_factory):
    return tmp_path_factory.mktemp("headers")


@pytest.fixture(autouse=True)
def _headers_of_all(_headers, monkeypatch):
    """What all kernels include is compiled once for all tests: it is the same, and large."""
    monkeypatch.setattr(headers, "folder", lambda: _headers)


@pytest.fixture
def native():
    """Ops run in kernels compiled here."""
    try:
        build.require()
    except RunnerError as error:
        pytest.skip(str(error))
    with backend("native"):
        yield


@pytest.fixture(scope="session")
def _node(tmp_path_factory):
    """The module in C++ that small calls run in, compiled once."""
    try:
        build.require()
    except RunnerError as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patch:
        if "PULLBACK_CACHE_DIR" not in os.environ:
            patch.setenv("PULLBACK_CACHE_DIR", str(tmp_path_factory.mktemp("node")))
        if not node.EXTENSION.wait():
            pytest.skip(f"the node cannot be compiled here: {node.EXTENSION.trouble() or 'Python has no headers'}")


@pytest.fixture
def on(_node, native, monkeypatch):
    """Ops run in kernels compiled here, and small calls in C++."""
    monkeypatch.setenv("PULLBACK_NODE", "on")

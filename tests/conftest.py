"""Tests run on one thread, from the same random state, and leave no global setting of PyTorch changed."""

import gc
import math
import os
import sys

# before torch: MKL's exp and erf round differently from one kind of processor to another
os.environ.setdefault("MKL_CBWR", "AVX2")

import hypothesis
import pytest
import torch

from pullback.check.clock import Stopwatch
from pullback.errors import RunnerError
from pullback.kernels import build
from pullback.kernels.backend import backend, set_backend
from pullback.node import calls as node

# eager: results equal the formulas bit for bit. Tests of kernels use `native`, below; all tests can run with it
BACKEND = os.environ.get("PULLBACK_TEST_BACKEND", "eager")
set_backend(BACKEND)

# tests use the C++ node only through the fixture `on`, below; "wait" makes all of them use it
os.environ.setdefault("PULLBACK_NODE", "off")

os.environ["PULLBACK_STRICT"] = "1"  # internal faults raise, here and in subprocesses

COMPILED = ("kernels", "headers", "nodes")
"""Kinds of cache entries whose key covers everything that they depend on."""

torch.set_num_threads(1)  # before any operation: a forked child of a process that ran threaded ones can hang

hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("repeatable")


GOLDEN = (math.sqrt(5) - 1) / 2
"""Its multiples modulo 1 are evenly spread without a period, so that every parameter of a product varies."""
CPU_SECONDS = 40 if torch.accelerator.current_accelerator() is None else 80
"""Limit on a test that is not marked slow. The rule is 5 s: old processors, and two that share a core, need more.

In a build for an accelerator each audit is done in a new interpreter, which imports PyTorch first.
"""

LEISURE = 3
"""Budgets of audits in tests last so many times as long as they say: no finding may depend on the machine's speed.

A machine that runs them as fast as any other may stand still for half a minute in between.
"""
SECONDS = Stopwatch.seconds
Stopwatch.seconds = lambda self: SECONDS(self) / LEISURE


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Leave n cases of each test that is marked `few(n)` in the short run: mark the others as slow."""
    cases = {}
    for item in items:
        if item.get_closest_marker("few") and not item.get_closest_marker("slow"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for alike in cases.values():
        spread = sorted(range(len(alike)), key=lambda i: i * GOLDEN % 1)
        (n,) = alike[0].get_closest_marker("few").args
        for i in spread[n:]:
            alike[i].add_marker(pytest.mark.slow)


def pytest_addoption(parser):
    parser.addoption("--share", default="1/1", metavar="K/N", help="run the K-th of N equal shares of the chosen tests")


def of_share(items, share):
    """Return every N-th of `items` from the K-th on, for a share "K/N": tests of all files, of one time in all."""
    k, n = map(int, share.split("/"))
    if not 1 <= k <= n:
        raise pytest.UsageError(f"--share {share}: give it as K/N, with K from 1 to N")
    return items[k - 1 :: n]


@pytest.hookimpl(specname="pytest_collection_modifyitems", trylast=True)
def pytest_take_share(config, items):
    """Leave one share of what the other options choose."""
    chosen = of_share(items, config.getoption("--share"))
    kept = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = chosen


def pytest_collection_finish():
    """Keep what is imported by now, PyTorch above all, out of every later garbage collection: an eighth of the time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    """Fail a test that uses too much CPU time, its own and its children's: time that it waits does not count."""
    before = os.times()
    yield
    now = os.times()
    seconds = math.fsum(now[:4]) - math.fsum(before[:4])  # a test may have replaced `sum`
    if seconds > CPU_SECONDS and item.get_closest_marker("slow") is None:
        pytest.fail(f"took {seconds:.0f} s of CPU time: make it faster, or mark it slow", pytrace=False)


@pytest.fixture(autouse=True)
def _strict():
    """Start from a seed; float32 stays the default dtype, so that a test means float64 where it says so."""
    torch.manual_seed(0)
    set_backend(BACKEND)
    assert torch.func.grad(torch.square)(torch.ones(())) == 2, "a test before this one has left functorch disabled"
    yield
    assert torch.get_default_dtype() is torch.float32
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.fixture
def budgets_as_given(monkeypatch):
    """Let budgets last as long as they say."""
    monkeypatch.setattr(Stopwatch, "seconds", SECONDS)


@pytest.fixture(autouse=True)
def _forget_modules_of_temporary_files():
    """Forget modules imported from a temporary folder: the next test may use the same name."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if "pytest-of-" in str(getattr(sys.modules[name], "__file__", None) or ""):
            del sys.modules[name]


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory):
    """Folder of everything that tests compile, one for all workers: its entries are addressed by content."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"
    for kind in COMPILED:
        (folder / kind).mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


@pytest.fixture(autouse=True)
def _cache_of_its_own(shared_cache, tmp_path, monkeypatch):
    """Give each test a cache of its own, except for compiled code, which all tests share. It lies beside `tmp_path`."""
    home = tmp_path.with_name(f"{tmp_path.name}-cache")
    (home / "pullback").mkdir(parents=True, mode=0o700)
    for kind in COMPILED:
        (home / "pullback" / kind).symlink_to(shared_cache / kind)
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))


@pytest.fixture
def empty_cache(_cache_of_its_own, tmp_path, monkeypatch):
    """A cache that shares nothing, for tests of the cache itself."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty_cache"))


@pytest.fixture
def native():
    """Run ops in native kernels, compiled here."""
    try:
        build.require()
    except RunnerError as error:
        pytest.skip(str(error))
    with backend("native"):
        yield


@pytest.fixture(scope="session")
def _node(shared_cache):
    """The C++ extension for small calls, compiled once."""
    try:
        build.require()
    except RunnerError as error:
        pytest.skip(str(error))
    with pytest.MonkeyPatch.context() as patch:
        if "PULLBACK_CACHE_DIR" not in os.environ:
            patch.setenv("PULLBACK_CACHE_DIR", str(shared_cache))
        if not node.EXTENSION.wait():
            pytest.skip(f"the node cannot be compiled here: {node.EXTENSION.trouble() or 'Python has no headers'}")


@pytest.fixture
def on(_node, native, monkeypatch):
    """Run ops in native kernels, and small calls in C++."""
    monkeypatch.setenv("PULLBACK_NODE", "on")


@pytest.fixture(autouse=True)
def _kernels_are_not_interpreted_here():
    """Fail a test that enters the interpreter in this process: that changes PyTorch for all tests after it."""
    yield
    interpreter = sys.modules.get("pullback.interpreter")
    assert interpreter is None or not interpreter.is_entered()

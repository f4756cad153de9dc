"""What tests share, and the limit on their time."""

import os
from pathlib import Path

import pytest

from pullback import caches

STARTED = []
"""The caches that the tests below were given."""


@pytest.fixture
def conftest(request):
    return request.config.pluginmanager.get_plugin(str(Path(__file__).with_name("conftest.py")))


@pytest.mark.parametrize("run", [1, 2])
def test_compiled_code_is_shared_and_nothing_else(run, conftest, tmp_path):
    assert not list(tmp_path.iterdir())
    STARTED.append(caches.root())
    assert len(set(STARTED)) == len(STARTED)
    assert sorted(path.name for path in caches.root().iterdir()) == sorted(conftest.COMPILED)
    for kind in conftest.COMPILED:
        assert len({(root / kind).resolve() for root in STARTED}) == 1
        assert caches.is_private(caches.root() / kind)


def test_workers_share_what_they_compile(shared_cache, tmp_path_factory):
    base = tmp_path_factory.getbasetemp()
    assert shared_cache.parent == (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base)


def test_an_empty_cache_shares_nothing(empty_cache):
    assert not caches.root().exists()


def limited(conftest, item, seconds):
    """Run the hook around a test that takes no time, under another limit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conftest, "CPU_SECONDS", seconds)
        hook = conftest.pytest_runtest_call(item)
        next(hook)
        with pytest.raises(StopIteration):
            next(hook)


def test_a_test_that_takes_long_and_is_not_marked_fails(request, conftest):
    limited(conftest, request.node, 1)
    with pytest.raises(pytest.fail.Exception, match="mark it slow"):
        limited(conftest, request.node, -1)


def test_one_that_is_marked_does_not(request, conftest):
    request.node.add_marker("slow")
    limited(conftest, request.node, -1)

"""Caches shared between tests, the time limit, and the selection of the short run."""

import itertools
import os
from pathlib import Path

import pytest

from pullback import caches

STARTED = []
"""Cache folders given to the tests below."""


@pytest.fixture
def conftest(request):
    return request.config.pluginmanager.get_plugin(str(Path(__file__).with_name("conftest.py")))


@pytest.mark.parametrize("run", [1, 2])
def test_only_compiled_code_is_shared_between_tests(run, conftest, tmp_path):
    assert not list(tmp_path.iterdir())
    STARTED.append(caches.root())
    assert len(set(STARTED)) == len(STARTED)
    assert sorted(path.name for path in caches.root().iterdir()) == sorted(conftest.COMPILED)
    for kind in conftest.COMPILED:
        assert len({(root / kind).resolve() for root in STARTED}) == 1
        assert caches.is_private(caches.root() / kind)


def test_workers_share_the_compiled_cache(shared_cache, tmp_path_factory):
    base = tmp_path_factory.getbasetemp()
    assert shared_cache.parent == (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base)


def test_empty_cache_fixture_shares_nothing(empty_cache):
    assert not caches.root().exists()


def limited(conftest, item, seconds):
    """Run the hook around a test that takes no time, under another limit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conftest, "CPU_SECONDS", seconds)
        hook = conftest.pytest_runtest_call(item)
        next(hook)
        with pytest.raises(StopIteration):
            next(hook)


def test_long_test_without_the_slow_mark_fails(request, conftest):
    limited(conftest, request.node, 1)
    with pytest.raises(pytest.fail.Exception, match="mark it slow"):
        limited(conftest, request.node, -1)


def test_long_test_with_the_slow_mark_passes(request, conftest):
    request.node.add_marker("slow")
    limited(conftest, request.node, -1)


class Case:
    """Stand-in for a collected item."""

    def __init__(self, number, *marks):
        self.nodeid = f"test_it[{number}]"
        self.marks = {mark.name: mark.mark for mark in marks}

    def get_closest_marker(self, name):
        return self.marks.get(name)

    def add_marker(self, mark):
        self.marks[mark.name] = mark.mark


def test_short_run_covers_every_parameter_value(conftest):
    cases = [Case(i, pytest.mark.few(12)) for i in range(36)]  # of a product of 3, 3 and 4 values
    conftest.pytest_collection_modifyitems(cases)
    short = [i for i, case in enumerate(cases) if "slow" not in case.marks]
    assert len(short) == 12
    for values, step in ((3, 12), (3, 4), (4, 1)):
        assert {i // step % values for i in short} == set(range(values))


def test_slow_cases_do_not_count_as_the_few(conftest):
    cases = [Case(0, pytest.mark.few(1), pytest.mark.slow), Case(1, pytest.mark.few(1)), Case(2)]
    conftest.pytest_collection_modifyitems(cases)
    assert ["slow" in case.marks for case in cases] == [True, False, False]


@pytest.mark.parametrize("n", [1, 3, 5])
def test_shares_are_all_of_the_tests_once(conftest, n):
    shares = [conftest.of_share(list(range(13)), f"{k}/{n}") for k in range(1, n + 1)]
    assert sorted(itertools.chain(*shares)) == list(range(13))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("share", ["0/3", "4/3"])
def test_share_beyond_the_last_is_an_error(conftest, share):
    with pytest.raises(pytest.UsageError, match="with K from 1 to N"):
        conftest.of_share([1, 2, 3], share)

"""The rules of the quick pass: where both sides are defined, and what was measured of each."""

import importlib.util
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pullback.stable.oracle import exact
from pullback.stable.quick_rules import first, last, taken, wide
from pullback.stable.rules import rules
from pullback.stable.sampling import points
from pullback.stable.term import variables

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "numerics.md"


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BENCH = load("quick_rules")
SUBJECTS = {subject.name: subject for subject in BENCH.subjects()}


def test_those_that_are_taken_from_the_table_are_in_it():
    table = {(rule.left, rule.right) for rule in rules()}
    assert [rule.text for rule in taken() if (rule.left, rule.right) not in table] == []


@pytest.mark.parametrize("rule", [*first(), *last(), *wide()], ids=lambda rule: rule.text)
def test_both_sides_have_values_at_the_same_points(rule):
    names = variables(rule.left)
    at = points(names, torch.float32, seed=5)
    step = -(-len(at[names[0]]) // 600)
    left, right = exact([rule.left, rule.right], {name: x[::step] for name, x in at.items()})
    known = ~(left.undecided | right.undecided)
    assert known.mean() > 0.9
    np.testing.assert_array_equal(np.isnan(left.high[known]), np.isnan(right.high[known]))


def recorded(backend):
    begin, end = BENCH.markers(backend)
    _, _, rest = PAGE.read_text(encoding="utf-8").partition(begin)
    table, _, _ = rest.partition(end)
    rows = [re.split(r"\s\|\s", line.strip("| ")) for line in table.strip().splitlines()[2:]]
    return {name.strip("`"): cells for name, *cells in rows}


@pytest.mark.parametrize("backend", BENCH.BACKENDS)
def test_every_rule_has_a_record(backend):
    assert list(recorded(backend)) == list(SUBJECTS)


_ALL_LOST = 2.0**20
"""Ulp of a float32: how far beyond depends on the point at which a kernel rounds worst."""
RECORDS = [
    pytest.param(name, backend, marks=[] if backend == "eager" or k % 5 == 0 else [pytest.mark.slow])
    for backend in BENCH.BACKENDS
    for k, name in enumerate(SUBJECTS)
]
"""The short run compiles one rule in five."""


@pytest.mark.parametrize(("name", "backend"), RECORDS)
@pytest.mark.few(11)
def test_the_record_is_right(backend, name, request):
    """To a factor of 2, since kernels differ between processors; all digits lost is as good as more than all."""
    if backend == "native":
        request.getfixturevalue("native")
    before, after = BENCH.measure(SUBJECTS[name], torch.float32, backend)
    for score, cell in zip((before, after), recorded(backend)[name], strict=False):
        ulp, *spurious = cell.split()
        found, then = (min(x, _ALL_LOST) for x in (score.ulp, float(ulp)))
        assert 0.5 * then - 0.5 <= found <= 2 * then + 0.5
        assert spurious[::2] == str(score).split()[1::2]


@pytest.mark.parametrize("backend", BENCH.BACKENDS)
def test_no_rule_makes_anything_worse(backend):
    """By its record, but for a few ulp: those are for the pass to weigh at each formula."""
    for name, cells in recorded(backend).items():
        for before, after in zip(cells[::2], cells[1::2], strict=True):
            ulp, *spurious = before.split()
            ulp_after, *spurious_after = after.split()
            lost = 2.0**24 if "0" in spurious[::2] else 4.0  # of all digits of a float32, or 4 ulp
            assert float(ulp_after) <= max(float(ulp), lost), name
            assert set(spurious_after[::2]) <= set(spurious[::2]), name

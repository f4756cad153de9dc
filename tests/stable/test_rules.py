"""The rules: in ball arithmetic both sides are equal wherever both are defined, and no rule is a duplicate."""

import importlib.util
import itertools
import random
import re
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from flint import arb, ctx, fmpq

from pullback.stable.oracle.values import exact, straight_line
from pullback.stable.rewriting import COMMUTATIVE
from pullback.stable.rules import differentiable_rules, final_rules, float64_only, search_rules, shared_with_search
from pullback.stable.sampling import sample_points
from pullback.stable.term import Term, show, substitute, topological, var, variables

BITS = 400
ENOUGH = 200  # accurate bits that a value needs to be compared
RANGES = ((-2, 2), (0, 1), (-1, 0), (0.5, 6), (1, 40), (-1.5, -1))
PRINCIPAL = {"atan(tan(a)) => a": 1.5}
"""Rules that hold for small arguments only; a merge elsewhere is refused by its values."""


def points(names, count, most):
    rng = random.Random(" ".join(names))
    combinations = list(itertools.product(RANGES, repeat=len(names)))
    for _ in range(max(count, 2 * len(combinations))):
        chosen = rng.choice(combinations)
        values = (max(min(rng.uniform(*limits), most), -most) for limits in chosen)
        yield {n: fmpq(round(value * 10**6), 10**6) for n, value in zip(names, values, strict=True)}


def is_tight(value):
    return value.is_finite() and (value.rel_accuracy_bits() >= ENOUGH or value.abs_upper() < arb(2) ** -ENOUGH)


@pytest.mark.parametrize("rule", search_rules(), ids=lambda rule: rule.text)
@pytest.mark.few(147)
def test_both_sides_of_a_rule_are_equal(rule):
    names = sorted({*variables(rule.left), *variables(rule.right)})
    assert set(variables(rule.right)) <= set(variables(rule.left))
    compared = 0
    before, ctx.prec = ctx.prec, BITS
    try:
        run = straight_line([rule.left, rule.right])
        for point in points(names, 200, PRINCIPAL.get(rule.text, 100.0)):
            left, right = run({n: arb(v) for n, v in point.items()})
            if is_tight(left) and is_tight(right):
                assert left.overlaps(right), point
                compared += 1
    finally:
        ctx.prec = before
    assert compared >= 10


def test_rules_have_no_duplicates():
    assert [rule for rule, times in Counter(map(shape, search_rules())).items() if times > 1] == []


def shape(rule):
    """Canonical text of a rule, independent of variable names and of the order of commuting operands."""
    names = variables(rule.left)
    ways = (dict(zip(map(var, names), map(var, p), strict=True)) for p in itertools.permutations(names))
    return min(tuple(show(ordered(substitute(side, way))) for side in (rule.left, rule.right)) for way in ways)


def ordered(root):
    made = {}
    for t in topological([root]):
        args = [made[a] for a in t.args]
        made[t] = Term(t.op, tuple(sorted(args, key=show) if t.op in COMMUTATIVE else args), t.value)
    return made[root]


ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "numerics.md"


def load(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BENCH = load("quick_rules")
SUBJECTS = {subject.name: subject for subject in BENCH.subjects()}


def test_shared_rules_are_search_rules():
    table = {(rule.left, rule.right) for rule in search_rules()}
    assert [rule.text for rule in shared_with_search() if (rule.left, rule.right) not in table] == []


@pytest.mark.parametrize("rule", [*differentiable_rules(), *final_rules(), *float64_only()], ids=lambda rule: rule.text)
def test_both_sides_of_a_rule_have_the_same_domain(rule):
    names = variables(rule.left)
    at = sample_points(names, torch.float32, seed=5)
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
def test_every_rule_is_in_the_recorded_table(backend):
    assert list(recorded(backend)) == list(SUBJECTS)


_ALL_LOST = 2.0**20
"""Ulps at which all digits of a float32 are lost; larger errors are not compared."""
RECORDS = [
    pytest.param(name, backend, marks=[] if backend == "eager" or k % 5 == 0 else [pytest.mark.slow])
    for backend in BENCH.BACKENDS
    for k, name in enumerate(SUBJECTS)
]
"""The short run compiles one rule in five."""


@pytest.mark.parametrize(("name", "backend"), RECORDS)
@pytest.mark.few(11)
def test_recorded_errors_match_a_new_measurement(backend, name, request):
    """Within a factor of 2, since kernels differ between processors; beyond `_ALL_LOST` all errors count as equal."""
    if backend == "native":
        request.getfixturevalue("native")
    before, after = BENCH.measure(SUBJECTS[name], torch.float32, backend)
    for score, cell in zip((before, after), recorded(backend)[name], strict=False):
        ulp, *spurious = cell.split()
        found, then = (min(x, _ALL_LOST) for x in (score.ulp, float(ulp)))
        assert 0.5 * then - 0.5 <= found <= 2 * then + 0.5
        assert spurious[::2] == str(score).split()[1::2]


@pytest.mark.parametrize("backend", BENCH.BACKENDS)
def test_no_rule_increases_the_recorded_error(backend):
    """Up to a few ulp, which the pass weighs for each formula."""
    for name, cells in recorded(backend).items():
        for before, after in zip(cells[::2], cells[1::2], strict=True):
            ulp, *spurious = before.split()
            ulp_after, *spurious_after = after.split()
            lost = 2.0**24 if "0" in spurious[::2] else 4.0  # of all digits of a float32, or 4 ulp
            assert float(ulp_after) <= max(float(ulp), lost), name
            assert set(spurious_after[::2]) <= set(spurious[::2]), name

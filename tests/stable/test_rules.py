"""The rules: every equation holds wherever both sides have values, in ball arithmetic, and none is there twice."""

import itertools
import random
from collections import Counter

import pytest
from flint import arb, ctx, fmpq

from pullback.stable.oracle import straight_line
from pullback.stable.rewrite import COMMUTATIVE
from pullback.stable.rules import rules
from pullback.stable.term import Term, show, substitute, topological, var, variables

BITS = 400
ENOUGH = 200  # bits that a value must have to count
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


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.text)
@pytest.mark.few(147)
def test_both_sides_are_equal(rule):
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


def test_no_rule_is_there_twice():
    assert [rule for rule, times in Counter(map(shape, rules())).items() if times > 1] == []


def shape(rule):
    """The rule in writing, the same for any names of its variables and any order of commuting operands."""
    names = variables(rule.left)
    ways = (dict(zip(map(var, names), map(var, p), strict=True)) for p in itertools.permutations(names))
    return min(tuple(show(ordered(substitute(side, way))) for side in (rule.left, rule.right)) for way in ways)


def ordered(root):
    made = {}
    for t in topological([root]):
        args = [made[a] for a in t.args]
        made[t] = Term(t.op, tuple(sorted(args, key=show) if t.op in COMMUTATIVE else args), t.value)
    return made[root]

"""The registry of ops: every kernel against the exact value, and balls that are too wide to decide."""

import flint
import numpy as np
import pytest
import torch

from pullback.ops import comparison, powers, selection
from pullback.ops.registry import CONDITIONS, OPS
from pullback.stable.oracle.values import exact
from pullback.stable.term import Term, var

RANGES = {
    **dict.fromkeys(("sqrt", "rsqrt", "log", "log2", "log10", "lgamma", "digamma", "trigamma"), (2.5, 40.0)),
    **dict.fromkeys(("asin", "acos", "atanh"), (-0.95, 0.95)),
    "ndtri": (0.001, 0.999),
    "log1p": (-0.9, 5.0),
    "acosh": (1.1, 40.0),
    "pow": (0.1, 4.0),
    "tan": (-1.4, 1.4),
}
ULPS = {
    "digamma": 16,
    "lgamma": 16,
    "atanh": 16,
    "acosh": 16,
    "erfcx": 8,
    "i0": 8,
    "i0e": 8,
    "i1": 12,
    "i1e": 12,
}  # the rest within 4
ULPS["trigamma"] = 2**23  # PyTorch's series has float32 accuracy


@pytest.mark.parametrize("op", sorted(OPS.keys() - CONDITIONS - {"where"}))
def test_kernel_is_within_ulps_of_the_exact_value(op):
    names = "ab"[: OPS[op].arity]
    low, high = RANGES.get(op, (-4.0, 4.0))
    points = np.random.default_rng(0).uniform(low, high, (len(names), 200))
    ours = OPS[op].value(*map(torch.from_numpy, points)).numpy()
    (truth,) = exact([Term(op, tuple(map(var, names)))], dict(zip(names, points, strict=True)))
    off = np.abs(ours - truth.high - truth.low) / np.spacing(np.abs(truth.high))
    assert not np.isnan(off).any(), f"{op} is not defined on all of [{low}, {high}]: add its domain to RANGES"
    assert off.max() <= ULPS.get(op, 4)


@pytest.mark.parametrize("op", sorted(CONDITIONS - {"logical_and", "logical_or", "logical_not"}))
def test_exact_comparison_matches_the_kernel(op):
    a, b = np.array([1.0, 2.0, 2.0]), np.array([2.0, 1.0, 2.0])
    (truth,) = exact([Term(op, (var("a"), var("b")))], {"a": a, "b": b})
    assert truth.high.tolist() == OPS[op].value(torch.from_numpy(a), torch.from_numpy(b)).double().tolist()


@pytest.mark.parametrize("a", [True, False, None])
@pytest.mark.parametrize("b", [True, False, None])
def test_three_valued_logic(a, b):
    possible = [(p, q) for p in (True, False) for q in (True, False) if a in (p, None) and b in (q, None)]
    for op, function in (("logical_and", all), ("logical_or", any)):
        outcomes = set(map(function, possible))
        assert OPS[op].ball(a, b) is (outcomes.pop() if len(outcomes) == 1 else None)
    assert comparison.negated(a) is (None if a is None else not a)


def test_comparison_of_overlapping_balls_is_unknown():
    wide, one = flint.arb(1, 0.5), flint.arb(1)
    assert all(OPS[op].ball(wide, one) is None for op in ("gt", "ge", "lt", "le", "eq", "ne"))
    assert selection.where_ball(None, flint.arb(1), flint.arb(2)).contains(flint.arb(1.5))


@pytest.mark.parametrize("op", ["sinh", "cosh", "tan"])
def test_overflow_is_not_undefined(op):
    assert not OPS[op].ball(flint.arb((1, 2**100))).is_nan()


@pytest.mark.parametrize("op", ["lgamma", "digamma", "trigamma"])
def test_ball_at_a_pole_is_nan_and_around_it_unknown(op):
    assert OPS[op].ball(flint.arb(-2)).is_nan()
    assert not OPS[op].ball(flint.arb(-2, 1e-20)).is_nan()


def test_power_with_an_exponent_ball_around_an_integer_is_unknown():
    assert powers.power_ball(flint.arb(-2), flint.arb(3)) == -8
    assert powers.power_ball(flint.arb(-2), flint.arb(2.5)).is_nan()
    assert not powers.power_ball(flint.arb(-2), flint.arb(2, 1e-20)).is_nan()

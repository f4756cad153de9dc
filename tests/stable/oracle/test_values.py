"""Exact values against mpmath: at removable singularities, outside domains, at huge arguments."""

import itertools
import math
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import flint
import numpy as np
import pytest
from hypothesis import given, strategies
from mpmath import mp
from tests.stable import reference
from tests.stable.formulas import FORMULAS

from pullback.errors import FormulaError, RunnerError
from pullback.ops.constants import CONSTANTS, VALUES
from pullback.ops.registry import CONDITIONS, OPS
from pullback.stable.derivative import derivative
from pullback.stable.oracle import balls as precision
from pullback.stable.oracle.balls import working_precision
from pullback.stable.oracle.values import exact, root_between, straight_line
from pullback.stable.term import Term, named, parse, var

POINTS = (-7.5, -1.5, -1.0, -0.3, 0.0, 0.25, 0.9, 1.0, 1.75, 12.0, 40.0)
HUGE = (1e30, 3e38, 1.7e308)


def truth(text, order=0, **points):
    term = parse(text)
    for _ in range(order):
        term = derivative(term, min(points))
    (found,) = exact([term], {name: np.array(values, dtype=float, ndmin=1) for name, values in points.items()})
    return found


def value(text, order=0, **points):
    found = truth(text, order, **points)
    assert not found.undecided.any()
    return found.high.item()


@pytest.fixture
def digits():
    with mp.workdps(400):
        yield


def assert_equals_reference(root, points):
    (found,) = exact([root], {name: np.array(values) for name, values in points.items()})
    assert not found.undecided.any(), f"{root}: its ball has to be NaN where there is no finite value"
    for high, low, *point in zip(found.high, found.low, *points.values(), strict=True):
        expected = reference.value(root, **dict(zip(points, point, strict=True)))
        assert reference.agrees(high, low, expected), (root, point, high, expected)


@pytest.mark.parametrize("op", sorted(OPS.keys() - {"where", "logical_and", "logical_or", "logical_not"}))
def test_op_matches_mpmath(op, digits):
    names = "ab"[: reference.FUNCTIONS[op].__code__.co_argcount if op in CONDITIONS else len(OPS[op].partials or "a")]
    grid = list(itertools.product(POINTS, repeat=len(names)))
    holes = {("pow", (0.0, 0.0)), ("atan2", (0.0, 0.0))}
    grid = [p for p in grid if (op, p) not in holes]
    root = Term(op, tuple(map(var, names)))
    assert_equals_reference(root, dict(zip(names, map(list, zip(*grid, strict=True)), strict=True)))


@pytest.mark.parametrize(
    "text",
    [
        "where(a > b, a, b)",
        "where(logical_and(a > 0, b > 0), a, -b)",
        "where(logical_or(a > 0, b > 0), a*b, 1/a)",
        "where(logical_not(a == b), log(abs(a - b) + 1), PI)",
    ],
)
def test_choices_match_mpmath(text, digits):
    a, b = zip(*itertools.product([p for p in POINTS if p], repeat=2), strict=True)
    assert_equals_reference(parse(text), {"a": a, "b": b})


def sample(count=50):
    """Points of every size, without 0 and without the ends of domains."""
    generator = np.random.default_rng(0)
    sign = generator.choice([-1, 1], count)
    return np.where(np.arange(count) % 2, 10 ** generator.uniform(-20, 2, count), generator.uniform(0, 9, count)) * sign


@pytest.mark.parametrize("name", FORMULAS)
def test_formula_matches_mpmath(name, digits):
    assert_equals_reference(parse(FORMULAS[name]), {"x": sample()})


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.few(15)
def test_derivative_matches_mpmath(name, digits):
    root = parse(FORMULAS[name])
    slope = derivative(root, "x")
    x = sample()
    (found,) = exact([slope], {"x": x})
    for high, low, at in zip(found.high, found.low, x, strict=True):
        if reference.value(root, x=at) is not None:
            expected = mp.diff(lambda t: reference.value(root, x=t), at)
            assert reference.agrees(high, low, expected), (at, high, expected)


def test_third_derivative_matches_mpmath(digits):
    found = truth("x*tanh(log(1+exp(x)))", 3, x=[-30.0, -1.1, 0.7, 25.0])
    for high, at in zip(found.high, (-30.0, -1.1, 0.7, 25.0), strict=True):
        expected = mp.diff(lambda t: t * mp.tanh(mp.log1p(mp.exp(t))), at, 3)
        assert math.isclose(high, expected, rel_tol=1e-15)


def test_several_terms_share_their_points():
    root = parse("log(1-exp(-x))")
    x = np.array([1e-30, 1.0, 700.0, -1.0])
    together = exact([root, derivative(root, "x")], {"x": x})
    for both, one in zip(together, (root, derivative(root, "x")), strict=True):
        assert np.array_equal(both.high, exact([one], {"x": x})[0].high, equal_nan=True)


@given(strategies.floats(-1e15, 1e15), strategies.integers(-50, 50))
def test_difference_is_exact_in_two_parts(a, steps):
    b = a + steps * math.ulp(a)
    found = truth("a - b", a=a, b=b)
    assert Fraction(found.high.item()) + Fraction(found.low.item()) == Fraction(a) - Fraction(b)


@given(strategies.floats(-1e100, 1e100), strategies.floats(-1e100, 1e100))
def test_sum_is_rounded_high_plus_low(a, b):
    found = truth("a + b", a=a, b=b)
    assert found.high == a + b
    assert abs(found.low) <= math.ulp(a + b) / 2


# Removable singularities


@pytest.mark.parametrize(
    ("text", "at", "limits"),
    [
        ("sin(x)/x", 0, (1, 0, -1 / 3, 0)),
        ("(1-cos(x))/x**2", 0, (1 / 2, 0, -1 / 12, 0)),
        ("(exp(x)-1)/x", 0, (1, 1 / 2, 1 / 3)),
        ("x/(exp(x)-1)", 0, (1, -1 / 2, 1 / 6)),
        ("log(x)/(x-1)", 1, (1, -1 / 2)),
        ("(log(1+exp(x))-LN2)/x", 0, (1 / 2, 1 / 8)),
        ("x*log(x)", 0, (0, math.nan)),
        ("sqrt(x)*log(x)", 0, (0, math.nan)),
        ("exp(log(x)/2)", 0, (0, math.nan)),
        ("exp(-1/x**2)", 0, (0, 0)),
        ("x*sin(1/x)", 0, (0, math.nan)),
        ("1/(1/x)", 0, (0, 1)),
    ],
)
def test_removable_singularity_has_its_limit(text, at, limits):
    for order, expected in enumerate(limits):
        assert value(text, order, x=at) == expected or math.isnan(expected), (text, order)


@pytest.mark.parametrize(
    "text",
    ["1/x", "1/x**2", "log(abs(x))", "1/log(abs(x))", "1/log(x)", "sin(1/x)", "abs(x)/x", "tanh(1/x)", "lgamma(x)"],
)
def test_value_without_limit_is_undefined(text):
    assert math.isnan(value(text, x=0.0))


def test_pole_under_a_large_summand_is_undefined():
    assert math.isnan(value("1e38 - log(abs(x))", x=0.0))


def test_value_outside_the_domain_is_undefined():
    assert all(map(math.isnan, truth("sqrt(x)*log(x)", x=[-1.0, -1e-300, -1e300]).high))
    assert math.isnan(value("acosh(x) + asin(x)", x=0.5))


@pytest.mark.parametrize(
    ("text", "x", "y", "expected"),
    [
        ("x*log(y)", 0.0, 0.0, 0.0),
        ("x*log(y)", 3.0, 0.0, math.nan),
        ("x*log(y)", 0.0, -1.0, math.nan),
        ("x*log(x/y)", 0.0, 0.5, 0.0),
        ("sin(x)*y/x", 0.0, 2.0, 2.0),
        ("(exp(x)-exp(y))/(x-y)", 1.0, 1.0, math.e),
        ("x/y", 0.0, 0.0, math.nan),
        ("x*x*y/(x*x*x*x+y*y)", 0.0, 0.0, math.nan),  # 0 along every line, 1/2 along a parabola
        ("pow(x, y)*log(x)", 0.0, 2.0, 0.0),
    ],
)
def test_singularities_of_two_variables(text, x, y, expected):
    found = value(text, x=x, y=y)
    assert found == expected or (math.isnan(found) and math.isnan(expected))


# Insufficient precision


def test_insufficient_precision_is_no_domain_error(digits):
    assert_equals_reference(parse("sqrt(1-tanh(x)*tanh(x))"), {"x": [50.0, 100.0, 130.0]})


@pytest.mark.parametrize("text", ["sgn(log(x)-log(x))", "log(sin(x)*sin(x)+cos(x)*cos(x)-1)", "sin(exp(exp(10*x)))"])
def test_value_that_no_precision_decides_is_undecided(text):
    found = truth(text, x=[3.0])
    assert found.undecided.all()
    assert np.isnan(found.high).all()


def test_overflow_and_underflow():
    found = truth("exp(x)", x=[710.0, -710.0, 1e300, -1e300])
    assert found.high.tolist() == [math.inf, math.exp(-710.0), math.inf, 0.0]
    assert found.low.tolist() == [0.0] * 4
    assert value("-exp(x)", x=1e4) == -math.inf


@pytest.mark.parametrize("op", sorted(o for o in OPS if len(OPS[o].partials or ()) == 1 or o == "trigamma"))
def test_huge_arguments_return_quickly(op):
    started = time.perf_counter()
    found = truth(f"{op}(x)", x=[sign * x for x in HUGE for sign in (1, -1)])
    assert time.perf_counter() - started < 1
    assert not found.undecided.any()


@pytest.mark.parametrize("text", ["exp(exp(x))", "erfc(exp(x))", "sinh(exp(x))*exp(-exp(x))", "lgamma(exp(exp(x)))"])
def test_hopeless_points_return_quickly(text):
    started = time.perf_counter()
    truth(text, x=[*HUGE, 300.0, 1e4])
    assert time.perf_counter() - started < 1


def test_infinite_inputs_have_no_value():
    found = truth("exp(x)", x=[math.inf, -math.inf, math.nan, 0.0])
    assert np.isnan(found.high).tolist() == [True, True, True, False]
    assert not found.undecided.any()


def test_conditions_are_one_and_zero():
    assert truth("x*x > 2", x=[1.0, 2.0]).high.tolist() == [0.0, 1.0]
    assert value("log(x) == 0", x=1.0) == 1.0


def test_exact_of_no_points():
    assert truth("log(x)", x=[]).high.shape == (0,)


# The state of the arithmetic


def test_precision_is_restored():
    before = flint.ctx.prec
    truth("log(sgn(x - 1) - 2)", x=[1e-30, 2.0])
    root_between(parse("x*x - 2"), "x", 1.0, 2.0)
    assert flint.ctx.prec == before
    with pytest.raises(KeyError):
        exact([var("y")], {"x": np.ones(1)})
    assert flint.ctx.prec == before


def test_threads_are_serialised():
    x = np.linspace(-700.0, 700.0, 300)
    root = parse("log(1 - exp(-x*x)) - tanh(x)")
    (alone,) = exact([root], {"x": x})
    with ThreadPoolExecutor(4) as pool:
        for (found,) in pool.map(lambda _: exact([root], {"x": x}), range(4)):
            assert np.array_equal(found.high, alone.high, equal_nan=True)


def test_missing_flint_raises_and_says_what_to_install(monkeypatch):
    monkeypatch.setattr(precision, "flint", None)
    with pytest.raises(RunnerError, match=r"pip install 'pullback\[numerics\]'"):
        truth("x", x=1.0)


def test_unknown_op_raises_by_name():
    with pytest.raises(FormulaError, match="besselj"):
        truth("besselj(x)", x=1.0)


def test_straight_line_evaluates_balls():
    run = straight_line([parse("x*y"), parse("x > y"), parse("PI")])
    product, larger, pi = run({"x": flint.arb(3), "y": flint.arb(2)})
    assert (product, larger) == (6, True)
    assert pi.overlaps(flint.arb.pi())


@pytest.mark.parametrize("name", CONSTANTS)
def test_constant_is_correctly_rounded(name, digits):
    assert VALUES[name] == float(reference.NUMBERS[name]())
    with working_precision() as set_precision:
        set_precision(96)
        assert VALUES[name] == float(CONSTANTS[name](flint.arb))
    (found,) = exact([named(name)], {"x": np.ones(1)})
    assert reference.agrees(found.high[0], found.low[0], reference.NUMBERS[name]())


# Roots


@pytest.mark.parametrize(
    ("text", "a", "b", "root"),
    [
        ("x*x - 2", 1.0, 2.0, lambda: mp.sqrt(2)),
        ("exp(x) - 2", 0.0, 1.0, lambda: mp.log(2)),
        ("2 - exp(x)", -700.0, 700.0, lambda: mp.log(2)),
        ("x*sigmoid(x) + sigmoid(x)", -3.0, 0.3, lambda: mp.mpf(-1)),
        ("sin(x)", -1.0, 2.0, lambda: mp.zero),
        ("log(x)", 1.0, 2.0, lambda: mp.one),
        ("x - 1e300", 1.0, 1.7e308, lambda: mp.mpf("1e300")),
    ],
)
def test_root_between_is_accurate(text, a, b, root, digits):
    high, low = root_between(parse(text), "x", a, b)
    assert abs(mp.mpf(high) + mp.mpf(low) - root()) <= abs(root()) * mp.mpf(2) ** -76
    assert abs(high) > 3e38 or high == np.float32(high)


@pytest.mark.parametrize(
    ("text", "a", "b", "why"),
    [
        ("1/x", -1.0, 2.0, "without being 0"),
        ("sgn(x) - 0.5", -1.0, 2.0, "without being 0"),
        ("x", 1.0, 2.0, "same sign"),
    ],
)
def test_interval_without_root_raises(text, a, b, why):
    with pytest.raises(ValueError, match=why):
        root_between(parse(text), "x", a, b)

"""Terms: interned objects that round-trip through text."""

import copy
import gc
import pickle
from fractions import Fraction

import pytest
from hypothesis import given, strategies

from pullback.ops.registry import OPS
from pullback.stable.term import Term, const, named, parse, power, show, substitute, topological, var, variables
from tests.stable.formulas import FORMULAS

leaves = (
    strategies.sampled_from([var("x"), var("y"), named("PI")])
    | strategies.fractions().map(const)
    | strategies.floats(allow_nan=False, allow_infinity=False).map(const)
)


def operations(inner):
    return strategies.sampled_from(sorted(OPS)).flatmap(
        lambda op: strategies.tuples(*[inner] * _arity(op)).map(lambda args: Term(op, args))
    )


def _arity(op):
    if op == "where":
        return 3
    return len(OPS[op].partials or ("a" if op in ("logical_not", "trigamma") else "ab"))


terms = strategies.recursive(leaves, operations, max_leaves=12)


@given(terms)
def test_term_round_trips_through_text(term):
    assert parse(show(term)) is term


@given(terms)
def test_term_round_trips_through_pickle_and_copy(term):
    assert pickle.loads(pickle.dumps(term)) is term
    assert copy.deepcopy(term) is term


@pytest.mark.parametrize("text", FORMULAS.values())
def test_formula_round_trips_through_text(text):
    assert parse(show(parse(text))) is parse(text)


def test_equal_terms_are_one_object():
    assert parse("x*(1 + y)") is parse("x * (1+y)")
    assert parse("x*y") is not parse("y*x")


def test_unused_terms_are_collected():
    before = id(parse("sin(forgotten)"))
    gc.collect()
    assert [t for t in topological([parse("cos(kept)")]) if id(t) == before] == []


def test_constants_are_exact_rationals():
    assert const(0.1).value == parse("0.1").value == Fraction(1, 10)
    assert parse("-1/3") is const(Fraction(-1, 3))
    assert parse("-2") is const(-2)
    assert parse("1/0").op == "div"


def test_integer_powers_are_products():
    square = Term("mul", (var("x"), var("x")))
    assert parse("x**2") is square
    assert parse("x**4") is Term("mul", (square, square))
    assert parse("x**1") is var("x")
    assert parse("x**y") is power(var("x"), var("y")) is Term("pow", (var("x"), var("y")))


@pytest.mark.parametrize("text", ["x @ y", "x < y < z", "f(x, k=1)", "'x'", "x if y else z", "x.y"])
def test_unsupported_syntax_raises(text):
    with pytest.raises(ValueError, match="cannot read"):
        parse(text)


def test_topological_has_operands_first_once():
    root = parse("exp(x)*exp(x) + sin(exp(x))")
    order = topological([root, root.args[0]])
    assert len(order) == len(set(order)) == 5
    assert all(order.index(a) < order.index(t) for t in order for a in t.args)


def test_deep_terms_need_no_recursion():
    root = var("x")
    for _ in range(5000):
        root = Term("sin", (root,))
    assert len(topological([root])) == 5001
    assert variables(substitute(root, {var("x"): var("y")})) == ["y"]


def test_substitute_replaces_variables_and_subterms():
    assert substitute(parse("x*log(y) + PI"), {var("y"): parse("1 + x")}) is parse("x*log(1 + x) + PI")
    assert substitute(parse("exp(x) + x"), {parse("exp(x)"): var("e")}) is parse("e + x")


def test_variables_are_sorted():
    assert variables(parse("y*log(x) - x + E")) == ["x", "y"]

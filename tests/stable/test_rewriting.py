"""Rewriting by rules: matching, order and repetition."""

import numpy as np
import pytest
import torch
from mpmath import mp

from pullback.stable.evaluate import evaluate
from pullback.stable.oracle.values import exact
from pullback.stable.rewriting import EXACT_IDENTITIES, parse_rules, rewrite, tidy, without_cancellation
from pullback.stable.rules import differentiable_rules, final_rules
from pullback.stable.term import CONST, Term, const, parse, var
from tests.stable import reference
from tests.stable.formulas import FORMULAS


def by(table, text, to_fixpoint=True):
    used = {}
    return str(rewrite(parse(text), tuple(parse_rules(table)), used, to_fixpoint)), list(used)


CASES = {
    "log(1 + y)": "log1p(y)",
    "log(exp(x) + 1)": "log1p(exp(x))",  # sums commute
    "log(2 + x)": "log(2 + x)",
    "exp(log(1 + x) + log(1 + y))": "exp(log1p(x) + log1p(y))",
}


@pytest.mark.parametrize("text", CASES)
def test_rule_is_applied_to_every_subterm(text):
    assert by("log(1 + a) => log1p(a)", text)[0] == str(parse(CASES[text]))


def test_pattern_variable_matches_one_term():
    table = "a * a - b * b => (a - b) * (a + b)"
    assert by(table, "sin(x) * sin(x) - y * y")[0] == "(sin(x) - y) * (sin(x) + y)"
    assert by(table, "x * y - y * y")[0] == "(x * y) - (y * y)"


def test_constants_match_only_themselves():
    assert by("sin(PI * a) => sinpi(a)", "sin(x * PI)")[0] == "sinpi(x)"
    assert by("sin(PI * a) => sinpi(a)", "sin(x * E)")[0] == "sin(x * E)"
    assert by("a * 0.5 => a / 2", "0.25 * x")[0] == "0.25 * x"


def test_most_specific_rule_is_applied_first():
    table = "1 - a * a => (1 - a) * (1 + a)\n 1 - tanh(a) * tanh(a) => 1 / (cosh(a) * cosh(a))"
    assert by(table, "1 - tanh(x) * tanh(x)") == (
        "1 / (cosh(x) * cosh(x))",
        ["1 - tanh(a) * tanh(a) => 1 / (cosh(a) * cosh(a))"],
    )


def test_result_of_a_rule_is_rewritten_again():
    table = "log(1 + a) => log1p(a)\n log1p(exp(a)) => softplus(a)"
    assert by(table, "log(1 + exp(x))")[0] == "softplus(x)"
    assert by(table, "log(1 + exp(x))", to_fixpoint=False)[0] == "log1p(exp(x))"


def test_self_reproducing_rule_is_applied_once():
    assert by("exp(a) => exp(a * 0.5) * exp(a * 0.5)", "exp(x)", to_fixpoint=False)[0] == "exp(x * 0.5) * exp(x * 0.5)"


@pytest.mark.parametrize("name", FORMULAS)
def test_quick_rules_terminate(name):
    once = rewrite(parse(FORMULAS[name]), differentiable_rules(), {}, to_fixpoint=True)
    assert rewrite(once, differentiable_rules(), {}, to_fixpoint=True) is once
    rewrite(once, final_rules(), {}, to_fixpoint=False)


X = torch.cat([torch.linspace(-90, 90, 4001), torch.tensor([0.0, -0.0, 1e-45, -1e-40, 3e38, -3e38])])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (Term("mul", (const(1), var("x"))), "x"),
        (Term("div", (var("x"), const(1))), "x"),
        (Term("sub", (parse("exp(x)"), const(-1))), "exp(x) + 1"),
        (Term("add", (var("x"), Term("neg", (parse("exp(x)"),)))), "x - exp(x)"),
        (Term("add", (Term("neg", (parse("exp(x)"),)), var("x"))), "x - exp(x)"),
        (Term("sub", (var("x"), Term("neg", (parse("exp(x)"),)))), "x + exp(x)"),
        (Term("neg", (Term("neg", (var("x"),)),)), "x"),
        (Term("exp", (Term("mul", (var("x"), const(1))),)), "exp(x)"),
    ],
)
def test_tidy_keeps_the_bits_in_fewer_ops(given, expected):
    assert tidy(given) is parse(expected)
    bits = [evaluate(term, {"x": X}).view(torch.int32) for term in (given, tidy(given))]
    assert torch.equal(*bits)


def test_tidy_is_idempotent():
    term = parse("x - tanh(x) * 0.5")
    assert tidy(term) is term


def test_tidy_folds_negated_constants():
    assert tidy(Term("neg", (const(2),))) is Term(CONST, (), const(-2).value)


@pytest.mark.parametrize("difference", EXACT_IDENTITIES, ids=str)
def test_exact_identity_holds(difference):
    with mp.workdps(200):
        for a in (-40.0, -1.5, -1e-9, 0.0, 0.3, 2.0, 40.0):
            before, after = (reference.value(t, a=a) for t in (difference, EXACT_IDENTITIES[difference]))
            if before is None:  # outside of the domain
                assert after is None
                continue
            assert abs(before - after) <= abs(before) * mp.mpf(10) ** -100 + mp.mpf(10) ** -190


@pytest.mark.parametrize("x", [-3e38, -6000.0, 0.5, 6000.0, 3e38])
@pytest.mark.parametrize(
    ("difference", "stable"),
    [
        ("log(1 - sigmoid(x))", "-softplus(x)"),
        ("log(1 - 1/(1 + exp(-x)))", "-softplus(x)"),
        ("log1p(-(exp(x)/(1 + exp(x))))", "-softplus(x)"),
        ("log(1 - tanh(x))", "LN2 - softplus(2*x)"),
        ("log(1 - tanh(x)*tanh(x))", "2*LN2 - softplus(2*x) - softplus(-2*x)"),
    ],
)
def test_logarithm_of_a_vanishing_difference_is_exact(difference, stable, x):
    ours, theirs = exact([parse(difference), parse(stable)], {"x": np.array([x])})
    assert ours.high == theirs.high
    assert abs(ours.low - theirs.low) <= 1e-20 * abs(ours.high)


def test_logarithm_of_a_far_tail_is_exact():
    (found,) = exact([parse("log(0.5*erfc(-(x*SQRT1_2)))")], {"x": np.array([-1e19, -1e38, -6e153])})
    assert found.high.tolist() == [-(x**2) / 2 for x in (1e19, 1e38, 6e153)]


def test_without_cancellation_leaves_other_terms():
    roots = [parse("2 - sigmoid(x)"), parse("1 - sigmoid(x)*y"), parse("1 - tanh(x)*tanh(y)")]
    assert without_cancellation(roots) == roots

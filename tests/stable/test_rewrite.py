"""Rewriting by rules: what matches, in which order, and how often."""

import pytest

from pullback.stable.quick_rules import first, last
from pullback.stable.rewrite import read, rewritten
from pullback.stable.term import parse
from tests.stable.formulas import FORMULAS


def by(table, text, again=True):
    used = {}
    return str(rewritten(parse(text), tuple(read(table)), used, again)), list(used)


CASES = {
    "log(1 + y)": "log1p(y)",
    "log(exp(x) + 1)": "log1p(exp(x))",  # sums commute
    "log(2 + x)": "log(2 + x)",
    "exp(log(1 + x) + log(1 + y))": "exp(log1p(x) + log1p(y))",
}


@pytest.mark.parametrize("text", CASES)
def test_a_rule_is_applied_to_every_subterm(text):
    assert by("log(1 + a) => log1p(a)", text)[0] == str(parse(CASES[text]))


def test_a_variable_of_a_pattern_is_one_term():
    table = "a * a - b * b => (a - b) * (a + b)"
    assert by(table, "sin(x) * sin(x) - y * y")[0] == "(sin(x) - y) * (sin(x) + y)"
    assert by(table, "x * y - y * y")[0] == "(x * y) - (y * y)"


def test_constants_match_themselves():
    assert by("sin(PI * a) => sinpi(a)", "sin(x * PI)")[0] == "sinpi(x)"
    assert by("sin(PI * a) => sinpi(a)", "sin(x * E)")[0] == "sin(x * E)"
    assert by("a * 0.5 => a / 2", "0.25 * x")[0] == "0.25 * x"


def test_the_most_specific_rule_goes_first():
    table = "1 - a * a => (1 - a) * (1 + a)\n 1 - tanh(a) * tanh(a) => 1 / (cosh(a) * cosh(a))"
    assert by(table, "1 - tanh(x) * tanh(x)") == (
        "1 / (cosh(x) * cosh(x))",
        ["1 - tanh(a) * tanh(a) => 1 / (cosh(a) * cosh(a))"],
    )


def test_what_a_rule_makes_is_looked_at_again():
    table = "log(1 + a) => log1p(a)\n log1p(exp(a)) => softplus(a)"
    assert by(table, "log(1 + exp(x))")[0] == "softplus(x)"
    assert by(table, "log(1 + exp(x))", again=False)[0] == "log1p(exp(x))"


def test_a_rule_that_makes_its_own_left_side_is_applied_once():
    assert by("exp(a) => exp(a * 0.5) * exp(a * 0.5)", "exp(x)", again=False)[0] == "exp(x * 0.5) * exp(x * 0.5)"


@pytest.mark.parametrize("name", FORMULAS)
def test_the_quick_rules_come_to_an_end(name):
    once = rewritten(parse(FORMULAS[name]), first(), {}, again=True)
    assert rewritten(once, first(), {}, again=True) is once
    rewritten(once, last(), {}, again=False)

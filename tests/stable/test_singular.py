"""Subterms at whose zeros an op is singular."""

from pullback.stable.singular import singular_at
from pullback.stable.term import parse


def found(text):
    return {str(term) for term in singular_at([parse(text)])}


def test_denominators_and_what_logarithms_and_roots_take():
    assert found("x / (x + 4)") == {"x + 4"}
    assert found("log(x - 2) * sqrt(x + 3)") == {"x - 2", "x + 3"}
    assert found("log1p(sin(x))") == {"1 + sin(x)"}


def test_factors_by_themselves_since_a_square_has_no_change_of_sign():
    assert found("1 / ((x - 3) * (x - 3) * exp(x))") == {"x - 3", "exp(x)"}
    assert found("1 / abs(x - 3)") == {"x - 3"}


def test_constants_and_bare_variables_are_none():
    assert found("x / 3 + 2 / x + exp(x)") == set()

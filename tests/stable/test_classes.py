"""Exact values of classes, against the oracle."""

import numpy as np
import pytest

from pullback.stable.classes import ClassTruths
from pullback.stable.egraph import EGraph
from pullback.stable.oracle import exact
from pullback.stable.term import parse, topological

X = np.array([-88.5, -3.0, -1e-30, 1e-30, 0.37, 1.0, 2.5, 41.0, 1e20])


def graph(*terms):
    made = EGraph({"x": [0.37109375, 1.28125, -2.71875], "y": [2.5, -0.75, 1.125]})
    return made, *(made.add_term(parse(t)) for t in terms)


@pytest.mark.parametrize("text", ["log(1+exp(x))", "sqrt(x+1)-sqrt(x)", "(exp(x)-1)/x", "x*log(abs(x)) - floor(x)"])
def test_values_are_the_oracles(text):
    made, *_ = graph(text)
    truths = ClassTruths(made, {"x": X, "y": X})
    for term in topological([parse(text)]):
        wanted, found = exact([term], {"x": X})[0].high, truths.exact[made.add_term(term)]
        known = ~np.isnan(found)
        assert np.isnan(wanted[~known]).all() or term is parse(text)
        np.testing.assert_allclose(found[known], wanted[known], rtol=3e-16)
        assert known.sum() >= np.isfinite(wanted).sum() - 1


def test_of_the_forms_of_a_class_the_tightest_counts():
    x = np.array([1e-40, 1.0])
    made, root = graph("1-cos(x)")
    assert np.isnan(ClassTruths(made, {"x": x}).exact[made.find(root)]).tolist() == [True, False]
    made.union(root, made.add_term(parse("2*(sin(x/2)*sin(x/2))")))
    made.rebuild()
    np.testing.assert_allclose(ClassTruths(made, {"x": x}).exact[made.find(root)], [5e-81, 1 - np.cos(1.0)], rtol=1e-15)


def test_without_a_variable_it_is_a_constant():
    made, *_ = graph("x*exp(2) + y*LN2")
    constants = ClassTruths(made, {"x": X, "y": X}).constants
    assert constants[made.add_term(parse("exp(2)"))] == np.exp(2.0)
    assert made.add_term(parse("x")) not in constants


def test_undefined_is_nan_and_out_of_range_infinite():
    made, root, big = graph("log(x)", "exp(x)")
    truths = ClassTruths(made, {"x": X, "y": X})
    assert np.isnan(truths.exact[root]).tolist() == (X <= 0).tolist()
    assert truths.exact[big][-1] == np.inf


def test_some_classes_alone():
    made, root, other = graph("exp(x)", "sin(x)")
    some = ClassTruths(made, {"x": X, "y": X}, [made.add_term(parse("x")), root]).exact
    assert root in some
    assert other not in some

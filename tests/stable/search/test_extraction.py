"""Numeric extraction: kept terms, their values in PyTorch and their measured errors."""

import numpy as np
import pytest
import torch

from pullback.stable.evaluate import evaluate
from pullback.stable.measure import errors
from pullback.stable.oracle.values import exact
from pullback.stable.rules import search_rules
from pullback.stable.sampling import REGION
from pullback.stable.search.egraph import EGraph
from pullback.stable.search.extraction import Extraction, UlpMeasure, affordable_classes
from pullback.stable.term import parse

WITNESSES = [0.37109375, 1.28125, 2.71875, -0.640625, -1.59375, -0.2109375]


def extracted(text, x, dtype=torch.float32, nodes=600):
    graph = EGraph({"x": WITNESSES})
    root = graph.add_term(parse(text))
    graph.saturate(search_rules(), 4, nodes)
    return graph, root, Extraction(graph, [root], {"x": x}, dtype)


@pytest.fixture(scope="module")
def softplus():
    x = np.linspace(-100, 100, 8 * REGION).astype(np.float32).astype(float)
    return x, *extracted("log(1+exp(x))", x)


def test_kept_values_match_the_terms(softplus):
    x, _, _, extraction = softplus
    inputs = {"x": torch.from_numpy(x).float()}
    for kept in extraction.kept.values():
        for term, row in zip(kept.terms, kept.values, strict=True):
            torch.testing.assert_close(evaluate(term, inputs), row, rtol=0, atol=0, equal_nan=True)


def test_kept_terms_are_in_their_class(softplus):
    _, graph, root, extraction = softplus
    for term in extraction.of(root).terms:
        assert graph.find(graph.add_term(term)) == graph.find(root)


def test_kept_errors_match_the_measured_ones(softplus):
    x, _, root, extraction = softplus
    kept = extraction.of(root)
    truth = exact([parse("log(1+exp(x))")], {"x": x})[0]
    for row, regions in zip(kept.values, kept.errors, strict=True):
        found = errors(row, truth)
        worst = np.where(found.spurious, 1e9, found.ulp).reshape(-1, REGION).max(1)
        wanted = np.log2(1 + np.maximum(worst - 0.5, 0))
        clean = ~found.spurious.reshape(-1, REGION).any(1)
        np.testing.assert_allclose(regions[clean], wanted[clean], atol=1e-5)
        assert (regions[~clean] > 20).all()


def test_kept_terms_are_accurate_in_every_region(softplus):
    _, _, root, extraction = softplus
    kept = extraction.of(root)
    assert kept.errors.min(0).max() < np.log2(1 + 2)
    assert "softplus(x)" in map(str, kept.terms)


def test_ulp_measure_agrees_with_errors():
    x = np.concatenate([np.linspace(-90, 90, 1001), [0.0, 1e-30, -1e-30]]).astype(np.float32).astype(float)
    for text in ("exp(x)", "exp(x) - 1", "x*x*x", "x*exp(-x*x)"):
        truth = exact([parse(text)], {"x": x})[0]
        value = evaluate(parse(text), {"x": torch.from_numpy(x).float()})
        found = errors(value, truth)
        got = UlpMeasure(truth.high, torch.float32).ulp(value).numpy()
        in_range = np.abs(truth.high) <= torch.finfo(torch.float32).max
        np.testing.assert_allclose(got[found.stated & in_range], found.ulp[found.stated & in_range], atol=1e-6)
        assert (got[found.nan | found.inf] == 1e9).all()


def test_infinity_beyond_the_range_is_right():
    measure = UlpMeasure(np.array([1e39, -1e39, 1e39, np.nan]), torch.float32)
    inf = float("inf")
    assert measure.ulp(torch.tensor([inf, inf, 1.0, inf])).tolist() == [0.0, 1e9, 1e9, 0.0]


def test_unreachable_classes_are_not_affordable():
    graph = EGraph({"x": WITNESSES})
    root, other = graph.add_term(parse("exp(x) + 1")), graph.add_term(parse("sin(x)*cos(x)"))
    found = affordable_classes(graph, [root], 100.0)
    assert graph.find(root) in found
    assert graph.find(other) not in found
    assert list(found)[-1] == graph.find(root)
    assert graph.find(root) in affordable_classes(graph, [root], 3.0)  # the cheapest of all is never too expensive


def test_budget_of_a_class_is_what_the_rest_leaves():
    graph = EGraph({"x": WITNESSES})
    root = graph.add_term(parse("exp(x) + 1"))
    found = affordable_classes(graph, [root], 100.0)
    assert found[root] == 100.0
    assert found[graph.add_term(parse("exp(x)"))] == pytest.approx(100 - (1 + 0.05))


def test_extraction_of_a_constant_term():
    _, root, extraction = extracted("log(3)*2 - log(9) + 0*x", np.linspace(1, 2, REGION))
    assert extraction.of(root) is None or str(extraction.of(root).terms[0]) == "0"

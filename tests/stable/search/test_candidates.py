"""Candidate implementations of a search."""

import numpy as np
import torch

from pullback.stable.evaluate import evaluate
from pullback.stable.sampling import samples_at
from pullback.stable.search.candidates import Implementation, clamped, fitted_polynomials
from pullback.stable.term import parse


def test_clamped_exponentials_do_not_overflow():
    x = torch.tensor([-1000.0, 0.5, 88.0, 1000.0])
    term = parse("0.5*exp(x) + expm1(-x)")
    narrow = clamped(Implementation(term, False), torch.float32).term
    assert str(narrow) == "(0.5 * exp(minimum(x, 88))) + expm1(minimum(-x, 88))"
    assert evaluate(narrow, {"x": x}).isfinite().all()
    assert evaluate(narrow, {"x": x})[1:3].tolist() == evaluate(term, {"x": x})[1:3].tolist()
    assert "709" in str(clamped(Implementation(term, True), torch.float32).term)


def test_term_without_exponentials_is_not_clamped():
    assert clamped(Implementation(parse("x*x + 1"), False), torch.float32).term is parse("x*x + 1")


def test_cost_counts_shared_subterms_once_and_float64():
    once, twice = (Implementation(parse(t), False).cost for t in ("exp(x)*exp(x)", "exp(x)*exp(y)"))
    assert once < twice
    assert Implementation(parse("x"), True).cost > Implementation(parse("x"), False).cost


def test_polynomial_is_fitted_about_a_removable_singularity():
    target = parse("(sqrt(x) - SQRT3) / (x - 3)")
    known = samples_at(target, {"x": np.array([2.0, 2.5, 3.0, 3.5])})
    found = [c.term.value for c in fitted_polynomials(target, "x", known, [True], torch.float32)]
    assert {p.centre for p in found} == {3.0}
    assert all(abs(p.coefficients[0] - 1 / (2 * np.sqrt(3))) < 1e-6 for p in found)

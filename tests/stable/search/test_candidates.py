"""Implementations that a search chooses among."""

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


def test_without_exponentials_nothing_is_clamped():
    assert clamped(Implementation(parse("x*x + 1"), False), torch.float32).term is parse("x*x + 1")


def test_shared_parts_and_float64_have_their_cost():
    once, twice = (Implementation(parse(t), False).cost for t in ("exp(x)*exp(x)", "exp(x)*exp(y)"))
    assert once < twice
    assert Implementation(parse("x"), True).cost > Implementation(parse("x"), False).cost


def test_there_is_a_polynomial_about_a_hole():
    target = parse("(sqrt(x) - SQRT3) / (x - 3)")
    known = samples_at(target, {"x": np.array([2.0, 2.5, 3.0, 3.5])})
    found = [c.term.value for c in fitted_polynomials(target, "x", known, [True], torch.float32)]
    assert {p.centre for p in found} == {3.0}
    assert all(abs(p.coefficients[0] - 1 / (2 * np.sqrt(3))) < 1e-6 for p in found)

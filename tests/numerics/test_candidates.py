"""Implementations that a search chooses among."""

import torch

from pullback.numerics.candidates import Choice, clamped
from pullback.numerics.evaluate import evaluate
from pullback.numerics.term import parse


def test_clamped_exponentials_do_not_overflow():
    x = torch.tensor([-1000.0, 0.5, 88.0, 1000.0])
    term = parse("0.5*exp(x) + expm1(-x)")
    narrow = clamped(Choice(term, False), torch.float32).term
    assert str(narrow) == "(0.5 * exp(minimum(x, 88))) + expm1(minimum(-x, 88))"
    assert evaluate(narrow, {"x": x}).isfinite().all()
    assert evaluate(narrow, {"x": x})[1:3].tolist() == evaluate(term, {"x": x})[1:3].tolist()
    assert "709" in str(clamped(Choice(term, True), torch.float32).term)


def test_without_exponentials_nothing_is_clamped():
    assert clamped(Choice(parse("x*x + 1"), False), torch.float32).term is parse("x*x + 1")


def test_shared_parts_and_float64_have_their_cost():
    once, twice = (Choice(parse(t), False).cost for t in ("exp(x)*exp(x)", "exp(x)*exp(y)"))
    assert once < twice
    assert Choice(parse("x"), True).cost > Choice(parse("x"), False).cost

"""Tidied terms are shorter and compute the same bits."""

import pytest
import torch

from pullback.stable.evaluate import evaluate
from pullback.stable.term import CONST, Term, const, parse, var
from pullback.stable.tidy import tidy

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
def test_the_same_bits_in_fewer_ops(given, expected):
    assert tidy(given) is parse(expected)
    bits = [evaluate(term, {"x": X}).view(torch.int32) for term in (given, tidy(given))]
    assert torch.equal(*bits)


def test_what_is_tidy_stays():
    term = parse("x - tanh(x) * 0.5")
    assert tidy(term) is term


def test_a_constant_loses_its_sign_op():
    assert tidy(Term("neg", (const(2),))) is Term(CONST, (), const(-2).value)

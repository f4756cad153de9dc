"""The arguments in the expression of a forward that raised."""

import ast

import pytest
import torch

from pullback.check.cases.signature import Blame, origins
from pullback.check.find.source import source_of


def adds(x, y, z):
    w = z * 2
    return (x * 2).relu() + (y @ w)


def refuses(x, y, z):
    if x.ndim != 1:
        raise ValueError("one dimension, please")
    return y


def unpacks(x, y, z):
    first = x + 1
    a, b = y
    return first, a, b


def calls(x, y, z):
    return deeper(x, y) + z


def deeper(p, q):
    return p.no_such_method(q)


def names_a_keyword(x, y, z):
    return torch.nn.functional.cross_entropy(x, y, ignore_index=z)


def blamed(function, *arguments):
    names = ("x", "y", "z")
    blame = Blame(source_of(function).node, function.__code__, names)
    try:
        function(*arguments)
    except Exception as error:
        return blame.of(error)
    pytest.fail("nothing was raised")


def test_the_expression_alone_is_to_blame():
    lines, names = blamed(adds, torch.ones(3), torch.ones(2, 3), torch.ones(2))
    assert names == {"y", "z"}  # z by way of w
    assert lines == 2


def test_the_condition_is_to_blame_for_what_it_refuses():
    assert blamed(refuses, torch.ones(2, 2), None, None)[1] == {"x"}


def test_the_keyword_that_the_message_names_is_to_blame():
    assert blamed(names_a_keyword, torch.ones(3, 5), torch.zeros(3, dtype=torch.int64), torch.ones(2))[1] == {"z"}


def test_unpacking():
    assert blamed(unpacks, 1, (1, 2, 3), None) == (2, {"y"})


def test_what_happens_further_down_is_blamed_on_the_call():
    assert blamed(calls, 1, 2, 3)[1] == {"x", "y"}


def test_an_error_from_elsewhere_blames_nobody():
    blame = Blame(source_of(adds).node, adds.__code__, ("x",))
    assert blame.of(ValueError("never raised here")) == (0, frozenset())


def test_origins_follow_assignments():
    source = "def f(ctx, x, y):\n    a = x + 1\n    ctx.b = a * y\n    for i in y:\n        a += i\n    c: int = 3\n"
    found = origins(ast.parse(source).body[0], ["x", "y"])
    assert found["a"] == {"x", "y"}
    assert found["ctx.b"] == {"x", "y"}
    assert found["i"] == {"y"}
    assert found["c"] == frozenset()

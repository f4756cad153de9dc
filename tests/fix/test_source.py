"""Numbers that a forward captures: constants of its module, and values that may change."""

import ast
import inspect
import math
import textwrap

from pullback.fix.source import mutable_captures

CONSTANT = 1.702
rebound = 0.5
ITEMS = {"a": 2.0}


class Holder:
    alpha = 0.7


def rebind(value):
    global rebound
    rebound = value


def reads_constants(x):
    return CONSTANT * x + math.pi


def reads_what_may_change(x):
    return rebound * x + ITEMS["a"] * Holder.alpha + ITEMS["absent"] * x.shape[0]


def found(function):
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    return mutable_captures(function, node)


def test_module_constant_is_not_mutable():
    assert found(reads_constants) == []


def test_rebound_variables_items_and_attributes_are_mutable():
    assert sorted(found(reads_what_may_change)) == ["Holder.alpha = 0.7", "ITEMS['a'] = 2.0", "rebound = 0.5"]


def test_closure_variable_is_mutable():
    scale = 3.0

    def reads(x):
        return scale * x

    assert found(reads) == ["scale = 3.0"]

"""Parameters in the source of a forward: their roles, and the ones that an error is blamed on."""

import ast

import pytest
import torch

from pullback.check.cases.signature import Blame, kept_as_settings, origins, usage
from pullback.check.find.source import source_of

SOURCE = """
def forward(ctx, x, y, fn, count, dim, mode, pair, many, flag, nu, level, out, index):
    ctx.save_for_backward(y)
    rows = x.shape[0]
    for _ in range(count):
        rows += 1
    total = x.sum(dim=dim)
    if mode == "mean" or mode in ("sum", "none"):
        total = fn(x)
    low, high = pair
    both = [t * 2 for t in many]
    if not flag:
        total = torch.relu(total)
    if nu == 0.5 or level > 3:
        out @ x
    return index[:, 0]
"""
FORWARD = ast.parse(SOURCE).body[0]
NAMES = [a.arg for a in FORWARD.args.args][1:]
USED = usage(FORWARD, NAMES)


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("x", "tensor"), ("y", "tensor"), ("out", "tensor"), ("index", "tensor"), ("fn", "callable"),
        ("count", "int"), ("dim", "dim"), ("pair", "sequence"), ("many", "sequence"), ("flag", "flag"),
        ("level", "number"),
    ],
)  # fmt: skip
def test_usage_gives_the_role(name, role):
    assert USED[name].roles == {role}


def test_constants_of_comparisons_are_collected():
    assert set(USED["mode"].constants) == {"mean", "sum", "none"}
    assert USED["nu"].constants == (0.5,)
    assert USED["level"].constants == ()


def test_lengths_of_unpacking_are_collected():
    assert USED["pair"].lengths == (2,)
    assert USED["many"].lengths == ()


def test_nested_unpacking_of_variadic_arguments():
    (node,) = ast.parse("def forward(ctx, *args):\n    x, (a, b, c) = args\n").body
    assert usage(node, ["x", "args_1"])["args_1"].lengths == (3,)


def test_arguments_of_cat_and_zeros_have_no_tensor_role():
    (node,) = ast.parse("def forward(ctx, xs, shape):\n    return torch.cat(xs) + torch.zeros(shape)\n").body
    used = usage(node, ["xs", "shape"])
    assert not used["xs"].roles
    assert not used["shape"].roles


def methods(keep, *returns):
    backward = "\n    ".join(f"return {value}" for value in returns) or "pass"
    body = ast.parse(f"def forward(ctx, x, limit):\n    {keep}\ndef backward(ctx, g):\n    {backward}\n").body
    return {node.name: node for node in body}


@pytest.mark.parametrize(
    ("keep", "returns", "found"),
    [
        ("ctx.limit = limit", ["g, None"], {"limit"}),
        ("ctx.limit = limit", ["g, None", "g * 2, None"], {"limit"}),
        ("ctx.other = 3, limit", ["g, None"], {"limit"}),
        ("ctx.x, ctx.limit = x, limit", ["g, None"], {"limit"}),
        ("ctx.limit = limit", ["g, g * x", "g, None"], set()),
        ("ctx.limit = limit", ["g, *rest"], set()),
        ("ctx.limit = limit", ["gradients"], set()),
        ("ctx.limit = limit", [], set()),
        ("ctx.save_for_backward(x, limit)", ["g, None"], set()),
    ],
)
def test_context_attribute_without_gradient_is_a_setting(keep, returns, found):
    assert kept_as_settings(methods(keep, *returns), ["x", "limit"]) == found


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


def test_error_is_blamed_on_the_names_of_its_expression():
    lines, names = blamed(adds, torch.ones(3), torch.ones(2, 3), torch.ones(2))
    assert names == {"y", "z"}  # z by way of w
    assert lines == 2


def test_raise_is_blamed_on_its_condition():
    assert blamed(refuses, torch.ones(2, 2), None, None)[1] == {"x"}


def test_error_is_blamed_on_the_keyword_in_its_message():
    assert blamed(names_a_keyword, torch.ones(3, 5), torch.zeros(3, dtype=torch.int64), torch.ones(2))[1] == {"z"}


def test_failed_unpacking_is_blamed_on_its_value():
    assert blamed(unpacks, 1, (1, 2, 3), None) == (2, {"y"})


def test_error_in_a_callee_is_blamed_on_the_arguments_of_the_call():
    assert blamed(calls, 1, 2, 3)[1] == {"x", "y"}


def test_error_from_elsewhere_is_blamed_on_no_parameter():
    blame = Blame(source_of(adds).node, adds.__code__, ("x",))
    assert blame.of(ValueError("never raised here")) == (0, frozenset())


def test_origins_follow_assignments():
    source = "def f(ctx, x, y):\n    a = x + 1\n    ctx.b = a * y\n    for i in y:\n        a += i\n    c: int = 3\n"
    found = origins(ast.parse(source).body[0], ["x", "y"])
    assert found["a"] == {"x", "y"}
    assert found["ctx.b"] == {"x", "y"}
    assert found["i"] == {"y"}
    assert found["c"] == frozenset()

"""What the way a forward uses a parameter tells of it."""

import ast

import pytest

from pullback.check.cases.signature import kept_as_settings, usage

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
def test_a_use_tells_the_role(name, role):
    assert USED[name].roles == {role}


def test_what_it_is_compared_with():
    assert set(USED["mode"].constants) == {"mean", "sum", "none"}
    assert USED["nu"].constants == (0.5,)
    assert USED["level"].constants == ()


def test_what_it_is_unpacked_into():
    assert USED["pair"].lengths == (2,)
    assert USED["many"].lengths == ()


def test_nested_unpacking_of_all_arguments():
    (node,) = ast.parse("def forward(ctx, *args):\n    x, (a, b, c) = args\n").body
    assert usage(node, ["x", "args_1"])["args_1"].lengths == (3,)


def test_no_tensor_is_made_of_what_takes_a_list_or_a_size():
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
def test_what_is_kept_on_the_context_and_has_no_gradient_is_a_setting(keep, returns, found):
    assert kept_as_settings(methods(keep, *returns), ["x", "limit"]) == found

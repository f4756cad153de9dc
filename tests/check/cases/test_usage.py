"""What the way a forward uses a parameter tells of it."""

import ast

import pytest

from pullback.check.cases.usage import usage

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

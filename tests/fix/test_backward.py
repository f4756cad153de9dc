"""Backwards derived from the forward of a Function, and the reasons for refusing one."""

import pytest
import torch

from pullback.fix.backward import derive
from pullback.fix.patch import CannotFixError

from .sources import op

x = torch.linspace(-1.0, 2.0, 15).reshape(3, 5)


def kept(derived):
    return [(one.kind, one.name, one.attribute) for one in derived.saved]


def test_backward_saves_inputs_and_named_outputs(subject):
    derived = derive(subject(op("out = torch.exp(x)\nreturn out")), [x])
    assert derived.body == ("(out,) = ctx.saved_tensors", "return g * out")
    assert kept(derived) == [("tensor", "out", "")]
    assert kept(derive(subject(op("return torch.exp(x)")), [x])) == [("tensor", "x", "")]


def test_author_names_are_kept_unless_they_clash(subject):
    derived = derive(subject(op("return g * g * gate", takes="ctx, g, gate", cotangents="gate")), [x, x])
    assert derived.parameters == ("ctx", "gate")
    assert derived.body[0] == "g, gate_ = ctx.saved_tensors"
    assert kept(derived) == [("tensor", "g", ""), ("tensor", "gate", "")]


def test_backward_valid_for_any_rank_has_no_check(subject):
    derived = derive(subject(op("return x.sum() * 2")), [x])
    assert not any("raise" in line for line in derived.body)
    assert not derived.valid_for


def test_backward_for_fixed_ranks_raises_on_others(subject):
    """The forward takes batches of matrices; the backward derived from two matrices does not."""
    derived = derive(subject(op("return x @ y", takes="ctx, x, y")), [torch.randn(3, 4), torch.randn(4, 5)])
    assert any("raise ValueError" in line for line in derived.body)
    assert derived.valid_for == "x of shape [n, m], y of shape [m, k]"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (op("return x * torch.rand_like(x)"), "draws random numbers"),
        (op("return x.mul_(2)"), "writes to its input"),
        (op("return x * 2 if float(x.sum()) > 0 else x"), "needs the value of a tensor"),
        (op("return torch.round(x)"), "derivative of its forward is 0"),
        (op("return sum(xs)", takes="ctx, *xs"), r"takes \*args"),
        (op("return x") + "    forward = staticmethod(lambda ctx, x: x)\n", "its forward is assigned"),
        (
            op("return x") + "\n    @staticmethod\n    def jvp(ctx, t):\n        return ctx.saved_tensors[0] * t\n",
            "its jvp reads the saved tensors",
        ),
        ("Base = None\n" + op("return x").replace("class Op", "class Base") + "class Op(Base): pass\n", "is inherited"),
        (
            "def make():\n    " + op("return x").replace("\n", "\n    ") + "\n    return Op\nOp = make()\n",
            r"inside make\(\)",
        ),
        (f"exec({op('return x * x')!r})\n", "source is in no file"),
    ],
)
def test_underivable_forward_is_refused_in_one_line(subject, source, reason):
    with pytest.raises(CannotFixError, match=reason) as refused:
        derive(subject(source), [x])
    assert "\n" not in str(refused.value)


def test_list_of_tensors_is_refused(subject):
    with pytest.raises(CannotFixError, match="xs holds tensors"):
        derive(subject(op("return x * xs[0]", takes="ctx, x, xs")), [x, [x]])

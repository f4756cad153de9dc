"""Backwards derived from the forwards of Functions in files, and what is refused."""

import importlib.util
import itertools
import sys

import pytest
import torch

from pullback.check.find.discover import subject_of
from pullback.fix.backward import derive
from pullback.fix.patch import CannotFixError

_NUMBERS = itertools.count()
HEADER = """
import torch
from torch.autograd import Function
"""


@pytest.fixture
def subject(tmp_path, monkeypatch):
    """Return the subject of a Function `Op` with some methods, defined in a file."""

    def make(source, name="Op"):
        path = tmp_path / f"made_{next(_NUMBERS)}.py"
        path.write_text(HEADER + source)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, path.stem, module)
        spec.loader.exec_module(module)
        return subject_of(getattr(module, name))

    return make


def op(forward, backward="return g", takes="x", cotangents="g"):
    body = "".join(f"        {line}\n" for line in forward.split("\n"))
    return (
        f"\nclass Op(Function):\n    @staticmethod\n    def forward(ctx, {takes}):\n{body}\n"
        f"    @staticmethod\n    def backward(ctx, {cotangents}):\n        {backward}\n"
    )


x = torch.linspace(-1.0, 2.0, 15).reshape(3, 5)


def kept(derived):
    return [(one.kind, one.name, one.attribute) for one in derived.saved]


def test_saved_are_inputs_and_what_the_forward_returns_by_name(subject):
    derived = derive(subject(op("out = torch.exp(x)\nreturn out")), [x])
    assert derived.body == ("(out,) = ctx.saved_tensors", "return g * out")
    assert kept(derived) == [("tensor", "out", "")]
    assert kept(derive(subject(op("return torch.exp(x)")), [x])) == [("tensor", "x", "")]


def test_names_are_the_authors_where_nothing_else_has_them(subject):
    derived = derive(subject(op("return g * g * gate", takes="g, gate", cotangents="gate")), [x, x])
    assert derived.parameters == ("ctx", "gate")
    assert derived.body[0] == "g, gate_ = ctx.saved_tensors"
    assert kept(derived) == [("tensor", "g", ""), ("tensor", "gate", "")]


@pytest.mark.parametrize(
    ("forward", "argument", "returned"),
    [
        ("return x**n", 2.0, "n * g * x**(n - 1)"),
        ("return x**n", 3, "n * g * x**(n - 1)"),
        ("return n * x", 1.0, "n * g"),
        ("return torch.exp(-n * x)", 0.5, "-n * g * torch.exp(-n * x)"),
        ("return x + n", 0.0, "g"),
        ("return x * 3 if True else n", False, "3 * g"),
    ],
)
@pytest.mark.few(2)
def test_a_number_stands_for_itself(subject, forward, argument, returned):
    derived = derive(subject(op(forward, takes="x, n")), [x, argument])
    last = derived.body[-1].removeprefix("return ").removesuffix(", None")
    values = {"x": x + 2, "n": 1.7, "g": x, "torch": torch, "F": torch.nn.functional}
    assert torch.allclose(eval(last, dict(values)), eval(returned, dict(values)))
    assert ("value", "n", "n") in kept(derived) or "n" not in returned.replace("None", "")


def test_an_argument_that_the_example_leaves_out_is_no_constant(subject):
    derived = derive(subject(op("return torch.exp(eps * x)", takes="x, eps=0.25")), [x])
    assert ("value", "eps", "eps") in kept(derived)
    assert "0.25" not in "".join(derived.body)


def test_values_for_which_the_text_does_not_hold_are_told(subject):
    assert derive(subject(op("return x**n", takes="x, n")), [x, 2.0]).valid_for == "n other than 0.0"
    assert not derive(subject(op("return torch.exp(n * x)", takes="x, n")), [x, 2.0]).valid_for


def test_dimensions_are_arguments_too(subject):
    derived = derive(subject(op("out = torch.softmax(x, dim)\nreturn out", takes="x, dim")), [x, 1])
    assert derived.body[0] == "dim = ctx.dim"
    assert "sum(dim, keepdim=True)" in derived.body[-1]


@pytest.mark.parametrize(
    ("forward", "argument", "reason"),
    [
        ("return x if n is None else x * n", None, "known for n=None alone"),
        ("return torch.sin(x) if n else torch.cos(x)", True, "another form for n=False|known for n=True alone"),
        ("return x * n**3", 1.5, "depend on n in a way that is not simple"),
        ("return x.sum() if n == 'sum' else x", "sum", "known for n='sum' alone"),
    ],
)
def test_what_other_arguments_would_change_is_refused(subject, forward, argument, reason):
    with pytest.raises(CannotFixError, match=reason):
        derive(subject(op(forward, takes="x, n")), [x, argument])


def test_a_backward_for_other_dimensions_needs_no_check(subject):
    derived = derive(subject(op("return x.sum() * 2")), [x])
    assert not any("raise" in line for line in derived.body)
    assert not derived.valid_for


def test_a_backward_for_some_dimensions_says_so(subject):
    """The forward takes batches of matrices, too; what is derived of two matrices does not."""
    derived = derive(subject(op("return x @ y", takes="x, y")), [torch.randn(3, 4), torch.randn(4, 5)])
    assert any("raise ValueError" in line for line in derived.body)
    assert derived.valid_for == "x of shape [n, m], y of shape [m, k]"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (op("return x * torch.rand_like(x)"), "draws random numbers"),
        (op("return x.mul_(2)"), "writes to its input"),
        (op("return x * 2 if float(x.sum()) > 0 else x"), "needs the value of a tensor"),
        (op("return torch.round(x)"), "derivative of its forward is 0"),
        (op("return sum(xs)", takes="*xs"), r"takes \*args"),
        (op("return x") + "    forward = staticmethod(lambda ctx, x: x)\n", "its forward is assigned"),
        (
            op("return x") + "\n    @staticmethod\n    def jvp(ctx, t):\n        return ctx.saved_tensors[0] * t\n",
            "its jvp reads the saved tensors",
        ),
        ("Base = None\n" + op("return x").replace("class Op", "class Base") + "class Op(Base): pass\n", "is inherited"),
        (
            "def make():\n" + op("return x").replace("\n", "\n    ") + "\n    return Op\nOp = make()\n",
            r"inside make\(\)",
        ),
        (f"exec({op('return x * x')!r})\n", "source is in no file"),
    ],
)
def test_what_cannot_be_derived_is_one_line(subject, source, reason):
    with pytest.raises(CannotFixError, match=reason) as refused:
        derive(subject(source), [x])
    assert "\n" not in str(refused.value)


def test_tensors_in_lists_are_refused(subject):
    with pytest.raises(CannotFixError, match="xs holds tensors"):
        derive(subject(op("return x * xs[0]", takes="x, xs")), [x, [x]])

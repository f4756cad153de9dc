"""Backwards of functions with numeric arguments: symbolic expressions in place of constants, and refusals."""

import pytest
import torch

from pullback.fix.backward import derive
from pullback.fix.patch import CannotFixError

from .sources import op

x = torch.linspace(-1.0, 2.0, 15).reshape(3, 5)


def kept(derived):
    return [(one.kind, one.name, one.attribute) for one in derived.saved]


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
def test_numeric_argument_stays_symbolic(subject, forward, argument, returned):
    derived = derive(subject(op(forward, takes="ctx, x, n")), [x, argument])
    last = derived.body[-1].removeprefix("return ").removesuffix(", None")
    values = {"x": x + 2, "n": 1.7, "g": x, "torch": torch, "F": torch.nn.functional}
    assert torch.allclose(eval(last, dict(values)), eval(returned, dict(values)))
    assert ("value", "n", "n") in kept(derived) or "n" not in returned.replace("None", "")


def test_default_argument_stays_symbolic(subject):
    derived = derive(subject(op("return torch.exp(eps * x)", takes="ctx, x, eps=0.25")), [x])
    assert ("value", "eps", "eps") in kept(derived)
    assert "0.25" not in "".join(derived.body)


def test_excluded_argument_values_are_listed(subject):
    assert derive(subject(op("return x**n", takes="ctx, x, n")), [x, 2.0]).valid_for == "n other than 0.0"
    assert not derive(subject(op("return torch.exp(n * x)", takes="ctx, x, n")), [x, 2.0]).valid_for


def test_dim_argument_stays_symbolic(subject):
    derived = derive(subject(op("out = torch.softmax(x, dim)\nreturn out", takes="ctx, x, dim")), [x, 1])
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
def test_structural_argument_is_refused(subject, forward, argument, reason):
    with pytest.raises(CannotFixError, match=reason):
        derive(subject(op(forward, takes="ctx, x, n")), [x, argument])

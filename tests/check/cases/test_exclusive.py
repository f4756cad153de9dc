"""Arguments that exclude each other are found in the code that raises."""

import sys
from types import ModuleType

import pytest
import torch

from pullback.check.cases.exclusive import exclusive_pairs
from pullback.check.find.discover import subject_of

HEAD = """
import torch

class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, g=None, gamma=None, bias=None):
        {own}
        return x.clone()

    @staticmethod
    def backward(ctx, dy):
        return dy, None, None, None

def op(x, gates=None, gamma=None, bias=None, training=True):
    {around}
    return Op.apply(x, gates, gamma, bias)

def other(x, gamma=None, bias=None):
    if gamma is not None and bias is not None:
        raise ValueError
    return x
"""
RAISES = ":\n        raise ValueError"


@pytest.mark.parametrize(
    ("own", "around", "expected"),
    [
        ("pass", "pass", set()),
        ("pass", "if gates is not None and gamma is not None" + RAISES, {("g", "gamma")}),
        ("pass", "if not (gates is None or gamma is None)" + RAISES, {("g", "gamma")}),
        ("pass", "assert gates is None or gamma is None", {("g", "gamma")}),
        ("pass", "assert (gates is None) ^ (gamma is None)", {("g", "gamma")}),
        ("pass", "if (gates is not None) == (gamma is not None)" + RAISES, {("g", "gamma")}),
        ("pass", "if gates is not None and (gamma is not None or bias is not None)" + RAISES,
         {("g", "gamma"), ("bias", "g")}),
        ("assert g is None or bias is None", "pass", {("bias", "g")}),
        ("pass", "if gates is None and gamma is None" + RAISES, set()),  # at least one
        ("pass", "if (gates is None) != (gamma is None)" + RAISES, set()),  # both or none
        ("pass", "if gates is not None and gamma is not None and x.ndim > 2" + RAISES, set()),  # only some tensors
        ("pass", "if gates is not None and gamma is not None:\n        print('both')", set()),
    ],
)  # fmt: skip
def test_pairs_that_a_package_refuses(own, around, expected, tmp_path, monkeypatch):
    name = "module_of_test_exclusive"
    path = tmp_path / f"{name}.py"
    path.write_text(HEAD.format(own=own, around=around))
    module = ModuleType(name)
    module.__file__ = str(path)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile(path.read_text(), str(path), "exec"), vars(module))
    found = exclusive_pairs(subject_of(module.Op))
    assert {tuple(sorted(pair)) for pair in found} == expected
    assert exclusive_pairs(subject_of(module.op)) == frozenset()  # which raises by itself
    assert issubclass(module.Op, torch.autograd.Function)

"""Bitwise comparison of a function's values and gradients before and after an edit of its source."""

import textwrap

import pytest

from pullback.check.cases.given import loader
from pullback.check.subject import Options
from pullback.fix.behaviour import BitDifference, differences

SOURCE = """
from __future__ import annotations

import torch
from torch.autograd import Function


class Op(Function):
    @staticmethod
    def forward(ctx, x: Unknown):
        ctx.save_for_backward(x)
        return x * 3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3
"""


@pytest.fixture
def difference(tmp_path):
    (tmp_path / "ops.py").write_text(SOURCE)

    def between(old, new):
        content = SOURCE.replace(old, new).encode()
        [found] = differences(str(tmp_path / "ops.py"), [0], content, Options(), loader(None))
        return found

    return between


def test_equivalent_source_gives_no_difference(difference):
    assert difference("return x * 3", "return 3 * x") == BitDifference()


def test_one_bit_of_the_value_is_detected(difference):
    found = difference("return x * 3", "return (x * 3).nextafter(x + 9)")
    assert found.value.startswith("in the new style it gives another value for x: float64")
    assert found.value.endswith(" [example]")


def test_one_bit_of_the_gradient_is_detected(difference):
    found = difference("return g * 3", "return (g * 3).nextafter(g + 9)")
    assert found.gradient.startswith("in the new style it gives another gradient for x: float64")
    assert not found.value


def test_double_backward_is_compared(difference):
    assert difference("return g * 3", "return g.detach() * 3").gradient
    assert difference("return g * 3", "return g * 3 + 0 * x").gradient


def test_nested_class_is_found(tmp_path):
    inner = "class Outer:\n    @staticmethod\n" + textwrap.indent(SOURCE.partition("\n\n\n")[2], "    ")
    path = tmp_path / "inner.py"
    path.write_text(f"import torch\nfrom torch.autograd import Function\n{inner.replace('Unknown', 'int')}")
    [found] = differences(str(path), [0], path.read_bytes(), Options(), loader(None))
    assert found == BitDifference()


def test_layouts_and_dtypes_are_compared(difference):
    assert difference("return x * 3", "return x * 3 if x.is_contiguous() else x * 4").value
    assert difference("return g * 3", "return g * 3 if g.dtype.itemsize == 8 else g * 4").gradient


def test_failed_run_counts_as_difference(difference):
    assert difference("class Op(Function)", "class Op(Unknown)").value.startswith("in the new style it was not run: ")
    assert "another value" in difference("return x * 3", "raise ValueError").value
    assert difference("return x * 3", "import os; os._exit(3)").value == (
        "while it ran in the new style, the process ended with exit status 3"
    )

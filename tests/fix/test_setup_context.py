"""Conversion of an old-style Function to setup_context, and other uses of its forward that forbid it."""

import pytest

from pullback.fix.patch import NewStyle
from pullback.fix.setup_context import other_use, with_new_styles

from .sources import op

OLD = '''\
# -*- coding: utf-8 -*-
import torch


class Scaled(torch.autograd.Function):
    """x·k, é."""   # two spaces more than need be

    # of the forward
    @staticmethod
    def forward( ctx, x: torch.Tensor,
                 k=2.0 ) -> torch.Tensor:  # the head
        """Scale."""

        # what the backward reads
        ctx.save_for_backward(x)  # saved
        ctx.k = k

        # the value
        out = x*k   # scaled
        return out
        # the end of it

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors   # not needed
        return g*ctx.k, None


last = [ 1,2 ]
'''

NEW = '''\
# -*- coding: utf-8 -*-
import torch


class Scaled(torch.autograd.Function):
    """x·k, é."""   # two spaces more than need be

    # of the forward
    @staticmethod
    def forward( x: torch.Tensor,
                 k=2.0 ) -> torch.Tensor:  # the head
        """Scale."""

        # the value
        out = x*k   # scaled
        return out
        # the end of it

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, k = inputs
        # what the backward reads
        ctx.save_for_backward(x)  # saved
        ctx.k = k

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors   # not needed
        return g*ctx.k, None


last = [ 1,2 ]
'''


def test_comments_layout_annotations_and_defaults_are_kept():
    assert with_new_styles(OLD.encode(), {"Scaled": NewStyle()}).decode() == NEW


def test_encoding_line_endings_and_indentation_are_kept():
    def other(text):
        return text.replace("utf-8", "latin-1").replace("    ", "\t").replace("\n", "\r\n").encode("latin-1")

    assert with_new_styles(other(OLD), {"Scaled": NewStyle()}) == other(NEW)


def test_rewrite_is_idempotent():
    again = NewStyle(splits_forward=False)
    assert with_new_styles(NEW.encode(), {"Scaled": again}) == NEW.encode()
    assert with_new_styles(OLD.encode(), {}) == OLD.encode()


def test_methods_become_static_unless_they_use_the_class():
    source = """
class Op(Function):
    # twice
    def forward(self, x):
        return x * 2

    @classmethod
    def backward(cls, ctx, g):
        return g * 2

    def helper(self):
        return self

    @classmethod
    def jvp(cls, ctx, t):
        return cls.helper(t)
"""
    new = with_new_styles(source.encode(), {"Op": NewStyle(splits_forward=False)}).decode()
    assert "    # twice\n    @staticmethod\n    def forward(self, x):\n" in new
    assert "    @staticmethod\n    def backward(ctx, g):\n" in new
    assert "\n\n    def helper(self):\n" in new
    assert "    @classmethod\n    def jvp(cls, ctx, t):\n" in new


def test_saved_variables_becomes_saved_tensors():
    source = op("return x", gives="g * ctx.saved_variables[0]") + "\nother.saved_variables\n"
    new = with_new_styles(source.encode(), {"Op": NewStyle(splits_forward=False)}).decode()
    assert new == source.replace("ctx.saved_variables", "ctx.saved_tensors")


def test_called_instances_become_apply():
    calls = "a = Op()(x, y)\nb = Op( ) (x)\nc = Op(1)(x)\nd = Op()(x=x)\ne = Op()\nf = Other()(x)\ng = h.Op()(x)\n"
    new = with_new_styles((op("return x") + calls).encode(), {"Op": NewStyle(splits_forward=False)}).decode()
    assert new.endswith("a = Op.apply(x, y)\nb = Op.apply (x)\n" + calls.partition("(x)\n")[2])
    again = op("return x") + calls + "Op = 1\n"
    assert with_new_styles(again.encode(), {"Op": NewStyle(splits_forward=False)}) == again.encode()


OP = """\
from torch.autograd import Function


class Op(Function):
    @staticmethod
    def forward(ctx, x):
        return x
"""


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("y = Op.apply(x)\nz = other.forward(x)\n", ""),
        ("class Half(Op):\n    pass\n", "Half derives from it in line 9 of ops.py"),
        ("y = Op.forward(None, x)\n", "its forward is called directly in line 9 of ops.py"),
        ("y = Op().forward(x)\n", "its forward is called directly in line 9 of ops.py"),
        ("hook = Op.forward\n", "its forward is called directly in line 9 of ops.py"),
        ("class Other(Function):\n    def f(cls, x):\n        return cls.forward(x)\n", ""),
    ],
)
def test_other_use_in_the_same_file_is_found(tmp_path, more, why):
    path = tmp_path / "ops.py"
    path.write_text(f"{OP}\n{more}")
    assert other_use(path, "Op") == why


def test_other_use_in_the_class_itself_is_found(tmp_path):
    path = tmp_path / "ops.py"
    path.write_text(OP + "    @classmethod\n    def twice(cls, x):\n        return cls.forward(None, x)\n")
    assert other_use(path, "Op") == "its forward is called directly in line 10 of ops.py"


@pytest.mark.parametrize(
    ("text", "is_heard"),
    [
        ("from .ops import Op\nOp.forward(None, 1)\n", True),
        ("from . import ops\nops.Op.forward(None, 1)\n", True),
        ("class Op:\n    pass\nOp.forward(None, 1)\n", False),  # another class of that name
        ("from .ops import Op\nOp.apply(1)\n", False),
        ("Op.forward(\n", False),  # invalid Python
    ],
)
def test_other_use_in_files_of_the_package_is_found(tmp_path, text, is_heard):
    inner = tmp_path / "package" / "inner"
    inner.mkdir(parents=True)
    for folder in (inner, inner.parent):
        (folder / "__init__.py").write_text("")
    (inner / "ops.py").write_text(OP)
    (inner.parent / "other.py").write_text(text)
    (tmp_path / "outside.py").write_text("from package.inner.ops import Op\nOp.forward(None, 1)\n")
    assert bool(other_use(inner / "ops.py", "Op")) == is_heard


def test_other_use_in_the_same_folder_is_found_outside_a_package(tmp_path):
    (tmp_path / "ops.py").write_text(OP)
    (tmp_path / "use.py").write_text("from ops import Op\nOp.forward(None, 1)\n")
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "use.py").write_text("from ops import Op\nOp.forward(None, 1)\n")
    assert other_use(tmp_path / "ops.py", "Op") == "its forward is called directly in line 2 of use.py"

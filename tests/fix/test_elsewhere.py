"""Who else uses the forward of a Function: of its file, and of its package."""

import pytest

from pullback.fix.elsewhere import objection

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
        ("y = Op.forward(None, x)\n", "its forward is called by hand in line 9 of ops.py"),
        ("y = Op().forward(x)\n", "its forward is called by hand in line 9 of ops.py"),
        ("hook = Op.forward\n", "its forward is called by hand in line 9 of ops.py"),
        ("class Other(Function):\n    def f(cls, x):\n        return cls.forward(x)\n", ""),
    ],
)
def test_of_the_same_file(tmp_path, more, why):
    path = tmp_path / "ops.py"
    path.write_text(f"{OP}\n{more}")
    assert objection(path, "Op") == why


def test_of_the_class_itself(tmp_path):
    path = tmp_path / "ops.py"
    path.write_text(OP + "    @classmethod\n    def twice(cls, x):\n        return cls.forward(None, x)\n")
    assert objection(path, "Op") == "its forward is called by hand in line 10 of ops.py"


@pytest.mark.parametrize(
    ("text", "is_heard"),
    [
        ("from .ops import Op\nOp.forward(None, 1)\n", True),
        ("from . import ops\nops.Op.forward(None, 1)\n", True),
        ("class Op:\n    pass\nOp.forward(None, 1)\n", False),  # one of its own
        ("from .ops import Op\nOp.apply(1)\n", False),
        ("Op.forward(\n", False),  # no Python
    ],
)
def test_of_other_files_of_the_package(tmp_path, text, is_heard):
    inner = tmp_path / "package" / "inner"
    inner.mkdir(parents=True)
    for folder in (inner, inner.parent):
        (folder / "__init__.py").write_text("")
    (inner / "ops.py").write_text(OP)
    (inner.parent / "other.py").write_text(text)
    (tmp_path / "outside.py").write_text("from package.inner.ops import Op\nOp.forward(None, 1)\n")
    assert bool(objection(inner / "ops.py", "Op")) == is_heard


def test_of_files_beside_one_that_is_in_no_package(tmp_path):
    (tmp_path / "ops.py").write_text(OP)
    (tmp_path / "use.py").write_text("from ops import Op\nOp.forward(None, 1)\n")
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "use.py").write_text("from ops import Op\nOp.forward(None, 1)\n")
    assert objection(tmp_path / "ops.py", "Op") == "its forward is called by hand in line 2 of use.py"

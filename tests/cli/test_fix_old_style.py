"""`pullback check --fix` on old-style Functions: conversion to setup_context, and refusals."""

import re

import pytest
from click.testing import CliRunner

from pullback import check
from pullback.cli import program

HEADER = "import torch\nfrom torch.autograd import Function\n\n\n"
REFUSED = ("PB405", "PB406", "PB408")
"""Rules of the transforms that refuse a forward with a context parameter."""

SQUARE = '''\
class Square(Function):
    """x²."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)  # all it takes
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * x
'''

SPLIT = '''\
class Square(Function):
    """x²."""

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        (x,) = inputs
        ctx.save_for_backward(x)  # all it takes

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * x
'''

THROUGH = '''

class SineThrough(Function):
    """The sine, with a straight-through gradient."""

    @staticmethod
    def forward(ctx, x):
        return torch.sin(x)

    @staticmethod
    def backward(ctx, g):
        return g
'''

RAMP = '''\
class Ramp(Function):
    """x where that is positive."""

    def forward(self, x):
        mask = x > 0
        self.save_for_backward(mask)
        return x * mask

    def backward(self, g):
        (mask,) = self.saved_variables
        return g * mask


def ramp(x):
    return Ramp()(x)
'''


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(*args, select="PB"):
        """Run the command with all rules selected: the old style is reported by infos alone."""
        chosen = ["--select", select] if select else []
        return CliRunner().invoke(program, ["check", *args, *chosen], catch_exceptions=False, standalone_mode=False)

    return call


@pytest.mark.slow
def test_infos_are_fixed_only_where_selected(run, tmp_path):
    path = tmp_path / "ops.py"
    wrong = SQUARE.replace("g * 2 * x", "g * 3 * x")
    path.write_text(HEADER + wrong)
    assert "fixed Square (ops.py:5): PB101\n" in run("ops.py", "--fix", select="").stderr
    assert path.read_text() == HEADER + wrong.replace("g * 3 * x", "2 * g * x"), "the forward keeps its context"
    assert "nothing to fix" in run("ops.py", "--fix", select="").stderr
    assert run("ops.py", "--diff", select="PB1").return_value == 0
    assert run("ops.py", "--diff", select="PB405").return_value == 1


@pytest.mark.slow
def test_right_function_gets_setup_context_and_keeps_its_backward(run, tmp_path):
    path = tmp_path / "ops.py"
    path.write_text(HEADER + SQUARE)
    result = run("ops.py", "--fix")
    assert result.return_value == 0
    assert "fixed Square (ops.py:5): PB405, PB408\n" in result.stderr
    assert path.read_text() == HEADER + SPLIT
    assert check(str(path), select="PB405").findings == ()
    assert "nothing to fix" in run("ops.py", "--fix").stderr


@pytest.mark.slow
def test_intended_gradient_is_kept_in_the_new_style(run, tmp_path):
    path = tmp_path / "ops.py"
    path.write_text(HEADER + THROUGH.strip())
    assert "fixed SineThrough (ops.py:5): PB405, PB408\n" in run("ops.py", "--fix").stderr
    text = path.read_text()
    assert "    def forward(x):\n        return torch.sin(x)\n" in text
    assert text.endswith("    def setup_context(ctx, inputs, output):\n        pass\n\n" + THROUGH[-62:].strip("\n"))


@pytest.mark.slow
def test_wrong_function_gets_backward_and_setup_context_at_once(run, tmp_path):
    path = tmp_path / "ops.py"
    path.write_text(HEADER + SQUARE.replace("g * 2 * x", "g * 3 * x"))
    assert "fixed Square (ops.py:5): PB101, PB405, PB408\n" in run("ops.py", "--fix").stderr
    assert path.read_text() == HEADER + SPLIT.replace("g * 2 * x", "2 * g * x")


@pytest.mark.slow
def test_ignored_and_allowed_rules_are_not_fixed(run, tmp_path):
    path = tmp_path / "ops.py"
    path.write_text(HEADER + SQUARE)
    assert "nothing to fix" in run("ops.py", "--fix", "--ignore", ",".join(REFUSED)).stderr
    allowed = "".join(f"    # pullback: allow[func-{name}-differs] old\n" for name in ("grad", "vmap", "jacrev"))
    path.write_text(HEADER + SQUARE.replace('x²."""\n', 'x²."""\n' + allowed))
    assert "nothing to fix" in run("ops.py", "--fix").stderr


@pytest.mark.slow
def test_deprecated_names_are_replaced_though_the_context_stays(run, tmp_path):
    path = tmp_path / "ops.py"
    path.write_text(HEADER + RAMP)
    result = run("ops.py", "--fix")
    told = r"fixed Ramp \(ops\.py:5\): PB801, PB802, PB803; not in the new style: it saves mask, which is neither"
    assert re.search(told, result.stderr)
    assert path.read_text() == HEADER + RAMP.replace("    def ", "    @staticmethod\n    def ").replace(
        "saved_variables", "saved_tensors"
    ).replace("Ramp()(x)", "Ramp.apply(x)")
    again = run("ops.py", "--fix")
    assert "not fixed Ramp (ops.py:5): it saves mask, which is neither an input nor an output" in again.stderr


def test_forward_shared_by_another_module_is_not_split(run, tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "ops.py").write_text(HEADER + SQUARE)
    (package / "more.py").write_text(
        "from .ops import Square\n\n\nclass Half(Square):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        return Square.forward(ctx, x) / 2\n"
    )
    result = run("package/ops.py", "--fix")
    assert "not fixed Square (package/ops.py:5): Half derives from it in line 4 of more.py" in result.stderr
    assert (package / "ops.py").read_text() == HEADER + SQUARE


HIDDEN = '''\
def positive(y):
    y.abs_()


class Absolute(Function):
    """|x|."""

    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        sign = torch.sign(y)
        ctx.save_for_backward(sign)
        positive(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (sign,) = ctx.saved_tensors
        return g * sign
'''


@pytest.mark.slow
def test_split_that_changes_the_gradient_is_not_written(run, tmp_path):
    path = tmp_path / "ops.py"
    path.write_text(HEADER + HIDDEN)
    result = run("ops.py", "--fix")
    assert "not fixed Absolute (ops.py:9): in the new style it has PB101: " in result.stderr
    assert path.read_text() == HEADER + HIDDEN


IDENTITY = SQUARE.replace("x * x", "x").replace("g * 2 * x", "-g").replace("x².", "Gradient reversal.")


@pytest.mark.slow
def test_split_that_pytorch_refuses_is_not_written(run, tmp_path):
    path = tmp_path / "ops.py"
    path.write_text(HEADER + IDENTITY)
    result = run("ops.py", "--fix")
    assert "not fixed Square (ops.py:5): in the new style it could not be audited: " in result.stderr
    assert "returned as-is" in result.stderr
    assert path.read_text() == HEADER + IDENTITY

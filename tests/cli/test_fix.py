"""`pullback check --fix` and `--diff`: files written, messages, and the exit status."""

import ast
import importlib.util
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from pullback import check
from pullback.cli import program

HEADER = "import torch\nfrom torch.autograd import Function\n\n\n"

CUBE = '''\
class Cube(Function):
    """x³."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)  # all it takes
        return x * x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 * x * x
'''

STRAIGHT = '''

class SineThrough(Function):
    """The sine, with a straight-through gradient."""

    @staticmethod
    def forward(ctx, x):
        return torch.sin(x)

    @staticmethod
    def backward(ctx, g):
        return g
'''

RIGHT = CUBE.replace("2 * x", "3 * x")


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(*args):
        return CliRunner().invoke(program, ["check", *args], catch_exceptions=False, standalone_mode=False)

    return call


ENDS = """
class Ends(Function):
    @staticmethod
    def forward(ctx, x):
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        import os

        os._exit(3)


"""


def test_crashing_function_does_not_stop_other_fixes(run, tmp_path):
    (tmp_path / "ops.py").write_text(HEADER + ENDS.lstrip() + CUBE)
    told = run("ops.py", "--fix").output
    assert "not fixed Ends (ops.py:5): while a fix was derived, the process ended with exit status 3" in told
    assert "fixed Cube (ops.py:17): PB101" in told
    assert "return 3 * g * x**2" in (tmp_path / "ops.py").read_text()


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or torch.accelerator.is_available(), reason="no Triton, or a GPU"
)
def test_function_with_kernels_is_left_alone(tmp_path):
    file = tmp_path / "ops.py"
    right = (Path(__file__).parents[1] / "check/swish_by_triton.py").read_text()
    before = right.replace('fault = ""', 'fault = "formula"', 1)
    file.write_text(before)
    command = [sys.executable, "-m", "pullback", "check", "ops.py:Swish", "--fix", "--select", "PB101"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    told = "its forward launches Triton kernels, of which no derivative is derived"
    assert re.search(rf"not fixed Swish \(ops.py:\d+\): {told}", done.stderr), done.stderr
    assert file.read_text() == before


@pytest.mark.slow
def test_fix_replaces_only_the_wrong_backward(run, tmp_path):
    path = tmp_path / "ops.py"
    path.write_bytes((HEADER + CUBE + STRAIGHT).replace("\n", "\r\n").encode())
    path.chmod(0o755)
    shown = run("ops.py", "--diff")
    assert shown.return_value == 1
    assert "-        return g * 2 * x * x\n+        return 3 * g * x**2\n" in shown.stdout
    assert "would fix Cube (ops.py:5): PB101" in shown.stderr
    assert path.read_bytes() == (HEADER + CUBE + STRAIGHT).replace("\n", "\r\n").encode()

    fixed = run("ops.py", "--fix")
    assert fixed.return_value == 0
    assert "fixed Cube (ops.py:5): PB101" in fixed.stderr
    assert "1 function fixed" in fixed.stderr
    assert re.search(r"^ok +Cube", fixed.stdout, re.MULTILINE)
    text = path.read_bytes().decode()
    kept = (HEADER + CUBE + STRAIGHT).replace("\n", "\r\n").split("        return g * 2 * x * x\r\n")
    assert text.startswith(kept[0])
    assert text.endswith(kept[1])
    assert stat.S_IMODE(path.stat().st_mode) == 0o755

    again = run("ops.py", "--fix")
    assert again.return_value == 0
    assert "nothing to fix" in again.stderr
    assert path.read_bytes().decode() == text
    assert run("ops.py", "--diff").return_value == 0


@pytest.mark.slow
def test_intended_gradient_is_fixed_only_with_unsafe_fixes(run, tmp_path):
    path = tmp_path / "ops.py"
    path.write_text(HEADER + STRAIGHT.strip())
    assert "nothing to fix" in run("ops.py", "--fix").stderr
    assert path.read_text() == HEADER + STRAIGHT.strip()
    result = run("ops.py", "--fix", "--unsafe-fixes")
    assert "fixed SineThrough (ops.py:5): PB101; unsafe: PB101: the backward is not the derivative" in result.stderr
    assert "return g * torch.cos(x)" in path.read_text()


@pytest.mark.slow
def test_package_with_relative_imports_is_fixed(run, tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("from package.ops import Cube\n")
    (package / "base.py").write_text("factor = 1\n")
    path = package / "ops.py"
    path.write_text("from .base import factor\n" + HEADER + CUBE.replace("return x", "return factor * x"))
    result = run("package", "--fix")
    assert "fixed Cube (package/ops.py:6)" in result.stderr
    assert check(str(path), select="PB101").ok
    assert sorted(p.name for p in package.iterdir() if p.name != "__pycache__") == ["__init__.py", "base.py", "ops.py"]


BROKEN_FORWARD = CUBE.replace("return x * x * x", "return torch.exp(x) / (1 + torch.exp(x))")


@pytest.mark.slow
def test_fix_that_stays_wrong_is_not_written(run, tmp_path):
    path = tmp_path / "ops.py"
    path.write_text(HEADER + BROKEN_FORWARD)
    result = run("ops.py", "--fix")
    assert result.return_value == 1
    assert re.search(
        r"not fixed Cube \(ops\.py:5\): with a backward derived from its forward it .* has PB30", result.stderr
    )
    assert path.read_text() == HEADER + BROKEN_FORWARD


MATRIX_PRODUCT = """
class Product(Function):
    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g @ b.t(), 2 * a.t() @ g
"""


@pytest.mark.slow
def test_ignored_finding_of_another_context_does_not_prevent_a_fix(run, tmp_path):
    path = tmp_path / "ops.py"
    path.write_text(HEADER + MATRIX_PRODUCT.lstrip())
    asked = ("ops.py", "--fix", "--unsafe-fixes")
    assert "it still has PB413" in run(*asked).stderr
    assert "fixed Product (ops.py:5): PB101" in run(*asked, "--ignore", "PB413").stderr
    assert "2 * a.t()" not in path.read_text()


def test_read_only_file_is_not_changed(run, tmp_path):
    path = tmp_path / "ops.py"
    path.write_text(HEADER + CUBE)
    path.chmod(0o444)
    result = run("ops.py", "--fix")
    assert result.return_value == 1
    assert "not fixed Cube (ops.py:5): " in result.stderr
    assert "is read-only" in result.stderr
    assert "Try --fix" not in result.stdout
    assert path.read_text() == HEADER + CUBE


@pytest.mark.slow
def test_installed_module_is_changed_only_if_its_file_is_named(run, tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    folder.mkdir()
    path = folder / "installed_ops.py"
    path.write_text(HEADER + CUBE)
    monkeypatch.syspath_prepend(folder)
    result = run("installed_ops", "--fix")
    assert "it is installed, in" in result.stderr
    assert path.read_text() == HEADER + CUBE
    assert "would fix Cube" in run(str(path), "--diff").stderr


def test_conflicting_options_are_refused(run, tmp_path):
    (tmp_path / "ops.py").write_text(HEADER + RIGHT)
    from click import UsageError

    with pytest.raises(UsageError, match="needs --fix or --diff"):
        run("ops.py", "--unsafe-fixes")
    with pytest.raises(UsageError, match="does not go with --fix"):
        run("ops.py", "--fix", "--update-baseline", "--baseline", "known.json")


TUTORIAL = Path(__file__).parents[2] / "examples" / "tutorial_functions.py"
WRONG = {"MaskedSum", "GatedRsqrt", "XExpMinusY", "SinSquared"}


@pytest.mark.slow
def test_every_wrong_tutorial_function_is_fixed(run, tmp_path):
    path = tmp_path / "tutorial_functions.py"
    path.write_bytes(TUTORIAL.read_bytes())
    result = run(path.name, "--fix")
    assert set(re.findall(r"^fixed (\w+)", result.stderr, re.MULTILINE)) == WRONG
    assert result.return_value == 0
    assert not [f for f in check(str(path), select=("PB1", "PB2", "PB4")).findings if f.severity == "error"]
    before, after = (_methods(text) for text in (TUTORIAL.read_text(), path.read_text()))
    for name in before:
        changed = {method for method in before[name] if before[name][method] != after[name][method]}
        assert changed <= ({"backward"} if name in WRONG else set())


def _methods(text):
    """The source of the methods of each class, without calls of save_for_backward."""
    return {
        node.name: {
            m.name: re.sub(r"ctx\.save_for_backward\(.*\)", "", ast.get_source_segment(text, m))
            for m in node.body
            if isinstance(m, ast.FunctionDef)
        }
        for node in ast.parse(text).body
        if isinstance(node, ast.ClassDef)
    }

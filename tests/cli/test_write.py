"""`pullback write`: output to a file or the terminal, and errors."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from pullback.cli import program
from pullback.errors import OptionError, TargetError

SOURCE = """
import torch

def cube(x):
    print("called")
    return x * x * x

class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, how):
        return x * {"twice": 2, "thrice": 3}[how]

    @staticmethod
    def backward(ctx, g):
        return g, None

def inputs(f):
    return [((torch.randn(4), "thrice"), {})] if f is Scaled else None
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "formulas.py").write_text(SOURCE)

    def call(*args):
        return CliRunner().invoke(program, ["write", *args], catch_exceptions=False, standalone_mode=False)

    return call


@pytest.mark.slow
def test_written_file_passes_its_written_tests(run, tmp_path):
    assert run("formulas.py:cube", "--test", "-o", "cubes.py").stdout.splitlines()[-2:] == [
        "wrote cubes.py",
        "wrote test_cubes.py",
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_cubes.py"]
    printed = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout
    assert "5 passed" in printed


def test_source_is_printed_without_a_file(run):
    output = run("formulas.py:cube").stdout
    assert output.startswith("import torch\n")
    assert "class Cube(torch.autograd.Function):" in output
    compile(output, "printed", "exec")


def test_existing_file_is_kept_without_force(run, tmp_path):
    (tmp_path / "mine.py").write_text("precious")
    with pytest.raises(OptionError, match=r"mine\.py exists"):
        run("formulas.py:cube", "-o", "mine.py")
    assert (tmp_path / "mine.py").read_text() == "precious"
    run("formulas.py:cube", "-o", "mine.py", "--force")
    assert "class Cube" in (tmp_path / "mine.py").read_text()


def test_missing_target_is_one_line_of_error(run):
    with pytest.raises(TargetError, match=r"no 'cub' in .*cube"):
        run("formulas.py:cub")
    with pytest.raises(TargetError, match="name a function"):
        run("formulas.py")


@pytest.mark.slow
def test_inputs_option_gives_the_example_call(run):
    with pytest.raises(OptionError, match=r"example call \(--inputs"):
        run("formulas.py:Scaled")
    assert "3 * x" in run("formulas.py:Scaled", "--inputs", "formulas.py:inputs").stdout
    assert run("formulas.py:cube", "--inputs", "formulas.py:inputs").stdout == run("formulas.py:cube").stdout


def test_error_message_suggests_names_and_shows_the_call(run):
    with pytest.raises(TargetError, match=r"did you mean .*Scaled"):
        run("formulas.py:Scale")
    with pytest.raises(OptionError, match=r"raised TypeError: .* It was called as cube\(Scaled\)"):
        run("formulas.py:Scaled", "--inputs", "formulas.py:cube")

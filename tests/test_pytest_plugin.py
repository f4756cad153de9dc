"""The pytest plugin, run in a nested pytest."""

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

OPS = """
import torch
from torch.autograd import Function

assert "pytest_session_of" not in globals()


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g * x**2


class WrongCube(Cube):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x**2


class Dies(Cube):
    @staticmethod
    def forward(ctx, x):
        import os

        os._exit(9)
"""

CONFTEST = """
import sys


def pytest_unconfigure(config):
    print("ops imported:", "ops" in sys.modules)
"""


@pytest.fixture
def project(pytester, monkeypatch):
    pytester.makepyfile(ops=OPS, test_other="def test_other(): pass", conftest=CONFTEST)
    pytester.makeini("[pytest]\nfilterwarnings = error\naddopts = --import-mode=importlib")
    return pytester


@pytest.mark.slow
def test_plugin_collects_one_test_per_function(project):
    result = project.runpytest_inprocess("--pullback=ops.py", "-v")
    result.assert_outcomes(passed=2, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*collected 4 items",
            "*pullback:ops.py::Cube PASSED*",
            "*pullback:ops.py::WrongCube*FAILED*",
            "*pullback:ops.py::Dies*FAILED*",
            "*error PB101 wrong-vjp*",
            "*error PB004 exits-the-process*",
            "FAILED pullback:ops.py::WrongCube - WrongCube: PB101 wrong-vjp*",
            "ops imported: False",
        ]
    )
    result.stdout.no_fnmatch_line("*Traceback*")


def test_deselected_functions_are_not_audited(project):
    result = project.runpytest_inprocess(
        "--pullback=ops.py", "-k", "Cube", "--deselect", "pullback:ops.py::WrongCube", "-v"
    )
    result.assert_outcomes(passed=1, deselected=3)


def test_missing_target_is_a_collection_error(project):
    result = project.runpytest_inprocess("--pullback=nosuch.py")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*no such file: nosuch.py*"])


def test_plugin_collects_nothing_without_the_option(project):
    project.runpytest_inprocess().assert_outcomes(passed=1)


PACKAGE = """
import os
from pathlib import Path

from torch.autograd import Function

LOG = Path(__file__).parent.parent / "log"
"""
TIMES = """

class Times{number}(Function):
    @staticmethod
    def forward(ctx, x):
        (LOG / f"{{os.getpid()}} Times{number}").touch()
        return {number} * x

    @staticmethod
    def backward(ctx, g):
        return {slope} * g
"""


@pytest.fixture
def package(pytester):
    """Make a package of five modules with ten functions each, of which one in each is wrong."""
    pytester.mkpydir("package")
    pytester.mkdir("log")
    for module in range(5):
        numbers = range(10 * module + 1, 10 * module + 11)
        functions = (TIMES.format(number=n, slope=n + (n % 10 == 8)) for n in numbers)
        (pytester.path / "package" / f"module{module}.py").write_text(PACKAGE + "".join(functions))
    return pytester


@pytest.mark.slow
def test_xdist_workers_share_the_functions_and_make_one_report(package):
    result = package.runpytest_subprocess("-n", "2", "--pullback=package", "--pullback-select=PB101,PB103")
    result.assert_outcomes(passed=45, failed=5)
    result.stdout.fnmatch_lines(["*= pullback =*", "*45 ok: Times1, Times2, *", "50 functions: 5 errors"])
    started = [file.name.split() for file in (package.path / "log").iterdir()]
    names = [name for _, name in started]
    wrong = {f"Times{10 * module + 8}" for module in range(5)}
    assert sorted(name for name in names if name not in wrong) == sorted({*names} - wrong), "each in one process"
    assert len({*names}) == 50
    assert all(names.count(name) == 2 for name in wrong), "in another its error is replayed"


def test_run_without_workers_makes_one_report(package):
    chosen = " or ".join(f"Times{n}" for n in (8, 9))
    result = package.runpytest_inprocess("--pullback=package.module0", "-k", chosen, "--pullback-select=PB101")
    result.assert_outcomes(passed=1, failed=1, deselected=8)
    result.stdout.fnmatch_lines(["*= pullback =*", "wrong *Times8 *", "ok *Times9 *", "2 functions: 1 error"])


FAILS = """
import logging

import torch
from ops import WrongCube
from pullback.testing import assert_sound


def test_cube(caplog):
    caplog.set_level(logging.DEBUG)
    logging.getLogger("torch.__trace").warning("")  # as PyTorch does where it has compiled something
    logging.getLogger("mine").warning("a word of the user")
    assert_sound(WrongCube, torch.ones(2, dtype=torch.float64), select="PB101")


def test_other():
    logging.getLogger("torch.__trace").warning("")
    assert False
"""


def test_failing_assert_sound_shows_only_findings(project):
    project.makepyfile(test_other=FAILS)
    project.makeini("[pytest]\npythonpath = .")
    result = project.runpytest_subprocess()
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "*_ test_cube _*",
            "E * error PB101 wrong-vjp*",
            "*mine:test_other.py:* a word of the user",
            "*_ test_other _*",
            "*torch.__trace:*",
        ]
    )
    assert str(result.stdout).count("torch.__trace:") == 1
    result.stdout.no_fnmatch_line("*pullback/testing.py*")


def test_plugin_imports_nothing_until_used():
    code = (
        "import pytest, sys; before = set(sys.modules); import pullback.pytest_plugin; "
        "print(*sorted(set(sys.modules) - before))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out == "pullback pullback.pytest_plugin\n"


def test_select_ignore_and_inputs_options(project):
    project.makepyfile(examples="def inputs(fn):\n    raise SystemError('asked')\n")
    result = project.runpytest_inprocess("--pullback=ops.py", "-k", "WrongCube", "--pullback-ignore=PB1,PB4")
    result.assert_outcomes(passed=1, deselected=3)
    result = project.runpytest_inprocess(
        "--pullback=ops.py", "-k", "WrongCube", "--pullback-select=PB101", "--pullback-inputs=examples.py:inputs"
    )
    result.assert_outcomes(failed=1, deselected=3)
    result.stdout.fnmatch_lines(["*for WrongCube, it raised SystemError: asked*"])


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--pullback-select=PB999", "*no rule 'PB999'*"),
        ("--pullback-budget=-1", "*budget must be a positive number of seconds, not -1*"),
        ("--pullback-inputs=nowhere.py:inputs", "*--inputs nowhere.py:inputs*"),
    ],
)
def test_invalid_option_is_a_collection_error(project, option, said):
    result = project.runpytest_inprocess("--pullback=ops.py", option)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([said])

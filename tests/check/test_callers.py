"""Examples of Functions from what applies them in their package."""

import sys
import textwrap

import pytest

import pullback
from pullback.check import package_calls

from .modules import import_source

SOURCE = textwrap.dedent('''
    import torch


    class Plan:
        """What no guess makes."""

        def __init__(self, order):
            self.order = order


    class Permuted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, plan):
            assert isinstance(plan, Plan)
            ctx.plan = plan
            return x[..., plan.order]

        @staticmethod
        def backward(ctx, g):
            return {gradient}, None

    {caller}
''')
BY_A_FUNCTION = """
    def reversed_rows(x):
        return Permuted.apply(x, Plan(list(range(x.shape[-1] - 1, -1, -1))))
"""
BY_A_MODULE = """
    permute = Permuted.apply


    class Reverse(torch.nn.Module):
        def __init__(self, width, scale: float):
            super().__init__()
            self.plan, self.scale = Plan(list(range(width - 1, -1, -1))), scale

        def forward(self, x):
            return self.scale * permute(x, self.plan)
"""
BY_ITS_DOCSTRING = """
    def applied(x, order):
        '''Permute, as a plan says.

        Examples:
            >>> plan = Plan([2, 0, 1])
            >>> open("written.txt", "w").close()
            >>> applied(torch.randn(2, 3), plan)
            tensor(...)
            >>> raise ValueError("what follows is not run")
        '''
        assert isinstance(order, Plan)
        return Permuted.apply(x, order)
"""
BY_A_FENCED_DOCSTRING = """
    class Applied:
        def of(self, x, order):
            '''
            ```python
            Applied().of(torch.randn(2, 3, dtype=torch.float64), Plan([2, 0, 1]))
            ```
            '''
            return Permuted.apply(x, order)
"""
BY_A_PROGRAM = """
    def main(path):
        raise SystemExit("this would train for a week")
        Permuted.apply(path)
"""


@pytest.mark.parametrize(
    ("name", "caller", "gradient", "status"),
    [
        ("called_right", BY_A_FUNCTION, "g[..., ctx.plan.order]", "ok"),
        ("called_wrong", BY_A_FUNCTION, "2 * g[..., ctx.plan.order]", "wrong"),
        ("called_by_module", BY_A_MODULE, "2 * g[..., ctx.plan.order]", "wrong"),
        ("in_docstring", BY_ITS_DOCSTRING, "g[..., torch.tensor(ctx.plan.order).argsort()]", "ok"),
        ("in_docstring_wrong", BY_ITS_DOCSTRING, "g[..., ctx.plan.order]", "wrong"),
        ("in_fences", BY_A_FENCED_DOCSTRING, "g[..., ctx.plan.order]", "wrong"),
        ("called_by_program", BY_A_PROGRAM, "g", "unaudited"),
    ],
)
def test_a_function_is_called_as_its_package_calls_it(tmp_path, monkeypatch, name, caller, gradient, status):
    text = SOURCE.replace("{gradient}", gradient).replace("{caller}", textwrap.dedent(caller))
    module = import_source(text, tmp_path, name)
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.chdir(tmp_path)
    report = pullback.check(module.Permuted, select=("PB0", "PB101"), budget=60)
    assert not (tmp_path / "written.txt").exists()
    assert [subject.status for subject in report.subjects] == [status]


TESTED = SOURCE.replace("{gradient}", "g[..., ctx.plan.order]").replace("{caller}", "")
BY_A_TEST = """
    @pytest.mark.skip
    def test_of_something_else(tmp_path):
        raise SystemExit


    def test_skipped():
        pytest.skip("no GPU")


    def test_of_another_that_would_last_for_a_day():
        if Permuted is None:
            time.sleep(86400)
        time.sleep(86400)


    @pytest.mark.parametrize("order, width", [([1, 2, 0], 3), ([0, 1], 2)])
    def test_permuted(order, width):
        open("written.txt", "w").close()
        Permuted.apply(torch.randn(2, width, requires_grad=True), Plan(order))
        raise KeyboardInterrupt("what comes after the call does not run")
"""
BY_A_TEST_CASE = """
    class TestPermuted(unittest.TestCase):
        def setUp(self):
            self.plan = Plan([1, 2, 0])

        def test_permuted(self):
            Permuted.apply(torch.randn(2, 3, requires_grad=True), self.plan)
"""


@pytest.mark.parametrize("tests", [BY_A_TEST, BY_A_TEST_CASE])
@pytest.mark.parametrize("folder", [".", "tests", "inside/tests"])
def test_a_function_is_called_as_a_test_of_its_package_calls_it(tmp_path, monkeypatch, tests, folder):
    monkeypatch.setattr(package_calls, "_SECONDS_OF_ONE", 0.5)
    home = tmp_path / "inside"
    home.mkdir()
    (home / "__init__.py").write_text(TESTED)
    where = tmp_path / folder if folder != "." else tmp_path / "tests" / "unit"
    where.mkdir(parents=True, exist_ok=True)
    imports = "import time, unittest, pytest, torch\nfrom inside import Permuted, Plan\n"
    (where / "test_permuted.py").write_text(imports + textwrap.dedent(tests))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    module = import_source(TESTED, home, "__init__")
    monkeypatch.setattr(module, "__name__", "inside")
    monkeypatch.setitem(sys.modules, "inside", module)
    module.Permuted.__module__ = "inside"
    report = pullback.check(module.Permuted, select=("PB0", "PB101"), budget=60)
    assert not (tmp_path / "written.txt").exists()
    assert [subject.status for subject in report.subjects] == ["wrong"]


def test_a_function_is_called_as_a_readme_calls_it(tmp_path, monkeypatch):
    code = "from permuting import Permuted, Plan\nimport torch\n"
    code += "Permuted.apply(torch.randn(2, 3, requires_grad=True), Plan([1, 2, 0]))\n"
    (tmp_path / "README.md").write_text(f"# Permuting\n\n```python\n{code}```\n")
    module = import_source(TESTED, tmp_path, "permuting")
    monkeypatch.setitem(sys.modules, "permuting", module)
    report = pullback.check(module.Permuted, select=("PB0", "PB101"), budget=60)
    assert [subject.status for subject in report.subjects] == ["wrong"]

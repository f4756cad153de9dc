"""Example calls taken from the package of a Function, and the Functions inside a callable."""

import sys
import textwrap

import pytest
import torch
from torch.autograd import Function

import pullback
from pullback.check.case import make_case
from pullback.check.cases import package_calls
from pullback.check.cases.call_samples import functions_inside
from pullback.check.find.discover import subject_of
from pullback.check.run_audit import run_audit
from pullback.check.subject import Options

from ..making import Silent, audit_of, function, normal
from ..modules import import_source

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
def test_function_is_called_as_its_package_calls_it(tmp_path, monkeypatch, name, caller, gradient, status):
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
def test_function_is_called_as_a_test_of_its_package_calls_it(tmp_path, monkeypatch, tests, folder):
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


def test_function_is_called_as_a_readme_calls_it(tmp_path, monkeypatch):
    code = "from permuting import Permuted, Plan\nimport torch\n"
    code += "Permuted.apply(torch.randn(2, 3, requires_grad=True), Plan([1, 2, 0]))\n"
    (tmp_path / "README.md").write_text(f"# Permuting\n\n```python\n{code}```\n")
    module = import_source(TESTED, tmp_path, "permuting")
    monkeypatch.setitem(sys.modules, "permuting", module)
    report = pullback.check(module.Permuted, select=("PB0", "PB101"), budget=60)
    assert [subject.status for subject in report.subjects] == ["wrong"]


Round = function(torch.round, lambda g, x: g)
Negate = function(torch.clone, lambda g, x: -g)
Slip = function(lambda x: x**3, lambda g, x: 2 * g * x**2)
Cube = function(lambda x: x**3, lambda g, x: 3 * g * x**2)


class Behind(Function):
    """Saves its input where autograd does not look at its version."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.data)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0]


class GradientReversal(Function):
    """Reverses the gradient."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return -g


def told(call, *args, select=("PB101", "PB209")):
    events = Silent()
    run_audit(subject_of(call), Options(select=select), [(args, {})], events)
    return [(f.rule, f.severity, f.verdict) for f in events.findings], events.findings


def test_inner_functions_are_recorded_with_their_arguments():
    w = normal(3)
    subject = subject_of(lambda x, y: Round.apply(2 * x) @ Cube.apply(y + w))
    found = functions_inside(subject, make_case((normal(4, 3), normal(3)), {}, ("x", "y")))
    assert [(inner.target, [tuple(t.shape) for t in case.tensors]) for inner, case in found] == [
        (Round, [(4, 3)]),
        (Cube, [(3,)]),
    ]
    assert torch.equal(found[0][1].tensors[0], 2 * normal(4, 3))


def test_function_or_native_callable_has_no_inner_functions():
    assert functions_inside(subject_of(Round), make_case((normal(3),), {}, ("x",))) == []
    assert functions_inside(subject_of(torch.sin), make_case((normal(3),), {}, ("x",))) == []


def test_identity_of_an_inner_function_is_intended():
    found, findings = told(lambda x: Negate.apply(x) * normal(3), normal(3))
    assert found == [("PB101", "info", "intended")]
    assert "its forward returns an input unchanged (Custom, which it calls)" in findings[0].message


def test_words_of_an_inner_function_give_a_warning():
    assert told(lambda x: GradientReversal.apply(x).sin(), normal(3))[0] == [("PB101", "warning", "intended")]


def test_intent_of_one_function_does_not_excuse_another():
    assert told(lambda x: Slip.apply(Negate.apply(x)), normal(3))[0] == [("PB101", "error", "wrong")]
    found, findings = told(lambda x: Slip.apply(Round.apply(x)) * normal(3), normal(3))
    assert found == [("PB101", "info", "intended"), ("PB101", "error", "wrong")]
    assert findings[1].message.startswith("in Custom: the gradient of x")


def test_function_rules_run_on_inner_functions():
    found, findings = told(lambda x: Behind.apply(x) * 3.0, normal(3))
    assert found == [("PB209", "error", "wrong")]
    assert findings[0].message.startswith("in Behind: after an in-place change of x")
    assert told(lambda x: Cube.apply(x) * 3.0, normal(3))[0] == []


def test_case_on_smaller_inputs_keeps_the_intent():
    audit = audit_of(lambda x: Negate.apply(x) * 2.0, normal(3))
    assert audit.on(make_case((normal(1),), {}, ("x",))).intent is audit.intent is not None


class Own(torch.Tensor):
    """A tensor that refuses most ops."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.isfinite:
            raise NotImplementedError("isfinite is not supported")
        return super().__torch_function__(func, types, args, kwargs or {})


class Wraps(Function):
    """Gives a tensor of a class of its own."""

    @staticmethod
    def forward(ctx, x):
        return (2 * x).as_subclass(Own)

    @staticmethod
    def backward(ctx, g):
        return 2 * g


def test_inner_functions_of_tensor_subclasses_are_skipped():
    found = functions_inside(
        subject_of(lambda x: Cube.apply(Wraps.apply(x).as_subclass(torch.Tensor))), make_case((normal(3),), {}, ("x",))
    )
    assert [inner.target for inner, _ in found] == [Cube]


class Handle:
    """Something that serves one call, as a factorisation that is released after its backward does."""

    def __init__(self):
        self.uses = 0

    def use(self):
        self.uses += 1
        if self.uses > 3:
            raise RuntimeError("it was released")


class ByHandle(Function):
    @staticmethod
    def forward(ctx, x, handle):
        handle.use()
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2, None


def test_inner_function_with_single_use_arguments_is_skipped():
    found, _ = told(lambda x: ByHandle.apply(x, Handle()), normal(3))
    assert found == []

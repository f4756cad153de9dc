"""Audits of ops of `pullback.function`: relaxed ops are compared with their relaxation, ruled ones with the formula."""

import pytest
import torch

import pullback
from pullback.check.find.discover import discover, subject_of
from pullback.errors import TargetError

SOURCE = """
import torch
import pullback
from pullback.catalog import round_ste  # another module's, not audited here

# pullback: allow[wrong-vjp] for the test
@pullback.function
def square(x):
    return x * x


@square.vjp
def _(g, out, x):
    return g * x


@pullback.function(derivative_of=torch.clamp)
def _hidden(x, min=-1.0, max=1.0):
    return x.clone()


made = pullback.function(lambda x: x + 1)
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made_ops.py").write_text(SOURCE)
    return "made_ops.py"


def identity(x):
    return x


def with_fault(formula, declared, carried_out):
    """A relaxed op whose implementation differentiates `carried_out` instead of the declared relaxation."""

    class Faulty(pullback.Op):
        relaxation = property(lambda self: declared)

    return Faulty(formula, carried_out)


def audit(op, *inputs):
    x = inputs or (torch.tensor([[0.3, -1.7, 2.2], [0.9, -0.4, 3.6]], dtype=torch.float64),)
    return pullback.check(op, *x, budget=60, select=["PB1", "PB401", "PB407"])


def found(report, rule):
    return [f for f in report.findings if f.rule == rule]


def test_ops_are_found_by_name_at_their_formula(file):
    subjects = discover(file)
    assert [(s.name, s.location.line, s.kind) for s in subjects] == [
        ("square", 8, "callable"),
        ("_hidden", 18, "callable"),
        ("made", 22, "callable"),
    ]
    assert subjects[0].source.allow == {"wrong-vjp": "for the test"}
    assert [s.name for s in discover(f"{file}:square")] == ["square"]
    namespace = {}
    exec(subjects[1].load, namespace)
    assert namespace["fn"].kind == "relaxed"


def test_file_without_ops_is_a_target_error(tmp_path):
    (tmp_path / "empty_of_ops.py").write_text("import pullback\n")
    with pytest.raises(TargetError, match=r"^no custom function in .*empty_of_ops\.py\. To audit another callable"):
        discover(str(tmp_path / "empty_of_ops.py"))


def test_package_is_searched_for_modules_with_ops(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package_of_ops").mkdir()
    (tmp_path / "package_of_ops" / "__init__.py").write_text("")
    (tmp_path / "package_of_ops" / "inner.py").write_text(SOURCE)
    assert [s.name for s in discover("package_of_ops")] == ["square", "_hidden", "made"]


def test_relaxed_op_with_the_gradient_of_its_relaxation_is_right():
    op = pullback.function(derivative_of=torch.sin)(lambda x: torch.round(x))
    report = audit(op)
    assert report.ok
    assert not found(report, "PB101")


def test_relaxed_op_with_another_gradient_is_wrong_whatever_its_name():
    def round_ste(x):
        return torch.round(x)

    op = with_fault(round_ste, declared=identity, carried_out=lambda x: 1.5 * x)
    (finding,) = found(audit(op), "PB101")
    assert (finding.severity, finding.verdict) == ("error", "wrong")
    assert finding.evidence.got == pytest.approx(1.5 * finding.evidence.expected)


def test_second_derivative_of_a_relaxation_is_checked():
    op = pullback.function(derivative_of=torch.tanh)(lambda x: torch.sign(x))
    assert audit(op).ok
    # The first derivative is that of tanh, but detached: a term of the second is lost.
    again = with_fault(lambda x: torch.sign(x), torch.tanh, lambda x: x * (1 - torch.tanh(x.detach()) ** 2))
    assert [f.severity for f in found(audit(again), "PB401")] == ["error"]


def test_relaxation_with_zero_derivative_is_audited():
    op = pullback.function(derivative_of=torch.zeros_like)(lambda x: x.clone())
    report = pullback.check(op, budget=60, select="PB1")
    assert report.ok
    assert report.subjects[0].cases > 10


def test_rule_is_compared_with_the_formula(file):
    subject = discover(file)[0]
    report = pullback.check(subject.target, budget=60, select="PB101")
    assert (report.ok, report.allowed) == (True, 1)  # by the comment above it
    wrong = pullback.function(lambda x: x * x)
    wrong.vjp(lambda g, out, x: g * x)
    (finding,) = found(audit(wrong), "PB101")
    assert finding.severity == "error"
    assert finding.evidence.expected == pytest.approx(2 * finding.evidence.got)


def test_error_message_of_a_wrong_rule_is_reported():
    op = pullback.function(lambda x, y: x * y)
    op.vjp(lambda g, out, x, y: g * y)
    x = torch.randn(2, 3, dtype=torch.float64)
    report = audit(op, x, x + 1)
    assert not report.ok
    assert any("returned 1 gradient for 2 inputs" in f.message for f in report.findings)


def test_nonlinear_rule_is_intended_only_if_declared():
    def clipped(g, out, x):
        return (g * 2 * x).clamp(-0.5, 0.5)

    for linear, severity in ((False, "info"), (None, "error")):
        op = pullback.function(lambda x: x * x)
        op.vjp(linear=linear)(clipped)
        (finding,) = found(audit(op), "PB109")
        assert finding.severity == severity


def test_intended_refusal_of_a_transform_is_an_info():
    op = pullback.function(lambda x: x * x)
    op.vjp(linear=False)(lambda g, out, x: (g * 2 * x).clamp(-0.5, 0.5))
    (finding,) = found(audit(op), "PB407")
    assert (finding.severity, finding.verdict) == ("info", "unsupported")


def test_subject_of_an_op_has_its_docstring_and_location():
    subject = subject_of(pullback.catalog.round_ste)
    assert subject.location.file.endswith("catalog/straight_through.py")
    assert subject.source.docstring.startswith("Round to the nearest")
    assert subject.relaxation is pullback.catalog.straight_through.identity
    assert subject_of(torch.sin).relaxation is None


CARRIED = """
import torch
import pullback


class Cube(pullback.AutogradFunction):
    @staticmethod
    def forward(ctx, x, scale: float = 2.0):
        ctx.save_for_backward(x)
        return scale * x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * g * x**2, None


class Decay(pullback.AutogradFunction):
    @staticmethod
    def forward(ctx, x, y):
        return x * torch.exp(-y)


class Base(pullback.AutogradFunction):
    pass
"""


@pytest.fixture
def carried(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "carried_ops.py").write_text(CARRIED)
    return {subject.name: subject for subject in discover("carried_ops.py")}


def test_autograd_function_classes_are_found_and_called_by_apply(carried):
    assert {name: (s.location.line, s.kind) for name, s in carried.items()} == {
        "Cube": (6, "callable"),
        "Decay": (18, "callable"),
    }
    (named,) = discover("carried_ops.py:Decay")
    namespace = {}
    exec(named.load, namespace)
    assert namespace["fn"](torch.tensor(2.0), torch.tensor(0.0)).item() == 2.0


@pytest.mark.slow
def test_autograd_function_is_audited_with_the_arguments_of_its_forward(carried):
    assert carried["Decay"].is_made  # it defines no backward
    assert not carried["Cube"].is_made
    report = pullback.check("carried_ops.py", budget=60, select=["PB1", "PB414"])
    assert {s.name: s.status for s in report.subjects} == {"Cube": "wrong", "Decay": "ok"}
    assert not found(report, "PB414")
    (finding,) = found(report, "PB101")
    assert finding.evidence.expected == pytest.approx(2 * finding.evidence.got)


def test_autograd_function_class_and_its_apply_are_subjects():
    class Double(pullback.AutogradFunction):
        @staticmethod
        def forward(x):
            return 2 * x

    for target in (Double, Double.apply):
        subject = subject_of(target)
        assert subject.name == "Double"
        assert subject.call(torch.tensor(3.0)).item() == 6.0
    with pytest.raises(TargetError):
        subject_of(pullback.AutogradFunction)


def test_callable_around_a_broken_function_is_an_error():
    class TwoForOne(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, g):
            return 2 * g, g

    report = audit(lambda x: TwoForOne.apply(x))
    assert [f.severity for f in found(report, "PB119")] == ["error"]

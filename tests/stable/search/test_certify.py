"""Forms are judged at every point, at singularities of the formula and at infinite inputs."""

import math

import mpmath
import numpy as np
import pytest
import torch

import pullback
from pullback.errors import FormulaError, RunnerError
from pullback.stable.derivative import exact_derivative
from pullback.stable.formula import Formula
from pullback.stable.meaning import meaning_of
from pullback.stable.oracle import balls as precision
from pullback.stable.oracle.values import exact
from pullback.stable.piecewise import parse_piecewise
from pullback.stable.search.certify import certify, judge
from pullback.stable.search.search import FormSearch, FoundProgram

INFINITE = torch.tensor([math.inf, -math.inf])


def judge_program(function, program, by=(), **options):
    """Judge a program as if the search had found it."""
    meaning = meaning_of(function, torch.float32)
    search = FormSearch(meaning.term, **options)
    target = meaning.term
    for name in by:
        target = exact_derivative(target, name)
    search._found[by] = FoundProgram(target, parse_piecewise(program.splitlines()), (), 0.0, 0.0, 0)
    return judge(Formula(function), search, by, meaning.variables, None)


def pseudo_huber(x):
    return torch.sqrt(x * x + 4) - 2


def expm1_quotient(x):
    return (torch.exp(x) - 1) / x


INFINITIES = {
    "x²/(√(x² + 4) + 2)": (pseudo_huber, "otherwise: (x * x) / (sqrt((x * x) + 4) + 2)  [float64]", ()),
    "(xeˣ − eˣ + 1)/x²": (
        expm1_quotient,
        "x <= -0.01: ((x * exp(x) - exp(x)) + 1) / (x * x)  [float64]\n"
        "x <= 0.01: 0.5 + x / 3 + x * x / 8  [float64]\n"
        "otherwise: ((x * exp(x) - exp(x)) + 1) / (x * x)  [float64]",
        ("x",),
    ),
    "two variables": (
        lambda x, y: torch.sqrt(x * x + y * y + 4) - 2,
        "otherwise: (x * x + y * y) / (sqrt(x * x + y * y + 4) + 2)  [float64]",
        (),
    ),
}


@pytest.mark.parametrize("name", INFINITIES)
def test_form_keeps_the_formulas_value_at_infinite_inputs(name):
    function, program, by = INFINITIES[name]
    names = meaning_of(function, torch.float32).variables
    points = [x.flatten() for x in torch.meshgrid(*[torch.cat([INFINITE, torch.ones(1)])] * len(names), indexing="ij")]
    leaves = [x.requires_grad_() for x in points]
    written = function(*leaves)
    for _ in by:
        (written,) = torch.autograd.grad(written.sum(), leaves)
    kept = written.detach().isnan().logical_not() & torch.stack(points).isinf().any(0)
    assert kept.any()
    at = {n: x.detach() for n, x in zip(names, points, strict=True)}
    assert parse_piecewise(program.splitlines()).run(at)[kept].isnan().any()
    judgement = judge_program(function, program, by)
    assert not judgement.worse
    torch.testing.assert_close(judgement.form.program.run(at)[kept], written.detach()[kept])


def test_form_with_a_piece_for_infinities_keeps_nan():
    function, program, by = INFINITIES["x²/(√(x² + 4) + 2)"]
    assert judge_program(function, program, by).form.program.run({"x": torch.tensor([math.nan])}).isnan().all()


def root_quotient(x):
    return (torch.sqrt(x) - math.sqrt(3)) / (x - 3)


def test_form_wrong_only_at_a_singularity_is_rejected():
    wrong = (
        "x <= 2.9999998: 1 / (sqrt(x) + SQRT3)  [float64]\nx <= 3.0: 9e14\notherwise: 1 / (sqrt(x) + SQRT3)  [float64]"
    )
    right = "otherwise: 1 / (sqrt(x) + SQRT3)  [float64]"
    assert "9e" not in str(judge_program(root_quotient, wrong).form.program)
    assert judge_program(root_quotient, right).better


def test_form_worse_on_one_interval_is_rejected():
    """The form is off by 9 ulp on one interval; elsewhere the formula has errors a million times larger."""
    function = lambda x: torch.exp(x) - 1  # noqa: E731
    worse = "x <= 2.0: expm1(x)\nx <= 2.1: expm1(x) * 1.000001\notherwise: expm1(x)"
    judgement = judge_program(function, worse, wide="never")
    assert judgement.worse or "1.000001" not in str(judgement.form.program.lines())


QUOTIENTS = {
    "(eˣ − e⁻⁴)/(x + 4)": (
        lambda x: (torch.exp(x) - math.exp(-4)) / (x + 4),
        -4.0,
        lambda x: (mpmath.exp(x) - mpmath.exp(-4)) / (x + 4),
    ),
    "(x + 4)/(eˣ − e⁻⁴)": (
        lambda x: (x + 4) / (torch.exp(x) - math.exp(-4)),
        -4.0,
        lambda x: (x + 4) / (mpmath.exp(x) - mpmath.exp(-4)),
    ),
    "(√x − √3)/(x − 3)": (root_quotient, 3.0, lambda x: (mpmath.sqrt(x) - mpmath.sqrt(3)) / (x - 3)),
    "(x − 5)/(ln x − ln 5)": (
        lambda x: (x - 5) / (torch.log(x) - math.log(5)),
        5.0,
        lambda x: (x - 5) / (mpmath.log(x) - mpmath.log(5)),
    ),
}


@pytest.mark.parametrize("name", QUOTIENTS)
def test_computed_constants_do_not_move_a_removable_singularity(name):
    """Rounded to float64, they would turn it into a pole beside that point."""
    function, hole, reference = QUOTIENTS[name]
    target = meaning_of(function, torch.float32).term
    beside = float(np.nextafter(np.float32(hole), np.float32(0)))
    for order in range(3):
        (truth,) = exact([target], {"x": np.array([hole, beside])})
        with mpmath.workdps(200):
            right = [
                float(
                    mpmath.diff(reference, mpmath.mpf(beside) + mpmath.mpf(10) ** -30, order, h=mpmath.mpf(10) ** -40)
                )
            ]
        np.testing.assert_allclose(truth.high, right * 2, rtol=1e-5)
        np.testing.assert_allclose(truth.high[1], right[0], rtol=1e-14)
        target = exact_derivative(target, "x")


def test_unknown_rounded_constant_at_a_singularity_raises():
    function = lambda x: (torch.tanh(x) - math.tanh(0.5)) / (x - 0.5)  # noqa: E731
    with pytest.raises(FormulaError, match=r"0\.462117157260009\d+ is rounded, and near x = 0\.5"):
        judge_program(function, "otherwise: x", ("x",))


def log_of_sigmoid(x):
    return torch.log(torch.sigmoid(x))


@pytest.mark.slow
def test_form_is_judged_in_compiled_kernels():
    lowered = []

    def lowering(form):
        lowered.append(form)
        return form

    found = certify(log_of_sigmoid, lowering=lowering)
    assert len(lowered) == 3  # value, first and second derivative
    assert "also in compiled kernels" in found.made


@pytest.mark.slow
def test_form_inaccurate_in_its_kernels_is_rejected():
    with pytest.raises(FormulaError, match=r"no form of|as accurate as"):
        certify(log_of_sigmoid, lowering=lambda form: lambda x: torch.full_like(form(x), torch.nan))


@pytest.mark.slow
def test_op_is_judged_in_the_kernels_of_its_backend(native):
    (found,) = pullback.function(log_of_sigmoid).stabilise()
    assert "also in compiled kernels" in found.made
    (eager,) = pullback.function(backend="eager")(log_of_sigmoid).stabilise()
    assert "compiled" not in eager.made


def test_missing_flint_raises_and_says_what_to_install(monkeypatch):
    monkeypatch.setattr(precision, "flint", None)
    with pytest.raises(RunnerError, match="pip install"):
        pullback.function(lambda x: x.sigmoid().log()).stabilise()

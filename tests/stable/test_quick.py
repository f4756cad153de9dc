"""The quick rule pass: accurate forms, formulas that it skips, and no loss of accuracy."""

import math
import random
import sys

import mpmath
import numpy as np
import pytest
import torch

from pullback.ops.constants import VALUES
from pullback.stable.derivative import derivative
from pullback.stable.formula import Formula, Quantity
from pullback.stable.meaning import meaning_of
from pullback.stable.measure import errors
from pullback.stable.oracle.values import exact
from pullback.stable.quick import quick_forms
from pullback.stable.sampling import sample_points
from pullback.stable.term import parse, variables
from tests.stable.formulas import FORMULAS

SHORT = (torch.bfloat16, torch.float16)


def forms(function, dtype=torch.float32):
    return quick_forms(function, meaning_of(function, dtype), dtype)


def of_text(text):
    """Return a function that computes a term as written."""
    scope = {**vars(torch), **VALUES, "erfcx": torch.special.erfcx}
    return eval(f"lambda {', '.join(variables(parse(text)))}: {text}", scope)


WRITTEN = {
    "log σ": (lambda x: torch.log(torch.sigmoid(x)), lambda x: -mpmath.log1p(mpmath.exp(-x))),
    "−log σ": (lambda x: -torch.log(torch.sigmoid(x)), lambda x: mpmath.log1p(mpmath.exp(-x))),
    "log(1 − σ)": (lambda x: torch.log(1 - torch.sigmoid(x)), lambda x: -mpmath.log1p(mpmath.exp(x))),
    "softplus": (lambda x: torch.log(1 + torch.exp(x)), lambda x: mpmath.log1p(mpmath.exp(x))),
    "mish": (
        lambda x: x * torch.tanh(torch.log(1 + torch.exp(x))),
        lambda x: x * mpmath.tanh(mpmath.log1p(mpmath.exp(x))),
    ),
    "√(1 + x) − 1": (lambda x: torch.sqrt(1 + x) - 1, lambda x: mpmath.sqrt(1 + x) - 1),
    "expm1": (lambda x: torch.exp(x) - 1, mpmath.expm1),
    "asinh": (lambda x: torch.log(x + torch.sqrt(x * x + 1)), mpmath.asinh),
}
AT = torch.tensor([-80.0, -20.0, -1e-3, -1e-6, 1e-6, 0.5, 20.0, 80.0])


@pytest.mark.parametrize("name", WRITTEN)
def test_common_formulas_get_accurate_values_and_derivatives(name):
    function, reference = WRITTEN[name]
    found, at = forms(function), AT[2:] if name.startswith("√") else AT
    with mpmath.workdps(100):
        for form, order in ((found.value, 0), (found.derivatives[(0,)], 1), (found.derivatives[(0, 0)], 2)):
            right = torch.tensor([float(mpmath.diff(reference, mpmath.mpf(float(x)), order)) for x in at])
            torch.testing.assert_close(form(at), right, rtol=4e-6, atol=1e-37)


def test_only_derivatives_are_replaced_where_the_value_is_accurate():
    found = forms(torch.tanh)
    assert found.value is None
    assert found.steeper
    assert found.rules == ("the derivative of tanh", "1 - tanh(a) * tanh(a) => 1 / (cosh(a) * cosh(a))")


def test_tanhshrink_derivative_is_tanh_squared():
    """Near 0, 1 − (1 − tanh²) is a multiple of a float64 ulp."""
    x = torch.tensor([-1e-3, -1e-9, 0.0, 1e-12, 3.0])
    slope = forms(torch.nn.functional.tanhshrink).derivatives[(0,)]
    torch.testing.assert_close(slope(x), x.double().tanh().square().float(), rtol=5e-7, atol=0)


@pytest.mark.parametrize("dtype", SHORT, ids=str)
def test_16_bit_forms_are_computed_in_float32(dtype):
    found = forms(lambda x: torch.log(1 + torch.exp(x)), dtype)
    x = torch.tensor([-8.0, 0.5, 8.0], dtype=dtype)
    assert found.value(x).dtype == dtype
    assert torch.equal(found.value(x), torch.nn.functional.softplus(x.double()).to(dtype))


def compensated_log1p(x):
    """log1p without log1p: the rounding of 1 + x cancels."""
    u = 1 + x
    return torch.log(u) * (x / (u - 1))


def mended(x):
    return torch.nan_to_num(torch.log(1 + torch.exp(x)) / x)


def mended_beside_a_gate(x):
    return torch.nan_to_num(torch.log(x)) * torch.sigmoid(x)


def masked(x):
    y = torch.log(1 - torch.exp(x))
    return torch.where(torch.isnan(y), torch.zeros_like(y), y)


def below_zero_nothing(x):
    return torch.where(torch.isinf(x), torch.zeros_like(x), torch.log(1 + torch.exp(x)))


def of_four(a, b, c, d):
    return torch.log(1 + torch.exp(a)) * b * c * d


def long(x):
    for _ in range(40):
        x = torch.log(1 + torch.exp(torch.sin(x)))
    return x


def not_for_float64(x):
    if x.dtype == torch.float64:
        raise ValueError("float32 only")
    return torch.log(1 + torch.exp(x))


def another_in_float64(x):
    return torch.log(1 + torch.exp(x)) * (1 if x.dtype == torch.float32 else 2)


LEFT = {
    "a compensated formula": compensated_log1p,
    "nan_to_num": mended,
    "nan_to_num where no rule fits": mended_beside_a_gate,
    "a choice by isnan": masked,
    "a choice by isinf": below_zero_nothing,
    "no rule fits": lambda x: torch.sin(x) * x,
    "a long formula": long,
    "a formula that refuses float64": not_for_float64,
    "already stable": torch.nn.functional.softplus,
}


@pytest.mark.parametrize("name", LEFT)
def test_unsuitable_formula_is_skipped(name):
    assert forms(LEFT[name]) is None


def test_term_is_that_of_the_formula_in_its_dtype():
    """A formula that differs in float64 has the term of float32."""
    assert torch.equal(forms(another_in_float64).value(AT), forms(lambda x: torch.log(1 + torch.exp(x))).value(AT))


def test_float64_is_skipped():
    assert forms(lambda x: torch.log(1 + torch.exp(x)), torch.float64) is None


def test_quick_rules_need_no_other_package(monkeypatch):
    monkeypatch.setattr("pullback.stable.oracle.balls.flint", None)
    monkeypatch.setitem(sys.modules, "flint", None)
    assert forms(WRITTEN["mish"][0]).rules


def test_derivative_ignores_nan_in_inputs_it_does_not_depend_on():
    """The derivative of softplus(x)·y by y must not be NaN where y is NaN."""
    found = forms(lambda x, y: torch.log(1 + torch.exp(x)) * y)
    x, y = torch.tensor([1.0]), torch.tensor([float("nan")])
    assert found.derivatives[(1,)](x, y).isfinite()
    assert found.derivatives[(0,)](x, y).isnan()


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.few(17)
def test_forms_are_not_worse_at_fresh_points(name):
    """Against exact values: no new NaN or infinity, and no error above 16 ulp that the formula does not have."""
    function = of_text(FORMULAS[name])
    meaning = meaning_of(function, torch.float32)
    found = quick_forms(function, meaning, torch.float32)
    if found is None:
        return
    at = sample_points(meaning.variables, torch.float32, seed=777)
    at = {"x": at["x"][::20]}
    tensor = torch.from_numpy(at["x"]).float()
    written = Formula(function).run([tensor], 2)
    target = meaning.term
    for order, form in enumerate((found.value, found.derivatives[(0,)], found.derivatives[(0, 0)])):
        target = derivative(target, "x") if order else target
        if form is None:
            continue
        (truth,) = exact([target], at)
        ours, theirs = errors(form(tensor), truth), errors(written[Quantity(0, ("x",) * order)], truth)
        normal = ours.stated & theirs.stated & ~ours.subnormal
        assert not np.any((ours.nan | ours.inf) & ~theirs.spurious)
        assert not np.any(ours.zero & ~theirs.spurious & (theirs.ulp < 2**22))  # without a correct digit
        most = np.array([theirs.ulp[max(0, i - 8) : i + 9].max() for i in range(len(normal))])
        assert not np.any(normal & (ours.ulp > 16) & (ours.ulp > 2 * most))


def laplace(x):
    """Laplace activation of Mega: the tail of erf amplifies the rounding of its argument."""
    return 0.5 * (1 + torch.erf((x - 0.707107) / (0.282095 * math.sqrt(2))))


LOSSES = {
    "Laplace": laplace,
    "Laplace·x": lambda x: x * (1 + torch.erf((x - 0.3) / (0.25 * math.sqrt(2)))) / 2,
    "Welsch": lambda x: 1 - torch.exp(-x * x / 2),
    "GELU": lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
    "SiLU": lambda x: x / (1 + torch.exp(-x)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_forms_are_not_worse_at_random_points(name):
    """By at most 4 ulp, also where the formula is accurate by chance; the points differ in every run."""
    function, seed = LOSSES[name], random.SystemRandom().randrange(2**31)
    print(f"seed {seed}")
    meaning, draw = meaning_of(function, torch.float32), np.random.default_rng(seed)
    found = quick_forms(function, meaning, torch.float32)
    at = np.concatenate([draw.uniform(-1.2, 1.2, 1500), draw.uniform(-6, 6, 500)]).astype(np.float32)
    tensor, target = torch.from_numpy(at), meaning.term
    written = Formula(function).run([tensor], 2)
    for order, form in enumerate((found.value, found.derivatives[(0,)], found.derivatives[(0, 0)])):
        target = derivative(target, "x") if order else target
        if form is None:
            continue
        (truth,) = exact([target], {"x": at.astype(float)})
        ours, theirs = errors(form(tensor), truth), errors(written[Quantity(0, ("x",) * order)], truth)
        assert np.all((ours.ulp <= theirs.ulp + 4) | theirs.spurious | ours.subnormal)


HOLES = {
    "expm1(x)/x": (lambda x: (torch.exp(x) - 1) / x, 0.0, lambda x: mpmath.expm1(x) / x),
    "x/expm1(x)": (lambda x: x / (torch.exp(x) - 1), 0.0, lambda x: x / mpmath.expm1(x)),
    "tanh(x)/x": (lambda x: torch.tanh(x) / x, 0.0, lambda x: mpmath.tanh(x) / x),
    "log1p(x)/x": (lambda x: torch.log(1 + x) / x, 0.0, lambda x: mpmath.log1p(x) / x),
    "expm1(x − 3)/(x − 3)": (
        lambda x: (torch.exp(x - 3) - 1) / (x - 3),
        3.0,
        lambda x: mpmath.expm1(x - 3) / (x - 3),
    ),
}


@pytest.mark.parametrize("name", HOLES)
def test_removable_singularity_has_its_limit(name):
    function, hole, reference = HOLES[name]
    found, at = forms(function), torch.tensor([hole])
    assert function(at).isnan()
    with mpmath.workdps(100):
        beside = mpmath.mpf(hole) + mpmath.mpf(10) ** -20
        for form, order in ((found.value, 0), (found.derivatives[(0,)], 1), (found.derivatives[(0, 0)], 2)):
            right = float(mpmath.diff(reference, beside, order, h=mpmath.mpf(10) ** -25))
            torch.testing.assert_close(form(at), torch.tensor([right]))


def test_singularity_filled_by_the_formula_keeps_its_value():
    found = forms(lambda x: torch.nan_to_num((torch.exp(x - 3) - 1) / (x - 3), 7.0))
    assert found is None or found.value is None or found.value(torch.tensor([3.0])) == 7.0


AT_INFINITY = {
    "pseudo-Huber": lambda x: 2.25 * (torch.sqrt(1 + (x / 1.5) ** 2) - 1),
    "√(1 + x²) − 1": lambda x: torch.sqrt(1 + x * x) - 1,
    "x²/(√(x² + c²) + c)": lambda x: x * x / (torch.sqrt(x * x + 2.25) + 1.5),
    "x/(1 + |x|)": lambda x: x / (1 + x.abs()),
    "log cosh": lambda x: torch.log(torch.cosh(x)),
    "log cosh by exp": lambda x: x + torch.log(1 + torch.exp(-2 * x)) - math.log(2),
    "x·σ(x)": lambda x: x * torch.sigmoid(x),
    "x/(1 + e⁻ˣ)": lambda x: x / (1 + torch.exp(-x)),
    "log(1 + eˣ)": lambda x: torch.log(torch.exp(x) + 1),
    "x − log(1 + eˣ)": lambda x: x - torch.log(1 + torch.exp(x)),
    "x − log(1 + x)": lambda x: x - torch.log(1 + x),
    "x/√(1 + x²)": lambda x: x / torch.sqrt(1 + x * x),
    "x²/(1 + x²)": lambda x: x * x / (1 + x * x),
    "1 − exp(−x²/2)": lambda x: 1 - torch.exp(-x * x / 2),
    "log(1 + x²)": lambda x: torch.log(1 + x * x),
    "(x + √(x² + 4))/2": lambda x: (x + torch.sqrt(x * x + 4)) / 2,
    "mish": lambda x: x * torch.tanh(torch.log(1 + torch.exp(x))),
    "gelu": lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))),
    "(eˣ − 1)/x": lambda x: (torch.exp(x) - 1) / x,
    "log σ": lambda x: torch.log(torch.sigmoid(x)),
    "1/(√(x² + 1) + x)": lambda x: 1 / (torch.sqrt(x * x + 1) + x),
    "asinh": lambda x: torch.log(x + torch.sqrt(x * x + 1)),
}


@pytest.mark.parametrize("name", AT_INFINITY)
def test_values_at_zero_extremes_and_infinity_are_kept(name):
    function, limits = AT_INFINITY[name], torch.finfo(torch.float32)
    found = forms(function)
    if found is None:
        return
    finite = torch.tensor([0.0, limits.max, limits.tiny, limits.smallest_normal / 2**20])
    finite, infinite = torch.cat([finite, -finite]), torch.tensor([math.inf, -math.inf])
    near, far = (Formula(function).run([x], 2) for x in (finite, infinite))
    target = meaning_of(function, torch.float32).term
    for order, form in enumerate((found.value, found.derivatives[(0,)], found.derivatives[(0, 0)])):
        target = derivative(target, "x") if order else target
        if form is None:
            continue
        quantity = Quantity(0, ("x",) * order)
        kept = ~far[quantity].isnan()
        torch.testing.assert_close(form(infinite)[kept], far[quantity][kept])
        (truth,) = exact([target], {"x": finite.double().numpy()})
        ours, theirs = errors(form(finite), truth), errors(near[quantity], truth)
        assert not np.any((ours.nan | ours.inf) & ~theirs.spurious)
        assert np.all((ours.ulp <= np.maximum(theirs.ulp, 4)) | theirs.spurious)

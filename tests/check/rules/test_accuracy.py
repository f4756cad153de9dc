"""Rules about accuracy on small functions: messages, the onset of errors, and functions not to report."""

import mpmath
import pytest
import torch

import pullback
from pullback.check.runner.process import fork_is_clean
from pullback.check.runner.task import Limits

from ...mutants.load import function_of, load_base
from ..making import function


def found(rule, target, *inputs):
    """Return the findings of one rule."""
    return list(pullback.check(target, *inputs, select=rule).findings)


@pytest.mark.parametrize("base", ["softplus", "gain", "x_log_x", "bend", "x_sin", "decay", "softmax", "rms_norm"])
@pytest.mark.few(2)
def test_stable_functions_are_not_accused(base):
    module = load_base(base)
    findings = found("PB3", function_of(module), *module.inputs())
    assert [f.message for f in findings if f.severity != "info"] == []


def softplus():
    def gradient(g, x):
        e = torch.exp(x)
        return g * e / (1 + e)

    return function(lambda x: torch.log(1 + torch.exp(x)), gradient)


def test_301_softplus_overflows_where_exp_does():
    gradient, value = found("PB301", softplus())
    assert (gradient.severity, value.severity) == ("error", "warning")
    assert (gradient.evidence.expected, value.evidence.got) == (1, float("inf"))
    begins = mpmath.log(mpmath.mpf(2) ** 128)
    assert f"it begins at x = {float(begins):.6g}" in value.message
    assert "exactly 88.7" in value.message


def test_301_removable_singularity_has_its_limit():
    value, gradient = found("PB301", function(lambda x: torch.sin(x) / x, lambda g, x: g * (x.cos() - x.sin() / x) / x))
    assert value.severity == gradient.severity == "warning"
    assert (value.evidence.expected, gradient.evidence.expected) == (1, 0)


def test_301_float64_run_is_the_reference_without_a_formula():
    def value(x):
        return torch.special.modified_bessel_i0(x) / torch.exp(x)

    def gradient(g, x):
        return g * (torch.special.modified_bessel_i1(x) - torch.special.modified_bessel_i0(x)) / torch.exp(x)

    findings = found("PB301", function(value, gradient))
    assert findings
    assert all("in a float64 run of the same function" in finding.message for finding in findings)
    assert findings[0].evidence.expected == pytest.approx(float(mpmath.besseli(0, 91.9) * mpmath.exp(-91.9)), rel=0.1)


@pytest.mark.parametrize(
    "target",
    [
        torch.exp,  # its value is beyond the range, so that infinity is right
        torch.log,  # no value below 0, -inf at 0
        torch.sqrt,  # no slope at 0
        torch.lgamma,
        torch.tan,
        torch.nn.functional.gelu,
        torch.nn.functional.silu,
        torch.nn.functional.softplus,
        torch.nn.functional.mish,
        torch.nn.functional.logsigmoid,
        torch.nn.functional.elu,
        torch.nn.functional.hardswish,
        torch.nn.functional.softsign,
        torch.special.erfcx,
        torch.logaddexp,
        torch.xlogy,
        torch.hypot,
    ],
    ids=lambda target: target.__name__,
)
@pytest.mark.few(2)
def test_pytorch_functions_are_not_accused(target):
    count = 2 if target in (torch.logaddexp, torch.xlogy, torch.hypot) else 1
    inputs = [torch.rand(5, dtype=torch.float64, requires_grad=True) for _ in range(count)]

    def fn(*args):
        return target(*args)

    assert [f.message for f in pullback.check(fn, *inputs, select="PB3").findings if f.severity == "error"] == []


def test_reproduction_shows_the_error(capsys):
    value = found("PB301", torch.nn.Softplus(), torch.zeros(3))
    assert value == []
    finding = found("PB301", softplus())[0]
    script = finding.reproduce.replace("# fn = ", "fn = lambda x: Custom.apply(x)  # ")
    namespace = {"Custom": softplus()}
    exec(script, namespace)
    assert "the gradient is nan and should be exactly 1" in capsys.readouterr().out


def test_304_message_names_the_branch_and_its_onset():
    def log1pexp(x):
        return torch.where(x > 20, x, torch.log(1 + torch.exp(x)))

    (finding,) = found("PB304", log1pexp)
    assert finding.severity == "error"
    assert "the branch log(exp(x) + 1), which is not selected there" in finding.message
    assert f"it begins at x = {float(mpmath.log(mpmath.mpf(2) ** 128)):.6g}" in finding.message
    assert found("PB301", log1pexp) == []


def test_304_masked_branch_without_a_traceable_forward():
    class Masked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            out = x.clone()
            positive = x.detach().numpy() > 0
            out[torch.from_numpy(positive)] = x[torch.from_numpy(positive)].sqrt()
            return out

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * ((x > 0) * 0.5 / x.sqrt() + (x <= 0))

    (finding,) = found("PB304", Masked)
    assert finding.evidence.expected == pytest.approx(1, rel=1e-6)
    assert "in float32 and in float64" in finding.message


def test_302_significant_loss_is_a_warning():
    def versine_ratio(x):
        return (1 - torch.cos(x)) / x**2

    value = found("PB302", versine_ratio)[0]
    assert value.severity == "warning"
    x = float(value.message.split("x = ")[1].split(" ")[0])
    exact = (1 - mpmath.cos(mpmath.mpf(x))) / mpmath.mpf(x) ** 2
    assert value.evidence.expected == pytest.approx(float(exact), rel=1e-4)
    assert value.message.endswith("towards 0")


def test_302_loss_in_a_tail_is_an_info():
    (finding,) = found("PB302", function(torch.tanh, lambda g, x: g * (1 - torch.tanh(x) ** 2)))
    assert finding.severity == "info"
    with mpmath.workdps(40):
        lost = min(x for x in (9.0 + k * 2.0**-20 for k in range(2**15)) if 1 - mpmath.tanh(x) < mpmath.mpf(2) ** -25)
    assert float(finding.message.rpartition("x = ")[2]) == pytest.approx(lost, rel=2e-5)


@pytest.mark.parametrize("target", [torch.relu, torch.abs, torch.sign, torch.round, lambda x: x.clamp(0, 1)])
def test_302_step_or_kink_is_no_loss(target):
    assert found("PB302", lambda x: target(x) + 0 * x) == []


def test_303_worst_point_is_compared_with_the_exact_value():
    def ratio(x):
        return (torch.exp(x) - 1) / x

    findings = found("PB303", ratio)
    value = next(f for f in findings if f.evidence.where == "value" and f.evidence.dtype == "float32")
    assert value.severity == "warning"
    assert value.evidence.expected == pytest.approx(1, abs=0.01)
    assert abs(value.evidence.got - value.evidence.expected) > 2**-12


def test_303_effect_of_input_rounding_is_not_reported():
    assert found("PB303", lambda x: torch.sin(x)) == []
    assert found("PB303", lambda x: torch.cos(x) * x) == []


def test_303_float32_inside_a_float64_function():
    (value, gradient) = found("PB303", lambda x: torch.sin(x.float()).to(x.dtype))
    assert value.severity == gradient.severity == "warning"
    assert value.evidence.dtype == "float64"
    assert "float32" in value.hint


def test_303_bfloat16_message_compares_with_float32_inside():
    findings = found("PB303", lambda x: x * torch.log(1 + torch.exp(x)).tanh())
    (value,) = (f for f in findings if f.evidence.where == "value" and f.evidence.dtype == "bfloat16")
    assert value.severity == "info"
    assert "computed in float32 inside and rounded to bfloat16 it would be off by 0." in value.message


def test_scalar_arguments_are_the_same_in_every_dtype():
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, scale):
            ctx.save_for_backward(x, scale)
            return torch.sin(x * scale)

        @staticmethod
        def backward(ctx, g):
            x, scale = ctx.saved_tensors
            return g * torch.cos(x * scale) * scale, None

    inputs = torch.zeros(3, dtype=torch.float64, requires_grad=True), torch.tensor(0.6613517, dtype=torch.float64)
    assert found("PB303", Scaled, *inputs) == []


def two_slopes(kink, mask):
    """Return max(x - kink, 2 (x - kink)) whose gradient is `mask(x)`."""
    return function(lambda x: torch.maximum(x - kink, 2 * (x - kink)), lambda g, x: g * mask(x))


@pytest.mark.parametrize("kink", [0.3, -7.123, 1.0, 11.9])
@pytest.mark.few(2)
def test_305_sum_at_a_kink_is_found_at_any_location(kink):
    (finding,) = found("PB305", two_slopes(kink, lambda x: (x <= kink) * 1.0 + (x >= kink) * 2.0))
    assert (finding.severity, finding.evidence.got) == ("warning", 3)
    assert "is anything between 1 and 2" in finding.message
    assert f"at x = {kink:g}" in finding.message


@pytest.mark.parametrize("value", [1.0, 1.3, 1.5, 2.0])
def test_305_every_subgradient_is_accepted(value):
    def mask(x):
        return torch.where(x > 0.3, 2.0, torch.where(x < 0.3, 1.0, value)).to(x.dtype)

    assert found("PB305", two_slopes(0.3, mask)) == []


def test_305_mask_with_another_threshold_is_an_error():
    (finding,) = found("PB305", two_slopes(0.3, lambda x: torch.where(x > 0.30001, 2.0, 1.0).to(x.dtype)))
    assert finding.severity == "error"


@pytest.mark.parametrize(
    "target",
    [
        torch.relu,
        torch.abs,
        lambda x: x.clamp(-0.7, 0.4),
        torch.nn.functional.hardswish,
        lambda x: torch.nn.functional.softshrink(x, 0.37),
        lambda x: torch.remainder(x, 0.7),
        lambda x: x * torch.sign(x - 0.21),
        lambda x: torch.sqrt((x - 0.3).abs()),
        lambda x: torch.sin(40 * x),
    ],
)
@pytest.mark.few(2)
def test_305_pytorch_functions_with_kinks_jumps_and_cusps_are_not_accused(target):
    assert found("PB305", lambda x: target(x) + 0 * x) == []


def test_float64_run_is_the_reference_without_ball_arithmetic(monkeypatch):
    if not fork_is_clean():
        pytest.skip("the audit is done in a new interpreter, which has the module that is taken away here")
    monkeypatch.setattr("pullback.stable.oracle.balls.flint", None)
    findings = found("PB301", softplus())
    assert [f.severity for f in findings] == ["error", "warning"]
    assert all("in a float64 run of the same function" in f.message for f in findings)


def test_endless_iteration_at_1e38_is_a_warning(monkeypatch):
    class Fraction(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            while bool((x > 1).any()):
                x = torch.where(x > 1, x - 1, x)
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return g

    monkeypatch.setattr(Limits, "of", lambda options: Limits(silence=2, total=30))
    report = pullback.check(Fraction, torch.rand(3, dtype=torch.float64), select="PB301")
    assert {(f.rule, f.severity, f.verdict) for f in report.findings} == {("PB003", "warning", "unstable")}


def test_301_value_that_changes_within_one_ulp_is_an_info():
    class SineOfExponential(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.exp().sin()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * x.exp() * x.exp().cos()

    found = pullback.check(SineOfExponential, torch.randn(4, dtype=torch.float64), select="PB301").findings
    assert {f.severity for f in found} == {"info"}

"""Functions that mix elements, compared in float32 with a float64 run of the same function."""

import pytest
import torch

import pullback
from pullback.check.numeric.scaled import scaled

from ..making import audit_of, normal


def naive_softmax(x):
    e = x.exp()
    return e / e.sum(-1, keepdim=True)


def naive_variance(x):
    return (x * x).mean(-1) - x.mean(-1) ** 2


def found(rule, target):
    return list(pullback.check(target, normal(3, 4), select=rule).findings)


def test_float64_run_uses_the_same_numbers():
    audit = audit_of(naive_softmax, normal(3, 4))
    trials = list(scaled(audit.subject, audit.base))
    assert {trial.dtype for trial in trials} == {torch.float32, torch.bfloat16, torch.float16}
    for trial in trials:
        for result in trial.tensors:
            assert result.right.dtype == torch.float64
            if result.label == "value":
                double = naive_softmax(trial.case.tensors[0].double())
                assert torch.equal(result.right, double)


def test_scalar_beside_others_and_square_matrices_are_not_scaled():
    audit = audit_of(lambda x, power: (x.abs() ** power).sum(-1), normal(3, 4), normal().abs())
    trials = list(scaled(audit.subject, audit.base))
    assert {float(trial.case.tensors[1].double()) for trial in trials if trial.dtype == torch.float32} == {
        float(audit.base.tensors[1].float())
    }
    assert len({trial.largest for trial in trials}) > 10
    audit = audit_of(lambda x: x.inverse(), normal(3, 3))
    assert not any(trial.label.startswith("inputs plus") for trial in scaled(audit.subject, audit.base))


def test_overflow_is_found_at_the_smallest_scale():
    (finding,) = found("PB301", naive_softmax)
    namespace = {"fn": naive_softmax}
    exec(finding.reproduce, namespace)
    x = namespace["x"]
    assert x.dtype == torch.float32
    assert bool(namespace["out"].isnan().any())
    assert float(x.detach().max()) == pytest.approx(88.73, abs=0.3)


def test_cancellation_is_found_far_from_zero():
    (finding,) = found("PB303", naive_variance)
    assert finding.severity == "warning"
    assert "inputs plus 1000" in finding.message
    namespace = {"fn": naive_variance}
    exec(finding.reproduce, namespace)
    (index,) = finding.evidence.worst_index
    row = namespace["x"].detach().double()[index]
    assert finding.evidence.expected == pytest.approx(float(row.var(unbiased=False)), rel=1e-6)
    assert finding.evidence.got == pytest.approx(float(namespace["out"][index].detach()))


@pytest.mark.parametrize(
    "target",
    [
        lambda x: x.softmax(-1),
        lambda x: x.log_softmax(-1),
        lambda x: x.logsumexp(-1),
        lambda x: torch.nn.functional.layer_norm(x, (4,)),
        lambda x: x.var(-1),
        lambda x: x.norm(dim=-1),
        lambda x: x @ x.mT,
        lambda x: x.cumsum(0),
        lambda x: torch.linalg.svdvals(x),
        lambda x: torch.fft.rfft(x).abs(),
        lambda x: (x / 0.1).round().sum(-1) + 0 * x.sum(-1),
    ],
)
def test_stable_functions_are_not_accused(target):
    assert [f.message for f in found("PB3", target) if f.severity != "info"] == []


def rms_norm(x):
    """The squares of numbers beyond 256 overflow in float16."""
    return x * (x * x).mean(-1, keepdim=True).rsqrt()


def shares(x):
    return x * x / (x * x).sum(-1, keepdim=True)


def variance_about_6(x):
    return naive_variance(x + 6)


@pytest.mark.parametrize(
    ("rule", "target", "size", "dtype", "severity"),
    [
        ("PB301", shares, 600, torch.float16, "warning"),
        ("PB301", shares, 20, torch.float16, "info"),
        ("PB303", rms_norm, 600, torch.float16, "warning"),
        ("PB303", variance_about_6, 1, torch.float16, "info"),
    ],
)
def test_losses_of_16_bits_are_compared_with_float32_inside(rule, target, size, dtype, severity):
    *_, finding = pullback.check(target, size * normal(3, 4), select=rule).findings
    assert finding.severity == severity
    namespace = {"fn": target}
    exec(finding.reproduce, namespace)
    x = namespace["x"].detach()
    assert x.dtype == dtype
    found, right = target(x), target(x.float())
    at = finding.evidence.worst_index
    assert finding.evidence.got == pytest.approx(float(found[at]), nan_ok=True)
    assert finding.evidence.expected == pytest.approx(float(right[at]), rel=1e-3)

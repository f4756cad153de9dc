"""The option `deep`: random cases that vary several properties at once."""

import subprocess
import sys

import pytest
import torch
from hypothesis import find, given, settings
from torch.autograd import Function

from pullback.check.audit import Audit
from pullback.check.case import is_differentiable
from pullback.check.drawn import cases_like, smallest_drawn
from pullback.check.options import make_options
from pullback.check.subject import Options
from pullback.errors import OptionError

from .making import Silent, case_of, function, normal, subject_of


class Scale(Function):
    @staticmethod
    def forward(ctx, x, weight, k):
        ctx.save_for_backward(x, weight)
        ctx.k = k
        return x * weight * k

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g * weight * ctx.k, g * x * ctx.k, None


def doubled_where(condition):
    """The sine, with a gradient twice as large where `condition(x)` holds."""

    class Sine(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * x.cos() * (2 if condition(x) else 1)

    return Sine


MEETING = {
    "strided, of an odd size": lambda x: x.stride(-1) == 2 and x.shape[-1] % 2 == 1 and x.shape[-1] > 11,
    "zeros in float32": lambda x: x.dtype == torch.float32 and bool((x == 0).any()),
    "transposed, large": lambda x: x.stride(-1) != 1 and float(x.detach().abs().max()) > 6,
}


def in_depth(target, *args, seed=0, budget=120):
    audit = Audit(
        subject_of(target), Options(seed=seed, budget=budget, deep=True), case_of(target, *args), [], Silent()
    )
    return smallest_drawn(audit, ())


@pytest.mark.parametrize("name", MEETING)
@pytest.mark.few(1)
def test_fault_in_a_combination_of_properties_is_found(name):
    target = doubled_where(MEETING[name])
    plain = Audit(subject_of(target), Options(), case_of(target, normal(3, 5)), [], Silent())
    assert not any(result.wrong for result in (plain.base_result, *plain.variants))
    found = in_depth(target, normal(3, 5))
    (wrong,) = found.wrong
    assert MEETING[name](found.case.tensors[0])
    assert wrong.got == pytest.approx(2 * wrong.expected, rel=1e-5)


@pytest.mark.slow
def test_drawn_failure_is_minimal_and_deterministic():
    target = doubled_where(lambda x: x.shape[0] >= 3 and x.dtype == torch.float32)
    found = [in_depth(target, normal(5, 7)).case for _ in range(2)]
    assert found[0].label == found[1].label
    assert torch.equal(found[0].tensors[0], found[1].tensors[0])
    assert found[0].tensors[0].shape == (3, 1)
    assert found[0].tensors[0].is_contiguous()


@pytest.mark.parametrize("shape", [(), (4,), (3, 5)], ids=str)
@pytest.mark.few(1)
def test_right_gradients_are_not_accused(shape):
    assert in_depth(function(torch.sin, lambda g, x: g * x.cos()), normal(*shape), budget=3) is None
    assert in_depth(Scale, normal(*shape), normal(*shape, seed=1), 2.0, budget=3) is None


@pytest.mark.slow
def test_constant_is_not_also_passed_as_a_variable():
    """The gradient of x·x is 2x; the backward returns x, which is right if the second argument is a constant."""

    class Filtered(Function):
        @staticmethod
        def forward(ctx, x, fixed):
            ctx.save_for_backward(fixed)
            return x * fixed

        @staticmethod
        def backward(ctx, g):
            (fixed,) = ctx.saved_tensors
            return g * fixed, None

    example = case_of(Filtered, normal(3), normal(3, seed=1))
    audit = Audit(subject_of(Filtered), Options(budget=4, deep=True), example, [], Silent())
    assert smallest_drawn(audit, {1}) is None


@settings(max_examples=60, deadline=None)
@given(cases_like(case_of(Scale, normal(3, 5), normal(3, 5, seed=1), 2.0)))
def test_drawn_cases_are_valid_inputs(case):
    x, weight = case.tensors
    assert case.values[2] == 2.0
    assert x.shape == weight.shape
    assert x.dtype == weight.dtype
    assert is_differentiable(x)
    assert bool(torch.isfinite(x).all())
    changed = (x.shape, x.dtype, x.stride(), weight.stride()) != ((3, 5), torch.float64, (5, 1), (5, 1))
    assert bool(case.label) or not changed


@pytest.mark.parametrize(
    "holds",
    [
        lambda x, w: x is w and x.shape == (1, 2),
        lambda x, w: x.dtype == torch.bfloat16 and w.stride(-1) == 2,
        lambda x, w: x.shape[0] == 16 and bool((x == 0).all()) and not bool((w == 0).any()),
        lambda x, w: x.storage_offset() == 3 and w.storage_offset() == 0 and x.shape[0] == 17,
    ],
)
@pytest.mark.few(2)
def test_combinations_of_properties_are_drawn(holds):
    """Hypothesis finds each combination among the drawn cases."""
    base = case_of(Scale, normal(3, 5), normal(3, 5, seed=1), 2.0)
    found = find(
        cases_like(base), lambda case: holds(*case.tensors), settings=settings(max_examples=20_000, database=None)
    )
    assert found.label


@pytest.mark.slow
def test_deep_audit_leaves_no_files(tmp_path):
    (tmp_path / "ops.py").write_text(SOURCE)
    done = subprocess.run(
        [sys.executable, "-m", "pullback", "check", "ops.py", "--deep", "--select", "PB101", "--budget", "2"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["ops.py"]


SOURCE = """
import torch


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * x.cos()
"""


def test_deep_option_needs_hypothesis(monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    with pytest.raises(OptionError, match="pip install"):
        make_options(deep=True)

"""`pullback.accuracy`: measurements of PyTorch's own functions, options and refusals."""

import json
import math
import time

import pytest
import torch
import torch.nn.functional as F

import pullback
from pullback import DerivativeError, FormulaError, OptionError


def summary(function, dtype=torch.float32, of="value", **options):
    return pullback.accuracy(function, dtype=dtype, **options).row(str(dtype).removeprefix("torch."), of).summary


def test_sigmoid_gradient_vanishes_too_early():
    found = summary(torch.sigmoid, of="d/dx")
    assert found.zero.start["x"] == pytest.approx(16.6355, abs=1e-3)
    assert found.max_ulp > 7e6
    assert found.worst.exact == pytest.approx(math.exp(-found.worst.point["x"]), rel=1e-6)
    assert found.zero.count / found.points > 0.05
    assert found.nan.count == found.inf.count == 0


def test_sigmoid_value_is_accurate():
    found = summary(torch.sigmoid, order=0)
    assert 1.5 < found.max_ulp < 4
    assert found.clean


def test_silu_gradient_is_measured_at_its_root():
    found = summary(F.silu, of="d/dinput", domain={"input": (-2.0, -1.0)})
    assert found.worst.point["input"] == pytest.approx(-1.2784645, abs=1e-4)
    assert found.max_ulp > 1e3


def test_all_bfloat16_inputs_are_measured_in_seconds():
    begun = time.monotonic()
    measured = pullback.accuracy(torch.sigmoid, dtype=torch.bfloat16)
    assert time.monotonic() - begun < 5
    row = measured.row("bfloat16", "d/dx")
    assert row.coverage == "every input"
    assert row.summary.points + row.summary.subnormal_points == 65280
    assert row.summary.zero.start == {"x": 6.25}


def test_onset_of_nan_and_infinity_is_reported():
    found = pullback.accuracy(lambda x: torch.log(1 + torch.exp(x)), dtype=torch.float32)
    assert found.row("float32").summary.inf.start["x"] == pytest.approx(88.7229, abs=1e-3)
    assert found.row("float32", "d/dx").summary.nan.start["x"] == pytest.approx(88.7229, abs=1e-3)


def test_stable_op_is_accurate_everywhere():
    for dtype in (torch.float32, torch.float64):
        for of in ("value", "d/dx"):
            found = summary(pullback.catalog.log_sigmoid, dtype, of)
            assert found.clean
            assert found.max_ulp < 4


def test_rule_of_an_op_is_measured():
    @pullback.function
    def doubled(x):
        return x * 2

    @doubled.vjp
    def _(g, out, x):
        return g * 2.25

    found = summary(doubled, of="d/dx")
    assert found.max_ulp == 0.25 / 2**-22
    assert found.mean_ulp == found.max_ulp


def test_second_derivatives_are_measured():
    measured = pullback.accuracy(lambda x, y: x * x * y, dtype=torch.float32, order=2)
    assert [row.of for row in measured.rows] == ["value", "d/dx", "d/dy", "d²/dx²", "d²/dx dy", "d²/dy²"]
    assert measured.row("float32", "d²/dx dy").summary.max_ulp == 0


def test_float64_is_measured_down_to_small_values():
    found = summary(torch.exp, torch.float64, order=0, domain={"x": (-670.0, -300.0)})
    assert 0.5 <= found.max_ulp < 0.6
    difference = summary(lambda x: torch.exp(x) - torch.exp(x) * (1 - torch.exp(2 * x)), torch.float64, order=0)
    assert difference.undecided == 0
    assert difference.zero.start["x"] == pytest.approx(-18.7, abs=0.2)


def test_undefined_points_do_not_count():
    found = summary(torch.log, order=0)
    assert found.undefined > 1000
    assert found.clean


def test_non_tensor_parameters_have_values():
    def leaky(x, slope: float = 0.1, *, shift):
        return torch.where(x > 0, x, slope * x) + shift

    assert summary(leaky, order=0, args={"shift": 0.0, "slope": 0.5}).max_ulp == 0


def test_contiguous_and_strided_kernels_are_measured():
    class Differs(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x + 0 if x.is_contiguous() else x * (1 + 2.0**-20)

    found = summary(lambda x: Differs.apply(x), order=0)
    assert found.max_ulp >= 8


def test_missing_kernel_is_reported():
    measured = pullback.accuracy(torch.special.erfcx, dtype=[torch.bfloat16, torch.float32], order=0)
    assert "not implemented" in measured.missing["bfloat16"]
    assert [row.dtype for row in measured.rows] == ["float32"]
    assert "does not run" in repr(measured)


def test_measurement_as_text_and_json():
    measured = pullback.accuracy(torch.sigmoid, dtype=[torch.float32, torch.bfloat16], domain={"x": (0.0, 20.0)})
    text = repr(measured)
    assert text.startswith("sigmoid(x) for x >= 0 and x <= 20\n")
    assert "float32: a sample, so a maximum is a lower bound" in text
    assert "bfloat16: every finite input" in text
    assert "from x=16.6355" in text
    read = json.loads(measured.to_json())
    assert read["rows"][1]["summary"]["zero"]["start"]["x"] == pytest.approx(16.6355, abs=1e-3)
    assert read["domain"] == {"x": [0.0, 20.0]}


def test_same_seed_gives_the_same_measurement():
    assert pullback.accuracy(F.gelu, dtype=torch.float32) == pullback.accuracy(F.gelu, dtype=torch.float32)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"dtype": torch.int32}, OptionError, "not in int32"),
        ({"dtype": []}, OptionError, "at least one dtype"),
        ({"order": 3}, OptionError, "order is 0, 1 or 2"),
        ({"seed": -1}, OptionError, "seed"),
        ({"domain": {"z": (0.0, 1.0)}}, OptionError, "no variable 'z'"),
        ({"domain": {"x": (1.0, 0.0)}}, OptionError, "empty"),
        ({"args": {"z": 1}}, OptionError, "no parameter"),
    ],
)
def test_invalid_options_raise(options, error, message):
    with pytest.raises(error, match=message):
        pullback.accuracy(lambda x: x.exp(), **options)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda x: x.cumsum(0), FormulaError, "cumsum is not in the table"),
        (lambda x: x.sum(), FormulaError, "sum is not in the table"),
        (lambda x: torch.polygamma(1, x), DerivativeError, "trigamma"),
    ],
)
def test_unsupported_function_raises(function, error, message):
    with pytest.raises(error, match=message):
        pullback.accuracy(function, dtype=torch.float32)


def test_exhaustive_with_two_tensors_raises():
    with pytest.raises(OptionError, match="takes 2 tensors"):
        pullback.accuracy(torch.logaddexp, exhaustive=True)


def test_row_of_an_unmeasured_dtype_raises():
    with pytest.raises(OptionError, match="value in float32"):
        pullback.accuracy(torch.exp, dtype=torch.float32, order=0).row("float64")

"""Floating-point formats against `torch.finfo` and `nextafter`."""

import numpy as np
import pytest
import torch

from pullback import OptionError
from pullback.stable.formats import DTYPES, format_of


@pytest.mark.parametrize("dtype", DTYPES)
def test_format_matches_finfo(dtype):
    form, info = format_of(dtype), torch.finfo(dtype)
    assert (form.largest, form.smallest_normal) == (info.max, info.tiny)
    assert 2.0**-form.mantissa == info.eps
    assert form.largest == 2.0**form.max_exponent * (2 - info.eps)


@pytest.mark.parametrize("dtype", DTYPES)
def test_ulp_is_the_distance_to_the_next_number(dtype):
    form = format_of(dtype)
    x = torch.tensor([0.0, torch.finfo(dtype).tiny / 4, 0.3, 1.0, 1.5, 100.0], dtype=dtype)
    step = (torch.nextafter(x, torch.tensor(torch.inf, dtype=dtype)).double() - x.double()).numpy()
    assert (np.ldexp(1.0, form.ulp_exponent(x.double().numpy())) == step).all()


def test_ulp_of_zero_and_infinity():
    form = format_of(torch.float32)
    lowest, highest = form.ulp_exponent(np.array([0.0, np.inf]))
    assert (lowest, highest) == (-149, 104)


@pytest.mark.parametrize("dtype", DTYPES)
def test_ordinals_count_the_numbers(dtype):
    form = format_of(dtype)
    x = torch.tensor([-1.5, -0.0, 0.0, 1.0, form.largest], dtype=dtype)
    after = torch.nextafter(x, torch.tensor(torch.inf, dtype=dtype)).double().numpy()
    at = form.ordinal(x.double().numpy())
    assert (form.at_ordinal(at + 1) == after).all()
    assert (form.at_ordinal(at) == x.double().numpy()).all()
    assert list(at[1:3]) == [0, 0]


def test_unsupported_dtype_raises():
    with pytest.raises(OptionError, match="not in int32"):
        format_of(torch.int32)

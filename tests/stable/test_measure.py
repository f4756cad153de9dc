"""Errors in ulp, against exact rational arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pullback.stable.formats import DTYPES, format_of
from pullback.stable.measure import Spurious, Summary, errors, summary_of
from pullback.stable.oracle.values import Truth


def truth(high, low=0.0, undecided=False):
    high = np.atleast_1d(np.array(high, dtype=np.float64))
    return Truth(high, np.full_like(high, low), np.full(high.shape, undecided))


def ulp_of(exact, form):
    """Return the ulp of a fraction by its definition."""
    e = form.min_exponent
    while abs(exact) >= Fraction(2) ** (e + 1) and e < form.max_exponent:
        e += 1
    return Fraction(2) ** (e - form.mantissa)


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_error_is_the_distance_in_ulp(dtype, data):
    form = format_of(dtype)
    largest = form.largest / 16
    high = data.draw(st.floats(-largest, largest, allow_subnormal=True))
    rest = data.draw(st.floats(-0.49, 0.49)) * float(np.spacing(high)) if abs(high) > 1e-250 else 0.0
    steps = data.draw(st.integers(-200, 200))
    got = form.at_ordinal(form.ordinal(form.round(np.array([high]))) + steps)
    exact = Fraction(high) + Fraction(rest)
    found = errors(torch.from_numpy(got).to(dtype), truth(high, rest))
    assert found.zero[0] == (got[0] == 0 and abs(high) >= form.smallest_normal)
    if found.stated[0]:
        expected = abs(Fraction(got[0]) - exact) / ulp_of(Fraction(high), form)
        assert float(found.ulp[0]) == pytest.approx(float(expected), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
def test_infinity_is_right_beyond_the_largest_number(dtype):
    form = format_of(dtype)
    inf, most = torch.tensor([torch.inf], dtype=dtype), torch.tensor([form.largest], dtype=dtype)
    beyond = truth(form.largest * 8)
    assert errors(inf, beyond).ulp[0] == 0
    assert errors(most, beyond).ulp[0] == 1
    assert errors(-inf, beyond).inf[0]
    assert not errors(inf, beyond).spurious[0]
    assert errors(inf, truth(form.largest)).inf[0]
    assert errors(most, truth(np.inf)).ulp[0] == 1
    assert errors(torch.zeros(1, dtype=dtype), beyond).zero[0]


def test_overflow_threshold_is_between_the_largest_number_and_infinity():
    form = format_of(torch.float32)
    between = truth(form.largest + 2.0**102)  # a quarter of an ulp
    assert errors(torch.tensor([form.largest]), between).ulp[0] == 0.25
    assert errors(torch.tensor([torch.inf]), between).ulp[0] == 0.75


def test_spurious_undefined_and_subnormal_points():
    got = torch.tensor([torch.nan, torch.inf, 0.0, 0.0, torch.nan, 1.0, -0.0])
    exact = truth([1.0, 1.0, 1.0, 1e-40, np.nan, np.nan, 0.0])
    found = errors(got, exact)
    assert found.nan.tolist() == [True] + [False] * 6
    assert found.inf.tolist() == [False, True] + [False] * 5
    assert found.zero.tolist() == [False, False, True] + [False] * 4
    assert found.undefined.tolist() == [False] * 4 + [True, True, False]
    assert found.subnormal.tolist() == [False] * 3 + [True] + [False] * 2 + [True]
    assert found.ulp[3] == pytest.approx(1e-40 / 2.0**-149)
    assert errors(got[:1], truth(np.nan, undecided=True)).undecided[0]


def test_float64_error_uses_the_low_part_of_the_truth():
    one = torch.ones(1, dtype=torch.float64)
    assert errors(one, truth(1.0, 2.0**-54)).ulp[0] == 0.25


def summarised(got, exact, x):
    computed, exact = torch.tensor(got), truth(exact)
    return summary_of(errors(computed, exact), {"x": np.array(x)}, computed, exact)


def test_summary_counts_errors_and_spurious_values():
    got = [1.0, 1.0 + 2**-20, torch.nan, 0.0, 0.0, torch.inf, 5.0]
    found = summarised(got, [1.0, 1.0, 1.0, 2.0, 3.0, 1e39, np.nan], [1.0, 2.0, 3.0, 5.0, -4.0, 6.0, 7.0])
    assert (found.points, found.measured, found.undefined) == (6, 3, 1)
    assert found.max_ulp == 8.0
    assert found.worst is not None
    assert (found.worst.point, found.worst.got, found.worst.exact) == ({"x": 2.0}, 1 + 2**-20, 1.0)
    assert found.mean_ulp == pytest.approx(8 / 3)
    assert found.above_4 == 4
    assert found.nan == Spurious(1, {"x": 3.0})
    assert found.zero == Spurious(2, {"x": -4.0})
    assert not found.clean


def test_summaries_add_up():
    got, exact, x = [1.0, 1.5, torch.nan, 0.0, 1e-45], [1.0, 1.0, 1.0, 2.0, 0.0], [5.0, 4.0, -3.0, 2.0, 1.0]
    whole = summarised(got, exact, x)
    parts = [summarised(got[i : i + 1], exact[i : i + 1], x[i : i + 1]) for i in range(5)]
    assert sum(parts, Summary()) == whole
    assert sum(reversed(parts), Summary()) == whole
    assert whole.max_subnormal == 1.0


def test_summary_of_no_points():
    empty = summarised([torch.nan], [np.nan], [1.0])
    assert (empty.points, empty.max_ulp, empty.worst, empty.mean_ulp) == (0, 0.0, None, 0.0)
    assert empty.clean

"""Errors of computed values, in units in the last place (ulp) of the exact ones.

Conventions. The error is |computed − exact| in ulp of the exact value (of its binade, once it is rounded to float64).
It is stated where the exact value is a normal number or larger; there ±∞ is read as the number after the largest finite
one, so that beyond it ±∞ is right and the largest number one ulp off. NaN where there is an exact value, ±∞ where that
is in range or of the other sign, and 0 where it is a normal number, are counted apart and enter neither the largest
error nor the mean. Where the exact value is below the normal numbers, 0 included, the error is stated apart, in the
distance between subnormals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from pullback.stable.formats import Floats, Mask, format_of, widened
from pullback.stable.oracle import Truth


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors, point by point.

    Attributes:
        ulp: in ulp, and where `subnormal` holds in distances between subnormals; 0 where no error is stated.
        subnormal: whether the exact value is below the normal numbers.
        stated: whether `ulp` is an error: there is an exact value, and the computed one is not spurious.
        nan: whether NaN was computed where there is an exact value.
        inf: whether ±∞ was computed where it is not right.
        zero: whether 0 was computed where the exact value is a normal number or larger.
        undecided: whether the exact value could not be had.
        undefined: whether the point has no exact value.
    """

    ulp: Floats
    subnormal: Mask
    stated: Mask
    nan: Mask
    inf: Mask
    zero: Mask
    undecided: Mask
    undefined: Mask

    @property
    def spurious(self) -> Mask:
        """Whether a computed value is a spurious NaN, infinity or zero."""
        return self.nan | self.inf | self.zero

    def worst(self, other: Errors) -> Errors:
        """Return the worse of two, computed at the same points, point by point."""
        return Errors(
            np.maximum(self.ulp, other.ulp),
            self.subnormal,
            self.stated & other.stated,
            self.nan | other.nan,
            self.inf | other.inf,
            self.zero | other.zero,
            self.undecided,
            self.undefined,
        )


def errors(computed: torch.Tensor, truth: Truth) -> Errors:
    """Return the errors of computed values, in their format, against exact ones: |value − (high + low)| / ulp(high).

    Numbers beyond the largest count as the next one would, 2^(max_exponent + 1), so that rounding to it and overflow
    are errors of ulps.

    Raises:
        OptionError: if their dtype is not one of the formats.
    """
    form, got = format_of(computed.dtype), widened(computed)
    undecided = np.asarray(truth.undecided, dtype=np.bool_)
    undefined = np.isnan(truth.high) & ~undecided
    defined = ~undefined & ~undecided
    size = np.abs(truth.high)
    beyond = defined & (size > form.largest)
    subnormal = defined & (size < form.smallest_normal)
    infinite = np.isinf(got)
    nan = defined & np.isnan(got)
    inf = defined & infinite & ~(beyond & (np.sign(got) == np.sign(truth.high)))
    zero = defined & (got == 0) & ~subnormal
    stated = defined & ~(nan | inf | zero)
    unit = form.ulp_exponent(truth.high)
    after_largest = 2.0 ** (form.mantissa + 1)
    with np.errstate(over="ignore", invalid="ignore"):
        exact = np.clip(np.ldexp(truth.high, -unit), -after_largest, after_largest)
        rest = np.where(np.abs(exact) == after_largest, 0.0, np.ldexp(truth.low, -unit))
        value = np.where(infinite, np.sign(got) * after_largest, np.ldexp(got, -unit))
        error = np.where(stated, np.abs((value - exact) - rest), 0.0)
    most = np.finfo(np.float64).max
    return Errors(np.minimum(error, most), subnormal, stated, nan, inf, zero, undecided, undefined)

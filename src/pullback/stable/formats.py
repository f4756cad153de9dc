"""Binary floating-point formats, their numbers in order, and the unit in the last place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from pullback.errors import OptionError

Floats = NDArray[np.float64]
Ordinals = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Format:
    """A binary format.

    Attributes:
        dtype: PyTorch's name of it.
        mantissa: bits after the leading one.
        min_exponent: exponent of the smallest normal number, 2 ** min_exponent.
        max_exponent: exponent of the largest binade: numbers end below 2 ** (max_exponent + 1).
    """

    dtype: torch.dtype
    mantissa: int
    min_exponent: int
    max_exponent: int

    @property
    def name(self) -> str:
        """As in `torch.float32`, without "torch."."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def bits(self) -> int:
        """The width of the format."""
        return self.dtype.itemsize * 8

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return torch.finfo(self.dtype).max

    @property
    def smallest_normal(self) -> float:
        """The smallest normal number."""
        return 2.0**self.min_exponent

    def ulp_exponent(self, x: Floats) -> NDArray[np.int32]:
        """Exponent of the unit in the last place of each number's binade.

        That is ⌊log₂ |x|⌋ − mantissa; below the normal numbers it is that of the lowest binade, above the largest
        number that of the highest.
        """
        # frexp writes |x| = m 2ᵉ with ½ ≤ m < 1, so ⌊log₂ |x|⌋ is e − 1, without the rounding of a logarithm
        _, exponent = np.frexp(np.where(np.isfinite(x), np.where(x == 0, self.smallest_normal, x), self.largest))
        clamped = np.clip(exponent - 1, self.min_exponent, self.max_exponent)
        return np.asarray(clamped - self.mantissa, dtype=np.int32)

    def round(self, x: Floats) -> Floats:
        """Round numbers to the format; beyond the largest they become infinite.

        PyTorch converts to 16 bits by way of float32. So a number next to the middle between two may be rounded to the
        further one: 1 + 2⁻⁸ + 2⁻⁴⁰ becomes 1 in bfloat16, and 1 + 2⁻⁷ is nearer.
        """
        return widened(torch.from_numpy(np.ascontiguousarray(x)).to(self.dtype))

    def ordinal(self, x: Floats) -> Ordinals:
        """Positions of numbers of the format in its order: ±0 is at 0, each neighbour one further."""
        pattern = torch.from_numpy(np.ascontiguousarray(x)).to(self.dtype).view(self._integer).to(torch.int64).numpy()
        # Formats are ordered like their patterns: a larger exponent comes before a larger mantissa. A negative number's
        # pattern, read as an integer of two's complement, is the smallest integer plus the pattern of its magnitude.
        return np.where(pattern >= 0, pattern, -(2 ** (self.bits - 1)) - pattern)

    def at_ordinal(self, position: Ordinals) -> Floats:
        """Numbers at these positions; beyond the largest finite number there are infinities and NaN."""
        pattern = np.where(position >= 0, position, -(2 ** (self.bits - 1)) - position)
        return widened(torch.from_numpy(np.ascontiguousarray(pattern)).to(self._integer).view(self.dtype))

    @property
    def _integer(self) -> torch.dtype:
        return {16: torch.int16, 32: torch.int32, 64: torch.int64}[self.bits]


def format_of(dtype: torch.dtype) -> Format:
    """Format of a dtype.

    Raises:
        OptionError: if it is not one of float64, float32, bfloat16 and float16.
    """
    if dtype not in DTYPES:
        known = ", ".join(str(d).removeprefix("torch.") for d in DTYPES)
        raise OptionError(f"accuracy is measured in {known}, not in {str(dtype).removeprefix('torch.')}")
    info = torch.finfo(dtype)
    # eps = 2^−mantissa, tiny = 2^min_exponent and max = (2 − eps) 2^max_exponent; frexp's exponents are larger by one
    exponent = np.frexp(np.array([info.eps, info.tiny, info.max]))[1]
    return Format(dtype, 1 - int(exponent[0]), int(exponent[1]) - 1, int(exponent[2]) - 1)


def working(dtype: torch.dtype) -> torch.dtype:
    """Dtype that a program for inputs of some dtype computes in: float32 for the 16-bit ones."""
    return torch.float32 if dtype.itemsize == 2 else dtype


DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def widened(values: torch.Tensor) -> Floats:
    """Numbers of a tensor as float64, which holds all of every format exactly."""
    array: Floats = values.detach().to(torch.float64).numpy()
    return array

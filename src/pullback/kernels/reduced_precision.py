"""Float64 that is rounded to float32 in the end: functions of about 43 correct bits in place of those of 53.

Stable forms compute in float64, and most of the cost of a double-precision function is in bits that are then rounded
away. They matter where a sum cancels, as near the root of a gradient. So kernels use `include/short.h`, note the
vectors in which a sum has lost more than some bits, and recompute these with full precision.

The error of the short functions is bounded to first order, as rounding errors are (Higham, Accuracy and Stability of
Numerical Algorithms, 2nd ed., sections 3.1 and 3.4): relative errors of factors add up, a square root halves one, a sum
of terms of one sign has at most the largest of theirs, and cancellation amplifies them by at most the factor that the
guard admits. The roundings of float64 themselves, 2⁻⁹ of a unit of these bounds each, are not counted. A region whose
rounded result might be off by more than 2⁻³⁰ relatively, 1/64 of a unit in the last place of float32, is computed with
full precision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from pullback.kernels import lowerings
from pullback.kernels.regions import Region, value_of

aten = torch.ops.aten

REDUCED = ("avx512.h",)
"""Vector headers that short functions are written for: AVX2 has no table lookup."""
ERRORS: Mapping[object, int] = {
    target: lowering.short_error for target, lowering in lowerings.LOWERINGS.items() if lowering.short_error
}
"""Functions of `include/short.h`, and bounds on their relative errors in units of 2⁻⁴⁴."""
_LIMIT = 2**14  # 2⁻³⁰
_MOST_BITS, _FEWEST_BITS = 10, 6
"""Number of bits that a sum may lose. With fewer, too many vectors would be computed twice."""

_NONNEGATIVE = frozenset([*ERRORS, aten.abs.default, aten.sqrt.default, aten.rsqrt.default, aten.relu.default])
_SUMS: Mapping[object, int] = {
    **dict.fromkeys([aten.add.Tensor, aten.add.Scalar], 1),
    **dict.fromkeys([aten.sub.Tensor, aten.sub.Scalar, aten.rsub.Scalar], -1),
}
"""And the sign of the second term, or of the first one in `rsub`."""
_FACTORS = frozenset([aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar])
_SAME = frozenset([aten.neg.default, aten.abs.default, aten.reciprocal.default, aten._to_copy.default])
_ROOTS = frozenset([aten.sqrt.default, aten.rsqrt.default])


@dataclass(frozen=True, slots=True)
class ReducedRegion:
    """Part of a region that functions of reduced precision compute.

    Attributes:
        functions: its nodes.
        guards: sums that may cancel, each with one of its inexact terms.
        bits: how many bits such a sum may lose.
    """

    functions: frozenset[fx.Node]
    guards: Mapping[fx.Node, fx.Node]
    bits: int


class _TooMuchError(Exception):
    """Short functions might be seen in the result."""


def reduced_region_of(region: Region) -> ReducedRegion | None:
    """Choose the nodes of a region without sums and bits that short functions can compute; `None` if there are none."""
    if any(value_of(node).dtype == torch.float64 for node in (*region.inputs, *region.stored)):
        return None
    for bits in range(_MOST_BITS, _FEWEST_BITS - 1, -1):
        errors = _Errors(bits)
        try:
            for node in region.pointwise:
                errors.add(node)
        except _TooMuchError:
            continue
        return ReducedRegion(frozenset(errors.functions), errors.guards, bits) if errors.functions else None
    return None


class _Errors:
    """Bounds on relative errors in units of 2⁻⁴⁴, and signs where they are known, of nodes that are added in order."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._error: dict[fx.Node, float] = {}
        self._sign: dict[fx.Node, int] = {}
        self.functions: list[fx.Node] = []
        self.guards: dict[fx.Node, fx.Node] = {}

    def add(self, node: fx.Node) -> None:
        """Take a node in.

        Raises:
            _TooMuchError: if its error cannot be bounded, or is too large where it is rounded.
        """
        self._sign[node] = self._sign_of(node)
        self._error[node] = error = self._error_of(node)
        if error > _LIMIT:
            raise _TooMuchError

    def _of(self, value: object) -> float:
        return self._error.get(value, 0.0) if isinstance(value, fx.Node) else 0

    def _error_of(self, node: fx.Node) -> float:
        target, args = node.target, node.args
        errors = [self._of(a) for a in args]
        is_wide = value_of(node).dtype == torch.float64
        if target in ERRORS and is_wide and not any(errors):
            self.functions.append(node)
            return ERRORS[target]
        if not any(self._of(a) for a in node.all_input_nodes):
            return 0
        if target == aten.where.self and not errors[0]:
            error = max(errors)
        elif target in _SAME:
            error = errors[0]
        elif target in _FACTORS:
            error = sum(errors)
        elif not is_wide or node.kwargs:
            raise _TooMuchError
        elif target in _ROOTS:
            error = errors[0] / 2
        elif target == aten.pow.Tensor_Scalar and args[1] in (2, 3):
            error = errors[0] * float(str(args[1]))
        elif target in _SUMS and len(args) == 2:
            error = self._error_of_sum(node, errors)
        else:
            raise _TooMuchError
        return error if is_wide else _LIMIT  # a float that may be the next one: nothing that shows it may follow

    def _error_of_sum(self, node: fx.Node, errors: Sequence[float]) -> float:
        a, b = node.args
        if self._signed(a) * self._signed(b) == _SUMS[node.target]:
            return max(errors)
        # The guard admits |s| ≥ 2^−bits |a| of a sum s = a ± b. Then |b| ≤ |a| + |s| ≤ (2^bits + 1) |s|, and the error
        # εₐ|a| + ε_b|b| is at most (εₐ + ε_b)(2^bits + 1) |s|. Of an exact term the bound is not needed.
        guarded = a if errors[0] else b
        assert isinstance(guarded, fx.Node)
        self.guards[node] = guarded
        return sum(errors) * (2.0**self._bits + 1)

    def _signed(self, value: object) -> int:
        """Return the sign of an argument: 1 or −1; 0 where it is unknown."""
        number = lowerings.constant_of(value) if isinstance(value, fx.Node) else value
        if isinstance(number, int | float):
            return (number > 0) - (number < 0)
        return self._sign.get(value, 0) if isinstance(value, fx.Node) else 0

    def _sign_of(self, node: fx.Node) -> int:
        target, args = node.target, node.args
        if target in _NONNEGATIVE or (target == aten.pow.Tensor_Scalar and args[1] == 2):
            return 1
        signs = [self._signed(a) for a in args]
        if target == aten.neg.default:
            return -signs[0]
        if target == aten._to_copy.default:
            return signs[0]
        if target in _FACTORS:
            return 1 if args[0] is args[1] and target != aten.div.Tensor else signs[0] * signs[1]
        if target in _SUMS and signs[0] == _SUMS[target] * signs[1]:
            return signs[target == aten.rsub.Scalar]
        return 0

"""All records, by their names in terms and by their names in ATen."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pullback.ops import (
    activations,
    arithmetic,
    bessel,
    comparison,
    copies,
    error_functions,
    exponential,
    gamma,
    hyperbolic,
    logarithmic,
    losses,
    powers,
    rounding,
    selection,
    trigonometric,
)
from pullback.ops.record import PointwiseOp, TermOp

FAMILIES = (
    copies,
    arithmetic,
    powers,
    exponential,
    logarithmic,
    trigonometric,
    hyperbolic,
    error_functions,
    gamma,
    bessel,
    rounding,
    comparison,
    selection,
    activations,
    losses,
)

ALL: Mapping[str, PointwiseOp] = MappingProxyType({op.name: op for family in FAMILIES for op in family.OPS})
"""All records, by name."""

OPS: Mapping[str, TermOp] = MappingProxyType({name: op for name, op in ALL.items() if isinstance(op, TermOp)})
"""The ops of terms."""

CONDITIONS = frozenset(name for name, op in OPS.items() if op.is_condition)
"""The ops of terms whose value is a truth value."""

LOSSY_IN_AUTOGRAD = frozenset(name for name, op in OPS.items() if op.is_lossy_in_autograd)
"""The ops of terms whose derivative loses digits in autograd."""

BY_ATEN: Mapping[str, PointwiseOp] = MappingProxyType({name: op for op in ALL.values() for name in op.aten})
"""The records of ATen ops, by the names that `graph.trace.op_name` returns."""

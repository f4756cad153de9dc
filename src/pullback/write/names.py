"""Names of intermediate values."""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Iterable

from torch import fx

from pullback.write.expressions import op_name

_HINTS = {
    "mul": "product",
    "div": "ratio",
    "add": "total",
    "sub": "difference",
    "rsub": "rest",
    "neg": "negated",
    "pow": "power",
    "mm": "product",
    "bmm": "product",
    "mv": "product",
    "dot": "product",
    "sum": "total",
    "amax": "largest",
    "amin": "smallest",
    "max": "largest",
    "min": "smallest",
    "rsqrt": "inverse_root",
    "sqrt": "root",
    "reciprocal": "inverse",
    "sigmoid": "gate",
    "linalg_vector_norm": "norm",
    "var": "variance",
    "std": "deviation",
    "where": "chosen",
    "masked_fill": "filled",
    "index": "picked",
    "index_select": "picked",
    "gather": "picked",
    "gt": "above",
    "ge": "above",
    "lt": "below",
    "le": "below",
    "eq": "same",
    "ne": "other",
    "_to_copy": "wide",
    "_softmax": "shares",
    "_log_softmax": "logs",
    "view": "reshaped",
    "t": "transposed",
    "detach": "fixed",
    "abs": "size",
    "getitem": "part",
}
_WORDS = """
    exp log log1p expm1 sin cos tan tanh erf cosh sinh abs sigmoid isfinite isnan _to_copy detach
"""
_ABOUT = frozenset(_WORDS.split())
"""Ops whose results are named after their operands."""


class Names:
    """Gives each value a unique name."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = {"torch", "F", "ctx", "inputs", "output", *taken, *keyword.kwlist, *dir(builtins)}

    def of(self, node: fx.Node, known: dict[fx.Node, str]) -> str:
        """Return a new name for the value of a node."""
        op = op_name(node)
        hint = _HINTS.get(op, op.strip("_").removeprefix("special_").removeprefix("linalg_"))
        first = node.args[0] if node.args else None
        if op in _ABOUT and isinstance(first, fx.Node) and known.get(first, "").isidentifier():
            hint = f"{hint}_{known[first]}"
        return self.fresh(hint)

    def fresh(self, hint: str) -> str:
        """Return a hint, with a number if it is taken."""
        name, number = hint, 1
        while name in self._taken:
            number += 1
            name = f"{hint}_{number}"
        self._taken.add(name)
        return name

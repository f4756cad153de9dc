"""Result of `pullback.accuracy`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pullback.errors import OptionError
from pullback.stable.summary import Summary

Coverage = Literal["every input", "sample"]


@dataclass(frozen=True, slots=True)
class Row:
    """The errors of one quantity in one dtype.

    Attributes:
        dtype: as in "float32".
        of: "value", or the derivative: "d/dx".
        coverage: whether they are of every finite input of the dtype, or of a sample.
        summary: the errors.
        exact_by: how the exact values were had.
    """

    dtype: str
    of: str
    coverage: Coverage
    summary: Summary
    exact_by: str


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Measured errors of a function.

    Attributes:
        name: of the function.
        variables: its tensors.
        domain: interval of each restricted variable; the others range over all finite numbers of the dtype.
        rows: dtype by dtype, the value and then the derivatives.
        missing: dtypes in which it does not run, and why.
        torch: version of PyTorch.
    """

    name: str
    variables: tuple[str, ...]
    domain: dict[str, tuple[float, float]]
    rows: tuple[Row, ...]
    missing: dict[str, str]
    torch: str

    def row(self, dtype: str, of: str = "value") -> Row:
        """Return the row of a dtype and quantity.

        Raises:
            OptionError: if there is none.
        """
        for row in self.rows:
            if (row.dtype, row.of) == (dtype, of):
                return row
        raise OptionError(f"{of!r} in {dtype} was not measured: {', '.join(f'{r.of} in {r.dtype}' for r in self.rows)}")

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary for `json`: infinities and NaN are text."""
        written: dict[str, Any] = _finite(asdict(self))
        return written

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def __repr__(self) -> str:
        from pullback.report.accuracy import render_text

        return render_text(self)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v) for v in value]
    return value if not isinstance(value, float) or abs(value) < float("inf") else str(value)

"""An op's notebook repr: a small table, made without running or compiling anything."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING

from markupsafe import Markup

from pullback.kernels.backend import Backend

if TYPE_CHECKING:
    from pullback.op import Op

_ROW = Markup('<tr><th style="text-align: left">{}</th><td style="text-align: left">{}</td></tr>')
_TABLE = Markup("<table><caption><code>{}</code></caption><tbody>{}</tbody></table>")


def card(op: Op, backend: Backend, rules: list[str], dtypes: list[str]) -> str:
    """Return the table as HTML.

    Args:
        op: the op.
        backend: of its kernels.
        rules: which of "vjp" and "jvp" were given.
        dtypes: those with stable forms.
    """
    rows = Markup("").join(_ROW.format(*row) for row in _rows(op, backend, rules, dtypes))
    return str(_TABLE.format(f"{op.__qualname__}{inspect.signature(op)}", rows))


def _rows(op: Op, backend: Backend, rules: list[str], dtypes: list[str]) -> Iterator[tuple[str, str]]:
    if op.kind == "ruled":
        yield "derivative", f"given by its {' and '.join(rules)}" if rules else "not given yet: a rule is needed (.vjp)"
        yield "higher orders", "through the ops of the rule"
        yield "runs", "as written, in PyTorch's kernels"
        return
    relaxation = getattr(op.relaxation, "__qualname__", type(op.relaxation).__name__)
    yield "derivative", "of the formula" if op.kind == "derived" else f"of {relaxation}"
    yield "higher orders", "all"
    if op.kind == "derived":
        known = ", ".join(dtypes) or "none known yet; the first call of a dtype looks for some"
        yield "stable forms", known if op.is_stable else "none: stable=False"
    yield "kernels", backend

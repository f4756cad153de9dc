"""Audits custom autograd functions. The package is itself the function `pullback.check`.

`pullback.check(target, *inputs)` returns a `pullback.Report`; `help(pullback.check.api.check)` names its options.

From a Function to a finding lead three files: `api.py` starts a process for each function (`runner/`), `run_audit.py`
looks for a working example there and runs the rules, and each file of `rules/` examines one property. A rule asks an
`Audit` (`audit.py`) for facts: the comparison on the example and on its variants (`cases/`, `derivative/`), the
gradients in other contexts (`contexts/`), the accuracy (`numeric/`).

A function of that name in `pullback` would shadow the package, or be shadowed by it, depending on which was imported
first; a callable package is both. The implementation is in `pullback.check.api`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pullback.report.report import Report


class _CallablePackage(ModuleType):
    """The package as the callable `pullback.check`."""

    def __call__(self, target: Any, *inputs: Any, **options: Any) -> Report:
        """Audit custom autograd functions: see `pullback.check.api.check`."""
        from pullback.check.api import check

        return check(target, *inputs, **options)


sys.modules[__name__].__class__ = _CallablePackage

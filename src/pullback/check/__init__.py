"""Audits custom autograd functions. The package is itself the function `pullback.check`.

`pullback.check(target, *inputs)` returns a `pullback.Report`; `help(pullback.check.api.check)` names its options.

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

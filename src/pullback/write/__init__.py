"""Writes plain `torch.autograd.Function`s. The package is itself the function `pullback.write`, as `pullback.check` is.

    target ─definition→ formula and derivative ─graphs→ of value, vjp, jvp ─simplify→ ─statements→ lines ─function→ text

`pullback.write(target, *inputs)` returns the text; `help(pullback.write.api.write)` names its options.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    """The package is a callable module."""

    def __call__(self, target: Any, *inputs: Any, **kwargs: Any) -> str:
        """Return the source of a plain `torch.autograd.Function`: see `pullback.write.api.write`."""
        from pullback.write.api import write

        return write(target, *inputs, **kwargs)


sys.modules[__name__].__class__ = _CallablePackage

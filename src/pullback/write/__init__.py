"""`pullback.write`: a derived op as plain readable PyTorch, a `torch.autograd.Function` that depends on torch alone.

The package is itself the function, as `pullback.check` is; `help(pullback.write.api.write)` names its options.

The way of a target to a printed class, a file a step, as `api.py` calls them:

1. `target.py` reads a target and an example call into a `FunctionSpec` (`spec.py`): value and derivative as functions
   of tensors alone. Without a call it searches for one, as the audit does.
2. `shapes.py` traces value and gradient (`graphs.py`), with fused ops decomposed (`decompositions.py`), at one shape if
   every op is pointwise, else with symbolic sizes and the conditions under which the trace holds.
3. `simplify.py` collects terms and reuses outputs in the derivative, if that is shorter and as accurate.
4. `printer.py` prints the class; `statements.py` decides which values get a name, and `expressions.py` prints one op.
5. `verify.py` runs the text beside the target and refuses it if a value, gradient or second derivative differs.
   `test_file.py` prints the tests that go with it.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _WritePackage(ModuleType):
    """The package as a callable module."""

    def __call__(self, target: Any, *inputs: Any, **kwargs: Any) -> str:
        """Return the source of a plain `torch.autograd.Function`: see `pullback.write.api.write`."""
        from pullback.write.api import write

        return write(target, *inputs, **kwargs)


sys.modules[__name__].__class__ = _WritePackage

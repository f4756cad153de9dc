"""Judges a candidate against a formula: is its value right, and did it compute it? `pullback.judge` is the function.

`pullback.judge(candidate, reference, *inputs)` returns a `pullback.Verdict`; `help(pullback.judge.api.judge)` names its
options. The candidate may be code that a model wrote, and is not trusted:

1. `api.py` has the reference run the example (`plan.py`), and tries which precision the candidate takes.
2. `calls.py` makes the calls: other sizes, other values, the same memory with other values in it, a call again.
3. `worker.py` runs the candidate in a process of its own, behind `sandbox.py`; the reference runs in another. They send
   raw bytes (`wire.py`).
4. `compare.py` compares these in the process that asked, where no line of the candidate has run, and `verdict.py` shows
   the result.

The package is callable, as `pullback.check` is.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pullback.judge.verdict import Verdict


class _CallablePackage(ModuleType):
    """The package as the callable `pullback.judge`."""

    def __call__(self, candidate: Any, reference: Any, *inputs: Any, **options: Any) -> Verdict:
        """Judge a candidate: see `pullback.judge.api.judge`."""
        from pullback.judge.api import judge

        return judge(candidate, reference, *inputs, **options)


sys.modules[__name__].__class__ = _CallablePackage

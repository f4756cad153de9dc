"""Pullback: checks custom autograd functions of PyTorch, and makes them from formulas.

Names are imported when they are first used, so that the command line answers before torch is loaded.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pullback import catalog as catalog
    from pullback.check.api import check as check
    from pullback.check.watch import watch as watch
    from pullback.errors import DerivativeError as DerivativeError
    from pullback.errors import FormulaError as FormulaError
    from pullback.errors import OptionError as OptionError
    from pullback.errors import PullbackError as PullbackError
    from pullback.errors import RunnerError as RunnerError
    from pullback.errors import TargetError as TargetError
    from pullback.function_class import AutogradFunction as AutogradFunction
    from pullback.judge.api import judge as judge
    from pullback.judge.verdict import Verdict as Verdict
    from pullback.kernels.backend import backend as backend
    from pullback.kernels.backend import set_backend as set_backend
    from pullback.nesting import nestable as nestable
    from pullback.op import Op as Op
    from pullback.op import function as function
    from pullback.report.model import Evidence as Evidence
    from pullback.report.model import Finding as Finding
    from pullback.report.model import Location as Location
    from pullback.report.model import SubjectResult as SubjectResult
    from pullback.report.report import Report as Report
    from pullback.stable.accuracy import accuracy as accuracy
    from pullback.stable.result import Accuracy as Accuracy
    from pullback.write.api import write as write

    __version__: str

_HOME = {
    "accuracy": "pullback.stable.accuracy",
    "Accuracy": "pullback.stable.result",
    "function": "pullback.op",
    "AutogradFunction": "pullback.function_class",
    "Op": "pullback.op",
    "nestable": "pullback.nesting",
    "watch": "pullback.check.watch",
    "set_backend": "pullback.kernels.backend",
    "backend": "pullback.kernels.backend",
    "FormulaError": "pullback.errors",
    "DerivativeError": "pullback.errors",
    "Report": "pullback.report.report",
    "Finding": "pullback.report.model",
    "SubjectResult": "pullback.report.model",
    "Verdict": "pullback.judge.verdict",
    "Evidence": "pullback.report.model",
    "Location": "pullback.report.model",
    "PullbackError": "pullback.errors",
    "TargetError": "pullback.errors",
    "OptionError": "pullback.errors",
    "RunnerError": "pullback.errors",
}
_PACKAGES = ("catalog", "check", "judge", "write")
"""`check`, `judge` and `write` are callable, see there."""


__all__ = sorted({*_HOME, *_PACKAGES, "__version__"})


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"pullback.{name}")
    if name == "__version__":
        return version("pullback")
    if name not in _HOME:
        raise AttributeError(f"module 'pullback' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__

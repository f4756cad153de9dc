"""An example call of a target that was given none: one that the audit finds, in single precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pullback.check.case import Case
from pullback.check.cases.probe import probe
from pullback.check.find.discover import subject_of
from pullback.errors import OptionError


class _Silent:
    """Receives the news of the search for an example."""

    def step(self, rule: str, what: str, reproduce: str) -> None:
        pass

    def beat(self) -> None:
        pass

    def finding(self, finding: Any) -> None:
        pass


def example_of(target: Any, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments that a target takes.

    Raises:
        OptionError: if none are found.
    """
    found = _found(target) or _found(target)  # the search is bounded in time, and first calls are slow
    if found is None:
        raise OptionError(
            f"{name} cannot be called with guessed arguments: give an example call (--inputs on the command line)."
        )
    args, kwargs, _ = found.arguments()
    return in_single_precision(target, args, kwargs)


def in_single_precision(
    target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call in single precision, with several numbers for each one if the formula takes them.

    Only then do conversions show: a conversion of float64 to float64 leaves no op.
    """
    for change in (lambda x: _single(_several(x)), _single):
        changed = tuple(_of_each(change, a) for a in args), {k: _of_each(change, v) for k, v in kwargs.items()}
        try:
            (target.apply if hasattr(target, "apply") else target)(*changed[0], **changed[1])
        except Exception:  # any error means that it does not take such tensors
            continue
        return changed
    return args, kwargs


def _found(target: Any) -> Case | None:
    generator = torch.Generator().manual_seed(0)
    return probe(subject_of(target), generator, _Silent(), lambda case: False).case


def _of_each(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)(_of_each(change, v) for v in value)
    return change(value.detach()) if isinstance(value, Tensor) else value


def _single(x: Tensor) -> Tensor:
    return x.float() if x.dtype == torch.float64 else x


def _several(x: Tensor) -> Tensor:
    """Return several numbers near a single one."""
    if x.dim() or not (x.is_floating_point() or x.dtype == torch.bool):
        return x
    near = torch.linspace(0.7, 1.0, 15, dtype=torch.float64).reshape(3, 5)
    return x * near.to(x.dtype) if x.is_floating_point() else near < 0.9

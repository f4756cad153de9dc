"""Whether two backwards agree at one call, run in the form in which they are written."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from pullback.fix.model import Derived, Kept

_CLOSE = 1e-4
"""In single precision; another form of a derivative is off by far more."""


def same(a: Derived, b: Derived, call: Callable[..., Any], args: Sequence[Any]) -> bool:
    """Whether two backwards of a function return the same gradients at a call; non-finite elements must agree, too."""
    with torch.no_grad():
        result = call(*args)
    outs = result if isinstance(result, tuple) else (result,)
    try:
        pairs = list(zip(_run(a, args, outs), _run(b, args, outs), strict=True))
    except Exception:  # any error of a text that holds for other values
        return False
    return all(torch.allclose(x, y, rtol=_CLOSE, atol=_CLOSE, equal_nan=True) for x, y in pairs)


def _run(derived: Derived, args: Sequence[Any], outs: Sequence[Tensor]) -> list[Tensor]:
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    body = textwrap.indent("\n".join(derived.body), "    ")
    exec(f"def backward({', '.join(derived.parameters)}):\n{body}", scope)
    saved = [_kept(one, args, outs) for one in derived.kept if one.what == "tensor"]
    ctx = SimpleNamespace(saved_tensors=saved, needs_input_grad=[isinstance(a, Tensor) for a in args])
    for one in derived.kept:
        if one.attribute:
            setattr(ctx, one.attribute, _kept(one, args, outs))
    weights = [torch.linspace(0.5, 1.5, out.numel(), dtype=out.dtype).reshape(out.shape) for out in outs]
    with torch.no_grad():
        found = scope["backward"](ctx, *weights)
    return [g for g in (found if isinstance(found, tuple) else (found,)) if g is not None]


def _kept(one: Kept, args: Sequence[Any], outs: Sequence[Tensor]) -> Any:
    value = (args if one.of == "input" else outs)[one.position]
    return value.shape if one.what == "shape" else value.detach() if isinstance(value, Tensor) else value

"""Whether two graphs compute the same values, equally accurately."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch

_REACH = (1.0, 12.0)
"""How far the points go: ordinary ones, and those where functions saturate."""
_WORSE = 2.0
"""Factor by which the largest error may grow; errors below this many roundings do not count."""
_ROUNDINGS = 4.0


def is_as_good(new: fx.GraphModule, old: fx.GraphModule) -> bool:
    """Whether a graph is nowhere much less accurate than another, at random points, against double precision."""
    inputs = [node.meta["val"] for node in old.graph.find_nodes(op="placeholder")]
    for reach in _REACH:
        points = [_point(x, i, reach) for i, x in enumerate(inputs)]
        try:
            with torch.no_grad():
                exact = _results(old, [_wide(x) for x in points])
                before, after = _results(old, points), _results(new, points)
        except Exception:  # the points are outside the formula's domain: nothing proves that the new form is as good
            return False
        if not all(map(_is_no_worse, after, before, exact)):
            return False
    return True


def _is_no_worse(new: Tensor, old: Tensor, exact: Tensor) -> bool:
    if not bool((new.isfinite() | ~old.isfinite()).all()):
        return False
    there = exact.isfinite() & old.isfinite()
    size = exact.abs().clamp_min(1e-30)
    before, after = (((x.to(exact.dtype) - exact).abs() / size)[there] for x in (old, new))
    if not before.numel():
        return True
    floor = _ROUNDINGS * torch.finfo(old.dtype).eps
    return bool(after.max() <= max(_WORSE * float(before.max()), floor))


def _results(module: fx.GraphModule, points: Sequence[Tensor]) -> list[Tensor]:
    results: Any = module(*points)[1]
    return [r for r in results if r is not None]


def _point(like: Tensor, seed: int, reach: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = _torch.size_hints(like)
    if like.is_floating_point() or like.is_complex():
        return torch.randn(shape, generator=generator, dtype=like.dtype) * reach
    return torch.randint(0, 2, shape, generator=generator).to(like.dtype)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.complex128) if x.is_complex() else x.double() if x.is_floating_point() else x

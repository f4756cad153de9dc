"""What the context of a Function keeps from the forward without autograd seeing how it depends on the inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from pullback import _torch
from pullback.dtypes import has_derivative


def hides(ctx: Any, inputs: Sequence[Any], output: Any) -> bool:
    """Whether a context keeps numbers that are neither inputs nor differentiable outputs.

    It may keep them by `save_for_backward` or as attributes, in lists and dicts too. Integers and masks do not
    count: they have no derivative.
    """
    stopped = _torch.non_differentiable(ctx)
    outputs = [t for t in _leaves(output) if not any(t is s for s in stopped)]
    known = [*_leaves(inputs), *outputs]
    kept = [*_torch.to_save(ctx), *_torch.attributes_of(ctx).values()]
    return any(_is_real(value) and not any(value is k for k in known) for value in _leaves(kept))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple | set):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def _is_real(value: Any) -> bool:
    if isinstance(value, Tensor):
        return has_derivative(value)
    return isinstance(value, np.ndarray) and value.dtype.kind in "fc"

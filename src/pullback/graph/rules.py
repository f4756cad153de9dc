"""Metadata of the results of ops that are not a loop over their arguments: a rule each, checked against PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor

from pullback import _torch
from pullback.graph.strides import is_dense, row_major

aten = torch.ops.aten
Shape = Sequence[int]
Answer = tuple[Shape, Sequence[int], torch.dtype]
"""Shape, strides and dtype of a result."""
Rule = Callable[..., Answer | list[Answer]]


class UnknownError(Exception):
    """No rule gives the result of an op."""


def ones_of(size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a tensor to try an op on."""
    return torch.ones(size, dtype=dtype, device=_torch.CPU)


def broadcast(*shapes: Shape) -> tuple[int, ...]:
    """Return the shape to which several are expanded (`torch.broadcast_shapes` imports sympy)."""
    found: list[int] = []
    for column in zip_longest(*map(reversed, shapes), fillvalue=1):
        sizes = set(column) - {1}
        if len(sizes) > 1:
            raise UnknownError
        found.append(sizes.pop() if sizes else 1)
    return tuple(reversed(found))


def _like(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    """Answer for an op whose result has the layout of its argument."""
    x, memory_format = args[0], kwargs.get("memory_format")
    dtype = kwargs.get("dtype") or x.dtype
    if memory_format is torch.contiguous_format:
        return x.shape, row_major(x.shape), dtype
    if memory_format not in (None, torch.preserve_format) or not (is_dense(x) and x.numel()):
        raise UnknownError
    return x.shape, x.stride(), dtype


def _filled(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    """Answer for a factory: the size, and the dtype of a tensor or a number if one is given."""
    like, size, *number = args if isinstance(args[0], Tensor) else (None, *args)
    if kwargs.get("memory_format") not in (None, torch.contiguous_format):
        raise UnknownError
    dtype = kwargs.get("dtype") or (like.dtype if like is not None else None)
    if dtype is None:
        dtype = torch.full((), number[0], device=_torch.CPU).dtype if number else torch.get_default_dtype()
    return size, row_major(size), dtype


def _strided(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    return args[0], args[1], kwargs.get("dtype") or torch.get_default_dtype()


def _number(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    return (), (), kwargs.get("dtype") or torch.get_default_dtype()


def _by_shape(shape_of: Callable[..., Shape], contiguous: bool = False, several: bool = False) -> Rule:
    """Return a rule for contiguous, non-empty results; with `contiguous`, only of contiguous operands.

    `several` means that there are several results, all of this shape.
    """

    def rule(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Answer | list[Answer]:
        tensors = [t for a in args for t in (a if isinstance(a, list | tuple) else (a,)) if isinstance(t, Tensor)]
        if not all(t.numel() and (t.stride() == row_major(t.shape) or not contiguous) for t in tensors):
            raise UnknownError
        shape = shape_of(*args, **kwargs)
        found = op(*map(_small, args), **kwargs)
        if not several:
            found = (found,)
        if any(small.dim() != len(shape) for small in found):
            raise UnknownError
        answers: list[Answer] = [(shape, row_major(shape), small.dtype) for small in found]
        return answers if several else answers[0]

    return rule


def _small(a: Any) -> Any:
    """Return tensors of as many dimensions, all of size 2, filled with ones."""
    if isinstance(a, list | tuple) and a and isinstance(a[0], Tensor):
        return [_small(t) for t in a]
    return ones_of((2,) * a.dim(), a.dtype) if isinstance(a, Tensor) else a


def _reduced(x: Tensor, dim: Any = None, keepdim: bool = False, **_: Any) -> Shape:
    dims = [dim] if isinstance(dim, int) else dim or range(x.dim())
    gone = {range(x.dim() or 1)[d] for d in dims}  # a number may be reduced over dimension 0 or −1
    if len(gone) != len(dims):
        raise UnknownError
    return [1 if d in gone else n for d, n in enumerate(x.shape) if keepdim or d not in gone]


def _product(a: Tensor, b: Tensor) -> Shape:
    if a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        raise UnknownError
    return (*a.shape[:-1], b.shape[-1])


def _added_product(bias: Tensor, a: Tensor, b: Tensor, **_: Any) -> Shape:
    shape = _product(a, b)
    if broadcast(bias.shape, shape) != shape:
        raise UnknownError
    return shape


def _same(x: Tensor, *_: Any, **__: Any) -> Shape:
    return x.shape


def _second(x: Tensor, y: Tensor, *_: Any) -> Shape:
    if x.shape != y.shape:
        raise UnknownError
    return x.shape


def _stacked(tensors: Sequence[Tensor], dim: int = 0) -> Shape:
    shapes = [tuple(t.shape) for t in tensors]
    at = range(len(shapes[0]) + 1)[dim]
    if set(shapes) != {shapes[0]} or (len(shapes[0]) > 2 and not _are_row_major(tensors)):  # channels last?
        raise UnknownError
    return [*shapes[0][:at], len(shapes), *shapes[0][at:]]


def _gathered(x: Tensor, dim: int, index: Tensor, **_: Any) -> Shape:
    at = range(x.dim() or 1)[dim]
    if x.dim() != index.dim() or any(index.shape[d] > n for d, n in enumerate(x.shape) if d != at):
        raise UnknownError
    return index.shape


def _scattered(x: Tensor, dim: int, index: Tensor, value: Any) -> Shape:
    if isinstance(value, Tensor) or not x.dim() or not index.dim() or index.shape[dim] > x.shape[dim]:
        raise UnknownError
    _gathered(x, dim, index)
    return x.shape


def _dotted(a: Tensor, b: Tensor) -> Shape:
    if a.shape[-1:] != b.shape:
        raise UnknownError
    return a.shape[:-1]


def _norm(x: Tensor, order: float = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Shape:
    return _reduced(x, dim, keepdim)


def _likelihood(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Answer]:
    """Answer for `nll_loss`: the loss, and the weight of all samples."""
    x, target, weight, reduction = args[:4]
    if x.dim() != 2 or x.shape[:1] != target.shape or weight is not None or not x.numel():
        raise UnknownError
    shape = x.shape[:1] if reduction == 0 else ()
    return [(shape, row_major(shape), x.dtype), ((), (), x.dtype)]


def _are_row_major(tensors: Sequence[Tensor]) -> bool:
    return all(t.stride() == row_major(t.shape) for t in tensors)


def _joined(tensors: Sequence[Tensor], dim: int = 0) -> Shape:
    shapes = [list(t.shape) for t in tensors]
    at = range(len(shapes[0]))[dim]
    if len(shapes[0]) > 3 and not _are_row_major(tensors):
        raise UnknownError
    if any(s[:at] != shapes[0][:at] or s[at + 1 :] != shapes[0][at + 1 :] for s in shapes):
        raise UnknownError
    return [*shapes[0][:at], sum(s[at] for s in shapes), *shapes[0][at + 1 :]]


def _padded(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    """Answer for the gradient of an op that takes part of a tensor: zeros elsewhere."""
    return args[1], row_major(args[1]), args[0].dtype


def _like_second(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Answer:
    """Answer for the gradient of a loss."""
    x = args[1]
    if x.stride() != row_major(x.shape) or not x.numel():
        raise UnknownError
    return x.shape, x.stride(), x.dtype


RULES: dict[Any, Rule] = {
    **dict.fromkeys((aten.clone.default, aten._to_copy.default), _like),
    **{getattr(aten, f"{name}_like").default: _like for name in ("empty", "full", "ones", "zeros")},
    **{
        getattr(aten, name).default: _filled
        for name in ["full", "new_empty", "new_full", "new_ones", "new_zeros", "ones", "zeros"]
    },
    aten.empty.memory_format: _filled,
    aten.empty_strided.default: _strided,
    aten.scalar_tensor.default: _number,
    **dict.fromkeys((aten.select_backward.default, aten.slice_backward.default), _padded),
    **{
        getattr(aten, name).default: _by_shape(_reduced)
        for name in ["all", "amax", "amin", "any", "argmax", "argmin", "mean", "sum"]
    },
    **{getattr(aten, name).dim: _by_shape(_reduced) for name in ("all", "any", "mean")},
    **{getattr(aten, name).correction: _by_shape(_reduced) for name in ("std", "var")},
    **{getattr(aten, name).dim: _by_shape(_reduced, several=True) for name in ("max", "min")},
    aten.sum.dim_IntList: _by_shape(_reduced),
    aten.prod.dim_int: _by_shape(_reduced),
    aten.prod.default: _by_shape(_reduced),
    aten.var_mean.correction: _by_shape(_reduced, several=True),
    aten.linalg_vector_norm.default: _by_shape(_norm),
    aten.log_sigmoid_forward.default: _by_shape(_same, contiguous=True, several=True),
    aten.nll_loss_forward.default: _likelihood,
    aten.nll_loss_backward.default: _like_second,
    aten.gather.default: _by_shape(_gathered),
    aten.scatter.value: _by_shape(_scattered, contiguous=True),
    aten.stack.default: _by_shape(_stacked),
    **dict.fromkeys((aten.dot.default, aten.mv.default), _by_shape(_dotted)),
    aten.logsumexp.default: _by_shape(_reduced),
    **dict.fromkeys((aten.mm.default, aten.bmm.default), _by_shape(_product)),
    aten.addmm.default: _by_shape(_added_product),
    **{
        getattr(aten, name).default: _by_shape(_same, contiguous=True)
        for name in ("_softmax", "_log_softmax", "cumsum", "flip", "roll", "tril", "triu")
    },
    **{getattr(aten, f"{name}_backward_data").default: _by_shape(_second) for name in ("_softmax", "_log_softmax")},
    aten.cat.default: _by_shape(_joined),
}

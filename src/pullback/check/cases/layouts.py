"""The same values in other strides, and in other dtypes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from pullback.check.case import Case, is_differentiable
from pullback.check.cases.structure import is_structured
from pullback.dtypes import has_integers, has_reals


def other_layouts(case: Case) -> Iterator[Case]:
    """Yield the case with the same values in other strides: transposed, sliced, offset, channels-last, conjugated.

    One has rows that are longer in memory, by another number in each tensor: a kernel may take the strides of one for
    those of another.

    All of its tensors have them, those that are not differentiated too.
    """
    for label, (change, applies) in LAYOUTS.items():
        chosen = [p for p, t in case.strided.items() if p not in case.captured and applies(t)]
        if chosen:
            yield case.map_distinct(chosen, change, label, layout_only=True)
    wide = {
        p: within(t, 1 + k) for k, (p, t) in enumerate(case.strided.items()) if p not in case.captured and t.ndim > 1
    }
    if wide:
        yield case.with_values(wide, "part of wider tensors", layout_only=True)
    shaped = [p for p in case.wrt if case.values[p].ndim and case.values[p].shape[0] > 1]
    expandable = [p for p in shaped if not is_structured(case.values[p])]
    for position in expandable:
        t = case.values[position]
        yield case.with_values({position: t[:1].expand_as(t)}, f"{case.names[position]} expanded", layout_only=True)


def contiguous(case: Case) -> Case:
    """Return the same values in contiguous tensors."""
    return case.map_distinct(case.strided, lambda t: t.clone(memory_format=torch.contiguous_format), layout_only=False)


def with_plain_indices(case: Case) -> Case:
    """Return a case whose vectors of whole numbers, such as offsets, are contiguous: callers rarely slice these."""
    vectors = [p for p, t in case.strided.items() if t.ndim == 1 and has_integers(t) and not t.is_contiguous()]
    return case.with_values({p: case.values[p].contiguous() for p in vectors}) if vectors else case


def _transposed(t: Tensor) -> Tensor:
    return t.transpose(-1, -2).clone(memory_format=torch.contiguous_format).transpose(-1, -2)


def _batches_swapped(t: Tensor) -> Tensor:
    return t.transpose(0, 1).clone(memory_format=torch.contiguous_format).transpose(0, 1)


def conjugated(t: Tensor) -> Tensor:
    """Return the values of a complex `t` as a conjugate view of their conjugates."""
    return t.conj().resolve_conj().conj()


def sliced(t: Tensor) -> Tensor:
    """Return the values of `t` with a stride of 2 in the last dimension."""
    wide = t.new_zeros((*t.shape[:-1], 2 * t.shape[-1]))
    wide[..., ::2] = t
    return wide[..., ::2]


def within(t: Tensor, more: int) -> Tensor:
    """Return the values of `t` as part of a tensor with longer rows, as of queries, keys and values in one tensor."""
    wide = t.new_zeros((*t.shape[:-1], t.shape[-1] + more))
    wide[..., : t.shape[-1]] = t
    return wide[..., : t.shape[-1]]


def _offset(t: Tensor) -> Tensor:
    padded = t.new_zeros(t.numel() + 3)
    padded[3:] = t.flatten()
    return padded[3:].view(t.shape)


LAYOUTS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], bool]]] = {
    "transposed": (_transposed, lambda t: t.ndim >= 2),
    "sliced with a step": (sliced, lambda t: t.ndim >= 1),
    "non-zero storage offset": (_offset, lambda t: True),
    "batch-transposed": (_batches_swapped, lambda t: t.ndim >= 3),
    "conjugated": (conjugated, Tensor.is_complex),
    "channels last": (lambda t: t.contiguous(memory_format=torch.channels_last), lambda t: t.ndim == 4),
}
"""Changes of strides, by their labels, with the tensors that each applies to."""


def other_dtypes(case: Case) -> Iterator[Case]:
    """Yield the case in the other floating (or complex) dtypes, with rounded values."""
    for real, compl in (
        (torch.float32, torch.complex64),
        (torch.bfloat16, None),
        (torch.float16, None),
        (torch.float64, torch.complex128),
    ):
        if any(case.values[p].is_complex() for p in case.wrt) and compl is None:
            continue
        changed = {p: t.to(compl if t.is_complex() else real) for p, t in case.all_tensors.items() if has_reals(t)}
        if any(changed[p].dtype != case.values[p].dtype for p in case.wrt):
            yield case.with_values(changed, str(real).removeprefix("torch."))


def as_dtypes_of(case: Case, other: Case) -> Case:
    """Return the floating and complex values of `case` in the dtypes of `other`, an example of the same call."""
    if len(case.values) != len(other.values):
        return case
    return case.with_values(
        {
            p: v.to(like.dtype)
            for p, (v, like) in enumerate(zip(case.values, other.values, strict=True))
            if is_differentiable(v) and is_differentiable(like) and v.is_complex() == like.is_complex()
        }
    )


def widened(case: Case) -> Case:
    """Return the case with its floating tensors in float64 and its complex ones in complex128."""
    wide = {
        p: t.to(torch.complex128 if t.is_complex() else torch.float64)
        for p, t in case.all_tensors.items()
        if has_reals(t)
    }
    return case.with_values({p: v for p, v in wide.items() if v.dtype != case.values[p].dtype})


def made_complex(case: Case) -> Case:
    """Return the case with complex values in place of the real differentiated ones."""
    return case.map_inputs(
        lambda t: torch.complex(t, (t + 0.7).sin()) if t.is_floating_point() else t, "complex values"
    )

"""The domain that an example suggests, on which a function may rely: rows of length 1, symmetric matrices, sorted rows.

A variant outside this domain is projected back, so that it stays a valid input. It is also tried unprojected, and a
failure there alone is reported with that remark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pullback.check.case import Case
from pullback.check.cases.sizes import POINTS, resized
from pullback.check.cases.structure import partitions

_OTHERS = (1, 2, 5)
_SHORTEST = 4
"""Length from which a sorted row is unlikely to be a coincidence: of 4! = 24 orders one is sorted."""


@dataclass(frozen=True)
class Trait:
    """A property of a tensor.

    Attributes:
        words: the phrase for a tensor without it, as in "x without rows of length 1".
        holds: whether a tensor has it.
        restore: the nearest tensor with it; `None` if there is none.
        is_tried_without: whether tensors without it are tried; no other rule reports failures on these.
    """

    words: str
    holds: Callable[[Tensor], bool]
    restore: Callable[[Tensor], Tensor] | None = None
    is_tried_without: bool = True


def _of_length_one(t: Tensor) -> bool:
    return t.ndim > 0 and _all_near(t.abs().square().sum(-1).sqrt(), 1.0)


def _is_symmetric(t: Tensor) -> bool:
    return t.ndim > 1 and t.shape[-1] == t.shape[-2] and torch.allclose(t, t.mH)


def _is_definite(t: Tensor) -> bool:
    return _is_symmetric(t) and bool(t.isfinite().all()) and bool((torch.linalg.eigvalsh(t) > 0).all())


def _are_sorted(t: Tensor) -> bool:
    return t.ndim > 0 and not t.is_complex() and bool((t.diff(dim=-1) >= 0).all())


def _are_falling(t: Tensor) -> bool:
    return t.ndim > 0 and not t.is_complex() and bool((t.diff(dim=-1) <= 0).all())


def _are_twice(t: Tensor) -> bool:
    n = t.shape[-1] // 2 if t.ndim else 0
    return n > 1 and t.shape[-1] == 2 * n and torch.equal(t[..., :n], t[..., n:]) and bool((t != t[..., :1]).any())


def _made_twice(t: Tensor) -> Tensor:
    half = t[..., : t.shape[-1] // 2]
    return torch.cat([half, half], -1)


def _are_labels(t: Tensor) -> bool:
    return bool(((t == 0) | (t == 1)).all()) and bool((t == 0).any()) and bool((t == 1).any())


def _are_probabilities(t: Tensor) -> bool:
    return t.ndim > 0 and not t.is_complex() and bool((t >= 0).all()) and _all_near(t.sum(-1), 1.0)


def _all_near(t: Tensor, value: float) -> bool:
    return torch.allclose(t, torch.full_like(t, value))


def _made_definite(t: Tensor) -> Tensor:
    symmetric = (t + t.mH) / 2
    if not t.numel() or not bool(symmetric.isfinite().all()):
        return symmetric
    # A + c I has the eigenvalues of A plus c: the smallest becomes 1/2, if it was less.
    lowest = torch.linalg.eigvalsh(symmetric).amin(-1)[..., None, None]
    definite: Tensor = symmetric + torch.eye(t.shape[-1], dtype=t.dtype) * (0.5 - lowest).clamp(min=0)
    return definite


TRAITS = (
    Trait("rows of length 1", _of_length_one, lambda t: t / t.abs().square().sum(-1, keepdim=True).sqrt()),
    Trait("positive definite matrices", _is_definite, _made_definite, is_tried_without=False),
    Trait("symmetric matrices", _is_symmetric, lambda t: (t + t.mH) / 2, is_tried_without=False),
    Trait("rows that sum to 1", _are_probabilities, lambda t: t.abs() / t.abs().sum(-1, keepdim=True)),
    Trait("sorted rows", _are_sorted, lambda t: t.sort(-1).values),
    Trait("rows sorted in descending order", _are_falling, lambda t: t.sort(-1, descending=True).values),
    Trait("zeros and ones alone", _are_labels, lambda t: (t.real > 0).to(t.dtype), is_tried_without=False),
    Trait("rows of two equal halves", _are_twice, _made_twice),  # angles of a rotary embedding
)


class Domain:
    """The traits of the differentiated tensors of an example, and the lengths or offsets that partition them.

    Args:
        base: the example.
        takes: whether the function is for another; `None` for an example that we made: its sizes mean nothing.
    """

    def __init__(self, base: Case, takes: Callable[[Case], bool] | None) -> None:
        self._base = base
        self._traits: Mapping[int, Sequence[Trait]] = {
            p: [*_shown(base.values[p]), *_of_coordinates(base, p, takes)] for p in base.wrt
        }
        self._partitions = list(partitions(base))
        self._broken: set[str] = set()

    def holds(self, case: Case) -> bool:
        """Whether a case has every trait of the example."""
        return not self._lost(case) and self.is_parted(case)

    def is_parted(self, case: Case) -> bool:
        """Whether lengths and offsets still add up to the sizes that they partition."""
        return all(partition.holds(case) for partition in self._partitions)

    def keep(self, case: Case) -> Iterator[Case]:
        """Yield a variant with its lost traits restored; also unchanged, if it is the first without one of them."""
        for partition in self._partitions:
            if not partition.holds(case):
                refitted = partition.restored(case)
                if refitted is None:
                    return
                case = refitted
        lost = self._lost(case)
        if not lost:
            yield case
            return
        restored = self._restored(case)
        if restored is not None:
            yield restored
        what = " and ".join(f"{case.names[p]} without {trait.words}" for p, trait in lost)
        if all(trait.is_tried_without for _, trait in lost) and (restored is None or what not in self._broken):
            self._broken.add(what)
            yield replace(case, label=f"{case.label}, {what}", doubtful=True)

    def _lost(self, case: Case) -> list[tuple[int, Trait]]:
        return [(p, t) for p in case.wrt for t in self._traits.get(p, ()) if not t.holds(case.values[p])]

    def _restored(self, case: Case) -> Case | None:
        """A variant with its lost traits restored; `None` if that is impossible, or gives the example itself."""
        lost = self._lost(case)
        if any(case.values[p].ndim != self._base.values[p].ndim for p, _ in lost):
            return None
        new: dict[int, Tensor] = {}
        for p, trait in lost:
            t = new.get(p, case.values[p])
            new[p] = t if trait.restore is None or trait.holds(t) else trait.restore(t)
        restored = case.with_values(new)
        finite = all(bool(torch.isfinite(t).all()) for t in new.values())
        is_base = all(map(_are_equal, restored.tensors, self._base.tensors))
        return restored if finite and not is_base and self.holds(restored) else None


def _are_equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b)


def _shown(t: Tensor) -> Iterator[Trait]:
    """Yield the properties of an example's tensor that are unlikely to be a coincidence."""
    if t.layout is not torch.strided or not t.ndim or t.shape[-1] < 2 or not bool(torch.isfinite(t).all()):
        return
    for trait in TRAITS:
        is_order = trait.holds in (_are_sorted, _are_falling)
        is_chance = is_order and t.shape[-1] < _SHORTEST
        if trait.holds(t) and not is_chance and not (trait.holds is _are_falling and _are_sorted(t)):  # equal numbers
            yield trait


def _of_coordinates(base: Case, position: int, takes: Callable[[Case], bool] | None) -> Iterator[Trait]:
    """Yield the size of a last dimension that may hold coordinates: the function rejects some other size."""
    t = base.values[position]
    if takes is None or t.ndim < 2 or t.shape[-1] not in POINTS or t.shape[-1] == t.shape[-2]:
        return
    size = t.shape[-1]
    if not all(takes(resized(base, {size: other})) for other in _OTHERS if other != size):
        words = f"a last dimension of size {size}"
        yield Trait(words, lambda other: other.ndim > 0 and other.shape[-1] == size)

"""The calls of one run: none is known before, and each is one that the reference takes.

Sizes that are equal in the example stay equal. Values keep what the example shows of their domain: positive numbers,
probabilities, symmetric matrices, sorted segments, permutations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from pullback.check.case import Case, in_layout, is_differentiable
from pullback.check.cases.domain import Domain
from pullback.check.cases.layouts import LAYOUTS
from pullback.check.cases.sizes import changes, resized
from pullback.check.cases.structure import is_fixed, is_permutation
from pullback.check.cases.values import other_numbers
from pullback.check.derivative.band import cast
from pullback.judge.worker import MOST_OF_RESULT, Call

MOST = 70_000
"""Elements of the largest call."""
_BLOCK = (131, 1031)
"""Sizes a little above those that a tile, a block or a warp has."""
_UNDEFINED = 1e3
"""The number, for 0, in lanes that a load without `other` leaves undefined."""
_LABELS = re.compile(r"label|target")
_IGNORED = -100
"""PyTorch's default of `ignore_index`."""

Draw = torch.Generator
_Change = Callable[[Tensor, Draw], Tensor]


def _where(share: float, t: Tensor, draw: Draw) -> Tensor:
    return torch.rand(t.shape, generator=draw) < share


def _some(t: Tensor, draw: Draw) -> Tensor:
    """Which elements are chosen, at least one: not the first, since a mean over what is left must not be 0/0."""
    chosen = _where(0.4, t, draw)
    flat = chosen.view(-1)
    flat[-1:] |= ~flat[1:].any()
    flat[:1] = False
    return chosen


def _like(t: Tensor, draw: Draw) -> Tensor:
    """Normal numbers of the shape of `t`."""
    return torch.randn(t.shape, generator=draw, dtype=torch.float64)


def _outlier(t: Tensor, draw: Draw) -> Tensor:
    at = torch.randint(max(t.numel(), 1), (), generator=draw)
    return torch.where(torch.arange(t.numel()).reshape(t.shape) == at, 1e3, 1.0) * t


def _near_ties(t: Tensor, draw: Draw) -> Tensor:
    """Few values, each of many elements to within a thousandth."""
    scale = t.abs().amax() if t.numel() else 1.0
    return (2 * t / scale).round() * scale / 2 + 1e-3 * scale * _like(t, draw)


_SPECIAL: dict[str, tuple[bool, _Change]] = {
    "larger values": (False, lambda t, draw: 8 * t),
    "large values": (False, lambda t, draw: 60 * t),
    "huge values": (True, lambda t, draw: 1e4 * t),
    "long tails": (False, lambda t, draw: t * torch.exp(1.5 * _like(t, draw))),
    "near-ties": (False, _near_ties),
    "half zeros": (True, lambda t, draw: t * _where(0.5, t, draw)),
    "all zeros": (True, lambda t, draw: torch.zeros_like(t)),
    "small values": (False, lambda t, draw: 1e-3 * t),
    "tiny values": (True, lambda t, draw: 1e-12 * t),
    "rows alike": (True, lambda t, draw: t[..., :1].expand_as(t).clone() if t.ndim else t),
    "one outlier": (True, _outlier),
    "negated values": (False, lambda t, draw: -t),
    "values of one sign": (False, lambda t, draw: t.abs()),
    "sorted values": (False, lambda t, draw: t.sort(-1).values if t.ndim else t),
}
"""Changes of ordinary values, by their labels, and whether they leave the ordinary range."""


class Calls:
    """Makes the calls around one example.

    Args:
        base: the example, in the dtype that was declared.
        seed: of all that is drawn.
        full: the example with the numbers that have defaults, if it lacks some.
    """

    def __init__(self, base: Case, seed: int, full: Case | None = None) -> None:
        self._base = base
        self._full = base if full is None else full
        self._draw = torch.Generator().manual_seed(seed)
        self._domain = Domain(base, None)

    def all(self, is_interpreted: bool) -> list[Call]:
        """Every call, the largest last; some are for a candidate whose kernels are interpreted."""
        found = [*self._repeated(), *self._shapes(), *self._values(), *self._settings()]
        found += [*(self._undefined() if is_interpreted else ()), *self._large()]
        return [replace(call, cotangents=k) for k, call in enumerate(found)]

    def probe(self) -> list[Call]:
        """The example with new values, and the same with each element moved by a part in 10¹⁰."""
        first = cast(self.fresh(self._base), torch.float64)
        second = first.map_distinct(first.wrt, lambda t: t * (1 + 1e-10 * _like(t, self._draw).sign()))
        return [Call(first, "other values"), Call(second, "other values, moved by 1e-10")]

    def beside(self, call: Call) -> Call:
        """The call with each element moved by about a millionth of what is usual."""
        usual = {p: self._base.values[p].abs().mean() for p in call.case.wrt if self._base.values[p].numel()}
        moved = {p: call.case.values[p] + 1e-6 * m * _like(call.case.values[p], self._draw) for p, m in usual.items()}
        kept = {p: t.to(call.case.values[p].dtype) for p, t in moved.items() if not is_fixed(self._base.values[p])}
        return replace(call, case=call.case.with_values(kept), label=f"beside {call.label}")

    def fresh(self, like: Case) -> Case:
        """The case with other values of the same sort."""
        new = {p: self._drawn(self._base.values[p], t) for p, t in like.all_tensors.items()}
        return self._kept(like.with_values(new)) or like

    def _kept(self, case: Case) -> Case | None:
        """The case with the traits of the example restored; `None` if they cannot be."""
        if all(t.ndim == b.ndim for t, b in zip(case.tensors, self._base.tensors, strict=True)):
            return next((kept for kept in self._domain.keep(case) if not kept.doubtful), None)
        return None

    def _repeated(self) -> Iterator[Call]:
        """The example, and calls of its sizes that differ from it in as little as a result may be remembered by."""
        base = self._base
        yield Call(base, "on the example")
        yield Call(self.fresh(base), "other values, in the same tensors", reuse="object")
        yield Call(self.fresh(base), "other values, in the same memory", reuse="memory")
        other = self.fresh(base)
        yield Call(other, "other values")
        yield Call(self._kept(other.map_inputs(self._swapped, "")) or other, "two elements swapped")
        yield Call(self._kept(other.map_inputs(self._nudged, "")) or other, "one element changed")
        yield Call(base, "the example again")
        yield Call(self.fresh(base), "after 120 other calls", before=120)
        yield Call(self.fresh(base), "new memory filled with NaN", fills_new=True)
        yield Call(self.fresh(base), "a cotangent of ones, expanded", uniform=True)
        if len(base.wrt) > 1:
            for k in range(min(len(base.wrt), 3)):
                mask = tuple(p == k for p in range(len(base.wrt)))
                yield Call(self.fresh(base), f"the gradient of {base.names[base.wrt[k]]} alone", mask=mask)
        for label in ("transposed", "sliced with a step"):
            change, applies = LAYOUTS[label]
            fresh = self.fresh(base)
            chosen = [p for p, t in fresh.strided.items() if applies(t) and t.numel() and p in fresh.wrt]
            if chosen:
                yield Call(fresh.map_distinct(chosen, change, label), in_layout(label), "layout")

    def _swapped(self, t: Tensor) -> Tensor:
        """Two inner elements swapped: sums, and the first and last elements, stay."""
        flat = t.flatten().clone()
        if flat.numel() > 3:
            flat[[1, 2]] = flat[[2, 1]]
        return flat.reshape(t.shape)

    def _nudged(self, t: Tensor) -> Tensor:
        """One element changed, which is none of the first or last: those may be all that a result is kept by."""
        flat = t.flatten().clone()
        at = self._between(3, flat.numel() - 4) if flat.numel() > 7 else flat.numel() // 2
        flat[at : at + 1] *= 1.5
        return flat.reshape(t.shape)

    def _sizes(self) -> list[int]:
        return sorted(self._base.sizes - self._base.fixed - {1})

    def _resized(self, change: dict[int, int], label: str) -> Iterator[Call]:
        """The example in other sizes, if they fit each other and are not too large."""
        case = resized(self._base, change)
        shapes = [t.shape for t in case.all_tensors.values()]
        if case.doubtful or any(shape.numel() > MOST for shape in shapes):
            return
        if shapes != [t.shape for t in self._base.all_tensors.values()]:
            sizes = ", ".join(f"{old} -> {new}" for old, new in changes(self._base, case).items() if old != new)
            yield Call(replace(self.fresh(case), label="resized"), f"{label} ({sizes})", "shape")

    def _shapes(self) -> Iterator[Call]:
        sizes = self._sizes()
        if not sizes:
            return
        for low, high in ((1, 2), (2, 3), (1, 3)):
            new = {size: self._between(low * size + 1, high * size + 7) for size in sizes}
            yield from self._resized(new, "other sizes")
        yield from self._resized({size: 2 * size for size in sizes}, "doubled sizes")
        yield from self._resized({size: max(1, size // 2) for size in sizes}, "halved sizes")
        for size in sizes:
            yield from self._resized({size: 1}, "a size of 1")
            yield from self._resized({size: self._between(size + 1, size + 5)}, "a slightly larger size")

    def _undefined(self) -> Iterator[Call]:
        """The example, and sizes that fill no block, with another number where loads leave lanes undefined."""
        label = f"{_UNDEFINED:g} in undefined lanes"
        change = {size: 2 * size + 1 for size in self._sizes()}
        for call in (Call(self.fresh(self._base), label), *self._resized(change, label)):
            yield replace(call, kind="memory", undefined=_UNDEFINED)

    def _large(self) -> Iterator[Call]:
        """Each size beyond some blocks, and one of them as far as it goes."""
        shapes = [t.shape for t in self._base.all_tensors.values()]
        # A result may have a dimension for each that has this size in one tensor; what has more is left out later.
        several = {size: max(shape.count(size) for shape in shapes) for size in self._sizes()}
        alone = [size for size, count in several.items() if count == 1]
        farthest = alone[self._between(0, len(alone))] if alone else None
        # The size that goes farthest is the last one: its other calls show how time grows with it.
        for size in sorted(several, key=lambda size: size == farthest):
            for block in _BLOCK:
                if size < block and block ** several[size] <= MOST_OF_RESULT:
                    yield from self._resized({size: block}, "a size beyond a block")
        if farthest is not None:
            rest = max(shape.numel() // (farthest if farthest in shape else 1) for shape in shapes)
            yield from self._resized({farthest: MOST // rest - self._between(0, 4)}, "a large size")

    def _values(self) -> Iterator[Call]:
        base = self._base
        for label, (is_extreme, change) in _SPECIAL.items():
            case = self.fresh(base)
            chosen = [p for p in case.wrt if not is_fixed(base.values[p])]
            new = {p: self._special(base.values[p], case.values[p], change) for p in chosen}
            kept = self._kept(case.with_values(new))
            if kept is not None and any(not torch.equal(kept.values[p], case.values[p]) for p in chosen):
                yield Call(kept, label, "values", is_extreme=is_extreme)
        whole = {p: t for p, t in base.all_tensors.items() if not is_differentiable(t) and t.numel()}
        for label, pick in (("repeated indices", _repeated), ("skewed indices", _skewed)):
            new = {p: pick(t, self._draw) for p, t in whole.items() if not is_permutation(t)}
            kept = self._kept(self.fresh(base).with_values(new)) if new else None
            if kept is not None:
                yield Call(kept, label, "values")
        offsets = {p: torch.where(torch.arange(len(t)) == 2, t[1], t) for p, t in whole.items() if _rises(t)}
        kept = self._kept(self.fresh(base).with_values(offsets)) if offsets else None
        if kept is not None:
            yield Call(kept, "a part is empty", "values", is_extreme=True)
        named = {p: t for p, t in whole.items() if _LABELS.search(base.names[p]) and t.dtype == torch.int64}
        if named:
            some = {p: torch.where(_some(t, self._draw), _IGNORED, t) for p, t in named.items()}
            yield Call(self.fresh(base).with_values(some), "some labels are -100", "values", is_extreme=True)

    def _settings(self) -> Iterator[Call]:
        fresh = self.fresh(self._base)
        for case in other_numbers(self._full.with_values(dict(enumerate(fresh.values)))):
            yield Call(case, case.label, "settings")

    def _special(self, example: Tensor, t: Tensor, change: _Change) -> Tensor:
        """Special values in the domain of the example, in its dtype, and finite there."""
        if not t.numel():
            return t
        if t.is_complex():
            parts = change(torch.view_as_real(t.to(torch.complex128).resolve_conj()), self._draw)
            return torch.view_as_complex(parts.contiguous()).to(t.dtype)
        low, high = _range(example)
        found = change(t.to(torch.float64), self._draw)
        found = found.abs() if low >= 0 else found
        largest = 1.0 if low >= 0 and high <= 1 else torch.finfo(t.dtype).max ** 0.5
        return found.clamp(1e-9 * low if low > 0 else -largest, largest).to(t.dtype)

    def _drawn(self, example: Tensor, like: Tensor) -> Tensor:
        """New values for a tensor: of the distribution of the example, in the shape of another."""
        if not like.numel() or like.layout is not torch.strided:
            return like
        if not is_differentiable(like):
            return self._drawn_whole(example, like)
        if is_fixed(example) or not bool(torch.isfinite(example).all()):
            return like
        normal = _like(like, self._draw)
        if like.is_complex():
            return torch.complex(normal, _like(like, self._draw)).to(like.dtype) * float(example.abs().mean() or 1)
        values, (low, high) = example.to(torch.float64), _range(example)
        spread = float(values.std()) if values.numel() > 1 else 0.0
        if low >= 0 and high <= 1 and spread > 0:
            new = low + (high - low) * torch.rand(like.shape, generator=self._draw, dtype=torch.float64)
        elif low > 0:
            logs = values.log()
            new = torch.exp(logs.mean() + (float(logs.std()) if spread > 0 else 0.3) * normal)
        else:
            new = values.mean() + (spread or 0.5) * normal
        return new.to(like.dtype)

    def _drawn_whole(self, example: Tensor, like: Tensor) -> Tensor:
        """New whole numbers among those that the shape and the example allow."""
        if like.dtype == torch.bool:
            if example.ndim == 2 and torch.equal(example, example.tril()) and bool(example.any()):
                return torch.ones_like(like).tril()
            return _where(float(example.to(torch.float64).mean()), like, self._draw)
        if is_permutation(example):
            order = torch.rand(like.shape, generator=self._draw).argsort(-1).to(like.dtype)
            return order if is_permutation(like) else like
        if _rises(example):
            return self._rising(like)
        picked = torch.randint(like.numel(), like.shape, generator=self._draw)
        new = like.flatten()[picked] if like.ndim else like
        is_sorted = example.ndim == 1 and example.numel() > 3 and bool((example.diff() >= 0).all())
        return new.sort().values if is_sorted else new

    def _rising(self, like: Tensor) -> Tensor:
        """Other numbers between the first and the last, each above the one before: no part is empty."""
        low, high = int(like[0]), int(like[-1])
        inner = 1 + torch.randperm(max(high - low - 1, 0), generator=self._draw)[: like.numel() - 2].sort().values
        fits = _rises(like) and inner.numel() == like.numel() - 2
        return torch.cat([like[:1], low + inner.to(like.dtype), like[-1:]]) if fits else like

    def _between(self, low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=self._draw))


def _rises(t: Tensor) -> bool:
    """Whether whole numbers are offsets, each above the one before."""
    return t.ndim == 1 and t.numel() > 3 and bool((t.diff() > 0).all())


def _range(t: Tensor) -> tuple[float, float]:
    return (float(t.min()), float(t.max())) if t.numel() else (-1.0, 1.0)


def _repeated(t: Tensor, draw: Draw) -> Tensor:
    """The same number everywhere."""
    at = int(torch.randint(t.numel(), (), generator=draw))
    return t.flatten()[at].expand(t.shape).clone()


def _skewed(t: Tensor, draw: Draw) -> Tensor:
    """Mostly few of the numbers: the k-th of them with a probability that falls as 4⁻ᵏ."""
    known = t.unique()
    falls = torch.rand(t.shape, generator=draw).log() / -1.4
    picked: Tensor = known[falls.long().clamp(max=known.numel() - 1)]
    return picked.to(t.dtype)

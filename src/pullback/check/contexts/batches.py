"""Batches of examples for vmap, and the loop that it must agree with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.check.cases.repro import variables
from pullback.check.contexts.compare import preamble
from pullback.check.contexts.eager import EagerReference, Pure, Slots, pure, tensor_slots
from pullback.check.trial import Raised, guarded, reseed

_FACTORS = (1.0, 0.75, 1.25)
"""Factors of a batch's examples relative to the first: signs and orders of magnitude stay."""
# Powers of two: the weighted cotangents are exact in every dtype. Distinct, so that no two examples may be exchanged.
_WEIGHTS = (1.0, 0.5, 2.0)
_SHARED_AT_MOST = 3

InDims = tuple[int | None, ...]


@dataclass(frozen=True, eq=False)
class Batch:
    """Arguments for `torch.func.vmap` of a setting's function.

    Attributes:
        setting: the example that the batch is made of.
        slots: every tensor among the arguments, the differentiated ones first.
        differentiated: how many of them are.
        in_dims: the batch dimension of each; `None` if it has none.
        varied: whether the examples differ; if not, the function takes only the first.
    """

    setting: EagerReference
    slots: Slots
    differentiated: int
    in_dims: InDims
    varied: bool

    @property
    def name(self) -> str:
        """The call as a user would write it."""
        return f"torch.func.vmap(in_dims={self.in_dims})"

    def function(self) -> Pure:
        """Return the subject as a function of every tensor argument."""
        return pure(self.setting.subject.called, self.setting.case, self.slots, self.setting.outputs)

    def arguments(self) -> list[Tensor]:
        """Return fresh stacked tensors; those that are differentiated require grad."""
        made = []
        for i, (slot, dim) in enumerate(zip(self.slots, self.in_dims, strict=True)):
            t = self.setting.case.values[slot[0]]
            rows = [_example(t, k if self.varied else 0, i < self.differentiated) for k in range(3)]
            stacked = t.clone() if dim is None else torch.stack(rows, dim)
            made.append(stacked.requires_grad_(i < self.differentiated))
        return made

    def cotangents(self) -> list[Tensor]:
        """Return a cotangent for each output of the whole batch."""
        return [torch.stack([w * g for w in _WEIGHTS]) for g in self.setting.cotangents]

    def looped(self) -> list[Tensor | None]:
        """Return values and gradients by a loop over the examples.

        Raises:
            Raised: if the function does not take an example.
        """
        function, stacked = self.function(), self.arguments()
        rows = []
        with guarded("a loop over the examples"):
            for k in range(3):
                reseed()
                example = [
                    x if dim is None else x.select(dim, k).contiguous()
                    for x, dim in zip(stacked, self.in_dims, strict=True)
                ]
                rows.append(function(*example))
            outs = [torch.stack(row) for row in zip(*rows, strict=True)]
        return self._with_gradients(outs, stacked)

    def mapped(self) -> list[Tensor | None]:
        """Return values and gradients by vmap.

        Raises:
            Raised: if vmap, or the backward through it, raises.
        """
        function, stacked = self.function(), self.arguments()
        reseed()
        with guarded(self.name):
            outs = torch.func.vmap(function, self.in_dims, randomness="same")(*stacked)
        return self._with_gradients(outs, stacked)

    def per_example_gradients(self) -> list[Tensor | None]:
        """Return the gradient of each example by vmap of vjp; every tensor must have a batch dimension.

        Raises:
            Raised: if vmap or vjp raises.
        """
        function, count = self.function(), self.differentiated

        def one(gs: tuple[Tensor, ...], *xs: Tensor) -> tuple[Tensor, ...]:
            pullback = torch.func.vjp(lambda *d: function(*d, *xs[count:]), *xs[:count])[1]
            gradients: tuple[Tensor, ...] = pullback(gs)
            return gradients

        xs = [x.detach() for x in self.arguments()]
        reseed()
        with guarded("torch.func.vmap of torch.func.vjp"):
            dims = (0, *self.in_dims)
            return list(torch.func.vmap(one, dims, randomness="same")(tuple(self.cotangents()), *xs))

    def labels(self) -> list[str]:
        """Return the labels of the results of `looped` and `mapped`."""
        outputs = [f"value of output {i}" for i in range(len(self.setting.outputs))]
        return [*outputs, *(f"gradient of {name}" for name in self.setting.names)]

    def code(self) -> list[str]:
        """Return lines of a reproduction that print the results of the loop and of vmap."""
        names = [variables(self.setting.case)[slot[0]] for slot in self.slots]
        stacks = [
            _stack_text(name, dim, i < self.differentiated, self.varied)
            for i, (name, dim) in enumerate(zip(names, self.in_dims, strict=True))
        ]
        return [
            *preamble(self.setting, self.slots),
            f"dims = {self.in_dims}",
            f"xs = [{', '.join(stacks)}]",
            "def example(k):",
            "    return [x if d is None else x.select(d, k) for x, d in zip(xs, dims)]",
            "loop = [torch.stack(outs) for outs in zip(*(call(*example(k)) for k in range(3)))]",
            "gs = [torch.stack([g, 0.5 * g, 2 * g]) for g in cotangents]",
            f"wrt = xs[:{self.differentiated}]",
            "out = torch.func.vmap(call, dims, randomness='same')(*xs)",
            "print('loop:', loop)",
            "print('vmap:', out)",
            "if all(o.shape == g.shape and o.requires_grad for o, g in zip(out, gs)):",
            "    print('gradient, loop:', torch.autograd.grad(loop, wrt, gs, allow_unused=True))",
            "    print('gradient, vmap:', torch.autograd.grad(out, wrt, gs, allow_unused=True))",
        ]

    def per_example_code(self) -> list[str]:
        """Return lines that print the per-example gradients, to follow `code`."""
        n = self.differentiated
        return [
            "def one(gs, *x):",
            f"    return torch.func.vjp(lambda *d: call(*d, *x[{n}:]), *x[:{n}])[1](gs)",
            "xs = [x.detach() for x in xs]",
            "print('vmap of vjp:', torch.func.vmap(one, (0, *dims), randomness='same')(tuple(gs), *xs))",
        ]

    def _with_gradients(self, outs: Sequence[Tensor], stacked: Sequence[Tensor]) -> list[Tensor | None]:
        wrt = list(stacked[: self.differentiated])
        pairs = [(o, g) for o, g in zip(outs, self.cotangents(), strict=True) if o.requires_grad]
        if not pairs or any(o.shape != g.shape for o, g in pairs):
            return [*(o.detach() for o in outs), *(None for _ in wrt)]
        with guarded("the backward through torch.func.vmap"):
            gradients = torch.autograd.grad([o for o, _ in pairs], wrt, [g for _, g in pairs], allow_unused=True)
        return [*(o.detach() for o in outs), *gradients]


def batches(setting: EagerReference) -> Iterator[tuple[Batch, list[Tensor | None]]]:
    """Yield batches, each with the loop's results: all inputs batched, along other dimensions, one tensor alone."""
    # A tensor guessed for an index may have to be a number: only a given one is batched.
    slots = tensor_slots(setting) if setting.case.label == "given" else setting.slots
    shapes = [setting.case.values[slot[0]].ndim for slot in slots]
    varied = True
    for in_dims in _patterns(shapes, len(setting.slots)):
        try:
            batch = Batch(setting, slots, len(setting.slots), in_dims, varied)
            expected = batch.looped()
        except Raised:
            if not varied:
                return
            varied = False
            batch = Batch(setting, slots, len(setting.slots), in_dims, varied)
            expected = batch.looped()
        yield batch, expected


def _patterns(dims: Sequence[int], differentiated: int) -> Iterator[InDims]:
    yield (0,) * len(dims)
    other_dims = tuple(0 if i % 2 else rank for i, rank in enumerate(dims))
    if any(other_dims):
        yield other_dims
    if len(dims) > 1:
        for alone in range(min(differentiated, _SHARED_AT_MOST)):
            yield tuple(0 if i == alone else None for i in range(len(dims)))


def _example(t: Tensor, k: int, differentiated: bool) -> Tensor:
    # Three different examples: with equal ones, a rule that takes the first for all, or sums over the batch and
    # divides, would agree with the loop. Integers and masks keep their set of values, so they stay valid indices.
    if not differentiated and t.layout is not torch.strided:
        return t
    return t * _FACTORS[k] if differentiated else t.flatten().roll(k).view(t.shape)


def _stack_text(name: str, dim: int | None, differentiated: bool, varied: bool) -> str:
    suffix = ".requires_grad_()" if differentiated else ""
    if dim is None:
        return f"{name}.detach().clone(){suffix}"
    rows = [name, name, name]
    if varied and differentiated:
        rows = [name, *(f"{factor} * {name}" for factor in _FACTORS[1:])]
    elif varied:
        rows = [name, *(f"{name}.flatten().roll({k}).view({name}.shape)" for k in (1, 2))]
    return f"torch.stack([{', '.join(rows)}], {dim}).detach(){suffix}"

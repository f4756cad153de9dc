"""Gradients around a kink: the range of values that a backward may return at it."""

from __future__ import annotations

import torch
from torch import Tensor

from pullback.check.derivative.sampler import Sampler, random_like, step_scale
from pullback.check.trial import Raised, forward, vjp

_NEARBY = 64
_NEARBY_DISTANCE = 1e-4


def nearby_gradients(sampler: Sampler, order: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the least and the greatest gradient at points around a kink.

    Where three elements tie, a sort may route the middle one's gradient to any of three places, though moving it up or
    down alone shows only two of them. Every limit of nearby gradients is a generalised derivative (F. H. Clarke,
    Optimization and Nonsmooth Analysis, 1983, section 2.5), so their hull is accepted. That these gradients themselves
    are right is tested on the ordinary cases.
    """
    found = []
    for trial in range(_NEARBY):
        moved = {
            p: t + _moved(t, generator, uneven=trial % 2 == 1)
            for p, t in zip(sampler.case.wrt, sampler.case.tensors, strict=True)
            if t.numel()
        }
        try:
            run = forward(sampler.subject, sampler.case.with_values(moved))
            gradient = vjp(run, sampler.cotangents)[order]
        except (Raised, ValueError):
            continue
        if gradient is not None:
            found.append(gradient.detach().flatten())
    x = sampler.case.tensors[order].detach().flatten()
    stacked = torch.stack(found) if found else torch.full_like(x, torch.nan).unsqueeze(0)
    low, high = _real(stacked).amin(0), _real(stacked).amax(0)
    for value in _real(x).unique():  # tied elements are interchangeable
        tied = _real(x) == value
        low[tied], high[tied] = low[tied].min(), high[tied].max()
    return low, high


def _moved(t: Tensor, generator: torch.Generator, uneven: bool) -> Tensor:
    """Return a small change of each element; an uneven one brings out single elements, and the ends of the hull."""
    change = _NEARBY_DISTANCE * step_scale(t) * random_like(t, generator)
    return change * 2.0 ** -torch.randint(0, 9, t.shape, generator=generator) if uneven else change


def _real(t: Tensor) -> Tensor:
    return t.real if t.is_complex() else t


def in_hull(value: Tensor, low: Tensor, high: Tensor, interval: tuple[float, float]) -> bool:
    """Whether a value lies among the gradients nearby.

    If these leave the interval of the one-sided derivatives, several inputs tie and 64 samples do not reach the ends of
    their hull: then twice its width is accepted.
    """
    value = _real(value)
    width = high - low
    slack = 1e-2 * (low.abs() + high.abs())
    if float(low) < interval[0] - float(slack) or float(high) > interval[1] + float(slack):
        slack = slack + width
    return bool((low - slack <= value) & (value <= high + slack))

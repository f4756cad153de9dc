"""The eighth part of the labels: packages that were chosen and read after the seventh part had been worked on.

They were chosen by field, before anything was known of them but that they hold custom functions and install as pure
Python; torchtomo was added because it looked right, and three calls were aimed at a suspected fault. Here is what
their proofs share beside `labels.fresh`, `labels.last`, `labels.unseen` and `labels.outside`: a group of one process,
and a proof in single precision.
"""

from __future__ import annotations

import atexit

import torch
import torch.distributed as distributed
from torch import Tensor

from labels.fresh import Make, called, differences, far, linear


def alone() -> None:
    """Make this process the only one of a group, once."""
    if not distributed.is_initialized():
        distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
        atexit.register(distributed.destroy_process_group)  # its threads would abort the process


def second_is_wrong_in_single(make: Make, eps: float = 1e-2, tolerance: float = 0.05) -> bool:
    """Whether a second derivative of the first argument differs from differences of first ones, and nothing is said."""
    target, (given, *rest) = make()
    function = target.apply if isinstance(target, type) else target

    def first(x: Tensor, create_graph: bool) -> tuple[Tensor, Tensor]:
        leaf = x.detach().clone().requires_grad_()
        # The square of the argument keeps a graph where the function itself loses it.
        value = linear(called(function, [leaf, *rest])) + leaf.square().sum()
        return leaf, linear(torch.autograd.grad(value, leaf, create_graph=create_graph), 3)

    leaf, number = first(given, True)
    (found,) = torch.autograd.grad(number, leaf)
    (added,) = torch.autograd.grad(linear([2 * leaf], 3), leaf)
    expected = differences(lambda x: first(x, False)[1], given, eps) - added
    return far(found - added, expected, tolerance) and bool(expected.abs().max() > 1e-2)

"""The backward of a call whose outputs are not all used: made for each set of used outputs, when it is first run."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from pullback import _torch
from pullback.bind.again import gradient_of
from pullback.graph.restricted import restricted
from pullback.kernels.backend import Backend, lower
from pullback.kernels.native import is_kernel
from pullback.plan import Kernels

Used = tuple[int, ...]
"""Positions of the outputs that have a cotangent."""


class Parts:
    """The kernels of a call, restricted to the outputs that have a cotangent.

    Attributes:
        make: makes those for some outputs, once, whichever thread asks. Dynamo, which traces a backward, runs it.
        made: those that have been made. Dynamo looks here.
    """

    def __init__(self, make: Callable[[Used], Kernels]) -> None:
        made: dict[Used, Kernels] = {}
        lock = threading.Lock()

        @_torch.constant_while_compiling
        def once(used: Used) -> None:
            with lock:
                if used not in made:
                    made[used] = make(used)

        self.make, self.made = once, made

    def of(self, used: Used) -> Kernels:
        """Return the kernels for some outputs."""
        self.make(used)  # first: Dynamo looks at the dictionary once
        return self.made[used]


def parts_of(kernels: Kernels, exact: bool, backend: Backend) -> Parts:
    """Return the parts of a call's kernels; `exact` as `lower` takes it."""

    def make(used: Used) -> Kernels:
        with _torch.without_saved_tensors_hooks(), torch.inference_mode(False):
            return _part(kernels, used, exact, backend)

    return Parts(make)


def _part(kernels: Kernels, used: Used, exact: bool, backend: Backend) -> Kernels:
    layouts = tuple(layout for layout in kernels.layouts if layout[0] in used)
    joint = restricted(kernels.joint, used)
    if joint is None:
        return _in_autograd(kernels, used, layouts)
    ((graph, backward),) = lower([joint.backward], [exact], backend)
    cotangents = graph.graph.find_nodes(op="placeholder")[len(joint.saved) :]
    ours = [all(is_kernel(user.target) for user in g.users) for g in cotangents]
    return replace(
        kernels,
        joint=joint,
        backward=backward,
        in_ops=joint.backward.forward,
        layouts=tuple((i, stride, own) for (i, stride, _), own in zip(layouts, ours, strict=True)),
        spending=None,
        again=None if all(joint.unused) else kernels.again,
        singles=None,
    )


def _in_autograd(kernels: Kernels, used: Used, layouts: tuple[Any, ...]) -> Kernels:
    """Return kernels whose backward is autograd's, from the inputs alone; which gradients it finds shows as it runs."""
    wanted = kernels.joint.wanted
    backward = functools.partial(gradient_of(kernels.native, wanted, used, kernels.n_inputs))
    return replace(
        kernels,
        joint=replace(kernels.joint, unused=(True,) * len(wanted), connected=used),
        backward=backward,
        in_ops=backward,
        operands=tuple(range(kernels.n_inputs)),
        layouts=tuple((i, stride, False) for i, stride, _ in layouts),
        spending=None,
        again=None,
        singles=None,
    )

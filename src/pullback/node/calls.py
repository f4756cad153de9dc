"""Calls that run in C++, from the argument checks to the autograd node: those with one kernel as the backward, and one
kernel or one PyTorch op as the forward.

The extension is compiled on the user's machine (`pullback.node.extension`). Until it is ready, where it cannot be
built, and for all other calls, the Function in `pullback.kernel_function` is equivalent.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pullback import settings
from pullback.call import TENSOR
from pullback.graph.captures import Captures, missing
from pullback.graph.identity import value_of
from pullback.kernel_function import Layout, gradients_of
from pullback.kernels.native import SingleKernel, SingleOp
from pullback.kernels.progress import noticed
from pullback.node.extension import Extension
from pullback.plan import KernelPlan, Plan

EXTENSION = Extension(Path(str(resources.files("pullback.node") / "cpp" / "module.cpp")), "_node")

_MOST_TENSORS = 16
"""Of one kernel: `kMostPointers` in plan.h."""


def is_served(plan: Plan) -> bool:
    """Whether calls of a plan can run in C++."""
    if (
        not isinstance(plan, KernelPlan)
        or plan.kernel_pair is None
        or plan.n_outputs != len(plan.kernel_pair[0].writes)
    ):
        return False
    if any(i is None for i in plan.joint.saved) or not (plan.result.is_lone or plan.result.flat):
        return False
    if plan.result.template.count(TENSOR) != len(plan.result.template):
        return False
    one, last = plan.kernel_pair[0], plan.kernel_pair[1].kernel
    alike = isinstance(one, SingleOp) or (one.kernel.shape, one.kernel.stride) == (last.shape, last.stride)
    return alike and all(len(s.reads) + len(s.writes) <= _MOST_TENSORS for s in plan.kernel_pair)


def ask() -> bool:
    """Compile the module in the background, if it does not exist; return whether to use it.

    The environment variable `PULLBACK_NODE` turns it off ("off"), or makes this call wait for it ("wait").
    """
    wanted = os.environ.get("PULLBACK_NODE", "on")
    if wanted == "wait":
        EXTENSION.wait()
    elif wanted != "off":
        EXTENSION.ask()
    return wanted != "off"


def wait() -> None:
    """Have the module compiled, and wait for it, unless it is not to be used."""
    if ask():
        with noticed("compiling what small calls run in"):
            EXTENSION.wait()


def table_of(name: str, captures: Captures, plans: Mapping[Hashable, Plan]) -> Any:
    """Return a table of those plans of an op that run in C++.

    Its method `call` takes the arguments of a call, in a tuple. It returns the op's result, or `NotImplemented` if the
    call must run in Python: its kind is not in the table, a value that the formulas read has changed, or a mode or hook
    observes the ops of this thread.
    """
    assert EXTENSION.module is not None
    torch.autograd.graph.Node.register(EXTENSION.module.Node)  # PyTorch does so for its own nodes alone
    watched = (*captures.watched, (vars(settings), "_backend", settings.chosen()))
    table = EXTENSION.module.Table(
        tuple((holder, key) if value is missing() else (holder, key, value) for holder, key, value in watched),
        tuple(captures.codes),
        captures.dtype,
        captures.methods(),
        captures.n_methods,
    )
    for key, plan in plans.items():
        if isinstance(plan, KernelPlan) and is_served(plan):
            _add(table, name, key, plan)
    return table


def _add(table: Any, name: str, key: Hashable, plan: KernelPlan) -> None:
    assert plan.kernel_pair is not None
    forward, backward = plan.kernel_pair
    arguments = _arguments(key, backward)
    if arguments is None:
        return
    outputs = [torch.float32] * plan.n_outputs
    for i, dtype in zip(forward.writes, forward.dtypes, strict=True):
        outputs[i] = dtype
    operands = [*plan.operands, *(plan.n_inputs + i for i in plan.joint.connected)]
    table.add(
        name,
        backward.kernel.shape,
        backward.kernel.stride,
        arguments,
        tuple((dtype, i not in plan.dead) for i, dtype in enumerate(outputs)),
        plan.result.is_lone,
        (
            forward.name if isinstance(forward, SingleOp) else forward.kernel.address,
            forward.reads,
            forward.writes,
            forward.dtypes,
            (_NONE,) * len(forward.writes),
        ),
        (
            backward.kernel.address,
            tuple(operands[i] for i in backward.reads),
            tuple(plan.joint.wanted[i] for i in backward.writes),
            backward.dtypes,
            _written_over(backward, [operands[i] - plan.n_inputs for i in backward.reads]),
        ),
        _gradients(plan, [_kind(backward, dtype) for dtype, _ in (a for a in arguments if len(a) == 2)]),
    )


_NONE = -1


def _written_over(backward: SingleKernel, cotangents: Sequence[int]) -> tuple[int, ...]:
    """Return for each gradient the cotangent in whose memory it may be, each once, or -1.

    Args:
        backward: the kernel.
        cotangents: for each tensor that it reads, which cotangent that is; negative for inputs.
    """
    taken: dict[int, int] = {}
    for output, i in sorted(backward.kernel.over):
        if cotangents[i] >= 0 and output not in taken and cotangents[i] not in taken.values():
            taken[output] = cotangents[i]
    return tuple(taken.get(k, _NONE) for k in range(len(backward.writes)))


def _kind(backward: SingleKernel, dtype: torch.dtype) -> Layout:
    """Return the `kernel_function.layout_of` of an input that owns its whole storage."""
    shape = backward.kernel.shape
    size = math.prod(shape) * dtype.itemsize
    return torch.Size(shape), dtype, torch.device("cpu"), tuple(backward.kernel.stride), size, False


def _gradients(
    plan: KernelPlan, layouts: list[Layout | None]
) -> Callable[[Sequence[Tensor], Sequence[Tensor]], list[Tensor | None]]:
    """Return the gradients in Python, as a function that Dynamo can trace for compiled autograd."""

    def gradients(inputs: Sequence[Tensor], cotangents: Sequence[Tensor]) -> list[Tensor | None]:
        return gradients_of(plan, inputs, layouts, cotangents)

    return gradients


def _arguments(key: Hashable, backward: SingleKernel) -> tuple[tuple[Any, ...], ...] | None:
    """Return for each argument of a key (`key_of`) its dtype and whether it requires grad, or its value.

    Return `None` for arguments in containers, and if a tensor differs from the others in shape, strides or device.
    """
    found: list[tuple[Any, ...]] = []
    parts = iter(key if isinstance(key, tuple) else ())
    for first in parts:
        if isinstance(first, torch.Size):
            stride, dtype, device, needs = (next(parts) for _ in range(4))
            if (tuple(first), tuple(stride)) != (backward.kernel.shape, backward.kernel.stride) or device.type != "cpu":
                return None
            found.append((dtype, bool(needs)))
        elif isinstance(first, type):
            found.append((value_of(first, next(parts)),))
        else:
            return None
    return tuple(found)

"""One plan for calls that differ in sizes alone: traced once with symbolic sizes, specialised to each call's.

Calls are of one kind if everything but sizes is equal and their tensors agree in dtype, device, order of dense
dimensions, expanded dimensions, positions of size 1, positions of equal sizes, and whether there are enough rows for
row kernels. Once a kind has been traced for several sizes, it is traced with symbols in place of those that differed
(`pullback.graph.symbolic`). If that proves the graph for all sizes, its kernels serve later sizes; if not, each size is
traced separately. Kernels of Inductor do so within its own guards (`kernels.inductor`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from pullback import _torch
from pullback.call import Call
from pullback.graph.identity import identity
from pullback.graph.partition import Trace, cotangent_stride
from pullback.graph.symbolic import Numbers, SymbolicTrace, as_inputs, at, kind_of
from pullback.kernels import eager
from pullback.kernels.backend import Backend
from pullback.kernels.inductor import ForSizes
from pullback.kernels.native import SingleKernel, is_kernel
from pullback.kernels.rows import FEWEST_COLUMNS, FEWEST_ROWS
from pullback.plan import KernelPlan, Outputs, Plan, RestrictedPlans, ValuePlan

_SEVERAL = 8
"""Sizes of one kind that are traced separately: a symbolic trace takes as long as a few of these traces, and less than
Inductor takes to compile a graph."""
_MOST_KINDS = 128

Make = Callable[[Trace], Plan]
"""Makes the plan of a call by a way to record its ops."""


class Sizes:
    """The plans of an op that hold for many sizes, in kernels of a backend."""

    def __init__(self, backend: Backend) -> None:
        self._by_inductor = backend == "inductor"
        self._kinds: dict[Hashable, _Kind] = {}

    def plan(self, call: Call, grad: bool, make: Make) -> Plan | None:
        """Return a plan from the kind's symbolic plan, if that exists or can be made."""
        key, sizes = kind_and_sizes(call, grad, by_rows=not self._by_inductor)
        if key is None or (key not in self._kinds and len(self._kinds) >= _MOST_KINDS):
            return None
        several = 1 if self._by_inductor else _SEVERAL
        return self._kinds.setdefault(key, _Kind(sizes, several)).plan(call, sizes, make)


class _Kind:
    """Calls that differ in sizes alone.

    Args:
        first: the sizes of the first of them.
        several: number of separate traces before a symbolic one.
    """

    def __init__(self, first: Sequence[int], several: int) -> None:
        self._first, self._several = first, several
        self._varying: set[int] = set()
        self._tried: set[int] = set()
        self._traced = 0
        self._general: _General | None = None

    def plan(self, call: Call, sizes: Sequence[int], make: Make) -> Plan | None:
        """Return the plan for some sizes, if a symbolic one exists or can be made."""
        plan = None if self._general is None else self._general.at(call.tensors)
        if plan is not None:
            return plan
        self._traced += 1
        self._varying.update(i for i, (n, m) in enumerate(zip(sizes, self._first, strict=True)) if n != m)
        if self._traced < self._several or self._varying == self._tried:
            return None
        self._traced, self._tried = 0, set(self._varying)
        symbolic = SymbolicTrace(len(call.tensors), {sizes[i] for i in self._varying})
        plan = make(symbolic.trace)
        if not isinstance(plan, KernelPlan | ValuePlan):
            return None
        self._general = _General(plan, symbolic)
        return self._general.at(call.tensors)


class _General:
    """A symbolic plan, and the trace that it came from."""

    def __init__(self, plan: KernelPlan | ValuePlan, symbolic: SymbolicTrace) -> None:
        self._plan, self._symbolic = plan, symbolic
        self._for_outputs = functools.cache(self._general)

    def at(self, tensors: Sequence[Tensor]) -> Plan | None:
        """Return the plan for the sizes of some tensors; `None` if it does not hold for them."""
        numbers = self._symbolic.numbers(tensors)
        if numbers is None:
            return None
        return self._kernels(numbers) if isinstance(self._plan, KernelPlan) else _value_at(self._plan, numbers)

    def _kernels(self, numbers: Numbers, outputs: Outputs | None = None) -> KernelPlan:
        """Return the kernels for some sizes, and for some used outputs where not all are."""
        plan, in_ops = self._for_outputs(outputs)
        restricted = None if plan.restricted is None else RestrictedPlans(functools.partial(self._kernels, numbers))
        return replace(_kernels_at(plan, numbers), in_ops=in_ops(numbers), restricted=restricted)

    def _general(self, outputs: Outputs | None) -> tuple[KernelPlan, Callable[[Numbers], Callable[..., Any]]]:
        """Return kernels for all sizes, and a function from a call's numbers to their backward in PyTorch's ops."""
        plan = self._plan
        assert isinstance(plan, KernelPlan)
        if outputs is not None:
            assert plan.restricted is not None
            plan = plan.restricted.to(outputs)
        if not isinstance(plan.backward, FunctionType | ForSizes):  # autograd's
            return plan, lambda numbers: plan.in_ops
        module, formulas = as_inputs(plan.joint.backward)
        return plan, lambda numbers: functools.partial(module.forward, *(numbers[f] for f in formulas))


def kind_and_sizes(call: Call, grad: bool, by_rows: bool) -> tuple[Hashable | None, tuple[int, ...]]:
    """Return a key that is equal for calls that differ in sizes alone, and the sizes; `None` if there is no such key.

    `by_rows` says whether the backend has row kernels, which need many rows.
    """
    if call.key is None:
        return None, ()
    sizes = tuple(n for x in call.tensors for n in x.shape)
    orders = [order_of(x.shape, x.stride()) for x in call.tensors]
    if None in orders or 0 in sizes:
        return None, sizes
    ordered = iter(orders)
    parts = [
        (next(ordered), x.dtype, x.device, grad and x.requires_grad, by_rows and has_many_rows(x.shape))
        if isinstance(x, Tensor)
        else identity(x)
        for x in call.leaves
    ]
    equal = tuple(1 if n == 1 else -sizes.index(n) for n in sizes)
    return (call.structure, tuple(parts), equal), sizes


def has_many_rows(shape: Sequence[int]) -> bool:
    """Whether kernels would go through rows of a tensor of this shape."""
    return bool(shape) and shape[-1] >= FEWEST_COLUMNS and math.prod(shape[:-1]) >= FEWEST_ROWS


def order_of(shape: Sequence[int], stride: Sequence[int]) -> tuple[int, ...] | None:
    """Return the dimensions of a dense tensor from the outermost to the innermost; `None` if it is not dense.

    Dimensions along which one number is repeated are left out.
    """
    own = [d for d, (s, n) in enumerate(zip(stride, shape, strict=True)) if s or n == 1]
    order = sorted(own, key=lambda d: (-stride[d], d))
    step = 1
    for d in reversed(order):
        if stride[d] != step:
            return None
        step *= shape[d]
    return tuple(order)


class _Fitting:
    """Lowered graphs with each extent replaced by its value in a call; compiled kernels are shared."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self.kernels: dict[int, Any] = {}

    def __call__(self, run: Any) -> Any:
        """Return a lowered graph for the sizes of the call."""
        if isinstance(run, ForSizes):
            return run.at(self._numbers)
        return eager.remade(run, self._value) if isinstance(run, FunctionType) else run

    def _value(self, value: Any) -> Any:
        if not is_kernel(value):
            return at(value, self._numbers)
        kernel = value.kernel
        if id(kernel) not in self.kernels:
            self.kernels[id(kernel)] = kernel.at(self._numbers)
        taken = getattr(value, "taken", None)
        made = self.kernels[id(kernel)]
        return made.call if taken is None else made.writing_over(taken)


def _value_at(plan: ValuePlan, numbers: Numbers) -> ValuePlan:
    return replace(plan, compute=_Fitting(numbers)(plan.compute))


def _kernels_at(plan: KernelPlan, numbers: Numbers) -> KernelPlan:
    fitted = _Fitting(numbers)
    strides = _cotangent_strides(plan, numbers)
    here = replace(
        plan,
        forward=fitted(plan.forward),
        backward=fitted(plan.backward),
        in_place=fitted(plan.in_place),
        layouts=tuple((i, strides[i], own) for i, _, own in plan.layouts),
    )
    if plan.kernel_pair is not None:
        one, other = plan.kernel_pair
        if isinstance(one, SingleKernel):
            one = replace(one, kernel=fitted.kernels[id(one.kernel)])
        here = replace(here, kernel_pair=(one, replace(other, kernel=fitted.kernels[id(other.kernel)])))
    return here


def _cotangent_strides(plan: KernelPlan, numbers: Numbers) -> list[tuple[int, ...]]:
    results: Any = plan.joint.forward.graph.output_node().args[0]
    kinds = [at(kind_of(_torch.traced_value(node)), numbers) for node in results[: plan.n_outputs]]
    return [cotangent_stride(torch.empty_strided(*kind[:2], device=_torch.META)) for kind in kinds]

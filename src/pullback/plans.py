"""Cache of an op's plans, one per kind of call; dropped when a value that the formulas read has changed."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from pullback import derived as eager
from pullback import settings
from pullback.bind.again import Run, gradient_of, picked
from pullback.bind.used import Used, parts_of
from pullback.call import Call, key_of
from pullback.chunked.plan import chunk_plan
from pullback.graph.joint import Joint, Trace
from pullback.graph.reads import Reads, reads_of
from pullback.graph.record import trace_ops
from pullback.kernels.backend import Backend, is_compiled, made_for
from pullback.node import calls as node
from pullback.plan import Functions, Kernels, Plan, make_plan
from pullback.sizes import Sizes

MAX_PLANS = 512
"""Size of the cache. Beyond it the oldest plan is evicted; one still in use is then made again, as often as that."""

MAX_TRACES = 128
"""Traced plans after which an op counts as one whose calls are all of different kinds."""

_TOO_MANY = (
    "{} has been called in many ways, each of which had to be traced (other numbers, or sizes that its formula reads): "
    "further ones run as the formula stands, without kernels. Pass numbers that change as tensors."
)


class Plans:
    """Decides how the calls of an op run.

    Args:
        name: of the op.
        functions: returns the functions of a call.
        sources: the user's functions, whose reads are guarded.
        backend: of the kernels; `None` for the one set for all ops.
        again: whether recorded backwards run by plans too.
        chunk: rows per chunk of a loss that runs by chunks; "auto" chooses by size.

    Attributes:
        plans: by the kind of call.
        table: of the plans that run in C++ (`node.table_of`), once it is made.
        example: returns the arguments of a call like the first.
    """

    def __init__(
        self,
        name: str,
        functions: Callable[[Call], Functions],
        sources: tuple[Callable[..., Any] | None, ...],
        backend: Backend | None = None,
        again: bool = True,
        chunk: int | str | None = None,
    ) -> None:
        self._name, self._functions, self._sources, self._backend = name, functions, sources, backend
        self._again, self._chunk = again, chunk
        self._made_for: Hashable = None
        self._reads: Reads | None = None
        self._lock = threading.Lock()
        self._waiting = self._hits = 0
        self._sizes = Sizes(self.backend)
        self._traced = 0
        self.plans: dict[Any, Plan] = {}
        self.table: Any = None
        self.example: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]] | None = None

    @property
    def backend(self) -> Backend:
        """Whose kernels run the op."""
        return self._backend or settings.backend()

    def known(self, key: Hashable) -> Plan | None:
        """Return the plan of a kind of call, if there is one and it still holds."""
        reads, plan = self._reads, self.plans.get(key)  # in this order: another thread renews the plans first
        if plan is None or reads is None or self._made_for != made_for(self._backend or settings.backend()):
            return None
        if not reads.unchanged():
            return None
        if self._waiting:
            self._hits += 1
            if self._hits >= self._waiting and node.EXTENSION.is_there():
                self._tabulate()
        return plan

    def _tabulate(self) -> None:
        with self._lock:
            if self._reads is not None and self._waiting:
                table = node.table_of(self._name, self._reads, self.plans)
                if self._made_for == made_for(self.backend):  # the table depends on the settings at that time
                    self.table, self._waiting = table, 0

    def forget(self) -> None:
        """Drop all plans: the op's functions have changed."""
        with self._lock:
            self._reads = self.table = None

    def of(self, call: Call, grad: bool) -> Plan:
        """Return the plan of a call; concurrent first calls trace only once.

        Raises:
            FormulaError: if the formula has no derivative.
        """
        with self._lock:
            backend = self.backend
            if self._reads is None or made_for(backend) != self._made_for or not self._reads.unchanged():
                self.plans.clear()
                self._sizes, self._traced = Sizes(backend), 0
                self.table = None
                self._made_for, self._reads = made_for(backend), reads_of(*self._sources)
            key = call.key if call.key is not None else _kind_of(call)
            plan = self.plans.get(key)
            if plan is None:
                plan = self._new(call, grad, self._reads, backend)
                if plan is None:
                    return Plan(None, f"it has been called in more than {MAX_TRACES} ways")
                if len(self.plans) >= MAX_PLANS:
                    self.plans.pop(next(iter(self.plans)))
                self.plans[key] = plan
                if call.key is not None and node.is_served(plan.kernels) and node.ask():
                    self._waiting, self._hits = 1 + len(self.plans) // 8, 0  # a table is made of all of them
                if self.example is None and call.tensors:  # a call without any is a mistake, most likely
                    self.example = call.example()
            return plan

    def _new(self, call: Call, grad: bool, reads: Reads, backend: Backend) -> Plan | None:
        """Make a plan; none if too many have been traced."""
        functions = self._functions(call)
        if self._chunk is not None:  # by the formula, the call might not fit into memory
            return chunk_plan(call, self._name, functions, reads, grad, backend, self._chunk)

        def make(trace: Trace) -> Plan:
            plan = make_plan(call, self._name, functions, reads, grad, backend, trace)
            kernels = plan.kernels
            if kernels is None:
                return plan
            if self._again and is_compiled(backend) and _has_next_order(kernels.joint):
                kernels = replace(kernels, again=_again(self._name, kernels, functions, backend))
            if len(kernels.joint.connected) > 1:
                kernels = replace(kernels, parts=parts_of(kernels, functions.exact[1], backend))
            return replace(plan, kernels=kernels)

        plan = self._sizes.plan(call, grad, make)
        if plan is None and self._traced < MAX_TRACES:
            self._traced += 1
            if self._traced == MAX_TRACES:
                warnings.warn(_TOO_MANY.format(self._name), stacklevel=2)
            plan = make(trace_ops)
        return plan


_MOST_NODES = 500
"""Of a value and its gradient, for a plan of the next order: each order has several times the nodes of the one before.

Where a cumulative product is differentiated three times, the trace alone would take minutes.
"""


def _has_next_order(joint: Joint) -> bool:
    """Whether the derivative of a gradient gets a plan, rather than being left to autograd."""
    nodes = len(joint.forward.graph.nodes) + len(joint.backward.graph.nodes)
    return nodes <= _MOST_NODES and not all(joint.unused)


def _again(name: str, kernels: Kernels, functions: Functions, backend: Backend) -> Callable[[Used], Run]:
    """Return the gradient of an op for recorded backwards, with separate plans for each set of used outputs.

    The formula's reads are not guarded a second time: `kernels.native` raises if they have changed.
    """
    return functools.cache(lambda used: _run_of(name, kernels, functions, backend, used))


def _run_of(name: str, kernels: Kernels, functions: Functions, backend: Backend, used: Used) -> Run:
    gradient = gradient_of(kernels.native, kernels.joint.wanted, used, kernels.n_inputs)
    value = derivative = gradient
    if functions.gradients is not None:
        value, derivative = (picked(given, kernels.joint.wanted) for given in functions.gradients)
    exact = (functions.exact[1], functions.exact[1])
    made = Functions(value, derivative, gradient, exact)
    # given gradients come in two orders; `native` covers the next
    plans = Plans(f"the gradient of {name}", lambda _: made, (), backend, again=functions.gradients is None)

    def run(tensors: Sequence[Tensor]) -> Sequence[Tensor | None] | None:
        table = plans.table
        result = NotImplemented if table is None else table.call(tuple(tensors))
        if result is not NotImplemented:
            return result  # type: ignore[no-any-return]
        plan = plans.known(key_of(tensors, True)) or plans.of(Call(tuple(tensors), {}, True), True)
        if plan.kernels is None:
            return None
        gradients: Sequence[Tensor | None] = eager.run(plan.kernels, tensors)
        return gradients

    return run


def _kind_of(call: Call) -> Hashable:
    """Return a coarse key for calls whose arguments cannot all be compared: each such kind is examined only once."""
    return tuple((type(x), x.dtype, x.dim()) if isinstance(x, Tensor) else type(x) for x in call.leaves)

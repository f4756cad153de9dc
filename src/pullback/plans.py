"""Cache of an op's plans, one per kind of call; dropped when a value that the formulas read has changed."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from pullback import kernel_function, settings
from pullback._torch import trace_ops
from pullback.call import Call, key_of
from pullback.graph.captures import Captures, captures_of
from pullback.graph.partition import Joint, Trace
from pullback.kernels.backend import Backend, is_compiled, made_for
from pullback.nesting import replaced_in_reverse
from pullback.plan import (
    Functions,
    Gradients,
    InlinePlan,
    KernelPlan,
    Outputs,
    Plan,
    make_plan,
    restrictions_of,
    vjp_by_autograd,
)
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
        name: name of the op.
        functions: returns the functions of a call.
        sources: the user's functions, whose captures are guarded.
        backend: backend of the kernels; `None` for the one set for all ops.
        recorded: whether backwards that autograd records run by plans too.
        chunk: rows per chunk of a loss that runs by chunks; "auto" chooses by size.

    Attributes:
        plans: by the key of a call (`key_of`).
        table: the plans that run in C++ (`node.calls.table_of`), once it is made.
        example: returns the arguments of a call like the first.
    """

    def __init__(
        self,
        name: str,
        functions: Callable[[Call], Functions],
        sources: tuple[Callable[..., Any] | None, ...],
        backend: Backend | None = None,
        recorded: bool = True,
        chunk: int | str | None = None,
    ) -> None:
        self._name, self._functions, self._sources, self._backend = name, functions, sources, backend
        self._recorded, self._chunk = recorded, chunk
        self._made_for: Hashable = None
        self._captures: Captures | None = None
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
        captures, plan = self._captures, self.plans.get(key)  # in this order: another thread renews the plans first
        if plan is None or captures is None or self._made_for != made_for(self._backend or settings.backend()):
            return None
        if not captures.unchanged():
            return None
        if self._waiting:
            self._hits += 1
            if self._hits >= self._waiting:
                self._tabulate()
        return plan

    def _tabulate(self) -> None:
        """Make the table of the plans that run in C++, if the extension is compiled."""
        from pullback.node import calls as node

        if not node.EXTENSION.is_there():
            return
        with self._lock:
            if self._captures is not None and self._waiting:
                table = node.table_of(self._name, self._captures, self.plans)
                if self._made_for == made_for(self.backend):  # the table depends on the settings at that time
                    self.table, self._waiting = table, 0

    def wait_for_node(self, plan: Plan) -> None:
        """Wait until the C++ extension is compiled, if a plan can run in it."""
        from pullback.node import calls as node

        if node.is_served(plan):
            node.wait()

    def forget(self) -> None:
        """Drop all plans: the op's functions have changed."""
        with self._lock:
            self._captures = self.table = None

    def of(self, call: Call, grad: bool) -> Plan:
        """Return the plan of a call; concurrent first calls trace only once.

        Raises:
            FormulaError: if the formula has no derivative.
        """
        with self._lock:
            backend = self.backend
            if self._captures is None or made_for(backend) != self._made_for or not self._captures.unchanged():
                self.plans.clear()
                self._sizes, self._traced = Sizes(backend), 0
                self.table = None
                self._made_for, self._captures = made_for(backend), captures_of(*self._sources)
            key = call.key if call.key is not None else _kind_of(call)
            plan = self.plans.get(key)
            if plan is None:
                plan = self._new(call, grad, self._captures, backend)
                if plan is None:
                    return InlinePlan(f"it has been called in more than {MAX_TRACES} ways")
                if len(self.plans) >= MAX_PLANS:
                    self.plans.pop(next(iter(self.plans)))
                self.plans[key] = plan
                if call.key is not None and isinstance(plan, KernelPlan) and plan.kernel_pair and _asks_for_node(plan):
                    self._waiting, self._hits = 1 + len(self.plans) // 8, 0  # a table is made of all of them
                if self.example is None and call.tensors:  # a call without any is a mistake, most likely
                    self.example = call.example()
            return plan

    def _new(self, call: Call, grad: bool, captures: Captures, backend: Backend) -> Plan | None:
        """Make a plan; none if too many have been traced."""
        functions = self._functions(call)
        if self._chunk is not None:  # by the formula, the call might not fit into memory
            from pullback.chunked.plan import chunk_plan

            return chunk_plan(call, self._name, functions, captures, grad, backend, self._chunk)

        def make(trace: Trace) -> Plan:
            plan = make_plan(call, self._name, functions, captures, grad, backend, trace)
            if not isinstance(plan, KernelPlan):
                return plan
            if self._recorded and is_compiled(backend) and _has_next_order(plan.joint):
                plan = replace(plan, next_order=_next_order(self._name, plan, functions, backend))
            if len(plan.joint.connected) > 1:
                plan = replace(plan, restricted=restrictions_of(plan, functions.exact[1], backend))
            return plan

        plan = self._sizes.plan(call, grad, make)
        if plan is None and self._traced < MAX_TRACES:
            self._traced += 1
            if self._traced == MAX_TRACES:
                warnings.warn(_TOO_MANY.format(self._name), stacklevel=2)
            plan = make(trace_ops)
        return plan


def _asks_for_node(plan: KernelPlan) -> bool:
    """Have the C++ extension compiled in the background, if a plan can run in it; return whether it will."""
    from pullback.node import calls as node

    return node.is_served(plan) and node.ask()


_MOST_NODES = 500
"""Of a value and its gradient, for a plan of the next order: each order has several times the nodes of the one before.

Where a cumulative product is differentiated three times, the trace alone would take minutes.
"""


def _has_next_order(joint: Joint) -> bool:
    """Whether the derivative of a gradient gets a plan, rather than being left to autograd."""
    nodes = len(joint.forward.graph.nodes) + len(joint.backward.graph.nodes)
    return nodes <= _MOST_NODES and not all(joint.unused)


def _next_order(name: str, plan: KernelPlan, functions: Functions, backend: Backend) -> Callable[[Outputs], Gradients]:
    """Return the gradient of an op for recorded backwards, with separate plans for each set of used outputs.

    The formula's captures are not guarded a second time: `plan.composite` raises if they have changed.
    """
    return functools.cache(lambda outputs: _gradients_by_plans(name, plan, functions, backend, outputs))


def _gradients_by_plans(
    name: str, plan: KernelPlan, functions: Functions, backend: Backend, outputs: Outputs
) -> Gradients:
    gradient = vjp_by_autograd(plan.composite, plan.joint.wanted, outputs, plan.n_inputs)
    value = derivative = gradient
    if functions.gradients is not None:
        value, derivative = (_selected(given, plan.joint.wanted) for given in functions.gradients)
    exact = (functions.exact[1], functions.exact[1])
    derivative, composite = replaced_in_reverse(derivative, plan.rows, 2), replaced_in_reverse(gradient, plan.rows, 3)
    made = Functions(value, derivative, composite, exact)
    # given gradients come in two orders; `composite` covers the next
    plans = Plans(f"the gradient of {name}", lambda _: made, (), backend, recorded=functions.gradients is None)

    def run(tensors: Sequence[Tensor]) -> Sequence[Tensor | None] | None:
        table = plans.table
        result = NotImplemented if table is None else table.call(tuple(tensors))
        if result is not NotImplemented:
            return result  # type: ignore[no-any-return]
        key = key_of(tensors, True)
        chosen = plans.known(key) or plans.of(Call(tuple(tensors), {}, True, key), True)
        if not isinstance(chosen, KernelPlan):
            return None
        gradients: Sequence[Tensor | None] = kernel_function.run(chosen, tensors)
        return gradients

    return run


def _selected(gradients: Callable[..., list[Tensor]], wanted: Sequence[int]) -> Callable[..., tuple[Tensor, ...]]:
    """Return a function that gives some of the gradients that another gives."""

    def selected(*given: Tensor) -> tuple[Tensor, ...]:
        found = gradients(*given)
        return tuple([found[i] for i in wanted])

    return selected


def _kind_of(call: Call) -> Hashable:
    """Return a coarse key for calls whose arguments cannot all be compared: each such kind is examined only once."""
    return tuple((type(x), x.dtype, x.dim()) if isinstance(x, Tensor) else type(x) for x in call.leaves)

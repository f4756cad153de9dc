"""Dispatch of a call: which world it is in, that is, who sees its ops besides autograd, and which handler then runs it.

A handler is one way of giving a derivative, with a method for each way of running:

| world | `Derived` | `Relaxed` | `Ruled` |
|---|---|---|---|
| plain eager mode | kernels in one autograd node | the same | the rule in one autograd node |
| Dynamo | PyTorch's ops | PyTorch's ops | the rule, as a Function that Dynamo traces |
| `torch.fx.symbolic_trace` | one node of the graph | the same | the same |
| any other | PyTorch's ops | PyTorch's ops | the rule, in a Function that transforms accept |
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Any, Protocol

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.errors import DerivativeError
from pullback.graph.identity import ATOMS

PLAIN_TENSORS = frozenset({Tensor, torch.nn.Parameter})
"""Classes whose ops nobody overrides."""
PLAIN = ATOMS | PLAIN_TENSORS


class World(Enum):
    """Who sees the ops of a call, besides autograd; the first that applies.

    A member has the name of the handler's method that runs such a call, and says who sees the ops.
    """

    DYNAMO = "compiled", "torch.compile, or torch.export by Dynamo"
    EXPORT = "transformable", "torch.export without Dynamo"
    SCRIPT = "transformable", "torch.jit.trace"
    TRANSFORM = "transformable", "a transform of torch.func"
    DUAL = "transformable", "a level of torch.autograd.forward_ad"
    MODE = "transformable", "a mode (make_fx, fake tensors, FLOP counters), or autocast"
    SUBCLASS = "subclassed", "a subclass of torch.Tensor"
    SYMBOLIC = "recorded", "torch.fx.symbolic_trace"
    EAGER = "eager", "autograd alone"

    def __init__(self, route: str, description: str) -> None:
        self.route, self.description = route, description

    @property
    def is_compiling(self) -> bool:
        """Whether a compiler traces the call: Dynamo, or an export without it."""
        return self is World.DYNAMO or self is World.EXPORT


class Handler(Protocol):
    """A way of giving a derivative.

    Attributes:
        table: the calls that run in C++; `None` before there are any.
    """

    @property
    def table(self) -> Any:
        """See the class."""

    def eager(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call that autograd alone sees."""

    def transformable(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call that transforms, tracers or modes see: each of them differentiates it as the op says."""

    def subclassed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call on tensors of a class of their own, which sees the ops."""

    def compiled(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call that Dynamo traces."""

    def recorded(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call that `torch.fx.symbolic_trace` records op by op: of a method of the module that it traces."""


def world(args: Iterable[Any] = ()) -> World:
    """Return the world of a call with these arguments; without any, that of this thread."""
    if torch.compiler.is_compiling():
        return World.DYNAMO if in_dynamo() else World.EXPORT
    if not _torch.is_plain_eager():
        return _observer()
    return World.EAGER if PLAIN.issuperset(map(type, args)) else _world_of_arguments(args)


def _observer() -> World:
    if _torch.in_jit_tracing():
        return World.SCRIPT
    if _torch.in_functorch():
        return World.TRANSFORM
    return World.DUAL if _torch.in_dual_level() else World.MODE


def _world_of_arguments(args: Iterable[Any]) -> World:
    leaves = _torch.tree_leaves(tuple(args))[0]
    if any(isinstance(leaf, fx.Proxy) for leaf in leaves):
        return World.SYMBOLIC
    strange = any(isinstance(leaf, Tensor) and type(leaf) not in PLAIN_TENSORS for leaf in leaves)
    return World.SUBCLASS if strange else World.EAGER


def in_dynamo() -> bool:
    """Whether Dynamo traces the caller: it cannot ask a tensor for all that eager mode can."""
    return torch.compiler.is_dynamo_compiling()


def call(op: Any, handler: Handler, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a call of an op by its handler."""
    if torch.compiler.is_compiling():  # Dynamo traces this far
        return handler.compiled(args, kwargs) if in_dynamo() else handler.transformable(args, kwargs)
    table = handler.table
    if table is not None and not kwargs:
        result = table.call(args)  # it looks at all that `world` looks at, in C++
        if result is not NotImplemented:
            return result
    return _call(op, handler, args, kwargs)


@_torch.skip_in_dynamo  # it calls this where it has met an op that it does not trace
def _call(op: Any, handler: Handler, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    where = world((*args, *kwargs.values()) if kwargs else args)
    if where is World.SYMBOLIC:
        proxy: Any = next(leaf for leaf in _torch.tree_leaves((args, kwargs))[0] if isinstance(leaf, fx.Proxy))
        if all(a is not proxy.tracer.root for a in args):  # a graph cannot name its own root
            return proxy.tracer.create_proxy("call_function", op, args, kwargs)
    return getattr(handler, where.route)(args, kwargs)


def lost_in_symbolic_trace(name: str) -> DerivativeError:
    """Return the error of an op whose derivative is not that of its ops, where `torch.fx` records these."""
    return DerivativeError(
        f"the derivative given for {name} would be lost: torch.fx.symbolic_trace cannot record a method "
        "of the module that it traces. To keep it, decorate a function of tensors, or trace a module around this."
    )

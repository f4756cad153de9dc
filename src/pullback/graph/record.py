"""A call as a graph of ATen ops, node by node as `make_fx` records it; recorded here if blank tensors suffice.

Otherwise, and if the call raises, PyTorch's own tracer traces it, which imports Dynamo and sympy; its graph or error is
the result.
"""

from __future__ import annotations

import inspect
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.errors import is_from_ours, tell
from pullback.graph.blank import Blank, Blanks, Left, blank_of

_ATOMS = (type(None), int, float, bool, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
_LIFT = torch.ops.aten.lift_fresh.default
"""The op that `torch.tensor` calls on its result."""
_thread = threading.local()


def trace_ops(function: Callable[..., Any], *tensors: Tensor) -> fx.GraphModule:
    """Record the ATen ops of a call, without decompositions, on tensors without values."""
    with _torch.tracing():
        with _torch.dispatch_kept():
            recorded = _recorded(function, tensors)
        if isinstance(recorded, fx.GraphModule):
            return recorded
        traced = _torch.trace_ops(function, *tensors)
        if recorded is not None:  # PyTorch's tracer raises every error that is not ours
            tell(recorded)
        return traced


def names_traced() -> list[str]:
    """Return the names of the nodes that `trace_ops`, which is running, has recorded so far."""
    recorder: _Recorder | None = getattr(_thread, "recorder", None)
    return _torch.names_traced() if recorder is None else [node.name for node in recorder.graph.nodes]


def _recorded(function: Callable[..., Any], tensors: Sequence[Tensor]) -> fx.GraphModule | Exception | None:
    """Return the graph of a call; `None` where blank tensors do not suffice, or the exception of our own code."""
    names = _parameters(function, len(tensors))
    if names is None or _torch.may_be_traced():
        return None
    blanks, recorder = Blanks(), _Recorder()
    before = getattr(_thread, "recorder", None)
    _thread.recorder = recorder
    try:
        given = [blanks.from_tensor(t) for t in tensors]
        for name, blank in zip(names, given, strict=True):
            recorder.known(blank, recorder.graph.placeholder(f"{name}_1"))
        with blanks, recorder, _without_autocast_cache():
            results = function(*given)
        recorder.graph.output(recorder.argument(results))
    except Left:
        return blanks.fault()
    except Exception as error:
        return error if is_from_ours(error) and not blanks.left and not recorder.left else None
    finally:
        _thread.recorder = before
    return None if blanks.left or recorder.left else fx.GraphModule(recorder.root, recorder.graph)


def _parameters(function: Callable[..., Any], count: int) -> list[str] | None:
    """Return names for the tensors of a call, as torch.fx finds them; none if it has to look closer."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or inspect.ismethod(function):
        return None
    if code.co_flags & inspect.CO_VARARGS:
        return [f"arg{i}" for i in range(count)]
    plain = code.co_argcount == count and not code.co_kwonlyargcount and not code.co_flags & inspect.CO_VARKEYWORDS
    return list(code.co_varnames[:count]) if plain else None


@contextmanager
def _without_autocast_cache() -> Iterator[None]:
    """Disable autocast's cache: its casts were made outside the trace."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


class _Recorder(_torch.DispatchMode):
    """Mode that records the ops that run, and dispatches them to the mode below.

    Attributes:
        graph: of the ops so far.
        root: holds the constants.
        left: whether the call used something that cannot be recorded.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = fx.Graph()
        self.root = torch.nn.Module()
        self.left = False

    def known(self, tensor: Tensor, node: fx.Node) -> None:
        """Remember the node of a tensor."""
        assert isinstance(tensor, Blank)
        node.meta["val"] = blank_of(tensor.elem)  # without its history
        tensor.node = node  # kept here, since a tensor that something refers to is copied where PyTorch hands it on

    def argument(self, value: Any) -> Any:
        """Return a value with nodes in place of tensors."""
        if type(value) is Blank and value.node is not None and value.node.graph is self.graph:
            return value.node
        if type(value) in _ATOMS:
            return value
        if type(value) in (tuple, torch.Size):
            return tuple(map(self.argument, value))
        if type(value) is list:
            return list(map(self.argument, value))
        if type(value) is dict:
            return {name: self.argument(v) for name, v in value.items()}
        self.left = True
        raise Left(f"a {type(value).__name__}")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Add a node for an op, and one for each of its results if there are several."""
        out = func(*args, **(kwargs or {}))
        if _torch.asks_device(func):
            return out
        given = self.argument(tuple(args)) if func is not _LIFT else (self._constant(args[0]),)
        target = func if func is not _LIFT else torch.ops.aten.lift_fresh_copy.default
        # the name that `make_fx` gives: graphs are compared by their code
        node = self.graph.create_node(
            "call_function", target, given, self.argument(kwargs or {}), target.overloadpacket.__name__
        )
        if isinstance(out, Tensor):
            self.known(out, node)
            return out
        node.meta["val"] = type(out)(blank_of(one.elem) for one in out)
        for i, one in enumerate(out):
            self.known(one, self.graph.call_function(operator.getitem, (node, i)))
        return out

    def _constant(self, tensor: Tensor) -> fx.Node:
        """Return the node of a constant made by `torch.tensor`; the op that reads it copies it, in case of a write."""
        name = f"_tensor_constant{len(list(self.root.buffers()))}"
        self.root.register_buffer(name, tensor)
        node = self.graph.get_attr(name)
        like: Any = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)  # which is blank, too
        node.meta["val"] = blank_of(like.elem)
        return node

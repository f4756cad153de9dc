"""Graphs with a proof that they hold for all sizes of their inputs.

A formula is traced on tensors with symbolic sizes. Two facts together prove that its graph holds for all sizes:
PyTorch's code branched on no symbol, or there would be a guard; and the formula's own code never saw a size. (Guards
alone do not suffice: `isinstance(n, int)` and `str(n)` read a symbol without one.)

The graph has the sizes of the traced call, as `Extent`s, so every pass over graphs works on it. A pass that compares
sizes decides the same for other calls, since no two different sizes in the graph are equal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from pullback import _torch
from pullback.graph.extents import Extent, Numbers, at, kind_of, with_extents

aten = torch.ops.aten

_ASKED = """
    dim element_size is_complex is_cpu is_cuda is_floating_point is_nested is_quantized is_signed is_sparse itemsize
    ndim ndimension requires_grad
"""
_OF_KIND = frozenset(_ASKED.split())
"""Queries of a tensor whose answer does not depend on its size."""
_ANSWERS = (Tensor, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))
"""Types of answers that are not sizes."""


class NotGeneralError(Exception):
    """Why a graph does not hold for other sizes, or is not known to."""


class Symbolic:
    """Traces once, as `trace_ops` does; the graph holds for other sizes in place of some.

    Args:
        n_inputs: how many of the tensors are inputs; those after them have sizes that these determine.
        varying: the sizes, each the same wherever it stands.
    """

    def __init__(self, n_inputs: int, varying: Collection[int]) -> None:
        self._n, self._varying = n_inputs, varying
        self._symbols: dict[Any, tuple[int, int]] = {}
        self._inputs: list[Any] = []
        self._formulas: set[Any] = set()
        self._sizes: dict[int, Any] = {}

    def trace(self, function: Callable[..., Any], *tensors: Tensor) -> fx.GraphModule:
        """Record the ATen ops of a call.

        Raises:
            NotGeneralError: if the graph might not hold for other sizes.
            Exception: any that the function raises on symbols.
        """
        asked = _Asked()

        def watched(*given: Tensor) -> Any:
            with asked:
                return function(*given)

        with _torch.quiet_fake_tensors():  # an op that takes no symbols is traced size by size
            traced, is_general = _torch.trace_for_sizes(watched, tensors, self._varying)
        if asked.what:
            raise NotGeneralError(f"it asks for `{asked.what}` of a tensor")
        if not is_general:
            raise NotGeneralError("what it does depends on sizes")
        placeholders = traced.graph.find_nodes(op="placeholder")[: self._n]
        for i, node in enumerate(placeholders):
            for d, size in enumerate(_torch.size_symbols(_torch.traced_value(node))):
                if type(size) is not int:
                    self._symbols.setdefault(size, (i, d))
        module = _Numbered(traced, self._extent).module
        self._inputs = [
            kind_of(_torch.traced_value(node))[:2] for node in module.graph.find_nodes(op="placeholder")[: self._n]
        ]
        self._check(module)
        return module

    def numbers(self, tensors: Sequence[Tensor]) -> Numbers | None:
        """Return the values of symbols and extents for other inputs; `None` if the graph does not hold for these."""
        known = {symbol: tensors[i].size(d) for symbol, (i, d) in self._symbols.items()}
        numbers = {formula: known.get(formula) or _torch.evaluated(formula, known) for formula in self._formulas}
        if any(numbers[size] < 2 for size in self._sizes.values() if size is not None):
            return None  # sizes 0 and 1 are specialised
        if any(at(kind, numbers) != (x.shape, x.stride()) for kind, x in zip(self._inputs, tensors, strict=True)):
            return None
        return known | numbers

    def _extent(self, number: Any) -> int:
        value, formula = _torch.example_of(number)
        if formula is None:
            return value
        if not formula.free_symbols <= self._symbols.keys():
            raise NotGeneralError("a cotangent has a size that no input has")
        self._formulas.add(formula)
        return Extent(value, formula)

    def _check(self, module: fx.GraphModule) -> None:
        """Refuse extents where nothing replaces them, and sizes that are equal by chance."""
        for node in module.graph.nodes:
            alone = any(type(a) is Extent for a in (*node.args, *node.kwargs.values()))
            if alone and node.target is not aten.scalar_tensor.default:
                raise NotGeneralError(f"{node.target} takes a size as a number")
            value = node.meta.get("val")
            for tensor in value if isinstance(value, tuple | list) else [value]:
                if isinstance(tensor, Tensor):
                    self._check_sizes(tensor)

    def _check_sizes(self, tensor: Tensor) -> None:
        shape, stride, _ = kind_of(tensor)
        for size in shape:
            formula = getattr(size, "formula", None)
            if size > 1 and self._sizes.setdefault(int(size), formula) != formula:
                raise NotGeneralError("two of its sizes are equal by chance")
            if size < 2 and formula is not None:
                raise NotGeneralError("one of its sizes is 0 or 1 by chance")
        step, product = 1, 1
        for own, size in sorted((s, n) for s, n in zip(stride, shape, strict=True) if n > 1):
            if own != step:
                return  # not dense: the kernels are asked at each call
            if getattr(own, "formula", int(own)) != product:
                raise NotGeneralError("it is dense by chance")
            step, product = step * size, product * getattr(size, "formula", int(size))


class _Numbered:
    """A symbolic graph, copied with extents in place of symbols, and with fake tensors of the traced call's sizes."""

    def __init__(self, traced: fx.GraphModule, extent: Callable[[Any], int]) -> None:
        self._traced, self._extent = traced, extent
        self._made: dict[fx.Node, Any] = {}
        self._memory: dict[int, tuple[Tensor, Tensor]] = {}
        self._mode = _torch.fake_mode()
        graph = fx.Graph()
        for node in traced.graph.nodes:
            self._made[node] = self._copy(graph, node)
        self.module = fx.GraphModule(traced, graph)

    def _copy(self, graph: fx.Graph, node: fx.Node) -> Any:
        value = node.meta.get("val")
        if node.op == "call_function" and isinstance(value, torch.SymInt | int):
            return self._extent(value)
        if node.op == "get_attr" and _torch.is_zero_tensor(getattr(self._traced, str(node.target))):
            raise NotGeneralError("its derivative is zero somewhere")
        if node.op == "call_function" and node.target is aten.div.Scalar and self._is_extent(node.args[1]):
            return self._divided(graph, node)
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._made.__getitem__)
        made = graph.create_node(node.op, node.target, args, kwargs, node.name)
        if node.op != "output":
            made.meta["val"] = self._numbered(value)
        return made

    def _is_extent(self, argument: Any) -> bool:
        return isinstance(argument, fx.Node) and type(self._made[argument]) is Extent

    def _divided(self, graph: fx.Graph, node: fx.Node) -> fx.Node:
        """Return a division by a tensor: a number that differs from call to call cannot be written into a kernel."""
        x, count = (self._made[a] for a in node.all_input_nodes)
        like = x.meta["val"]
        if like.dtype not in (torch.float32, torch.float64):  # the number would be rounded to fewer bits
            raise NotGeneralError("it divides numbers of 16 bits by a size")
        number = graph.call_function(aten.scalar_tensor.default, (count,), {"dtype": like.dtype})
        number.meta["val"] = self._numbered(like.new_empty(()))
        made = graph.create_node("call_function", aten.div.Tensor, (x, number), {}, node.name)
        made.meta["val"] = self._numbered(node.meta["val"])
        return made

    def _numbered(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(self._numbered(v) for v in value)
        if not isinstance(value, Tensor):
            return value
        if value.is_complex() or value.layout is not torch.strided or value.device.type not in ("cpu", "meta"):
            raise NotGeneralError("not all its tensors are real ones on the CPU")
        shape, stride = (tuple(map(self._extent, numbers)) for numbers in (value.shape, value.stride()))
        storage = _torch.storage_of(value)
        offset, _ = _torch.example_of(value.storage_offset())
        with self._mode:
            if storage not in self._memory:
                n_bytes, _ = _torch.example_of(value.untyped_storage().nbytes())
                whole = torch.empty(n_bytes, dtype=torch.uint8)
                self._memory[storage] = value, whole  # the value keeps the storage's number from being used again
            whole = self._memory[storage][1].view(value.dtype)
            made = whole.as_strided([*map(int, shape)], [*map(int, stride)], offset)
        return with_extents(made, shape, stride)


class _Asked(TorchFunctionMode):
    """Records size-dependent facts that a formula reads of its tensors.

    Attributes:
        what: the first of them; empty if there is none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.what = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        answer = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name == "__get__":
            name = getattr(func.__self__, "__name__", "")
        given, told = (_torch.tree_leaves(tree)[0] for tree in ((args, kwargs), answer))
        tells = any(isinstance(a, Tensor) for a in given) and not all(isinstance(leaf, _ANSWERS) for leaf in told)
        if tells and name not in _OF_KIND and not _is_dispatching(sys._getframe(1)):
            self.what = self.what or name
        return answer


def _is_dispatching(frame: FrameType | None) -> bool:
    """Whether it is PyTorch that asks, to carry out an op."""
    while frame is not None and frame.f_code.co_name != "__torch_dispatch__":
        frame = frame.f_back
    return frame is not None

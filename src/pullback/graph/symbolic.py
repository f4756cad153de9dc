"""Graphs that are proven to hold for all sizes of their inputs.

A formula is traced on tensors with symbolic sizes. Two facts together prove that its graph holds for all sizes:
PyTorch's code branched on no symbol, or there would be a guard; and the formula's own code never read a size. (Guards
alone do not suffice: `isinstance(n, int)` and `str(n)` read a symbol without one.)

The graph is then written with the sizes of the traced call, as `Extent`s: integers that carry their symbolic formula.
So every pass over graphs works on it. A pass that compares sizes decides the same for other calls, since no two
different sizes in the graph are equal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch import Tensor, fx
from torch.overrides import TorchFunctionMode

from pullback import _torch

aten = torch.ops.aten

Kind = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Size, strides and dtype of a tensor."""

Numbers = Mapping[Any, Any]
"""Values of extents' formulas in one call, or the nodes that compute them."""


class Extent(int):
    """An integer of the traced call that depends on sizes of inputs.

    Attributes:
        formula: the sympy expression of it in these sizes.
    """

    formula: Any

    def __new__(cls, number: int, formula: Any) -> Extent:
        """Make an extent from its value in the traced call and its formula."""
        made = super().__new__(cls, number)
        made.formula = formula
        return made

    def __repr__(self) -> str:
        """Python code that differs from every other number's: `simplify` compares arguments by their code."""
        return f"({int(self)}, {str(self.formula)!r})[0]"

    def __getnewargs__(self) -> tuple[int, Any]:  # type: ignore[override]
        return int(self), self.formula


def at(value: Any, numbers: Numbers) -> Any:
    """Replace each extent in tuples, lists and dicts by its value in a call."""
    if type(value) is Extent:
        return numbers[value.formula]
    if isinstance(value, tuple):
        return tuple(at(v, numbers) for v in value)
    if isinstance(value, list):
        return [at(v, numbers) for v in value]
    if isinstance(value, dict):
        return {name: at(v, numbers) for name, v in value.items()}
    return value


def kind_of(tensor: Tensor) -> Kind:
    """Shape, strides and dtype of a tensor; the numbers are extents if it is a fake tensor that carries them."""
    shape, stride = getattr(tensor, _EXTENTS, None) or (tuple(tensor.shape), tuple(tensor.stride()))
    return shape, stride, tensor.dtype


def with_extents(fake: Tensor, shape: Sequence[int], stride: Sequence[int]) -> Tensor:
    """Attach to a fake tensor the extents that its shape and strides are."""
    setattr(fake, _EXTENTS, (tuple(shape), tuple(stride)))
    return fake


def has_extents(fake: Tensor) -> bool:
    """Whether extents are attached to a fake tensor."""
    return hasattr(fake, _EXTENTS)


_EXTENTS = "_pullback_extents"


def as_inputs(module: fx.GraphModule, first: Iterable[Any] = ()) -> tuple[fx.GraphModule, list[Any]]:
    """Turn a graph's extents into inputs, before the others; also return their formulas, in order.

    The formulas `first` come before all other inputs.
    """
    graph = fx.Graph()
    found = dict.fromkeys((*first, *formulas_in([(node.args, node.kwargs) for node in module.graph.nodes])))
    given = {formula: graph.placeholder(f"size_{i}") for i, formula in enumerate(found)}
    made: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        args, kwargs = at(fx.node.map_arg((node.args, node.kwargs), made.__getitem__), given)
        made[node] = graph.create_node(node.op, node.target, args, kwargs, node.name)
    return fx.GraphModule(module, graph), list(given)


def formulas_in(value: Any) -> list[Any]:
    """Formulas of the extents in tuples, lists and dicts, without repeats."""
    found: dict[Any, None] = {}
    stack = [value]
    while stack:
        value = stack.pop()
        if type(value) is Extent:
            found[value.formula] = None
        elif isinstance(value, tuple | list | dict):
            stack += value.values() if isinstance(value, dict) else value
    return list(found)


_QUERIES = """
    dim element_size is_complex is_cpu is_cuda is_floating_point is_nested is_quantized is_signed is_sparse itemsize
    ndim ndimension requires_grad
"""
_SIZELESS = frozenset(_QUERIES.split())
"""Queries of a tensor whose answer does not depend on its sizes."""
_ANSWERS = (Tensor, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))
"""Types of answers that are not sizes."""


class NotGeneralError(Exception):
    """The reason why a graph is not proven to hold for other sizes."""


class SymbolicTrace:
    """One symbolic trace, in place of `trace_ops`, whose graph holds for other sizes.

    Args:
        n_inputs: number of the tensors that are inputs; the sizes of the others (cotangents) depend on theirs.
        varying: the sizes to replace by symbols. Equal sizes become one symbol.
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
        queries = _SizeQueries()

        def watched(*given: Tensor) -> Any:
            with queries:
                return function(*given)

        with _torch.without_fake_tensor_log():  # an op that takes no symbols is traced size by size
            traced, is_general = _torch.trace_for_sizes(watched, tensors, self._varying)
        if queries.what:
            raise NotGeneralError(f"it asks for `{queries.what}` of a tensor")
        if not is_general:
            raise NotGeneralError("what it does depends on sizes")
        placeholders = traced.graph.find_nodes(op="placeholder")[: self._n]
        for i, node in enumerate(placeholders):
            for d, size in enumerate(_torch.size_symbols(_torch.traced_value(node))):
                if type(size) is not int:
                    self._symbols.setdefault(size, (i, d))
        module = _Concrete(traced, self._extent).module
        self._inputs = [
            kind_of(_torch.traced_value(node))[:2] for node in module.graph.find_nodes(op="placeholder")[: self._n]
        ]
        self._check(module)
        return module

    def numbers(self, tensors: Sequence[Tensor]) -> Numbers | None:
        """Values of symbols and extents for other inputs; `None` if the graph does not hold for these."""
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
        # Passes compare sizes as numbers. Two that are equal must be so in every call, and so by their formulas; so
        # must the strides of a dense tensor. Sizes 0 and 1, which broadcast, are refused here and, for other calls, by
        # `numbers`.
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


class _Concrete:
    """Copy of a symbolic graph with extents in place of symbols, and fake tensors of the sizes of the traced call."""

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
            made.meta["val"] = self._concrete(value)
        return made

    def _is_extent(self, argument: Any) -> bool:
        return isinstance(argument, fx.Node) and type(self._made[argument]) is Extent

    def _divided(self, graph: fx.Graph, node: fx.Node) -> fx.Node:
        """Divide by a tensor: a number that differs from call to call cannot be a constant of a kernel."""
        x, count = (self._made[a] for a in node.all_input_nodes)
        like = x.meta["val"]
        if like.dtype not in (torch.float32, torch.float64):  # the number would be rounded to fewer bits
            raise NotGeneralError("it divides numbers of 16 bits by a size")
        number = graph.call_function(aten.scalar_tensor.default, (count,), {"dtype": like.dtype})
        number.meta["val"] = self._concrete(like.new_empty(()))
        made = graph.create_node("call_function", aten.div.Tensor, (x, number), {}, node.name)
        made.meta["val"] = self._concrete(node.meta["val"])
        return made

    def _concrete(self, value: Any) -> Any:
        if isinstance(value, tuple | list):
            return type(value)(self._concrete(v) for v in value)
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


class _SizeQueries(TorchFunctionMode):
    """Mode that records queries by a formula whose answers depend on sizes.

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
        given, answers = (_torch.tree_leaves(tree)[0] for tree in ((args, kwargs), answer))
        depends = any(isinstance(a, Tensor) for a in given) and not all(isinstance(leaf, _ANSWERS) for leaf in answers)
        if depends and name not in _SIZELESS and not _is_dispatching(sys._getframe(1)):
            self.what = self.what or name
        return answer


def _is_dispatching(frame: FrameType | None) -> bool:
    """Whether PyTorch makes the query, to carry out an op."""
    while frame is not None and frame.f_code.co_name != "__torch_dispatch__":
        frame = frame.f_back
    return frame is not None

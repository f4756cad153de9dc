"""A formula that is not pointwise: its graph, its pointwise parts, and the graph with stable forms in their place.

The graph is recorded by calling the formula with proxies of `torch.fx`, so it holds for all shapes. It is accepted only
if it computes the formula: on examples both run the same ATen ops, those of the gradient included. This excludes
everything that a proxy does not see: `no_grad`, a branch on `isinstance`, a random number.

A node is pointwise if its ATen ops are in the registry, on tensors of one dtype. The graph is cut at reductions, matrix
products and views; whether a whole part is equal to a term is decided by `meaning_of`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.proxy import GraphAppendingTracer

from pullback import _torch
from pullback.errors import FormulaError, PullbackError, report_internal_error
from pullback.ops.constants import VALUES
from pullback.ops.record import Rounding
from pullback.ops.registry import BY_ATEN, OPS
from pullback.stable.formula import as_written
from pullback.stable.meaning import Meaning, meaning_of
from pullback.stable.term import Term, topological

_SHAPES = ((4, 4), (3,), (2, 4, 4), ())
"""Of all inputs of an example: squares go through matrix products too."""
_WRITING = frozenset(
    f"i{name}" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "matmul")
) | {"setitem", "delitem"}
_SETTINGS = torch.dtype | torch.device | torch.layout | torch.memory_format | type(...)


def variables_of(formula: Callable[..., Any], name: str) -> tuple[str, ...]:
    """Names of the parameters that a call has to give, all of them by position."""
    try:
        parameters = inspect.signature(formula).parameters.values()
    except (ValueError, TypeError):
        raise FormulaError(f"{name} has no signature") from None
    needed = [p for p in parameters if p.default is p.empty]
    if not needed or any(p.kind not in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in needed):
        raise FormulaError(f"{name} does not take a fixed number of tensors by position")
    return tuple(p.name for p in needed)


def record_graph(formula: Callable[..., Any], names: Sequence[str], name: str) -> fx.Graph:
    """Graph of a formula, with placeholders of these names.

    Raises:
        FormulaError: if it decides by its tensors or their shapes, writes in place, or makes tensors.
    """
    graph = fx.Graph()
    tracer = GraphAppendingTracer(graph)
    tracer.root = None  # type: ignore[attr-defined]  # which an op among the functions asks for
    try:
        with as_written():
            result = formula(*(fx.Proxy(graph.placeholder(n), tracer) for n in names))
            graph.output(tracer.create_arg(result))
    except Exception as error:  # any error of a user's function or torch.fx
        report_internal_error(error, name)
        why = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise FormulaError(f"{name} cannot be recorded for all shapes: {why}") from error
    for node in graph.nodes:
        if _writes(node):
            raise FormulaError(f"{name} writes in place, with `{node.target}`: give a formula that does not")
        fx.node.map_aggregate((node.args, node.kwargs), lambda value: _require_plain(value, name))
    return graph


def _require_plain(value: Any, name: str) -> None:
    """Refuse arguments of a graph's nodes other than numbers and the like: a tensor made while recording."""
    if value is not None and not isinstance(value, fx.Node | int | float | complex | str | slice | _SETTINGS):
        raise FormulaError(f"{name} uses a {type(value).__name__} that is not among its inputs")


def _writes(node: fx.Node) -> bool:
    called = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = called.endswith("_") and not called.endswith("__")
    return node.op.startswith("call") and (in_place or called in _WRITING or "out" in node.kwargs)


def example_inputs(function: Callable[..., Any], arity: int) -> Iterator[list[Tensor]]:
    """Yield tensors that a function takes."""
    for shape in _SHAPES:
        random = torch.Generator().manual_seed(0)
        tensors = [torch.rand(shape, generator=random, dtype=torch.float32, device="cpu") for _ in range(arity)]
        try:
            with as_written(), torch.no_grad():
                function(*tensors)
        except Exception:  # not a shape that it takes
            continue
        yield tensors


def aten_ops_of(function: Callable[..., Any], tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """ATen ops of a function and of its gradient, as text, and its result without tensors.

    Return nothing if it raises.
    """
    rest: list[Any] = []

    def both(*given: Tensor) -> list[Any]:
        xs = [x.detach().requires_grad_() for x in given]
        with torch.enable_grad():
            leaves, spec = _torch.tree_leaves(function(*xs))
        outs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        rest.append((spec, [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]))
        live = [out for out in outs if out.requires_grad]
        ones = [torch.ones_like(out) for out in live]
        slopes = torch.autograd.grad(live, xs, ones, allow_unused=True) if live else ()
        return [*outs, *slopes]

    try:
        with as_written(), _torch.without_fake_tensor_log():
            code = _torch.trace_ops(both, *tensors).code
    except Exception as error:  # any error of a user's function or the tracer
        report_internal_error(error)
        return ()
    return code, rest[-1]


def function_of_graph(graph: fx.Graph) -> Callable[..., Any]:
    """Plain function that computes a graph without attributes; its parameters are the placeholders."""
    code = graph.python_code("self")
    scope = dict(code.globals)
    exec(compile(code.src, "<a formula in parts>", "exec"), scope)
    forward = scope["forward"]

    def function(*tensors: Any) -> Any:
        return forward(None, *tensors)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [node.name for node in graph.find_nodes(op="placeholder")]
    function.__signature__ = inspect.Signature([inspect.Parameter(n, kind) for n in names])  # type: ignore[attr-defined]
    return function


_MOST_INPUTS = 3
_SUMS = frozenset({"add", "sub"})
_ROOTS = frozenset({"sqrt", "rsqrt"})


@dataclass(frozen=True, slots=True)
class PointwisePart:
    """A pointwise part of a formula.

    Attributes:
        function: the part as written, a function of its inputs.
        inputs: the nodes of these inputs.
        root: the node that it computes.
        meaning: its term and the names of the inputs.
    """

    function: Callable[..., Tensor]
    inputs: tuple[fx.Node, ...]
    root: fx.Node
    meaning: Meaning


class PartitionedFormula:
    """A formula of tensors as a graph of PyTorch's functions, with its pointwise nodes.

    It may replace the formula if it is faithful: if both run the same ops, those of the gradient included.
    """

    def __init__(self, formula: Callable[..., Any]) -> None:
        """Record a formula.

        Raises:
            FormulaError: if it cannot be recorded for all shapes.
        """
        self.name: str = getattr(formula, "__name__", type(formula).__name__)
        self._formula = formula
        self.variables = variables_of(formula, self.name)
        self.graph = record_graph(formula, self.variables, self.name)
        self.pointwise = [node for node in self.graph.nodes if node.op.startswith("call")]
        self._taken = list(example_inputs(function_of_graph(self.graph), self.arity))
        if not self._taken:
            raise FormulaError(
                f"{self.name} takes no float tensors of one shape, so its pointwise parts cannot be determined"
            )
        for tensors in self._taken:
            there = _pointwise(self.graph, tensors)
            self.pointwise = [node for node in self.pointwise if node in there]

    def is_faithful(self) -> bool:
        """Whether the graph computes the formula and its gradient. The check takes some tenths of a second."""
        made = function_of_graph(self.graph)
        pairs = [(aten_ops_of(made, tensors), aten_ops_of(self._formula, tensors)) for tensors in self._taken]
        return all(ours == theirs for ours, theirs in pairs) and any(theirs for _, theirs in pairs)

    def require_faithful(self) -> None:
        """Refuse a graph that does not compute the formula.

        Raises:
            FormulaError: if it does not.
        """
        if not self.is_faithful():
            raise FormulaError(
                f"{self.name} does what a graph of its functions does not show: it stops gradients, writes in place, "
                "draws numbers, or asks what its inputs are"
            )

    @property
    def arity(self) -> int:
        """Number of tensors that the formula takes."""
        return len(self.variables)

    def parts(self, dtype: torch.dtype) -> list[PointwisePart]:
        """Pointwise parts of up to three inputs that a search may improve, each as large as it can be."""
        found: list[PointwisePart] = []
        inside = set(self.pointwise)
        waiting = [n for n in self.pointwise if any(user not in inside for user in n.users)]
        seen = set(waiting)
        while waiting:
            root = waiting.pop(0)
            nodes, inputs = self._cone(root)
            part = self._part(root, nodes, inputs, dtype, len(found) + 1)
            if part is not None and _may_gain(part.meaning.term):
                found.append(part)
            # Without a part the root stays as written, and parts may end at its operands.
            more = [n for n in (root.all_input_nodes if part is None else inputs) if n in inside and n not in seen]
            seen.update(more)
            waiting += more
        return found

    def _cone(self, root: fx.Node) -> tuple[set[fx.Node], tuple[fx.Node, ...]]:
        """Pointwise nodes that a node is computed by, with it, and the inputs of these.

        Where there are more than two inputs, and all that comes of them passes through one value, that is the only
        input: a search in one variable takes seconds, one in three may take minutes.
        """
        nodes, inputs = self._reaching(root, None)
        if len(inputs) > 2:
            for waist in self.pointwise:
                if waist in nodes and waist is not root:
                    fewer = self._reaching(root, waist)
                    if fewer[1] == (waist,):
                        return fewer
        return nodes, inputs

    def _reaching(self, root: fx.Node, end: fx.Node | None) -> tuple[set[fx.Node], tuple[fx.Node, ...]]:
        inside, nodes = set(self.pointwise) - {end}, {root}
        for node in reversed(self.graph.nodes):
            if node in nodes:
                nodes.update(n for n in node.all_input_nodes if n in inside)
        return nodes, tuple(n for n in self.graph.nodes if n not in nodes and any(u in nodes for u in n.users))

    def _part(
        self, root: fx.Node, nodes: set[fx.Node], inputs: tuple[fx.Node, ...], dtype: torch.dtype, number: int
    ) -> PointwisePart | None:
        if not 1 <= len(inputs) <= _MOST_INPUTS:
            return None
        graph = fx.Graph()
        copies = {n: graph.placeholder(f"{n.name}_in" if n.name in VALUES else n.name) for n in inputs}
        for node in self.graph.nodes:
            if node in nodes:
                copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(copies[root])
        function = function_of_graph(graph)
        try:
            meaning = meaning_of(function, dtype)
        except PullbackError:
            return None
        text = str(meaning.term)
        function.__name__ = f"{self.name}, part {number}: {text if len(text) <= 60 else text[:59] + '…'}"
        return PointwisePart(function, inputs, root, meaning)


def _pointwise(graph: fx.Graph, tensors: Sequence[Tensor]) -> dict[fx.Node, Any]:
    """Run a graph; return its nodes that are pointwise in tensors of one dtype."""
    given = iter(tensors)
    values: dict[fx.Node, Any] = {}
    found = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = next(given)
        elif node.op == "output":
            break
        else:
            values[node], ops = _run_node(node, values)
            if _is_pointwise(values[node], [values[n] for n in node.all_input_nodes], ops, tensors[0].dtype):
                found[node] = values[node]
    return found


def _run_node(node: fx.Node, values: dict[fx.Node, Any]) -> tuple[Any, list[Any]]:
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
    function: Any = node.target
    with as_written(), _AtenRecorder() as called:
        result = (
            getattr(args[0], function)(*args[1:], **kwargs) if node.op == "call_method" else function(*args, **kwargs)
        )
    return result, called.ops


class _AtenRecorder(_torch.DispatchMode):
    """Records the ATen ops that run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.append(func)
        return func(*args, **(kwargs or {}))


def _is_pointwise(out: Any, given: Sequence[Any], ops: Sequence[Any], dtype: torch.dtype) -> bool:
    if not given or not all(isinstance(t, Tensor) and t.dtype in (dtype, torch.bool) for t in (out, *given)):
        return False
    names = [_torch.op_name(op).partition("::")[2].partition(".")[0] for op in ops]
    if (
        not names
        or not all(name in BY_ATEN and BY_ATEN[name].is_readable for name in names)
        or "detach" in names
        or any(map(_torch.is_mutable, ops))
    ):
        return False
    shape = torch.broadcast_shapes(*(t.shape for t in given))
    return out.shape == shape and all(out is not t for t in given)


def _may_gain(term: Term) -> bool:
    """Whether a term can lose accuracy: products, quotients and roots of a single sum cannot.

    Relative errors of factors add up, and a root halves one. Only a sum amplifies them, if its terms are rounded: of
    terms a and b with errors up to ε, (|a| + |b|)/|a + b| times. That of inputs has no errors to amplify.
    """
    terms = [t for t in topological([term]) if t.args]
    is_accurate = all(t.op in _ROOTS or OPS[t.op].rounding is not Rounding.FREE for t in terms)
    if not is_accurate or sum(t.op in _SUMS for t in terms) > 1:
        return True
    # the square beneath a root overflows long before the root
    return any(below.op in ("mul", "div") for t in terms if t.op in _ROOTS for below in topological(t.args))


Function = Callable[..., Tensor]


def substitute_forms(
    cut: PartitionedFormula, forms: Mapping[PointwisePart, Function], dtype: torch.dtype
) -> Callable[..., Any]:
    """Formula with some of its parts computed by other functions, for tensors of a dtype."""
    by_root = {part.root: part for part in forms}
    graph = fx.Graph()
    copies: dict[fx.Node, Any] = {}
    for node in cut.graph.nodes:
        part = by_root.get(node)
        if part is None:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        else:
            function = _guarded_by_dtype(forms[part], part.function, dtype)
            copies[node] = graph.call_function(function, tuple(copies[n] for n in part.inputs))
    for node in reversed(cut.pointwise):  # nodes used by replaced parts only
        if not copies[node].users:
            graph.erase_node(copies[node])
    return function_of_graph(graph)


def _guarded_by_dtype(form: Function, written: Function, dtype: torch.dtype) -> Function:
    """Form for tensors of its dtype; for other arguments it runs the part as written.

    Inside a formula there are other arguments: integers, sizes, widened values. A form need not read all inputs that
    its result is broadcast from.
    """

    def part(*xs: Any) -> Tensor:
        for x in xs:
            if not isinstance(x, Tensor) or x.dtype != dtype or x.device.type != "cpu":
                return written(*xs)
        return form(*xs).expand(torch.broadcast_tensors(*xs)[0].shape)

    return part

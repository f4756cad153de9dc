"""Sums of products in a derivative, in the form that a person would write: terms collected, common factors first.

Products of sums are not expanded, since that loses digits; the original form stays if the other one is longer or less
accurate (`tidy.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.dtypes import has_derivative
from pullback.graph.joint import simplify
from pullback.write.expressions import op_name
from pullback.write.graphs import DerivativeGraph, update_results, with_meta

aten = torch.ops.aten
_MOST_TERMS = 8


class ArithmeticRewriter:
    """Rewrites the nodes of one graph that are not part of the value."""

    def __init__(self, graph: fx.Graph, outputs: Sequence[fx.Node], leading: Sequence[fx.Node]) -> None:
        self._graph, self._leading = graph, set(leading)
        self._order = {node: i for i, node in enumerate(graph.nodes)}
        self._value = _ancestors(outputs)
        self._sums: dict[fx.Node, Sum] = {}
        self._made_of: dict[fx.Node, Sum] = {}
        self._built: dict[Any, fx.Node] = {}
        self._wholes = [(out, m) for out in outputs if (m := self._product_of(out)) is not None]

    def rewrite(self, results: Sequence[fx.Node | None]) -> list[fx.Node | None]:
        """Replace every sum of products that another op reads by its better form; return the new results."""
        ends = {node for node in results if node is not None}
        for node in list(self._graph.nodes):
            if not self._is_arithmetic(node):
                continue
            inner = [user for user in node.users if self._is_arithmetic(user)]
            if node in ends or len(inner) < len(node.users):
                new = self._build(self._sum(node), node)
                if new is not node:
                    results = [new if r is node else r for r in results]
                    node.replace_all_uses_with(new, lambda user: user.op != "output")
        return list(results)

    def _is_arithmetic(self, node: fx.Node) -> bool:
        value = node.meta.get("val")
        known = op_name(node) in _ARITHMETIC and node.op == "call_function" and node not in self._value
        if not known or not isinstance(value, Tensor) or not has_derivative(value) or _options(node):
            return False
        tensors = [a.meta.get("val") for a in node.all_input_nodes]
        return all(isinstance(x, Tensor) and x.dtype == value.dtype for x in tensors)

    def _product_of(self, out: fx.Node) -> Monomial | None:
        """Return an output as a product of two values of the graph, if it is one."""
        if out.target is not aten.mul.Tensor or not all(isinstance(a, fx.Node) for a in out.args):
            return None
        return Monomial.of(out.args[0]).times(Monomial.of(out.args[1]))  # type: ignore[arg-type]

    def _sum(self, node: Any) -> Sum:
        if isinstance(node, int | float) and not isinstance(node, bool):
            return Sum({Monomial(): float(node)})
        if not isinstance(node, fx.Node) or not self._is_arithmetic(node):
            return Sum({Monomial.of(node): 1.0})
        if node not in self._sums:
            found = self._combined(node)
            self._sums[node] = found if len(found.terms) <= _MOST_TERMS else Sum({Monomial.of(node): 1.0})
        return self._sums[node]

    def _combined(self, node: fx.Node) -> Sum:
        op, parts = op_name(node), [self._sum(a) for a in node.args]
        match op:
            case "add":
                return parts[0].plus(parts[1])
            case "sub":
                return parts[0].plus(parts[1].scaled(-1.0))
            case "rsub":
                return parts[1].plus(parts[0].scaled(-1.0))
            case "neg":
                return parts[0].scaled(-1.0)
            case "pow":
                exponent = node.args[1]
                if not isinstance(exponent, int | float) or exponent not in (1, 2, 3, 4):
                    return Sum({Monomial.of(node): 1.0})
                m, c = self._single(node.args[0])
                return Sum({m.power(int(exponent)): c ** int(exponent)})
            case "mul":
                (a, c), (b, e) = (self._single(x) for x in node.args)
                return Sum({a.times(b): c * e})
            case _:
                (a, c), (b, e) = (self._single(x) for x in node.args)
                return Sum({a.times(b.power(-1)): c / e}) if e else Sum({Monomial.of(node): 1.0})

    def _single(self, node: Any) -> tuple[Monomial, float]:
        """Return an operand of a product as one product; a sum in it is one factor."""
        found = self._sum(node)
        if len(found.terms) == 1:
            return next(iter(found.terms.items()))
        if not found.terms:
            return Monomial(), 0.0
        common, rest = factored(found)
        factor = self._build(rest, node)
        self._made_of[factor] = rest
        return common.times(Monomial.of(factor)), 1.0

    def _build(self, found: Sum, at: fx.Node) -> fx.Node:
        """Return a node for a sum, made before `at`."""
        if not found.terms:
            return at
        common, rest = factored(found)
        rest = self._flat(rest.simplified(self._recognised))
        if not rest.terms:
            return at
        if len(rest.terms) == 1:
            ((m, c),) = rest.terms.items()
            return self._product(common.times(m), c, at)
        if not common.factors:
            return self._added(rest, at)
        return self._product(common.times(Monomial.of(self._added(rest, at))), 1.0, at)

    def _flat(self, found: Sum) -> Sum:
        """Return a flattened sum: none of its terms is a sum."""
        flat = Sum({})
        for m, c in found.terms.items():
            inner = self._made_of.get(m.factors[0][0]) if len(m.factors) == 1 and m.factors[0][1] == 1 else None
            flat = flat.plus(Sum({m: c}) if inner is None else inner.scaled(c))
        return flat

    def _recognised(self, m: Monomial) -> Monomial:
        """Return a product with e^x / (1 + e^x) as the sigmoid of x where the graph has that."""
        for e, power in m.factors:
            if e.target is not aten.exp.default or power < 1:
                continue
            gate = next((n for n in self._value if n.target is aten.sigmoid.default and n.args == e.args), None)
            one_more = [n for n in e.users if n.target is aten.add.Tensor and set(n.args) == {e, 1}]
            for total in one_more:
                roots = [n for n in total.users if n.target is aten.rsqrt.default]
                for part, times in [(total, -1), *((root, 2) for root in roots)]:
                    if gate is not None and m.exponent(part) * times >= times * times:
                        return m.times(Monomial(((e, -1), (part, -times)))).times(Monomial.of(gate))
        return m

    def _added(self, found: Sum, at: fx.Node) -> fx.Node:
        terms = sorted(found.terms.items(), key=lambda term: (term[1] < 0, self._place(term[0])))
        first, *others = terms
        total: Any = self._term(*first, at)
        for m, c in others:
            op = aten.sub.Tensor if c < 0 else aten.add.Tensor
            if isinstance(total, float):
                total = (
                    self._call(aten.rsub.Scalar, (self._term(m, abs(c), at), total), at)
                    if c < 0
                    else self._call(aten.add.Tensor, (self._term(m, c, at), total), at)
                )
            else:
                total = self._call(op, (total, self._term(m, abs(c), at)), at)
        return total  # type: ignore[no-any-return]

    def _term(self, m: Monomial, c: float, at: fx.Node) -> Any:
        return self._product(m, c, at) if m.factors else c

    def _place(self, m: Monomial) -> tuple[int, ...]:
        return tuple(sorted(self._order.get(node, len(self._order)) for node, _ in m.factors))

    def _product(self, m: Monomial, c: float, at: fx.Node) -> fx.Node:
        """Return a node for a product: a number, cotangents, other factors, then divisors."""
        m = self._with_wholes(m)
        factors = sorted(m.factors, key=lambda f: (f[0] not in self._leading, self._order.get(f[0], len(self._order))))
        top: Any = None
        for node, power in [f for f in factors if f[1] > 0]:
            raised = node if power == 1 else self._call(aten.pow.Tensor_Scalar, (node, power), at)
            top = self._times(raised, c, at) if top is None else self._call(aten.mul.Tensor, (top, raised), at)
        below = [node for node, power in factors for _ in range(-power)]
        if top is None:
            top = self._times(self._call(aten.reciprocal.default, (below.pop(0),), at), c, at)
        for node in below:
            top = self._call(aten.div.Tensor, (top, node), at)
        return top  # type: ignore[no-any-return]

    def _times(self, node: fx.Node, c: float, at: fx.Node) -> fx.Node:
        if abs(c) == 1:
            return node if c == 1 else self._call(aten.neg.default, (node,), at)
        return self._call(aten.mul.Tensor, (node, c), at)

    def _with_wholes(self, m: Monomial) -> Monomial:
        """Return a product with an output in place of its factors."""
        for out, whole in self._wholes:
            if all(m.exponent(node) >= power for node, power in whole.factors):
                m = m.times(whole.power(-1)).times(Monomial.of(out))
        return m

    def _call(self, target: Any, args: tuple[Any, ...], at: fx.Node) -> fx.Node:
        key = (target, args)
        known = self._built.get(key)
        if known is None or self._order[known] > self._order[at]:
            with self._graph.inserting_before(at):
                node = self._graph.call_function(target, args)
            values = [a.meta["val"] for a in args if isinstance(a, fx.Node) and isinstance(a.meta["val"], Tensor)]
            shape = torch.broadcast_shapes(*(v.shape for v in values))
            node.meta["val"] = values[0].new_empty(shape)
            self._order[node] = self._order[at]
            self._built[key] = node
        return self._built[key]


_ARITHMETIC = frozenset(["add", "sub", "rsub", "neg", "mul", "div", "pow"])


def _options(node: fx.Node) -> bool:
    return any(v is not None and not (k == "alpha" and v == 1) for k, v in node.kwargs.items()) or len(node.args) > 2


def _ancestors(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += node.all_input_nodes
    return found


@dataclass(frozen=True, slots=True)
class Monomial:
    """A product of powers.

    Attributes:
        factors: nodes with their exponents, none of them 0, in an order of their names.
    """

    factors: tuple[tuple[fx.Node, int], ...] = ()

    @classmethod
    def of(cls, node: fx.Node) -> Monomial:
        """Return a value as a product."""
        return cls(((node, 1),))

    def exponent(self, node: fx.Node) -> int:
        """Return the exponent of a node, 0 if it is no factor."""
        return dict(self.factors).get(node, 0)

    def times(self, other: Monomial) -> Monomial:
        """Return a product of two."""
        exponents = dict(self.factors)
        for node, power in other.factors:
            exponents[node] = exponents.get(node, 0) + power
        return _monomial(exponents)

    def power(self, exponent: int) -> Monomial:
        """Return a power."""
        return _monomial({node: power * exponent for node, power in self.factors})


def _monomial(exponents: dict[fx.Node, int]) -> Monomial:
    return Monomial(tuple(sorted(((n, p) for n, p in exponents.items() if p), key=lambda item: item[0].name)))


@dataclass(frozen=True, slots=True)
class Sum:
    """A sum of products.

    Attributes:
        terms: the coefficient of each; none is 0.
    """

    terms: dict[Monomial, float]

    def plus(self, other: Sum) -> Sum:
        """Return the sum of two."""
        terms = dict(self.terms)
        for m, c in other.terms.items():
            terms[m] = terms.get(m, 0.0) + c
        return Sum({m: c for m, c in terms.items() if c})

    def scaled(self, factor: float) -> Sum:
        """Return a multiple."""
        return Sum({m: c * factor for m, c in self.terms.items()})

    def simplified(self, change: Callable[[Monomial], Monomial]) -> Sum:
        """Return the sum with each product changed."""
        found = Sum({})
        for m, c in self.terms.items():
            found = found.plus(Sum({change(m): c}))
        return found


def factored(found: Sum) -> tuple[Monomial, Sum]:
    """Return the greatest common factor of the terms, and the sum divided by it."""
    first, *others = found.terms
    common = dict(first.factors)
    for m in others:
        common = {n: min(p, m.exponent(n)) if p > 0 else max(p, m.exponent(n)) for n, p in common.items()}
        common = {n: p for n, p in common.items() if p and m.exponent(n) * p > 0}
    divisor = _monomial(common)
    return divisor, Sum({m.times(divisor.power(-1)): c for m, c in found.terms.items()})


_REACH = (1.0, 12.0)
"""How far the points go: ordinary ones, and those where functions saturate."""
_WORSE = 2.0
"""Factor by which the largest error may grow; errors below this many roundings do not count."""
_ROUNDINGS = 4.0


def is_as_accurate(new: fx.GraphModule, old: fx.GraphModule) -> bool:
    """Whether a graph is nowhere much less accurate than another, at random points, against double precision."""
    inputs = [node.meta["val"] for node in old.graph.find_nodes(op="placeholder")]
    for reach in _REACH:
        points = [_point(x, i, reach) for i, x in enumerate(inputs)]
        try:
            with torch.no_grad():
                exact = _results(old, [_wide(x) for x in points])
                before, after = _results(old, points), _results(new, points)
        except Exception:  # the points are outside the formula's domain: nothing proves that the new form is as good
            return False
        if not all(map(_is_no_worse, after, before, exact)):
            return False
    return True


def _is_no_worse(new: Tensor, old: Tensor, exact: Tensor) -> bool:
    if not bool((new.isfinite() | ~old.isfinite()).all()):
        return False
    there = exact.isfinite() & old.isfinite()
    size = exact.abs().clamp_min(1e-30)
    before, after = (((x.to(exact.dtype) - exact).abs() / size)[there] for x in (old, new))
    if not before.numel():
        return True
    floor = _ROUNDINGS * torch.finfo(old.dtype).eps
    return bool(after.max() <= max(_WORSE * float(before.max()), floor))


def _results(module: fx.GraphModule, points: Sequence[Tensor]) -> list[Tensor]:
    results: Any = module(*points)[1]
    return [r for r in results if r is not None]


def _point(like: Tensor, seed: int, reach: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = _torch.size_hints(like)
    if like.is_floating_point() or like.is_complex():
        return torch.randn(shape, generator=generator, dtype=like.dtype) * reach
    return torch.randint(0, 2, shape, generator=generator).to(like.dtype)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.complex128) if x.is_complex() else x.double() if x.is_floating_point() else x


def simplify_derivative(graph: DerivativeGraph) -> None:
    """Put the arithmetic of the derivative in a better form, if it is shorter and as accurate."""
    trial = copy_graph(graph)
    algebra = ArithmeticRewriter(trial.module.graph, trial.outputs, trial.given)
    trial.results = algebra.rewrite(trial.results)
    _finish(trial)
    if op_count(trial) <= op_count(graph) and is_as_accurate(trial.module, graph.module):
        graph.module, graph.inputs, graph.given = trial.module, trial.inputs, trial.given
        graph.outputs, graph.results = trial.outputs, trial.results


def copy_graph(graph: DerivativeGraph) -> DerivativeGraph:
    """Return a copy of a graph with new nodes."""
    new = fx.Graph()
    made: dict[fx.Node, fx.Node] = {}
    for node in graph.module.graph.nodes:
        made[node] = with_meta(new.node_copy(node, made.__getitem__), node)
    copy = DerivativeGraph(
        fx.GraphModule(graph.module, new), [made[x] for x in graph.inputs], [made[x] for x in graph.given], [], []
    )
    update_results(copy)
    return copy


def _finish(graph: DerivativeGraph) -> None:
    """Make the results the graph's output, and drop unused nodes."""
    graph.module.graph.output_node().args = ([list(graph.outputs), list(graph.results)],)
    simplify(graph.module.graph)
    graph.module.graph.lint()
    graph.module.recompile()
    update_results(graph)


def op_count(graph: DerivativeGraph) -> int:
    """Return the number of ops of a derivative, given the value."""
    there = {*graph.inputs, *graph.given, *graph.outputs}
    found: set[fx.Node] = set()
    stack = [node for node in graph.results if node is not None]
    while stack:
        node = stack.pop()
        if node not in there and node not in found:
            found.add(node)
            stack += node.all_input_nodes
    return len(found)

"""Simplification of the arithmetic of a derivative: terms collected, common factors first, outputs reused.

Products of sums are not expanded, since that loses digits. The original form stays if the new one is longer or less
accurate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.dtypes import has_derivative
from pullback.graph.trace import simplify
from pullback.write.expressions import op_name
from pullback.write.graphs import DerivativeGraph, dependencies

aten = torch.ops.aten
# Not in the registry: these are the cases of `_combined`.
_ARITHMETIC = frozenset(["add", "sub", "rsub", "neg", "mul", "div", "pow"])
_MOST_TERMS = 8
"""Sums of more terms are taken as one value."""


def simplify_derivative(graph: DerivativeGraph) -> None:
    """Simplify the arithmetic of a derivative, in place, if that makes it no longer and no less accurate."""
    trial = graph.copy()
    rewriter = _ArithmeticRewriter(trial.module.graph, trial.outputs, trial.seeds)
    trial.derivatives = rewriter.rewrite(trial.derivatives)
    trial.module.graph.output_node().args = ([list(trial.outputs), list(trial.derivatives)],)
    simplify(trial.module.graph)
    trial.module.graph.lint()
    trial.module.recompile()
    trial.update_results()
    if trial.op_count() <= graph.op_count() and _is_as_accurate(trial.module, graph.module):
        graph.module, graph.inputs, graph.seeds = trial.module, trial.inputs, trial.seeds
        graph.outputs, graph.derivatives = trial.outputs, trial.derivatives


@dataclass(frozen=True, slots=True)
class Monomial:
    """A product of integer powers of values.

    Attributes:
        factors: nodes with their exponents, none of them 0, sorted by name.
    """

    factors: tuple[tuple[fx.Node, int], ...] = ()

    @classmethod
    def of(cls, *nodes: fx.Node) -> Monomial:
        """The product of some values."""
        exponents: dict[fx.Node, int] = {}
        for node in nodes:
            exponents[node] = exponents.get(node, 0) + 1
        return cls.from_exponents(exponents)

    @classmethod
    def from_exponents(cls, exponents: dict[fx.Node, int]) -> Monomial:
        """The product of values with these exponents."""
        return cls(tuple(sorted(((n, p) for n, p in exponents.items() if p), key=lambda item: item[0].name)))

    def exponent(self, node: fx.Node) -> int:
        """The exponent of a node, 0 if it is not a factor."""
        return dict(self.factors).get(node, 0)

    def times(self, other: Monomial) -> Monomial:
        """The product of two monomials."""
        exponents = dict(self.factors)
        for node, power in other.factors:
            exponents[node] = exponents.get(node, 0) + power
        return Monomial.from_exponents(exponents)

    def power(self, exponent: int) -> Monomial:
        """A power of the monomial."""
        return Monomial.from_exponents({node: power * exponent for node, power in self.factors})


@dataclass(frozen=True, slots=True)
class LaurentPolynomial:
    """A sum of monomials, whose exponents may be negative.

    Attributes:
        terms: the coefficient of each monomial; none is 0.
    """

    terms: dict[Monomial, float]

    def plus(self, other: LaurentPolynomial) -> LaurentPolynomial:
        """The sum of two polynomials."""
        terms = dict(self.terms)
        for m, c in other.terms.items():
            terms[m] = terms.get(m, 0.0) + c
        return LaurentPolynomial({m: c for m, c in terms.items() if c})

    def scaled(self, factor: float) -> LaurentPolynomial:
        """A multiple of the polynomial."""
        return LaurentPolynomial({m: c * factor for m, c in self.terms.items()})

    def map_monomials(self, change: Callable[[Monomial], Monomial]) -> LaurentPolynomial:
        """The polynomial with every monomial changed, and like terms collected."""
        found = LaurentPolynomial({})
        for m, c in self.terms.items():
            found = found.plus(LaurentPolynomial({change(m): c}))
        return found

    def factored(self) -> tuple[Monomial, LaurentPolynomial]:
        """The greatest common factor of the terms, and the polynomial divided by it."""
        # As of integers, the exponent of a factor is the one nearest to 0 in all terms, if it has one sign in all of
        # them: a²b⁻² + a b⁻³ = a b⁻² (a + b⁻¹).
        first, *others = self.terms
        common = dict(first.factors)
        for m in others:
            common = {n: min(p, m.exponent(n)) if p > 0 else max(p, m.exponent(n)) for n, p in common.items()}
            common = {n: p for n, p in common.items() if p and m.exponent(n) * p > 0}
        divisor = Monomial.from_exponents(common)
        inverse = divisor.power(-1)
        return divisor, LaurentPolynomial({m.times(inverse): c for m, c in self.terms.items()})


class _ArithmeticRewriter:
    """Rewrites the sums and products of one graph that are not part of the value."""

    def __init__(self, graph: fx.Graph, outputs: Sequence[fx.Node], leading: Sequence[fx.Node]) -> None:
        self._graph, self._leading = graph, set(leading)
        self._order = {node: i for i, node in enumerate(graph.nodes)}
        self._value = set(dependencies(outputs, ()))
        self._polynomials: dict[fx.Node, LaurentPolynomial] = {}
        self._made_of: dict[fx.Node, LaurentPolynomial] = {}
        self._built: dict[Any, fx.Node] = {}
        self._products = [(out, m) for out in outputs if (m := self._product_of(out)) is not None]

    def rewrite(self, results: Sequence[fx.Node | None]) -> list[fx.Node | None]:
        """Replace every polynomial that an op of another kind uses by its simplified form; return the new results."""
        ends = {node for node in results if node is not None}
        for node in list(self._graph.nodes):
            if not self._is_arithmetic(node):
                continue
            inner = [user for user in node.users if self._is_arithmetic(user)]
            if node in ends or len(inner) < len(node.users):
                new = self._build(self._polynomial(node), node)
                if new is not node:
                    results = [new if r is node else r for r in results]
                    node.replace_all_uses_with(new, lambda user: user.op != "output")
        return list(results)

    # From nodes to polynomials

    def _is_arithmetic(self, node: fx.Node) -> bool:
        value = node.meta.get("val")
        known = op_name(node) in _ARITHMETIC and node.op == "call_function" and node not in self._value
        if not known or not isinstance(value, Tensor) or not has_derivative(value) or _has_options(node):
            return False
        tensors = [a.meta.get("val") for a in node.all_input_nodes]
        return all(isinstance(x, Tensor) and x.dtype == value.dtype for x in tensors)

    def _product_of(self, out: fx.Node) -> Monomial | None:
        """An output as a product of two values of the graph, if it is one."""
        if out.target is not aten.mul.Tensor or not all(isinstance(a, fx.Node) for a in out.args):
            return None
        return Monomial.of(*out.args)  # type: ignore[arg-type]

    def _polynomial(self, node: Any) -> LaurentPolynomial:
        if isinstance(node, int | float) and not isinstance(node, bool):
            return LaurentPolynomial({Monomial(): float(node)})
        if not isinstance(node, fx.Node) or not self._is_arithmetic(node):
            return LaurentPolynomial({Monomial.of(node): 1.0})
        if node not in self._polynomials:
            found = self._combined(node)
            short = len(found.terms) <= _MOST_TERMS
            self._polynomials[node] = found if short else LaurentPolynomial({Monomial.of(node): 1.0})
        return self._polynomials[node]

    def _combined(self, node: fx.Node) -> LaurentPolynomial:
        op, parts = op_name(node), [self._polynomial(a) for a in node.args]
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
                    return LaurentPolynomial({Monomial.of(node): 1.0})
                m, c = self._single(node.args[0])
                return LaurentPolynomial({m.power(int(exponent)): c ** int(exponent)})
            case "mul":
                (a, c), (b, e) = (self._single(x) for x in node.args)
                return LaurentPolynomial({a.times(b): c * e})
            case _:
                (a, c), (b, e) = (self._single(x) for x in node.args)
                return LaurentPolynomial({a.times(b.power(-1)): c / e} if e else {Monomial.of(node): 1.0})

    def _single(self, node: Any) -> tuple[Monomial, float]:
        """An operand of a product as one term; a sum in it is one factor."""
        found = self._polynomial(node)
        if len(found.terms) == 1:
            return next(iter(found.terms.items()))
        if not found.terms:
            return Monomial(), 0.0
        # Expanded, (a − b)² would be a² − 2 a b + b², with rounding errors of eps a²: (a / (a − b))² times as large.
        common, rest = found.factored()
        factor = self._build(rest, node)
        self._made_of[factor] = rest
        return common.times(Monomial.of(factor)), 1.0

    # From polynomials to nodes

    def _build(self, found: LaurentPolynomial, at: fx.Node) -> fx.Node:
        """A node for a polynomial, inserted before `at`."""
        if not found.terms:
            return at
        common, rest = found.factored()
        rest = self._flat(rest.map_monomials(self._with_sigmoid))
        if not rest.terms:
            return at
        if len(rest.terms) == 1:
            ((m, c),) = rest.terms.items()
            return self._product(common.times(m), c, at)
        if not common.factors:
            return self._added(rest, at)
        return self._product(common.times(Monomial.of(self._added(rest, at))), 1.0, at)

    def _flat(self, found: LaurentPolynomial) -> LaurentPolynomial:
        """The polynomial with the terms of each sum in the place of a term that is this sum."""
        flat = LaurentPolynomial({})
        for m, c in found.terms.items():
            inner = self._made_of.get(m.factors[0][0]) if len(m.factors) == 1 and m.factors[0][1] == 1 else None
            flat = flat.plus(LaurentPolynomial({m: c}) if inner is None else inner.scaled(c))
        return flat

    def _with_sigmoid(self, m: Monomial) -> Monomial:
        """A product with σ(x) for its eˣ / (1 + eˣ), where the value computes σ(x).

        The divisor may also be √(1 + eˣ) squared: a value with `rsqrt(1 + exp(x))` has such derivatives.
        """
        # σ(x) = eˣ / (1 + eˣ) is at most 1. The quotient is ∞ / ∞ = NaN where eˣ overflows: in float32 above 88.7.
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

    def _added(self, found: LaurentPolynomial, at: fx.Node) -> fx.Node:
        terms = sorted(found.terms.items(), key=lambda term: (term[1] < 0, self._position(term[0])))
        first, *others = terms
        total: Any = self._term(*first, at)
        for m, c in others:
            term = self._term(m, abs(c), at)
            if c > 0:
                total = self._call(aten.add.Tensor, (term, total) if isinstance(total, float) else (total, term), at)
            elif isinstance(total, float):
                total = self._call(aten.rsub.Scalar, (term, total), at)
            else:
                total = self._call(aten.sub.Tensor, (total, term), at)
        return total  # type: ignore[no-any-return]

    def _term(self, m: Monomial, c: float, at: fx.Node) -> Any:
        return self._product(m, c, at) if m.factors else c

    def _position(self, m: Monomial) -> tuple[int, ...]:
        return tuple(sorted(self._order.get(node, len(self._order)) for node, _ in m.factors))

    def _product(self, m: Monomial, c: float, at: fx.Node) -> fx.Node:
        """A node for a product: a number, cotangents, other factors, then divisors."""
        m = self._with_outputs(m)
        factors = sorted(m.factors, key=lambda f: (f[0] not in self._leading, self._order.get(f[0], len(self._order))))
        top: Any = None
        for node, power in [f for f in factors if f[1] > 0]:
            raised = node if power == 1 else self._call(aten.pow.Tensor_Scalar, (node, power), at)
            top = self._times(raised, c, at) if top is None else self._call(aten.mul.Tensor, (top, raised), at)
        divisors = [node for node, power in factors for _ in range(-power)]
        if top is None:
            top = self._times(self._call(aten.reciprocal.default, (divisors.pop(0),), at), c, at)
        for node in divisors:
            top = self._call(aten.div.Tensor, (top, node), at)
        return top  # type: ignore[no-any-return]

    def _times(self, node: fx.Node, c: float, at: fx.Node) -> fx.Node:
        if abs(c) == 1:
            return node if c == 1 else self._call(aten.neg.default, (node,), at)
        return self._call(aten.mul.Tensor, (node, c), at)

    def _with_outputs(self, m: Monomial) -> Monomial:
        """A product with an output in the place of the output's factors."""
        for out, product in self._products:
            if all(m.exponent(node) >= power for node, power in product.factors):
                m = m.times(product.power(-1)).times(Monomial.of(out))
        return m

    def _call(self, target: Any, args: tuple[Any, ...], at: fx.Node) -> fx.Node:
        """A node for an op, before `at`: the one made before for the same op, if it comes earlier."""
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


def _has_options(node: fx.Node) -> bool:
    return any(v is not None and not (k == "alpha" and v == 1) for k, v in node.kwargs.items()) or len(node.args) > 2


_SCALES = (1.0, 12.0)
"""Standard deviations of the points: ordinary ones, and those where functions saturate."""
_ERROR_GROWTH = 2.0
"""Factor by which the largest error may grow."""
_ERROR_FLOOR = 4.0
"""Relative error, in units of the machine epsilon, that is always accepted."""


def _is_as_accurate(new: fx.GraphModule, old: fx.GraphModule) -> bool:
    """Whether the largest error of a graph, at random points and against double precision, is about that of another."""
    inputs = [node.meta["val"] for node in old.graph.find_nodes(op="placeholder")]
    for scale in _SCALES:
        points = [_point(x, i, scale) for i, x in enumerate(inputs)]
        try:
            with torch.no_grad():
                exact = _derivatives(old, [_in_double(x) for x in points])
                before, after = _derivatives(old, points), _derivatives(new, points)
        except Exception:  # the points are outside the formula's domain: nothing proves that the new form is as good
            return False
        if not all(map(_is_no_worse, after, before, exact)):
            return False
    return True


def _is_no_worse(new: Tensor, old: Tensor, exact: Tensor) -> bool:
    if not bool((new.isfinite() | ~old.isfinite()).all()):
        return False
    # The forms are equal in real arithmetic, so they differ by rounding alone. A maximum over random points is a rough
    # measure of that, whence the factor; below 4 eps a form is as good as a few ops can be.
    compared = exact.isfinite() & old.isfinite()
    size = exact.abs().clamp_min(1e-30)
    before, after = (((x.to(exact.dtype) - exact).abs() / size)[compared] for x in (old, new))
    if not before.numel():
        return True
    floor = _ERROR_FLOOR * torch.finfo(old.dtype).eps
    return bool(after.max() <= max(_ERROR_GROWTH * float(before.max()), floor))


def _derivatives(module: fx.GraphModule, points: Sequence[Tensor]) -> list[Tensor]:
    results: Any = module(*points)[1]
    return [r for r in results if r is not None]


def _point(like: Tensor, seed: int, scale: float) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    shape = _torch.size_hints(like)
    if like.is_floating_point() or like.is_complex():
        return torch.randn(shape, generator=generator, dtype=like.dtype) * scale
    return torch.randint(0, 2, shape, generator=generator).to(like.dtype)


def _in_double(x: Tensor) -> Tensor:
    return x.to(torch.complex128) if x.is_complex() else x.double() if x.is_floating_point() else x

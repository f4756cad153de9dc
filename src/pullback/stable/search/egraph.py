"""An e-graph over pointwise ops: equality saturation, with the value of every class known at a few points.

Classes hold nodes (op, class, …) that are equal as real functions; `saturate` and `rebuild` follow egg (Willsey et al.,
POPL 2021): matches are collected first and applied later, congruence is restored once per iteration, and a rule that
matches too often is suspended for some iterations (egg's backoff scheduler).

Besides its proven equalities, a class knows its value in ball arithmetic at a few generic points. These *witnesses* do
two things. A merge whose values differ is refused, so an unsound rule (a/a → 1 at 0, √a² → a) does no harm. And classes
whose values agree to 120 bits at all points are merged, where no kink is in them: so constants fold, and identities
without a rule are found. That is evidence and no proof: if the digits of unequal functions are as good as random, they
agree at six points with a chance of 2⁻⁷²⁰. Kinks are excluded since |x| and x agree at all points x > 0, whereas
analytic functions that agree on an interval agree everywhere (the identity theorem). What a search finds is measured
against exact values.

`ClassTruths` has the exact value of every class at the samples. A class has many nodes; the ball of one may be wide
where it cancels, that of another tight. At every sample the tightest is kept.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from flint import arb, ctx, fmpq

from pullback.ops.constants import CONSTANTS
from pullback.ops.record import Rounding
from pullback.ops.registry import CONDITIONS, OPS
from pullback.stable.rewriting import COMMUTATIVE, RewriteRule
from pullback.stable.term import CONST, LEAVES, NAMED, VAR, Term, topological

Node = tuple[Any, ...]
"""An op with the ids of its operands' classes; of a leaf its kind and value."""

_KINKED = frozenset(name for name, op in OPS.items() if not op.is_analytic)
_BITS = 256  # of a witness
_KEY_BITS = 120  # in which two witnesses must agree; known to 20 more, one in 2²⁰ is too near a tie to have one key
_SMALL = 10**6  # of a folded rational's parts


class EGraph:
    """Classes of equal terms.

    Args:
        witnesses: values of each variable at a few points, exact in binary.
    """

    def __init__(self, witnesses: Mapping[str, Sequence[float]]) -> None:
        self._witnesses = witnesses
        self._n = len(next(iter(witnesses.values())))
        self._parent: list[int] = []
        self._ids: dict[Node, int] = {}
        self._values: dict[int, list[Any] | None] = {}
        self._by_value: dict[Any, int] = {}
        self._kinked: set[int] = set()
        self._stale = False
        self.nodes: dict[int, dict[Node, None]] = {}  # ordered sets, for reproducible runs
        self.constant: dict[int, Fraction] = {}
        self.refused: set[str] = set()

    def find(self, a: int) -> int:
        """Class that an id belongs to, by its representative."""
        parent = self._parent  # union-find with path halving
        while parent[a] != a:
            parent[a] = parent[parent[a]]
            a = parent[a]
        return a

    @property
    def size(self) -> int:
        """Number of nodes."""
        return len(self._ids)

    def add(self, node: Node) -> int:
        """Class of a node, made if need be."""
        node = self._canonical(node)
        known = self._ids.get(node)
        if known is not None:
            return self.find(known)
        made = len(self._parent)
        self._parent.append(made)
        self._ids[node] = made
        self.nodes[made] = {node: None}
        value = self._value(node)
        self._values[made] = value
        if (folded := self._folded(node)) is not None:
            self.constant[made] = folded
            self.union(made, self.add((CONST, folded)))
        if self._has_kink(node):
            self._kinked.add(made)
        # Analytic functions that agree at generic points are taken to be equal, but |x| and x agree wherever x > 0.
        key = None if made in self._kinked else self._key(value)
        if key is not None and (twin := self._by_value.setdefault(key, made)) != made:
            self.union(made, twin)
        return self.find(made)

    def add_term(self, term: Term, bound: Mapping[str, int] | None = None) -> int:
        """Class of a term; `bound` gives the classes of a pattern's variables."""
        made: dict[Term, int] = {}
        for t in topological([term]):
            if t.op == VAR and bound is not None:
                made[t] = self.find(bound[t.value])
            else:
                made[t] = self.add((t.op, t.value) if t.op in LEAVES else (t.op, *(made[a] for a in t.args)))
        return self.find(made[term])

    def union(self, a: int, b: int, why: str = "") -> bool:
        """Merge two classes, unless their values show that they differ; whether something changed."""
        a, b = self.find(a), self.find(b)
        if a == b:
            return False
        if not self._agree(a, b):
            self.refused.add(why)
            return False
        # The larger class survives, so that few nodes move. Congruence (f(a) = f(b) if a = b) is left to `rebuild`:
        # once for many merges, as in egg, is cheaper than after each.
        if len(self.nodes[a]) < len(self.nodes[b]):
            a, b = b, a
        self._parent[b] = a
        self.nodes[a] |= self.nodes.pop(b)
        self._values[a] = _better(self._values[a], self._values.pop(b))
        if b in self.constant:
            self.constant.setdefault(a, self.constant.pop(b))
        if b in self._kinked:
            self._kinked.add(a)
        self._stale = True
        return True

    def rebuild(self) -> None:
        """Restore congruence: nodes that became equal are merged."""
        while self._stale:
            self._stale = False
            for node, owner in list(self._ids.items()):
                canonical = self._canonical(node)
                if canonical == node:
                    continue
                del self._ids[node]
                other = self._ids.setdefault(canonical, owner)
                if self.find(other) != self.find(owner):
                    self.union(other, owner)
        self.nodes = defaultdict(dict)
        for node, owner in self._ids.items():
            self.nodes[self.find(owner)][node] = None
        self._keep_constants()

    def saturate(self, rules: Sequence[RewriteRule], iterations: int, limit: int, seconds: float = 20.0) -> None:
        """Apply rules until nothing changes or a limit is met; a rule that matches too often rests for a while."""
        end = time.monotonic() + seconds
        resting: dict[str, tuple[int, int]] = {}
        for iteration in range(iterations):
            found: list[tuple[RewriteRule, dict[str, int], int]] = []
            heads = self._heads()
            for rule in rules:
                until, times = resting.get(rule.text, (0, 0))
                if until > iteration:
                    continue
                # Backoff: associativity and distributivity match everywhere and would crowd out the rest. A rule that
                # exceeds its limit is suspended, the longer and with the higher limit the more often it did.
                most = 300 * 2**times
                matches = self._matches(rule, heads, most)
                if len(matches) > most:
                    resting[rule.text] = (iteration + 2 * times + 3, times + 1)
                found += matches[:most]
            # All matches are found before any is applied: the graph does not change while it is searched.
            before = (self.size, len(self.nodes))
            for rule, bound, owner in found:
                self.union(self.add_term(rule.right, bound), owner, rule.text)
                if self.size > 1.5 * limit:
                    break
            self.rebuild()
            if (self.size, len(self.nodes)) == before or self.size > limit or time.monotonic() > end:
                return

    def _heads(self) -> dict[str, list[int]]:
        heads: dict[str, dict[int, None]] = defaultdict(dict)
        for owner, nodes in self.nodes.items():
            for node in nodes:
                heads[node[0]][owner] = None
        return {op: list(owners) for op, owners in heads.items()}

    def _matches(
        self, rule: RewriteRule, heads: Mapping[str, list[int]], most: int
    ) -> list[tuple[RewriteRule, dict[str, int], int]]:
        found = []
        for owner in heads.get(rule.left.op, ()):
            found += [(rule, bound, owner) for bound in self._match(rule.left, owner, {})]
            if len(found) > most:
                break
        return found

    def _match(self, pattern: Term, owner: int, bound: dict[str, int]) -> Iterator[dict[str, int]]:
        if pattern.op == VAR:
            known = bound.get(pattern.value)
            if known is None:
                yield {**bound, pattern.value: owner}
            elif self.find(known) == owner:
                yield bound
        elif pattern.op == CONST:
            if self.constant.get(owner) == pattern.value:
                yield bound
        elif pattern.op == NAMED:
            if (NAMED, pattern.value) in self.nodes[owner]:
                yield bound
        else:
            for node in list(self.nodes[owner]):
                if node[0] == pattern.op:
                    yield from self._match_operands(pattern, node, bound)

    def _match_operands(self, pattern: Term, node: Node, bound: dict[str, int]) -> Iterator[dict[str, int]]:
        find = self.find
        if len(node) == 2:
            yield from self._match(pattern.args[0], find(node[1]), bound)
            return
        if len(node) == 3:
            p, q = pattern.args
            left, right = find(node[1]), find(node[2])
            for one in self._match(p, left, bound):
                yield from self._match(q, right, one)
            if left != right and pattern.op in COMMUTATIVE:
                for one in self._match(p, right, bound):
                    yield from self._match(q, left, one)
            return
        partial = [bound]
        for p, child in zip(pattern.args, node[1:], strict=True):
            partial = [more for b in partial for more in self._match(p, find(child), b)]
        yield from partial

    def _canonical(self, node: Node) -> Node:
        if node[0] in LEAVES:
            return node
        children = tuple(map(self.find, node[1:]))
        return (node[0], *(sorted(children) if node[0] in COMMUTATIVE else children))

    def _folded(self, node: Node) -> Fraction | None:
        """Rational value of a node whose operands are rational, if it is a small one."""
        if node[0] == CONST:
            return Fraction(node[1])
        operands = [self.constant.get(self.find(c)) for c in node[1:]] if node[0] in _EXACT else [None]
        if None in operands or (node[0] == "div" and operands[1] == 0):
            return None
        value: Fraction = OPS[node[0]].ball(*operands)
        return value if max(abs(value.numerator), value.denominator) < _SMALL else None

    def _has_kink(self, node: Node) -> bool:
        """Whether a node may have a kink with witnesses on one side only."""
        if node[0] in LEAVES:
            return False
        if node[0] in ("abs", "sgn") and any(n[0] == VAR for n in self.nodes[self.find(node[1])]):
            return False
        return node[0] in _KINKED or any(self.find(c) in self._kinked for c in node[1:])

    def _keep_constants(self) -> None:
        """Reduce a class with a rational value to that constant: its other nodes are noise."""
        for owner, value in list(self.constant.items()):
            if self.find(owner) == owner and len(self.nodes[owner]) > 1:
                for node in self.nodes[owner]:
                    del self._ids[node]
                self._ids[(CONST, value)] = owner
                self.nodes[owner] = {(CONST, value): None}

    def _value(self, node: Node) -> list[Any] | None:
        """Balls of a node at the points; `None` for a truth value."""
        op = node[0]
        if op in CONDITIONS:
            return None
        before = ctx.prec
        ctx.prec = _BITS
        try:
            if op == VAR:
                return [arb(x) for x in self._witnesses[node[1]]]
            if op in LEAVES:
                return [leaf_ball(op, node[1])] * self._n
            operands = [self._values[self.find(c)] for c in node[1:]]
            if any(values is None for values in operands):  # the branches of a condition differ by place
                return [arb("nan")] * self._n
            return [OPS[op].ball(*at) for at in zip(*operands, strict=True)]
        finally:
            ctx.prec = before

    def _agree(self, a: int, b: int) -> bool:
        p, q = self._values[a], self._values[b]
        if p is None or q is None:
            return p is q
        return all(u.overlaps(v) for u, v in zip(p, q, strict=True) if u.is_finite() and v.is_finite())

    def _key(self, value: list[Any] | None) -> Any:
        keys = tuple(map(_key_of, value)) if value is not None else (None,)
        return None if None in keys else keys


def leaf_ball(op: str, value: Any) -> Any:
    """Constant as a ball at the current precision."""
    return arb(fmpq(value.numerator, value.denominator)) if op == CONST else CONSTANTS[value](arb)


_EXACT = frozenset(name for name, op in OPS.items() if op.rounding is Rounding.CORRECT) | {"neg"}
"""Ops of rational numbers: their `ball` is Python's operator, which takes fractions, too."""


def _better(p: list[Any] | None, q: list[Any] | None) -> list[Any] | None:
    if p is None or q is None:
        return p
    return [u if u.is_finite() else v for u, v in zip(p, q, strict=True)]


def _key_of(ball: Any) -> Any:
    """Leading bits of a ball; `None` where it has not that many, 0 for one that is 0 to all its bits."""
    if not ball.is_finite():
        return None
    if ball.rel_accuracy_bits() < _KEY_BITS + 20:
        return 0 if abs(ball) < arb(2) ** (40 - _BITS) else None
    mantissa, exponent = ball.mid().man_exp()
    # rounded, not cut off: a short number and one that is less by its error alone have one key
    key, excess = int(mantissa), int(mantissa).bit_length() - _KEY_BITS
    if excess > 0:
        key = (key + (1 << (excess - 1))) >> excess
    else:
        key <<= -excess
    if key.bit_length() > _KEY_BITS:
        key, excess = key >> 1, excess + 1
    return key, int(exponent) + excess


_ENOUGH = 64  # relative bits with which a value is known
_TRIES = 6  # nodes of a class that are looked at
_TINY = 2.0**-300


class ClassTruths:
    """Exact values of classes.

    Attributes:
        exact: of each class float64 values, NaN where unknown or undefined; of conditions nothing but the entry.
        constants: values of the classes that hold no variable.
    """

    def __init__(self, graph: EGraph, points: Mapping[str, np.ndarray], classes: Collection[int] | None = None) -> None:
        self._graph = graph
        self._classes = {owner: graph.nodes[owner] for owner in (graph.nodes if classes is None else classes)}
        self._points = points
        self._n = len(next(iter(points.values())))
        self._balls: dict[int, list[Any]] = {}
        self._bits: dict[int, np.ndarray] = {}
        self.exact: dict[int, np.ndarray] = {}
        self.constants: dict[int, float] = {}
        before = ctx.prec
        ctx.prec = _BITS
        try:
            self._fill()
        finally:
            ctx.prec = before

    def _fill(self) -> None:
        free = self._leaves()
        tried: dict[int, set[Node]] = {}
        progress = True
        while progress:
            progress = False
            for owner, nodes in self._classes.items():
                if owner in self._bits and self._bits[owner].min() >= _ENOUGH:
                    continue
                done = tried.setdefault(owner, set())
                for node in nodes:
                    if len(done) >= _TRIES:
                        break
                    if node in done or node[0] in LEAVES:
                        continue
                    children = tuple(map(self._graph.find, node[1:]))
                    if not all(c in self._balls for c in children):
                        continue
                    done.add(node)
                    self._note(owner, node, children, all(c in free for c in children))
                    if all(c in free for c in children):
                        free.add(owner)
                    progress = True
        for owner, balls in self._balls.items():
            self.exact[owner] = _rounded(balls, self._bits[owner])
            if owner in free and np.isfinite(self.exact[owner][0]):
                self.constants[owner] = float(self.exact[owner][0])

    def _leaves(self) -> set[int]:
        free = set()
        for owner, nodes in self._classes.items():
            for op, *value in nodes:
                if op == VAR and value[0] not in self._points:
                    continue
                if op == VAR:
                    self._balls[owner] = [arb(float(x)) for x in self._points[value[0]]]
                elif op in LEAVES:
                    self._balls[owner] = [leaf_ball(op, value[0])] * self._n
                    free.add(owner)
                else:
                    continue
                self._bits[owner] = np.full(self._n, _BITS)
                break
        return free

    def _note(self, owner: int, node: Node, children: tuple[int, ...], is_constant: bool) -> None:
        run = OPS[node[0]].ball
        columns = [self._balls[c] for c in children]
        if is_constant:
            made = [run(*(column[0] for column in columns))] * self._n
        else:
            made = [run(*at) for at in zip(*columns, strict=True)]
        if node[0] in CONDITIONS:
            self._balls[owner], self._bits[owner] = made, np.full(self._n, _BITS)
            return
        bits = _known_bits(made)
        if owner not in self._balls:
            self._balls[owner], self._bits[owner] = made, bits
            return
        # Every node of a class encloses the same values; the tighter ball at each sample is the better one.
        better = bits > self._bits[owner]
        if better.any():
            known = self._balls[owner]
            self._balls[owner] = [m if b else k for m, b, k in zip(made, better, known, strict=True)]
            self._bits[owner] = np.maximum(bits, self._bits[owner])


def _known_bits(balls: list[Any]) -> np.ndarray:
    bits = np.fromiter(map(arb.rel_accuracy_bits, balls), np.int64, len(balls)).clip(-999, _BITS)
    for i in np.flatnonzero(bits == _BITS):
        if not balls[i].is_finite():
            bits[i] = -999
    return bits


def _rounded(balls: list[Any], bits: np.ndarray) -> np.ndarray:
    if isinstance(balls[0], bool) or balls[0] is None:
        return np.full(len(balls), math.nan)
    exact = np.fromiter(map(float, balls), np.float64, len(balls))
    for i in np.flatnonzero(bits < _ENOUGH):
        if not (balls[i].is_finite() and abs(balls[i]) < _TINY):
            exact[i] = math.nan
    return exact

"""The exact value of every class of an e-graph at the samples, in ball arithmetic.

A class has many nodes; the ball of one may be wide where it cancels, that of another tight. At every sample the
tightest is kept.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from flint import arb, ctx

from pullback.ops.registry import CONDITIONS, OPS
from pullback.stable.egraph import EGraph, Node, leaf_ball
from pullback.stable.term import LEAVES, VAR

_BITS = 256
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

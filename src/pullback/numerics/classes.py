"""The exact value of every class of an e-graph at the samples, in ball arithmetic.

A class has many nodes; the ball of one may be wide where it cancels, that of another tight. At every sample the
tightest is kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from flint import arb, ctx

from pullback.numerics.egraph import EGraph, Node, leaf_ball
from pullback.numerics.ops import CONDITIONS, OPS
from pullback.numerics.term import LEAVES, VAR

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

    def __init__(self, graph: EGraph, points: Mapping[str, np.ndarray]) -> None:
        self._graph = graph
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
            for owner, nodes in self._graph.nodes.items():
                if owner in self._bits and self._bits[owner].min() >= _ENOUGH:
                    continue
                done = tried.setdefault(owner, set())
                for node in nodes - done:
                    if len(done) >= _TRIES:
                        break
                    children = () if node[0] in LEAVES else tuple(map(self._graph.find, node[1:]))
                    if not children or not all(c in self._balls for c in children):
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
        for owner, nodes in self._graph.nodes.items():
            for op, *value in nodes:
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
        bits = np.array([min(b.rel_accuracy_bits(), _BITS) if b.is_finite() else -999 for b in made])
        if owner not in self._balls:
            self._balls[owner], self._bits[owner] = made, bits
            return
        better = bits > self._bits[owner]
        if better.any():
            known = self._balls[owner]
            self._balls[owner] = [m if b else k for m, b, k in zip(made, better, known, strict=True)]
            self._bits[owner] = np.maximum(bits, self._bits[owner])


def _rounded(balls: list[Any], bits: np.ndarray) -> np.ndarray:
    exact = np.full(len(balls), math.nan)
    for i, (ball, known) in enumerate(zip(balls, bits, strict=True)):
        if isinstance(ball, bool) or ball is None:
            continue
        if known >= _ENOUGH or (ball.is_finite() and abs(ball) < _TINY):
            exact[i] = float(ball.mid())
    return exact

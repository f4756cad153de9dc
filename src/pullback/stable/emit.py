"""Programs as plain Python functions of torch ops, which every tracer reads and which compute the same bits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback.ops.registry import OPS
from pullback.stable.evaluate import number
from pullback.stable.formats import working
from pullback.stable.piecewise import Program
from pullback.stable.term import LEAVES, POLY, VAR, Term, topological, variables


def emit(
    program: Program, names: Sequence[str], dtype: torch.dtype, name: str, free: Collection[str] = ()
) -> Callable[..., Tensor]:
    """Return a function of tensors of a dtype, in the order of `names`, that computes a program.

    The result is NaN where an input is, except for inputs in `free`. The attribute `source` holds its source. Only text
    of our own is executed: `name` is no part of it, and ops are those of the table.
    """
    writer = _Writer(names, dtype)
    result = writer.program(program)
    lines = [f"def form({', '.join(map(_parameter, names))}):", *(f"    {line}" for line in writer.lines)]
    lines.append(f"    return {writer.finished(result, set(names) - program.shown() - set(free))}")
    source = "\n".join(lines)
    scope: dict[str, Any] = {
        "torch": torch,
        **{op.spelling: op.value for op in OPS.values() if op.spelling.isidentifier()},
    }
    exec(compile(source, f"<{name}>", "exec"), scope)
    made: Any = scope["form"]
    made.source = source
    return made  # type: ignore[no-any-return]


def _parameter(name: str) -> str:
    """Return an input's parameter name, renamed since a formula may call it `torch`, or `v0`."""
    return f"{name}_in"


class _Writer:
    """Writes lines; each subterm once in each precision."""

    def __init__(self, names: Sequence[str], dtype: torch.dtype) -> None:
        self._names, self._dtype = names, dtype
        self._known: dict[tuple[Term, bool], str] = {}
        self.lines: list[str] = []

    def program(self, program: Program) -> str:
        """Write a program; return the name of its result."""
        value = ""
        for piece in reversed(program.pieces):
            body = piece.body
            made = self.program(body) if isinstance(body, Program) else self._term(body, piece.wide)
            if piece.wide and self._dtype == torch.float32 and not all(p.wide for p in program.pieces):
                made = self._line(f"{made}.to(torch.float32)")  # otherwise the others are chosen in float64
            if not value or program.branch is None:
                value = made
            else:
                condition = f"{self._term(program.branch, False)} <= {piece.upper!r}"
                value = self._line(f"torch.where({condition}, {made}, {value})")
        return value

    def finished(self, result: str, hidden: Collection[str]) -> str:
        """Return the result in its dtype, as a new tensor; NaN where an unread input is NaN."""
        for x in map(_parameter, sorted(hidden)):
            result = f"torch.where({x} != {x}, {x}, {result})"
        if result in map(_parameter, self._names):
            return f"{result}.clone()"
        return f"{result}.to({self._dtype})" if self._is_mixed() else result

    def _is_mixed(self) -> bool:
        return working(self._dtype) != self._dtype or any(wide for _, wide in self._known)

    def _term(self, root: Term, wide: bool) -> str:
        for term in topological([root]):
            if (term, wide) not in self._known:
                self._known[term, wide] = self._written(term, wide)
        value = self._known[root, wide]
        if root.op in LEAVES and root.op != VAR:  # a result without inputs has their size
            value = self._line(f"torch.full_like({self._variable(self._names[0], wide)}, {value})")
        elif not variables(root):
            value = self._line(f"torch.ones_like({self._variable(self._names[0], wide)}) * {value}")
        return value

    def _written(self, term: Term, wide: bool) -> str:
        if term.op == VAR:
            return self._variable(term.value, wide)
        if term.op in LEAVES:
            return repr(number(term))
        if term.op == POLY:
            return self._horner(term, wide)
        operands = [self._known[a, wide] for a in term.args]
        scalars = [a.op in LEAVES and a.op != VAR for a in term.args]
        op = OPS[term.op]
        # PyTorch rounds a Python number to the tensor's dtype before an infix op, but not before a division
        if any(scalars) and (not op.symbol or op.name == "div" or all(scalars)):
            operands = [self._constant(text, wide) if s else text for text, s in zip(operands, scalars, strict=True)]
        if op.symbol:
            return self._line(f"{operands[0]} {op.symbol} {operands[1]}")
        if term.op == "neg":
            return self._line(f"-{operands[0]}")
        return self._line(f"{op.spelling or f'torch.{op.name}'}({', '.join(operands)})")

    def _variable(self, name: str, wide: bool) -> str:
        dtype = torch.float64 if wide else working(self._dtype)
        if dtype == self._dtype:
            return _parameter(name)
        key = (Term(VAR, (), name), wide)
        if key not in self._known:
            self._known[key] = self._line(f"{_parameter(name)}.to({dtype})")
        return self._known[key]

    def _constant(self, text: str, wide: bool) -> str:
        dtype = torch.float64 if wide else working(self._dtype)
        # `torch.full` of no tensor: torch.export takes it for a constant where a transform is recorded
        return f"{_parameter(self._names[0])}.new_full((), {text}, dtype={dtype})"

    def _horner(self, term: Term, wide: bool) -> str:
        poly, x = term.value, self._known[term.args[0], wide]
        t = x if poly.centre == 0.0 and poly.rest == 0.0 else self._line(f"{x} - {poly.centre!r} - {poly.rest!r}")
        u = self._line(f"{t} * {t}") if poly.even else t
        first, *others = poly.coefficients
        if not others:
            value = self._line(f"torch.full_like({t}, {first!r})")
        else:
            value = f"{u} * {others[-1]!r}"
            for c in others[-2::-1]:
                value = f"{self._line(f'{value} + {c!r}')} * {u}"
            value = self._line(f"{value} + {poly.tail!r} + {first!r}")
        for _ in range(abs(poly.power)):
            value = self._line(f"{value} {'*' if poly.power > 0 else '/'} {t}")
        return value

    def _line(self, text: str) -> str:
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return name

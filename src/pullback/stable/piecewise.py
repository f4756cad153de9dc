"""Programs that a search finds: terms, chosen by thresholds of one quantity, in working or in double precision.

A program has three renderings that agree bit for bit: `Piecewise.run` on tensors, the lines of text in a certificate
(`lines`, `parse_piecewise`), and a plain Python function of torch ops, which every tracer can follow (`emit`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from pullback.ops.registry import OPS
from pullback.stable.derivative import derivative
from pullback.stable.evaluate import constant_value, evaluate, nan_inputs
from pullback.stable.formats import working
from pullback.stable.rewriting import tidy
from pullback.stable.term import LEAVES, POLY, VAR, Term, parse, show, topological, variables


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of a program: it applies up to a threshold.

    Attributes:
        body: a term, or a program that chooses further.
        upper: upper end, inclusive; infinite for the last piece.
        wide: whether it computes in float64.
    """

    body: Term | Piecewise
    upper: float = float("inf")
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Piecewise:
    """Pieces in the order of their thresholds on one term of the inputs."""

    branch: Term | None
    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, term: Term, wide: bool = False) -> Piecewise:
        """Program that computes one term everywhere."""
        return cls(None, (Piece(term, wide=wide),))

    def run(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Compute it on tensors of one dtype; the result has that dtype, and is NaN where an input is.

        Inputs of 16 bits are computed in float32.
        """
        dtype = next(iter(inputs.values())).dtype
        narrow = {name: x.to(working(dtype)) for name, x in inputs.items()}
        wide = {name: x.double() for name, x in inputs.items()}
        value = self._run(narrow, wide, ({}, {})).to(dtype)
        for name in sorted(inputs.keys() - self.nan_inputs()):
            value = torch.where(inputs[name].isnan(), inputs[name], value)
        return value

    def _run(
        self,
        narrow: Mapping[str, Tensor],
        wide: Mapping[str, Tensor],
        known: tuple[dict[Term, Tensor], dict[Term, Tensor]],
    ) -> Tensor:
        value: Tensor | None = None
        for piece in reversed(self.pieces):
            if isinstance(piece.body, Piecewise):
                made = piece.body._run(narrow, wide, known)
            else:
                made = evaluate(piece.body, wide if piece.wide else narrow, known[piece.wide])
            if value is None or self.branch is None:
                value = made
                continue
            # float64 where one of the two has it, rounded once at the end
            value = torch.where(evaluate(self.branch, narrow, known[0]) <= piece.upper, made, value)
        assert value is not None, "a program has a piece"
        return value

    def derivative(self, by: str) -> Piecewise:
        """Program of a partial derivative: the derivative of each piece, with the same thresholds.

        Raises:
            DerivativeError: if the table has no derivative for an op on the way.
        """
        pieces = [
            Piece(
                p.body.derivative(by) if isinstance(p.body, Piecewise) else tidy(derivative(p.body, by)),
                p.upper,
                p.wide,
            )
            for p in self.pieces
        ]
        return Piecewise(self.branch, tuple(pieces))

    def branches(self) -> Iterator[Term]:
        """Yield the terms that are compared with thresholds."""
        if self.branch is not None:
            yield self.branch
        for piece in self.pieces:
            if isinstance(piece.body, Piecewise):
                yield from piece.body.branches()

    def nan_inputs(self) -> frozenset[str]:
        """Variables whose NaN makes the result NaN, whichever piece is chosen."""
        in_pieces = [p.body.nan_inputs() if isinstance(p.body, Piecewise) else nan_inputs(p.body) for p in self.pieces]
        # a NaN is not below any threshold
        decided = nan_inputs(self.branch) if self.branch is not None else frozenset()
        return frozenset.intersection(*in_pieces) | (in_pieces[-1] & decided)

    def terms(self) -> Iterator[tuple[Term, bool]]:
        """Yield its terms and whether each is computed in float64."""
        for piece in self.pieces:
            if isinstance(piece.body, Piecewise):
                yield from piece.body.terms()
            else:
                yield piece.body, piece.wide

    def lines(self, indent: str = "") -> list[str]:
        """Text that `parse_piecewise` parses, one line for each piece."""
        lines = []
        for piece in self.pieces:
            last = self.branch is None or piece.upper == float("inf")
            until = "otherwise" if last else f"{show_branch(self.branch)} <= {piece.upper!r}"
            if isinstance(piece.body, Piecewise):
                lines += [f"{indent}{until}:", *piece.body.lines(indent + "    ")]
            else:
                lines.append(f"{indent}{until}: {show(piece.body)}{_WIDE_MARK if piece.wide else ''}")
        return lines


_WIDE_MARK = "  [float64]"


def show_branch(branch: Term | None) -> str:
    """Text of the term that is compared with thresholds."""
    return "" if branch is None else show(branch)


def parse_piecewise(lines: Sequence[str], names: Collection[str] = ()) -> Piecewise:
    """Parse a program of variables of these names from its lines.

    Raises:
        ValueError: if they are not a program.
    """
    pieces: list[Piece] = []
    branches, rest = [], list(lines)
    while rest:
        line = rest.pop(0)
        until, colon, form = line.partition(":")
        if not colon or line[:1].isspace():
            raise ValueError(f"not a piece of a program: {line!r}")
        upper = float("inf")
        if until != "otherwise":
            compared, _, threshold = until.rpartition(" <= ")
            branches.append(parse(compared, names))
            upper = float(threshold)
        inner = []
        while rest and rest[0].startswith("    "):
            inner.append(rest.pop(0)[4:])
        wide = form.endswith(_WIDE_MARK)
        if inner and form.strip():
            raise ValueError(f"a piece is a term or more pieces, not both: {line!r}")
        body = parse_piecewise(inner, names) if inner else parse(form.removesuffix(_WIDE_MARK).strip(), names)
        pieces.append(Piece(body, upper, wide))
    uppers = [piece.upper for piece in pieces]
    if not pieces or uppers[-1] != float("inf") or len(branches) != len(pieces) - 1:
        raise ValueError("a program ends with one piece `otherwise`")
    if len(set(branches)) > 1 or any(not a < b for a, b in pairwise(uppers)):
        raise ValueError("the pieces of a program are in the order of thresholds on one term")
    return Piecewise(branches[0] if branches else None, tuple(pieces))


def emit(
    program: Piecewise, names: Sequence[str], dtype: torch.dtype, name: str, free: Collection[str] = ()
) -> Callable[..., Tensor]:
    """Function of tensors of a dtype, in the order of `names`, that computes a program.

    The result is NaN where an input is, except for inputs in `free`. The attribute `source` holds its source. Only text
    of our own is executed: `name` is not part of it, and ops are those of the table.
    """
    writer = _SourceWriter(names, dtype)
    result = writer.program(program)
    lines = [f"def form({', '.join(map(_parameter, names))}):", *(f"    {line}" for line in writer.lines)]
    lines.append(f"    return {writer.finished(result, set(names) - program.nan_inputs() - set(free))}")
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
    """Parameter name of an input, with a suffix since a formula may call it `torch`, or `v0`."""
    return f"{name}_in"


class _SourceWriter:
    """Writer of the lines of a function: each subterm once in each precision."""

    def __init__(self, names: Sequence[str], dtype: torch.dtype) -> None:
        self._names, self._dtype = names, dtype
        self._known: dict[tuple[Term, bool], str] = {}
        self.lines: list[str] = []

    def program(self, program: Piecewise) -> str:
        """Write a program, and return the name of its result."""
        value = ""
        for piece in reversed(program.pieces):
            body = piece.body
            made = self.program(body) if isinstance(body, Piecewise) else self._term(body, piece.wide)
            if piece.wide and self._dtype == torch.float32 and not all(p.wide for p in program.pieces):
                made = self._line(f"{made}.to(torch.float32)")  # otherwise the others are chosen in float64
            if not value or program.branch is None:
                value = made
            else:
                condition = f"{self._term(program.branch, False)} <= {piece.upper!r}"
                value = self._line(f"torch.where({condition}, {made}, {value})")
        return value

    def finished(self, result: str, hidden: Collection[str]) -> str:
        """Result in its dtype, as a new tensor; NaN where an unread input is NaN."""
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
            return repr(constant_value(term))
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

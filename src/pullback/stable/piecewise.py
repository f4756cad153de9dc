"""Programs that a search finds: terms, chosen by thresholds of one quantity, in working or in double precision."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from pullback.stable.derive import derivative
from pullback.stable.evaluate import evaluate
from pullback.stable.formats import working
from pullback.stable.nans import shown
from pullback.stable.term import Term, parse, show
from pullback.stable.tidy import tidy


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of a program: it applies up to a threshold.

    Attributes:
        body: a term, or a program that chooses further.
        upper: upper end, inclusive; infinite for the last piece.
        wide: whether it computes in float64.
    """

    body: Term | Program
    upper: float = float("inf")
    wide: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    """Pieces in the order of their thresholds on one term of the inputs."""

    branch: Term | None
    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, term: Term, wide: bool = False) -> Program:
        """Return the program that computes one term everywhere."""
        return cls(None, (Piece(term, wide=wide),))

    def run(self, inputs: Mapping[str, Tensor]) -> Tensor:
        """Compute it on tensors of one dtype; the result has that dtype, and is NaN where an input is.

        Inputs of 16 bits are computed in float32.
        """
        dtype = next(iter(inputs.values())).dtype
        narrow = {name: x.to(working(dtype)) for name, x in inputs.items()}
        wide = {name: x.double() for name, x in inputs.items()}
        value = self._run(narrow, wide, ({}, {})).to(dtype)
        for name in sorted(inputs.keys() - self.shown()):
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
            if isinstance(piece.body, Program):
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

    def derivative(self, by: str) -> Program:
        """Return the program of a partial derivative: the derivative of each piece, with the same thresholds.

        Raises:
            DerivativeError: if the table has no derivative for an op on the way.
        """
        pieces = [
            Piece(
                p.body.derivative(by) if isinstance(p.body, Program) else tidy(derivative(p.body, by)), p.upper, p.wide
            )
            for p in self.pieces
        ]
        return Program(self.branch, tuple(pieces))

    def branches(self) -> Iterator[Term]:
        """Yield the terms that are compared with thresholds."""
        if self.branch is not None:
            yield self.branch
        for piece in self.pieces:
            if isinstance(piece.body, Program):
                yield from piece.body.branches()

    def shown(self) -> frozenset[str]:
        """Return the variables whose NaN makes the result NaN, whichever piece is chosen."""
        in_pieces = [p.body.shown() if isinstance(p.body, Program) else shown(p.body) for p in self.pieces]
        # a NaN is not below any threshold
        decided = shown(self.branch) if self.branch is not None else frozenset()
        return frozenset.intersection(*in_pieces) | (in_pieces[-1] & decided)

    def terms(self) -> Iterator[tuple[Term, bool]]:
        """Yield its terms and whether each is computed in float64."""
        for piece in self.pieces:
            if isinstance(piece.body, Program):
                yield from piece.body.terms()
            else:
                yield piece.body, piece.wide

    def lines(self, indent: str = "") -> list[str]:
        """Return it as text that `read` reads, one line for each piece."""
        lines = []
        for piece in self.pieces:
            last = self.branch is None or piece.upper == float("inf")
            until = "otherwise" if last else f"{show_branch(self.branch)} <= {piece.upper!r}"
            if isinstance(piece.body, Program):
                lines += [f"{indent}{until}:", *piece.body.lines(indent + "    ")]
            else:
                lines.append(f"{indent}{until}: {show(piece.body)}{_WIDE if piece.wide else ''}")
        return lines


_WIDE = "  [float64]"


def show_branch(branch: Term | None) -> str:
    """Return the text of the term that is compared with thresholds."""
    return "" if branch is None else show(branch)


def read(lines: Sequence[str], names: Collection[str] = ()) -> Program:
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
        wide = form.endswith(_WIDE)
        if inner and form.strip():
            raise ValueError(f"a piece is a term or more pieces, not both: {line!r}")
        body = read(inner, names) if inner else parse(form.removesuffix(_WIDE).strip(), names)
        pieces.append(Piece(body, upper, wide))
    uppers = [piece.upper for piece in pieces]
    if not pieces or uppers[-1] != float("inf") or len(branches) != len(pieces) - 1:
        raise ValueError("a program ends with one piece `otherwise`")
    if len(set(branches)) > 1 or any(not a < b for a, b in pairwise(uppers)):
        raise ValueError("the pieces of a program are in the order of thresholds on one term")
    return Program(branches[0] if branches else None, tuple(pieces))

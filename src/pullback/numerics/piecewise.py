"""Programs that a search finds: terms, chosen by thresholds of one quantity, in working or in double precision."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pullback.numerics.evaluate import evaluate
from pullback.numerics.term import Term, show


@dataclass(frozen=True, slots=True)
class Piece:
    """What is computed up to a threshold.

    Attributes:
        body: a term, or a program that chooses further.
        upper: where it ends, included; infinite for the last piece.
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
        """Compute it on tensors of one dtype; the result has that dtype."""
        wide = {name: x.double() for name, x in inputs.items()}
        return self._run(inputs, wide, ({}, {}))

    def _run(
        self,
        inputs: Mapping[str, Tensor],
        wide: Mapping[str, Tensor],
        known: tuple[dict[Term, Tensor], dict[Term, Tensor]],
    ) -> Tensor:
        dtype = next(iter(inputs.values())).dtype
        value: Tensor | None = None
        for piece in reversed(self.pieces):
            if isinstance(piece.body, Program):
                made = piece.body._run(inputs, wide, known)
            elif piece.wide:
                made = evaluate(piece.body, wide, known[1]).to(dtype)
            else:
                made = evaluate(piece.body, inputs, known[0])
            if value is None or self.branch is None:
                value = made
            else:
                value = torch.where(evaluate(self.branch, inputs, known[0]) <= piece.upper, made, value)
        assert value is not None, "a program has a piece"
        return value.expand_as(next(iter(inputs.values())))

    def terms(self) -> Iterator[tuple[Term, bool]]:
        """Yield its terms and whether each is computed in float64."""
        for piece in self.pieces:
            if isinstance(piece.body, Program):
                yield from piece.body.terms()
            else:
                yield piece.body, piece.wide

    def lines(self, indent: str = "") -> list[str]:
        """Return it as text, one line for each piece."""
        lines = []
        for piece in self.pieces:
            until = (
                "otherwise"
                if piece.upper == float("inf")
                else f"{show(self.branch)} <= {piece.upper!r}"
                if self.branch
                else ""
            )
            if isinstance(piece.body, Program):
                lines += [f"{indent}{until}:", *piece.body.lines(indent + "    ")]
            else:
                lines.append(f"{indent}{until}: {show(piece.body)}{'  [float64]' if piece.wide else ''}")
        return lines

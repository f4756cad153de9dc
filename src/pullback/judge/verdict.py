"""The verdict on a candidate: in JSON, and as text."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

from pullback.report.model import versions
from pullback.report.text import clean

Outcome = Literal["right", "wrong", "cheats", "inconclusive"]

CHEATS: dict[str, str] = {
    "calls-reference": "calls the reference",
    "reads-reference": "reads the source of the reference",
    "forbidden": "uses what was forbidden",
    "patches": "replaces functions of PyTorch, of Python or of the judge",
    "network": "uses the network",
    "stale": "returns the result of another call",
    "reused-output": "hands out an earlier result's memory again",
    "unwritten": "returns memory that was never written",
    "constant": "returns a constant",
}
"""Reasons for the verdict "cheats": what no candidate does that computes its result."""

WRONG: dict[str, str] = {
    "import": "cannot be imported",
    "raises": "raises an exception on a call of the example's kind",
    "crash": "ends its process, or does not return",
    "memory": "a Triton kernel leaves the bounds, races, uses undefined lanes, or leaves results unwritten",
    "structure": "returns another number of tensors, or other shapes",
    "value": "a value is wrong",
    "gradient": "a gradient is wrong",
    "range": "right on values like the example's, wrong on others",
    "size": "right in the example's sizes, wrong in others",
    "layout": "wrong for inputs with other strides",
    "settings": "wrong for other numbers or flags among the arguments",
    "precision": "computes in fewer digits than its inputs have",
    "state": "a call is right alone, and wrong after others",
    "writes-input": "writes to an input",
}
"""Reasons for the verdict "wrong"."""

UNDECIDED: dict[str, str] = {
    "no-example": "there is no example on which both run, the reference in float64 and without random numbers",
    "not-interpreted": "the interpreter cannot run a Triton kernel of the candidate, or Triton is not installed",
    "blunt": "the reference does not determine the result: it is discontinuous, or ill-conditioned",
}
"""Reasons for the verdict "inconclusive"."""

_REFUSALS = 3
"""Exceptions of a candidate that the text names."""
_STYLE = {"right": "green", "wrong": "bold red", "cheats": "bold red", "inconclusive": "yellow"}
STATUS: dict[Outcome, int] = {"right": 0, "wrong": 1, "cheats": 1, "inconclusive": 2}
"""Exit status of the command, as that of `pullback check`."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that is wrong.

    Attributes:
        kind: a key of `CHEATS`, `WRONG` or `UNDECIDED`.
        message: what is wrong, with the numbers, in a sentence.
        call: the call that shows it; empty if none does.
        where: which output or gradient.
        index: position of its worst element.
        expected, got, bar: the right number there, the candidate's, and by how much that may be off.
        failing, compared: wrong elements of that tensor, and all.
        position: of the call.
    """

    kind: str
    message: str
    call: str = ""
    where: str = ""
    index: tuple[int, ...] = ()
    expected: float | None = None
    got: float | None = None
    bar: float | None = None
    failing: int = 0
    compared: int = 0
    position: int = -1


@dataclass(frozen=True, slots=True)
class Smallest:
    """The smallest call found that fails.

    Attributes:
        kind: of the reason that it shows.
        inputs: shapes and dtypes of its arguments.
        code: a script that makes the call of both and prints where each result differs most. What is not imported from
            a file or a module is left to be defined.
    """

    kind: str
    inputs: str
    code: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a candidate.

    Attributes:
        verdict: "right", "wrong", "cheats" or "inconclusive".
        candidate, reference: their names.
        reasons: one of each kind, cheating first; empty for "right".
        smallest: the smallest failing call; `None` if no call fails.
        refused: exceptions of the candidate on calls that the reference takes, each with the labels of such calls.
        remarks: what differs without being wrong: a gradient at isolated points; and which calls were left out.
        calls, compared: calls that were made, and numbers that were compared.
        error: largest error of a right number, relative to the largest of its tensor.
        declared, computed: dtype of the example, and of the inputs that the candidate got.
        seed: with which the same calls are made again.
        seconds: that it took.
    """

    verdict: Outcome
    candidate: str
    reference: str
    reasons: tuple[Reason, ...] = ()
    smallest: Smallest | None = None
    refused: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    calls: int = 0
    compared: int = 0
    error: float | None = None
    declared: str = ""
    computed: str = ""
    seed: int = 0
    seconds: float = 0.0

    def __repr__(self) -> str:
        found = ", ".join(dict.fromkeys(reason.kind for reason in self.reasons))
        return f"<pullback.Verdict {self.verdict}{f' ({found})' * bool(found)}: {self.candidate}, {self.calls} calls>"

    @property
    def is_right(self) -> bool:
        """Whether the verdict is "right"."""
        return self.verdict == "right"

    @property
    def status(self) -> int:
        """Exit status: 0 right, 1 wrong or cheating, 2 not decided."""
        return STATUS[self.verdict]

    def to_dict(self) -> dict[str, Any]:
        """The verdict in strict JSON: `docs/agents.md` has the schema."""
        plain = asdict(self)
        plain["reasons"] = [
            {name: _strict(value) for name, value in reason.items() if name != "position"}
            for reason in plain["reasons"]
        ]
        plain["error"] = _strict(plain["error"])
        return {"schema": 1, **plain, "versions": versions()}

    def to_json(self) -> str:
        """The verdict as text in JSON."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def __str__(self) -> str:
        """The verdict as text."""
        return clean("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """The verdict in lines."""
        made = f"{self.calls} calls, {self.compared} numbers, {self.seconds:.1f} s"
        found = [f"{self.candidate}  {self.verdict}  against {self.reference}  {made}"]
        for reason in self.reasons:
            at = f" ({reason.call})" if reason.call and reason.call not in reason.message else ""
            found.append(f"  {reason.kind}: {reason.message}{at}")
            if reason.bar is not None:
                found.append(f"    error bar {reason.bar:.2g}; {reason.failing} of {reason.compared} numbers are wrong")
        if self.smallest is not None:
            found.append(f"  smallest failing call: {self.smallest.inputs} (--json - has a script)")
        if self.is_right and self.error is not None:
            found.append(f"  largest relative error {self.error:.2g}, computed in {self.computed}")
        found += [f"  it refuses calls that the reference takes: {refusal}" for refusal in self.refused[:_REFUSALS]]
        found += [f"  {remark}" for remark in self.remarks]
        found.append(f"  seed {self.seed}")
        return found

    @property
    def style(self) -> str:
        """The style of rich for the verdict."""
        return _STYLE[self.verdict]


def _strict(value: Any) -> Any:
    """A number in strict JSON, which has no NaN."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value

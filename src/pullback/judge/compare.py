"""The comparison, from raw bytes, in a process where no line of the candidate has run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pullback.check.derivative.agreement import show, subscript
from pullback.check.derivative.band import Band, cast
from pullback.judge.sandbox import UNWRITTEN
from pullback.judge.verdict import Reason
from pullback.judge.wire import Raw, digest, received, received_list
from pullback.judge.worker import LATE, Call

_KEYS = {"object": "the identity", "memory": "the data pointer", "new": "the shape"}
_NARROW_EFFECT = 0.3
"""Part of a change by 10⁻¹⁰ that a candidate loses if it computes in float32: all of it, or it jumps by far more."""


@dataclass(frozen=True, slots=True)
class Right:
    """What is right for one call.

    Attributes:
        bands: of every output and every gradient.
        outputs: how many of these are outputs.
        after: fingerprints of the tensors of the call as the reference left them.
    """

    bands: Sequence[Band]
    outputs: int
    after: Sequence[str]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a candidate answered to one call.

    Attributes:
        outputs, gradients: its results; `None` for a missing gradient.
        after: fingerprints of the tensors of the call as it left them.
        earlier: those of the results of the call before, once more.
        error, stage: the exception that it raised instead, and where.
        irregular: what its Triton kernels did to memory that no right one does.
    """

    outputs: Sequence[Raw | None] = ()
    gradients: Sequence[Raw | None] = ()
    after: Sequence[str] = ()
    earlier: Sequence[str] = ()
    error: str = ""
    stage: str = ""
    irregular: str = ""

    @property
    def results(self) -> list[Raw | None]:
        """Outputs and gradients."""
        return [*self.outputs, *self.gradients]


def answer_of(message: Mapping[str, Any]) -> Answer:
    """The answer in a message, which may be forged."""
    error, stage = str(message.get("error", ""))[:500], str(message.get("stage", ""))[:20]
    if error and "outputs" not in message:
        return Answer(error=error, stage=stage)
    try:
        outputs, gradients = (received_list(message.get(name)) for name in ("outputs", "gradients"))
    except ValueError as wrong:
        return Answer(error=f"it sent {wrong}", stage="forward")
    after, earlier = ([str(text) for text in message.get(name) or ()] for name in ("after", "earlier"))
    return Answer(outputs, gradients, after, earlier, error, stage, str(message.get("irregular", ""))[:500])


def right_of(message: Mapping[str, Any], inputs: int) -> Right | None:
    """What is right, from a message of the reference; `None` if that raised."""
    if "error" in message:
        return None
    bands = []
    for band in message["bands"]:
        dtype = None if band["dtype"] is None else getattr(torch, band["dtype"])
        shape = None if band["shape"] is None else tuple(band["shape"])
        bands.append(Band(shape, dtype, *(received(t).tensor() for t in band["values"])))
    return Right(bands, len(bands) - inputs, message["after"])


@dataclass
class Comparison:
    """The comparison of all calls.

    Attributes:
        calls: the calls.
        rights: what is right, by position; those that the reference refuses are missing.
        answers: of the candidate, by position.
        working: dtype of the floating inputs of the candidate.
        is_declared: whether the candidate was written for that dtype.
        is_narrow: whether it computes in fewer digits inside.
        refused: labels of calls that the candidate refuses, by its exception.
        late: labels of calls that were left out, since the candidate would take too long.
        compared: numbers that were compared.
    """

    calls: Sequence[Call]
    rights: Mapping[int, Right]
    answers: Mapping[int, Answer]
    working: torch.dtype
    is_declared: bool = True
    is_narrow: bool = False

    def __post_init__(self) -> None:
        self.refused: dict[str, list[str]] = {}
        self.late: list[str] = []
        self.compared = 0
        self._sizes: dict[str, tuple[float, float]] = {}

    def reasons(self) -> list[Reason]:
        """Everything that is wrong; the first of each call and kind."""
        return [reason for k in sorted(self.rights) if k in self.answers for reason in self.of_call(k)]

    def of_call(self, k: int) -> Iterator[Reason]:
        """Everything that is wrong with a call; of its numbers, the first tensor."""
        call, answer, right = self.calls[k], self.answers[k], self.rights[k]
        if call.kind == "shape" and answer.stage == LATE:
            self.late.append(call.label)
            return
        if answer.error:
            if call.kind in ("shape", "layout", "settings", "memory") or call.is_extreme:
                self.refused.setdefault(answer.error, []).append(call.label)
            else:
                kind = "not-interpreted" if _NOT_INTERPRETED.match(answer.error) else "raises"
                yield self._reason(k, kind, f"the {answer.stage or 'call'} raises {answer.error}")
            if not answer.outputs:
                return
        if answer.irregular:  # any number may follow from it
            yield self._reason(k, "memory", answer.irregular)
            return
        if len(answer.outputs) != right.outputs:
            many = f"it returns {len(answer.outputs)} tensors, the reference {right.outputs}"
            yield self._reason(k, "structure", many)
            return
        names = [f"output {n}" for n in range(right.outputs)] + [f"the gradient of {name}" for name in _inputs(call)]
        count = right.outputs if answer.error else len(names)
        for n, (band, name) in enumerate(zip(right.bands[:count], names[:count], strict=True)):
            got = answer.results[n] if n < len(answer.results) else None
            found = self._of_tensor(k, n, band, got, name)
            if found is not None:
                yield found
                break
        yield from self._of_inputs(k)
        yield from self._of_earlier(k)

    def _of_tensor(self, k: int, n: int, band: Band, got: Raw | None, name: str) -> Reason | None:
        """What is wrong with one output or gradient."""
        if band.shape is None:
            zeros = got is None or not bool(got.flat().any())
            return None if zeros else self._reason(k, "gradient", f"{name} is not zero, and there is none", where=name)
        if got is None:
            flat = torch.zeros_like(band.expected)
        elif got.shape != band.shape:
            what = f"{name} has shape {list(got.shape)}, that of the reference {list(band.shape)}"
            return self._reason(k, "structure", what, where=name)
        elif (lost := _narrower(got.dtype, band.dtype, self.working)) is not None:
            return self._reason(k, "precision", f"{name} is {lost} for inputs in {_name(self.working)}", where=name)
        else:
            flat = got.flat()
        if flat.shape != band.expected.shape:
            return self._reason(k, "structure", f"{name} is complex, or that of the reference is", where=name)
        wrong = band.outside(flat)
        self.compared += int((~band.low.isnan()).sum())
        if not bool(wrong.any()):
            if self.calls[k].kind == "example":
                self._measure(band, flat, name)
            return None
        return self._wrong(k, n, band, got, flat, wrong, name)

    def _measure(self, band: Band, flat: Tensor, name: str) -> None:
        known = torch.isfinite(band.low)
        if bool(known.any()):
            off, size = (float(t[known].abs().max()) for t in (flat - band.expected, band.expected))
            before = self._sizes.get(name, (0.0, 0.0))
            self._sizes[name] = max(before[0], off), max(before[1], size)

    @property
    def error(self) -> float | None:
        """The largest error of a right number, relative to the largest of its tensor; `None` if there is none."""
        return max((off / size for off, size in self._sizes.values() if size > 0), default=None)

    def _wrong(self, k: int, n: int, band: Band, got: Raw | None, flat: Tensor, wrong: Tensor, name: str) -> Reason:
        """The reason why numbers are wrong, with the worst of them."""
        at, index = band.worst(flat, wrong)
        expected, value = float(band.expected[at]), float(flat[at])
        kind, why = self._kind(k, n, band, got, flat, wrong)
        numbers = f"{name}{subscript(index)} is {show(value)}; expected {show(expected)}"
        if got is None:
            numbers = f"{name} is missing; expected {show(expected)}"
        return Reason(
            kind,
            f"{why}{': ' * bool(why)}{numbers}",
            self.calls[k].label,
            name,
            index,
            expected,
            value,
            float(band.high[at] - band.low[at]) / 2,
            int(wrong.sum()),
            wrong.numel(),
            k,
        )

    def _kind(self, k: int, n: int, band: Band, got: Raw | None, flat: Tensor, wrong: Tensor) -> tuple[str, str]:
        """The kind of a wrong result, and what shows it."""
        call = self.calls[k]
        if got is not None:
            if _is_unwritten(got, wrong) or (call.fills_new and bool(flat[wrong].isnan().all())):
                return "unwritten", "it hands out memory that it never wrote"
            if n < self.rights[k].outputs and self._is_constant(n, flat):
                return "constant", f"it returns {show(float(flat[0]))} whatever the inputs are"
            same = [j for j in self.answers if j != k and self._is_same(j, n, got)]
            earlier = [j for j in same if j < k and bool(band.outside(self.rights[j].bands[n].expected).any())]
            varies = flat.numel() == 1 or bool((flat != flat[0]).any())  # zeros, and NaN, are always the same
            if earlier and call.kind != "settings" and varies and bool(flat.isfinite().any()):
                before = self.calls[earlier[-1]].label
                return (
                    "stale",
                    f"it returns the result of another call ({before}), by {_KEYS[call.reuse]} of the inputs",
                )
        relative = ((flat - band.expected).abs() / band.expected.abs().amax().clamp(min=1e-300))[wrong]
        if self.is_narrow and self.is_declared and bool((relative < 1e-2).all()):
            return "precision", f"it computes in fewer digits than {_name(self.working)} has"
        if call.kind == "example" or not self._is_right_on_example():
            return ("value" if n < self.rights[k].outputs else "gradient"), ""
        if call.undefined:
            return "memory", "lanes that a load without `other` leaves undefined reach the result"
        return {"shape": "size", "values": "range"}.get(call.kind, call.kind), f"for {call.label}"

    def _is_same(self, j: int, n: int, got: Raw) -> bool:
        results = self.answers[j].results
        other = results[n] if n < len(results) else None
        return j in self.rights and other is not None and (other.shape, other.data) == (got.shape, got.data)

    def _is_constant(self, n: int, flat: Tensor) -> bool:
        """Whether an output is one number in every call of the example's kind, where it should vary."""
        examples = [j for j in self.rights if self.calls[j].kind == "example" and j in self.answers]
        found = [self.answers[j].results[n] for j in examples if n < len(self.answers[j].results)]
        if len(found) < 3 or not bool((flat == flat[0]).all()):
            return False
        right = torch.cat([self.rights[j].bands[n].expected for j in examples])
        varies = bool((right != right[0]).any())
        return varies and all(result is not None and bool((result.flat() == flat[0]).all()) for result in found)

    def _is_right_on_example(self) -> bool:
        """Whether the first call is right."""
        if 0 not in self.rights or 0 not in self.answers or self.answers[0].error:
            return False
        return all(_is_inside(*pair) for pair in zip(self.rights[0].bands, self.answers[0].results, strict=False))

    def _of_inputs(self, k: int) -> Iterator[Reason]:
        """Inputs that were written to, unless the reference writes to them."""
        tensors = cast(self.calls[k].case, self.working).all_tensors
        exact = cast(self.calls[k].case, torch.float64).all_tensors
        trios = zip(tensors, self.answers[k].after, self.rights[k].after, strict=False)
        for position, after, by_reference in trios:
            if by_reference == digest(exact[position]) and after != digest(tensors[position]):
                name = self.calls[k].case.names[position]
                yield self._reason(k, "writes-input", f"it writes to its input {name}", where=name)
                return

    def _of_earlier(self, k: int) -> Iterator[Reason]:
        """Results of the call before that this call has changed."""
        before = self.answers.get(k - 1)
        if before is None or before.error or not self.answers[k].earlier:
            return
        handed_out = [result for result in before.results if result is not None]
        for old, new in zip(handed_out, self.answers[k].earlier, strict=False):
            if old.digest != new:
                what = "it hands the same memory out again: a result of the call before has changed"
                yield self._reason(k, "reused-output", what)
                return

    def _reason(self, k: int, kind: str, message: str, where: str = "") -> Reason:
        return Reason(kind, message, self.calls[k].label, where, position=k)


_NOT_INTERPRETED = re.compile(r"UnsupportedError: |AbsentError: it needs triton\b")
"""Matches exceptions that say nothing of the candidate: the interpreter lacks what it needs, or is itself lacking."""


def is_narrow_inside(first: Sequence[tuple[Raw | None, Band]], second: Sequence[tuple[Raw | None, Band]]) -> bool:
    """Whether results do not follow a change of the inputs by 10⁻¹⁰: float32 rounds it away, or to a whole ulp.

    Args:
        first: each result beside the right one.
        second: the same after the change.
    """
    for (got, band), (got_moved, band_moved) in zip(first, second, strict=True):
        if got is None or got_moved is None or got.shape != band.shape or got_moved.shape != band_moved.shape:
            continue
        right, change = band_moved.expected - band.expected, got_moved.flat() - got.flat()
        # A change below 1e-12 of the number itself is lost to rounding in float64, too.
        telling = torch.isfinite(right) & (right.abs() > 1e-12 * band.expected.abs())
        if bool(telling.any()):
            lost = (change - right).abs()[telling] > _NARROW_EFFECT * right.abs()[telling]
            if 2 * int(lost.sum()) > lost.numel():
                return True
    return False


def of_alone(reason: Reason, alone: Sequence[Reason]) -> Reason:
    """The reason, after its call was made alone in a new process, and what was wrong there.

    A call that gives the same alone does not return another's result: a softmax over the wrong dimension is uniform
    for inputs of several kinds.
    """
    if reason.kind == "stale" and (
        same := [one for one in alone if (one.where, one.got) == (reason.where, reason.got)]
    ):
        return replace(same[0], call=reason.call, position=reason.position)
    is_wrong = any(one.where == reason.where or one.bar is None for one in alone)
    if is_wrong or reason.kind not in ("value", "gradient", "range", "size", "settings", "layout", "precision"):
        return reason
    message = f"{reason.message}. Alone, in a new process, the same call is right: earlier calls have changed it"
    return replace(reason, kind="state", message=message)


def _is_inside(band: Band, got: Raw | None) -> bool:
    """Whether no number of a result is wrong; a missing one stands for zeros."""
    if band.shape is None or (got is not None and got.shape != band.shape):
        return band.shape is None
    flat = torch.zeros_like(band.expected) if got is None else got.flat()
    return not bool(band.outside(flat).any())


def _inputs(call: Call) -> list[str]:
    asked = call.mask or (True,) * len(call.case.wrt)
    return [call.case.names[p] for p, asks in zip(call.case.wrt, asked, strict=True) if asks]


def _narrower(got: torch.dtype, expected: torch.dtype | None, working: torch.dtype) -> str | None:
    """The name of a dtype that cannot hold what is expected: of fewer digits than the inputs, or whole numbers."""
    if expected is None or not (expected.is_floating_point or expected.is_complex):
        return None
    if not (got.is_floating_point or got.is_complex):
        return _name(got)
    return _name(got) if torch.finfo(got).eps > torch.finfo(working).eps else None


def _is_unwritten(got: Raw, wrong: Tensor) -> bool:
    """Whether half of the wrong elements, or more, hold the bytes of memory that nobody wrote."""
    width = got.dtype.itemsize
    count = len(got.data) // width
    if count != wrong.numel():
        return False
    chosen = [got.data[i * width : (i + 1) * width] for i in wrong.nonzero().flatten().tolist()[:1000]]
    patterns = {pattern[:width] for pattern in UNWRITTEN}
    return bool(chosen) and 2 * sum(value in patterns for value in chosen) >= len(chosen)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")

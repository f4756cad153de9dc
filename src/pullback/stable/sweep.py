"""Measurement of a function of one variable at every float32 number, in chunks that any executor runs.

A chunk is 2²⁰ consecutive inputs. Exact values come from float64 bounds where these are within 2⁻⁷ ulp of each other
(their middle is then within 2⁻⁸ ulp, and an error in ulp correct to 0.004), and from the oracle elsewhere. If too many
points are left, the oracle evaluates some, and the rest count as undecided. Bounds are the tighter ones of the term as
written and of equal terms. They rest on an assumed error of PyTorch's float64 kernels, which the oracle tests at the
ends of each block and at random points inside: where it refutes the assumption, the block is undecided.

Finished chunks are written to a file (`Ledger`): one line of JSON each, after a line that identifies the measurement.
Lines are appended; an incomplete last line is dropped, so an interrupted measurement resumes.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from importlib.metadata import version
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pullback.errors import OptionError
from pullback.ops.bounds import Interval
from pullback.stable.formats import Floats, Mask, format_of
from pullback.stable.formula import Formula, Quantity
from pullback.stable.intervals import enclose
from pullback.stable.measure import Summary, run_layouts, summarise
from pullback.stable.oracle.values import Truth, exact
from pullback.stable.term import Term

CHUNK = 2**20
"""Inputs in a chunk."""

_FINITE = tuple(i for i in range(2**32 // CHUNK) if (i * CHUNK >> 23) & 0xFF != 0xFF)

_FORMAT = format_of(torch.float32)
_BLOCK = 2**17
_SETTLED = 2.0**-8  # ulp: how far the middle of two bounds may be from the exact value
_ASKED = 512
_TESTED = 4
"""Points of a block at which the bounds are tested, and at most how many are asked of the oracle."""


@dataclass(frozen=True, slots=True)
class SweepTask:
    """Definition of a measurement, picklable for other processes.

    Attributes:
        load: returns the function.
        args: values of its fixed parameters.
        terms: the exact value and derivatives.
        references: for some of these, equal terms that float64 may evaluate more accurately.
        domain: closed interval of the inputs.
    """

    load: Callable[[], Callable[..., Any]]
    args: Mapping[str, Any]
    terms: dict[Quantity, Term]
    references: Mapping[Quantity, tuple[Term, ...]]
    domain: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Basis:
    """Sources of the exact values, in numbers of points and quantities.

    Attributes:
        bounded: settled by bounds in float64.
        asked: settled by the oracle.
        undecided: settled by neither.
        tested: compared with the oracle, for the bounds.
        refuted: those of them that are outside their bounds.
    """

    bounded: int = 0
    asked: int = 0
    undecided: int = 0
    tested: int = 0
    refuted: int = 0

    def __str__(self) -> str:
        """Describe it in words."""
        undecided = f", {self.undecided} of neither" if self.undecided else ""
        held = "refuted" if self.refuted else "confirmed"
        tests = f"the oracle {held} the bounds at {self.refuted or self.tested} of {self.tested} points"
        return f"bounds in float64 ({self.bounded}) and the oracle ({self.asked}{undecided}); {tests}"

    def __add__(self, other: Basis) -> Basis:
        return Basis(
            self.bounded + other.bounded,
            self.asked + other.asked,
            self.undecided + other.undecided,
            self.tested + other.tested,
            self.refuted + other.refuted,
        )


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """Result at some inputs: a summary per quantity."""

    summaries: tuple[Summary, ...]
    basis: Basis = field(default_factory=Basis)

    def __add__(self, other: ChunkResult) -> ChunkResult:
        pairs = zip(self.summaries, other.summaries, strict=True)
        return ChunkResult(tuple(a + b for a, b in pairs), self.basis + other.basis)


def chunks_of(domain: tuple[float, float]) -> list[int]:
    """Chunks that have numbers of a closed interval, by the upper bits of their patterns."""
    ends = [_inputs(index, np.array([0, CHUNK - 1])) for index in _FINITE]
    return [i for i, x in zip(_FINITE, ends, strict=True) if x.max() >= domain[0] and x.min() <= domain[1]]


def _inputs(index: int, offsets: np.ndarray[Any, Any]) -> Floats:
    """Numbers of a chunk as float64."""
    pattern = (index * CHUNK + offsets).astype(np.uint32)
    return pattern.view(np.float32).astype(np.float64)


def measure_chunk(task: SweepTask, index: int) -> ChunkResult:
    """Measure a chunk: of its numbers those in the domain."""
    formula = Formula(task.load(), task.args)
    (name,) = formula.variables
    x = _inputs(index, np.arange(CHUNK))
    x = x[(x >= task.domain[0]) & (x <= task.domain[1])]
    total = ChunkResult(tuple(Summary() for _ in task.terms))
    for start in range(0, len(x), _BLOCK):
        at = {name: x[start : start + _BLOCK]}
        truths, basis = _exact_values(task, at, seed=index + start)
        total += ChunkResult(tuple(summarise(run_layouts(formula, task.terms, torch.float32, at), truths, at)), basis)
    return total


def _exact_values(task: SweepTask, at: dict[str, Floats], seed: int) -> tuple[list[Truth], Basis]:
    """Exact values at some points, and their sources."""
    ((name, x),) = at.items()
    truths = _bounded_values(task, {name: torch.from_numpy(x)})
    tests = np.random.default_rng(seed).integers(0, len(x), _TESTED - 2)
    tests = np.unique(np.concatenate([[0, len(x) - 1], tests]))
    open_ = np.flatnonzero(np.logical_or.reduce([truth.undecided for truth in truths]))
    asked = open_[np.linspace(0, len(open_) - 1, min(len(open_), _ASKED), dtype=np.int64)] if len(open_) else open_
    points = np.union1d(tests, asked)
    answers = exact(list(task.terms.values()), {name: x[points]})
    basis = Basis()
    for truth, answer in zip(truths, answers, strict=True):
        basis += _merge_answers(truth, answer, points)
    if basis.refuted and any(task.references.values()):  # a term among them may not be equal
        return _exact_values(replace(task, references={}), at, seed)
    return truths, basis


def _bounded_values(task: SweepTask, points: Mapping[str, Tensor]) -> list[Truth]:
    """Truths that bounds settle: those of the terms and, where these are too wide, of their references."""
    bounds = enclose(list(task.terms.values()), points)
    truths = [_settle_by_bounds(interval) for interval in bounds]
    for i, quantity in enumerate(task.terms):
        others = task.references.get(quantity, ())
        if others and truths[i].undecided.any():
            truths[i] = _settle_by_bounds(reduce(_intersection, enclose(others, points), bounds[i]))
    return truths


def _intersection(own: Interval, other: Interval) -> Interval:
    """Intersection of two intervals; the first one where they are disjoint.

    Points without a value are those of the first: the other term may have been simplified.
    """
    low, high = torch.maximum(own.low, other.low), torch.minimum(own.high, other.high)
    return Interval(low, high, own.undefined) if bool((low <= high).all()) else own


def _merge_answers(truth: Truth, answer: Truth, points: np.ndarray[Any, Any]) -> Basis:
    """Fill in the oracle's answers where the bounds are too wide, and test the bounds with its other answers."""
    left = truth.undecided[points]
    wrong = int((~left & _contradicts(truth, answer, points)).sum())
    if wrong:
        truth.undecided[:] = True
        left = np.ones_like(left)
    bounded = int((~truth.undecided).sum())
    chosen = points[left]
    truth.high[chosen], truth.low[chosen] = answer.high[left], answer.low[left]
    truth.undecided[chosen] = answer.undecided[left]
    tested = len(points) - int(left.sum()) if not wrong else len(points)
    return Basis(bounded, int((~answer.undecided[left]).sum()), int(truth.undecided.sum()), tested, wrong)


def _settle_by_bounds(interval: Interval) -> Truth:
    """Settle points by bounds: values known to 2⁻⁸ ulp, values beyond float32's range, and points without a value."""
    low, high = interval.low.numpy(), interval.high.numpy()
    beyond = 2.0 ** (_FORMAT.max_exponent + 1)
    with np.errstate(over="ignore", invalid="ignore"):
        middle = low / 2 + high / 2  # low + high may overflow
        close = high - low <= np.ldexp(2 * _SETTLED, _FORMAT.ulp_exponent(middle))
    value = np.where(low >= beyond, np.inf, np.where(high <= -beyond, -np.inf, middle))
    settled: Mask = close | np.isinf(value) & ((low >= beyond) | (high <= -beyond))
    undefined = np.zeros_like(settled) if interval.undefined is None else interval.undefined.numpy()
    value = np.where(settled & ~undefined, value, np.nan)
    return Truth(value, np.zeros_like(value), ~(settled | undefined))


def _contradicts(truth: Truth, answer: Truth, points: np.ndarray[Any, Any]) -> Mask:
    """Points at which the oracle contradicts the bounds."""
    high = truth.high[points]
    unit = _FORMAT.ulp_exponent(high)
    with np.errstate(over="ignore", invalid="ignore"):
        off = np.abs(np.ldexp(high - answer.high, -unit)) > _SETTLED
    both_beyond = (np.abs(high) > _FORMAT.largest) & (np.abs(answer.high) > _FORMAT.largest)
    off &= ~(both_beyond & (np.sign(high) == np.sign(answer.high)))
    differ: Mask = (off | (np.isnan(high) != np.isnan(answer.high))) & ~answer.undecided
    return differ


class Ledger:
    """Progress of a measurement.

    Attributes:
        done: the finished chunks.
    """

    def __init__(self, path: Path, key: str) -> None:
        """Read a file, or begin it.

        Args:
            path: path of the file.
            key: identity of the measurement, on one line.

        Raises:
            OptionError: if the file is of another measurement, or cannot be read or written.
        """
        self.done: dict[int, ChunkResult] = {}
        self._path = path
        try:
            self._read(key)
        except OSError as error:
            raise OptionError(f"{path}: {error.strerror}") from error

    def _read(self, key: str) -> None:
        whole = self._path.read_bytes() if self._path.exists() else b""
        complete = whole[: whole.rfind(b"\n") + 1]
        if not complete:
            self._path.write_text(json.dumps({"measurement": key}) + "\n", encoding="utf-8")
            return
        if len(complete) < len(whole):
            os.truncate(self._path, len(complete))
        try:
            first, *lines = map(json.loads, complete.splitlines())
            if first["measurement"] != key:
                raise OptionError(f"{self._path} is of another measurement: give another file, or remove it")
            self.done = {line["chunk"]: _chunk_result(line) for line in lines}
        except (ValueError, KeyError, TypeError) as error:
            raise OptionError(f"{self._path} is not a file of finished chunks") from error

    def add(self, chunk: int, part: ChunkResult) -> None:
        """Write down a finished chunk."""
        self.done[chunk] = part
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"chunk": chunk, **asdict(part)}) + "\n")

    def remove(self) -> None:
        """Delete the file."""
        self._path.unlink(missing_ok=True)


def _chunk_result(line: dict[str, object]) -> ChunkResult:
    summaries, basis = line["summaries"], line["basis"]
    assert isinstance(summaries, list)
    assert isinstance(basis, dict)
    return ChunkResult(tuple(map(Summary.from_dict, summaries)), Basis(**basis))


_IN_FLIGHT = 256
"""Chunks that an executor holds at once: enough for a cluster, few enough to stop soon."""


def sweep(
    task: SweepTask,
    *,
    executor: Executor | None = None,
    resume: Path | None = None,
    on_progress: Callable[[int, int], None] | None = None,
    chunks: Iterable[int] | None = None,
) -> ChunkResult:
    """Measure chunks, by default all of the domain.

    Args:
        task: the measurement.
        executor: runs the chunks; without one they run here, in sequence.
        resume: the file of finished chunks; by default one in the user's cache directory, removed at the end.
        on_progress: called with the number of finished chunks and of all.
        chunks: which chunks.

    Raises:
        OptionError: if the file is of another measurement, or the function cannot be sent to another process.
    """
    wanted, key = list(chunks_of(task.domain) if chunks is None else chunks), key_of(task)
    ledger = Ledger(resume or _cached(key), key)
    left = [chunk for chunk in wanted if chunk not in ledger.done]
    if on_progress is not None:
        on_progress(len(wanted) - len(left), len(wanted))
    # Closed at once when interrupted: leaving an executor waits for everything that has not been cancelled.
    with closing(_here(task, left) if executor is None else _spread(task, left, executor)) as results:
        for done, (chunk, part) in enumerate(results, len(wanted) - len(left) + 1):
            ledger.add(chunk, part)
            if on_progress is not None:
                on_progress(done, len(wanted))
    if resume is None:
        ledger.remove()
    nothing = ChunkResult(tuple(Summary() for _ in task.terms))
    return reduce(add, (ledger.done[chunk] for chunk in wanted), nothing)


def key_of(task: SweepTask) -> str:
    """Identity of a measurement: a hash of versions, formula, executed code and domain."""
    order = max(len(quantity.by) for quantity in task.terms)
    code = Formula(task.load(), task.args).code(torch.float32, order)
    parts = [version("pullback"), torch.__version__, code, task.domain, task.terms, task.references]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _cached(key: str) -> Path:
    """File of a measurement in the user's cache directory, in a folder for the user alone."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = caches / "pullback" / "sweeps"
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise OptionError(f"{folder}: {error.strerror}; name another file with resume") from error
    return folder / f"{key[:16]}.jsonl"


def _here(task: SweepTask, chunks: list[int]) -> Generator[tuple[int, ChunkResult], None, None]:
    for chunk in chunks:
        yield chunk, measure_chunk(task, chunk)


def _spread(task: SweepTask, chunks: list[int], executor: Executor) -> Generator[tuple[int, ChunkResult], None, None]:
    """Yield chunks as an executor finishes them."""
    waiting = iter(chunks)
    running: dict[Future[ChunkResult], int] = {}
    try:
        while True:
            for chunk in waiting:
                running[executor.submit(measure_chunk, task, chunk)] = chunk
                if len(running) >= _IN_FLIGHT:
                    break
            if not running:
                return
            finished, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                yield running.pop(future), _result(future)
    finally:
        for future in running:
            future.cancel()


def _result(future: Future[ChunkResult]) -> ChunkResult:
    try:
        return future.result()
    except (pickle.PicklingError, AttributeError) as error:
        if "pickle" not in str(error):
            raise
        advice = "define the function at the top level of a module that the other processes can import"
        raise OptionError(f"the function cannot be sent to another process ({error}): {advice}") from error

"""`pullback.judge`: a candidate against a formula."""

from __future__ import annotations

import math
import re
import secrets
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from pullback.check.case import Case, is_differentiable
from pullback.check.cases.guess import with_rows
from pullback.check.cases.repro import bind, call_text, variables
from pullback.check.cases.shrink import shrink
from pullback.check.clock import Stopwatch
from pullback.check.derivative.band import Precision, cast
from pullback.check.find.kernels import entering_lines
from pullback.check.find.target import function_names, locate, parse_target, similar
from pullback.check.runner.process import GIBIBYTE, ensure_can_fork
from pullback.check.subject import device_of
from pullback.errors import OptionError, PullbackError, TargetError
from pullback.judge.calls import Calls
from pullback.judge.compare import (
    Comparison,
    Right,
    answer_of,
    is_narrow_inside,
    of_alone,
    right_of,
)
from pullback.judge.plan import Plan, planned, serve_plan
from pullback.judge.session import Session, run_sessions
from pullback.judge.verdict import CHEATS, UNDECIDED, Outcome, Reason, Smallest, Verdict
from pullback.judge.worker import WEIGHTS, Call, Job, Source, in_dtype, serve_candidate, serve_reference

_SHRINK_SECONDS = 1.5
_SAMPLES, _CONFIRMING = 8, 40
"""Runs of the reference for each call, and for one that seems wrong: all may be on one side of a kink."""
_AS_WRITTEN = 4
"""Number of calls in which kernels round as they are written."""
_ORDER = [*CHEATS, *("import", "crash", "memory", "raises", "structure", "value", "gradient")]
_OF_ITS_CODE = re.compile(r"\bNameError\b|\bmodule '[\w.]+' has no attribute\b")
"""Matches exceptions that no arguments avoid."""
_SHOWN = 3
"""Calls that are named for each exception."""
_LARGEST_SEED = 2**31


def judge(
    candidate: Callable[..., Any] | str,
    reference: Callable[..., Any] | str,
    *inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    examples: str = "",
    forbid: Sequence[str] = (),
    seed: int | None = None,
    seconds: float = 60.0,
    memory: float = 8.0,
) -> Verdict:
    """Judge whether a candidate computes what a formula does: its value, all of its first derivatives, and how.

    Candidate and reference run in processes of their own, without network. Every run draws other values and sizes.

    Args:
        candidate: an `autograd.Function`, a callable, a module, or where to import it from, "file.py:name".
        reference: the formula in plain PyTorch, with the same arguments; also an `nn.Module`, whose weights the
            candidate gets by their names.
        inputs: the positional arguments of one example call, in the dtype that the candidate is written for; without
            them, an example of the reference is guessed, in float32.
        kwargs: the keyword arguments of that call.
        examples: "FILE:FUNCTION" that returns example calls, as `--inputs` of `pullback check`.
        forbid: operators ("softmax") and modules that the candidate must not use.
        seed: of all random choices; by default another one each time.
        seconds: limit of all calls of the candidate; a single one has a third of it.
        memory: GiB that each process may take.

    Returns:
        The verdict: `verdict.verdict` is "right", "wrong", "cheats" or "inconclusive", `print(verdict)` shows why, and
        `verdict.to_json()` is for programs.

    Raises:
        TargetError: if there is no such file or module, a target lacks a name, or the reference cannot be imported.
        OptionError: if an option has a value that it cannot take, or the function of `examples` fails.
        RunnerError: if the platform has no fork.

    Example:
        >>> verdict = pullback.judge(fast_softmax, torch.nn.Softmax(-1), torch.randn(4, 8))  # doctest: +SKIP
        >>> verdict.is_right  # doctest: +SKIP
        True
    """
    for target in (candidate, reference):
        if isinstance(target, str):
            _ensure_named(target)
        elif not callable(target):
            raise OptionError(f"a {type(target).__name__} cannot be judged: give a callable, or FILE:NAME")
    for name, number in (("seconds", seconds), ("memory", memory)):
        if not 0 < number < math.inf:
            raise OptionError(f"{name} must be a positive number, not {number!r}")
    for name in forbid:
        _ensure_known(name, candidate, reference)
    if (device := device_of((inputs, kwargs or {}))) is not None:
        raise OptionError(f"the example is on {device}: give it on the CPU")
    ensure_can_fork()
    given = (inputs, dict(kwargs or {})) if inputs or kwargs else None
    seed = secrets.randbelow(_LARGEST_SEED) if seed is None else seed
    with tempfile.TemporaryDirectory(prefix="pullback-judge-") as folder:
        sources = Source.of(candidate), Source.of(reference)
        trial = _Trial(*sources, tuple(forbid), seed, seconds, int(memory * GIBIBYTE), folder)
        return trial.verdict(given, examples)


def _ensure_named(spec: str) -> None:
    """Ensure that a target names what is judged.

    Raises:
        TargetError: if it does not, or there is no such file or module.
    """
    target = parse_target(spec)
    if not target.name:
        names = similar("", function_names(spec))
        raise TargetError(f"name a function of {target.where}, as in {target.where}:NAME{names}")


def _ensure_known(forbidden: str, *targets: Any) -> None:
    """Ensure that a name is that of an operator or a function of PyTorch, or of a module.

    Those of other namespaces of operators ("mine::op") may be registered later.

    Raises:
        OptionError: if it is neither.
    """
    namespace, _, name = forbidden.rpartition("::")
    last = name.rpartition(".")[2].strip("_")
    homes = (torch.ops.aten, torch, torch.nn.functional, torch.special, torch.linalg, torch.fft)
    is_operator = any(hasattr(home, f"{before}{last}") for home in homes for before in ("", "_", "native_"))
    files = [path.parent for t in targets if isinstance(t, str) and (path := parse_target(t).path) is not None]
    near = [folder.joinpath(*name.split(".")) for folder in files if all(name.split("."))]
    is_module = any(path.is_dir() or path.with_suffix(".py").exists() for path in near) or name in sys.modules
    if not (namespace not in ("", "aten") or is_operator or is_module or locate(name)):
        raise OptionError(f"--forbid: no operator or module {forbidden!r}")


@dataclass
class _Trial:
    """One judgement; the attributes are the arguments of `judge`."""

    candidate: Source
    reference: Source
    forbid: tuple[str, ...]
    seed: int
    seconds: float
    memory: int
    folder: str

    def verdict(self, given: tuple[Sequence[Any], Mapping[str, Any]] | None, examples: str) -> Verdict:
        """Judge the candidate."""
        clock = Stopwatch()
        blank = Verdict("inconclusive", self.candidate.name, self.reference.name, seed=self.seed)
        try:
            plan = self._planned(given, examples)
        except (TargetError, OptionError):
            raise
        except PullbackError as error:
            reason = Reason("no-example", str(error))
            return replace(blank, reasons=(reason,), seconds=clock.seconds())
        self._positions, self._scales = plan.positions, plan.scales
        self._remarks: list[str] = []
        declared = _declared(plan.base)
        base, is_guessed = cast(plan.base, declared), given is None and not examples
        if is_guessed and self.candidate.uses_triton:
            base = self._fitting(base, declared)
        probe = Calls(base, self.seed).probe()
        first = self._compared(probe, declared, torch.float64)
        if declared.itemsize == 2 and self.candidate.is_interpreted and _refuses(first):
            first = self._with_its_dtype_shown(probe, declared) or first
        working = self._working(first, declared)
        if declared == torch.float64 and working != declared:  # it takes float32 only
            declared = working
            base = cast(base, declared)
        self._base = base
        calls = Calls(base, self.seed, plan.full).all(self.candidate.is_interpreted)
        made = self._compared(calls, declared, working, is_last=True)
        made.is_narrow = is_narrow_inside(*_both(first)) if working == torch.float64 else False
        found = self._found(made, is_guessed)
        if is_guessed and found and found[0].kind != "no-example":
            self._remarks.append(f"the example was guessed: {base.describe()}; --inputs FILE:FUNCTION gives another")
        reasons = sorted(
            self._confirmed(found, made, declared),
            key=lambda r: _ORDER.index(r.kind) if r.kind in _ORDER else len(_ORDER),
        )
        reasons, smallest = self._smallest(reasons, made, declared)
        if not reasons and working == torch.float64 and declared != working and self.candidate.is_interpreted:
            reasons = self._as_written(calls[:_AS_WRITTEN], declared)
        return replace(
            blank,
            verdict=_outcome(reasons),
            reasons=tuple(reasons),
            smallest=smallest,
            refused=tuple(_refusal(error, labels) for error, labels in made.refused.items()),
            remarks=(*self._remarks, *_left_out(made.late)),
            calls=len(made.answers),
            compared=made.compared,
            error=made.error,
            declared=str(declared).removeprefix("torch."),
            computed=str(working).removeprefix("torch."),
            seconds=round(clock.seconds(), 2),
        )

    def _fitting(self, base: Case, declared: torch.dtype) -> Case:
        """The guess with one row for each weight, if the candidate is right there alone: kernels raise for no shape."""
        rows = with_rows(base)
        if rows is base:
            return base
        for guess in (base, rows):
            made = self._compared(Calls(guess, self.seed).probe(), declared, torch.float64)
            if 0 in made.rights and not _refuses(made) and not made.reasons():
                return guess
        return base

    def _with_its_dtype_shown(self, probe: Sequence[Call], declared: torch.dtype) -> Comparison | None:
        """The float64 run of kernels whose host code takes 16 bits alone, and is shown these; `None` if it raises."""
        plain, self.candidate = self.candidate, replace(self.candidate, shown=declared)
        found = self._compared(probe, declared, torch.float64)
        if _refuses(found):
            self.candidate = plain
            return None
        return found

    def _as_written(self, calls: Sequence[Call], declared: torch.dtype) -> list[Reason]:
        """The errors of kernels that are right in float64, when they round as their types tell."""
        made = self._compared(calls, declared, declared, is_as_written=True)
        found = [reason for reason in made.reasons() if reason.bar is not None]
        what = f"in {str(declared).removeprefix('torch.')}, as the kernels are written, {{}}"
        return [
            replace(reason, kind="precision", message=what.format(reason.message), position=-1)
            for reason in self._confirmed(found, made, declared)[:1]
        ]

    def _found(self, made: Comparison, is_guessed: bool) -> list[Reason]:
        """Everything that is wrong, before it is made sure of."""
        found = [*made.reasons(), *self._ended, *self._seen]
        if any(reason.kind == "calls-reference" for reason in found):  # after which each call raises
            found = [reason for reason in found if reason.kind != "raises"]
            made.refused.clear()
        blunt = 0 in made.rights and any(band.is_blunt for band in made.rights[0].bands)
        if blunt:  # then no number tells anything, but what it was seen to do does
            seen = [reason for reason in found if reason.kind in CHEATS and reason.bar is None]
            return seen or [Reason("blunt", UNDECIDED["blunt"])]
        raised = [reason for reason in found if reason.kind == "raises" and not reason.position]
        if is_guessed and raised and not _OF_ITS_CODE.search(raised[0].message):
            made.refused.clear()
            what = f"the candidate does not take the guessed example ({self._base.describe()}): {raised[0].message}"
            return [Reason("no-example", f"{what}; give one with --inputs FILE:FUNCTION")]
        if any(reason.kind == "memory" for reason in found):  # in other calls than these, all of a result is unwritten
            found = [reason for reason in found if reason.kind != "unwritten"]
        if not made.compared and not found:
            return [Reason("no-example", "nothing could be compared: the reference raises, or is not finite")]
        return found

    def _planned(self, given: tuple[Sequence[Any], Mapping[str, Any]] | None, examples: str) -> Plan:
        job = self._job(self.reference, [], torch.float64, None)
        session = Session(partial(serve_plan, job, given, examples), self.reference.name, self.seconds, self.seconds)
        run_sessions([session])
        return planned(session.required()["plan"], given)

    def _working(self, first: Comparison, declared: torch.dtype) -> torch.dtype:
        """The dtype in which to call the candidate: float64 if it takes that and keeps its digits."""
        narrow = torch.float32 if declared == torch.float64 else declared
        answer = first.answers.get(0)
        if answer is None or _refuses(first):
            return narrow
        if answer.irregular:  # as told of float64 alone: in other floats no memory is marked
            return torch.float64
        floating = [t for t in answer.outputs if t is not None and t.dtype.is_floating_point]
        keeps = all(t.dtype == torch.float64 for t in floating) and not is_narrow_inside(*_both(first))
        return torch.float64 if keeps or declared == torch.float64 else narrow

    def _compared(
        self,
        calls: Sequence[Call],
        declared: torch.dtype,
        working: torch.dtype,
        is_last: bool = False,
        samples: int = _SAMPLES,
        is_as_written: bool = False,
    ) -> Comparison:
        """Have both make some calls, side by side, and compare them."""
        job = replace(self._job(self.candidate, calls, working, self._positions), is_as_written=is_as_written)
        forbidden = (*self.forbid, *self._library_name()) if is_last else ()
        work = partial(serve_candidate, job, self.reference, forbidden)
        candidate = Session(work, self.candidate.name, self.seconds / 3, self.seconds)
        reference = self._reference(calls, declared, working, samples)
        run_sessions([candidate, reference])
        rights = _rights(reference, calls)
        answers = {k: answer_of(message) for k, message in candidate.answers.items() if 0 <= k < len(calls)}
        self._ended, self._seen = self._end_of(candidate, calls, answers, rights), _seen(candidate)
        return Comparison(calls, rights, answers, working, is_declared=working == declared)

    def _reference(self, calls: Sequence[Call], declared: torch.dtype, working: torch.dtype, samples: int) -> Session:
        job = self._job(self.reference, calls, torch.float64, self._positions)
        precision = replace(Precision.of(declared, working), samples=samples)
        work = partial(serve_reference, job, precision, self.seed, self._scales)
        return Session(work, self.reference.name, self.seconds, 2 * self.seconds)

    def _end_of(
        self, session: Session, calls: Sequence[Call], answers: Mapping[int, Any], rights: Mapping[int, Any]
    ) -> list[Reason]:
        """What is wrong with how the candidate's process ended."""
        if session.end is not None and session.end["event"] == "refused":
            return [Reason("import", str(session.end.get("message", ""))[:500])]
        unanswered = [k for k in rights if k not in answers]
        if not unanswered:
            return []
        at = session.begun if 0 <= session.begun < len(calls) else unanswered[0]
        why = session.why if session.end is None else "ended before it has made all calls"
        return [Reason("crash", f"it {why}", calls[at].label, position=at)]

    def _library_name(self) -> tuple[str, ...]:
        """The operator that the reference is, if it is a function of PyTorch."""
        if self.reference.spec:
            place, _, name = self.reference.spec.rpartition(":")
            return (name,) if place.partition(".")[0] == "torch" else ()
        module = getattr(self.reference.obj, "__module__", "") or "torch"  # builtins have none
        is_torch = module.partition(".")[0] == "torch" and not isinstance(self.reference.obj, torch.nn.Module)
        return (self.reference.name,) if is_torch else ()

    def _job(self, source: Source, calls: Sequence[Call], dtype: torch.dtype, positions: Sequence[int] | None) -> Job:
        return Job(source, calls, dtype, positions, self.seconds, self.memory, self.folder)

    def _confirmed(self, found: list[Reason], made: Comparison, declared: torch.dtype) -> list[Reason]:
        """The first reason of each kind whose numbers are wrong for many more samples of the reference, too."""
        confirmed: set[int] = set()
        while doubtful := {r.position for r in _first_of_each(found) if r.bar is not None} - confirmed:
            asked = sorted(doubtful)
            reference = self._reference([made.calls[k] for k in asked], declared, made.working, _CONFIRMING)
            run_sessions([reference])
            sharper = _rights(reference, [made.calls[k] for k in asked])
            for n, k in enumerate(asked):
                again = replace(made, rights={**made.rights, k: sharper.get(n, made.rights[k])})
                wrong = [reason for reason in again.of_call(k) if reason.bar is not None]
                if wrong and not self._is_isolated(wrong[0], made, declared):
                    confirmed.add(k)
                    continue
                self._remarks += [f"at isolated points: {reason.message}" for reason in wrong]
                found = [reason for reason in found if reason.position != k or reason.bar is None]
        return _first_of_each(found)

    def _is_isolated(self, reason: Reason, made: Comparison, declared: torch.dtype) -> bool:
        """Whether a gradient of special values, finite, is wrong at these points alone: at ties, or at zeros.

        There a kink inside of a smooth formula gets any gradient, as max(x, 0) does in max(x, 0) + log(1 + e^-|x|).
        """
        call = made.calls[reason.position]
        if call.kind != "values" or "gradient" not in reason.where or not math.isfinite(reason.got or 0.0):
            return False
        beside = Calls(self._base, self.seed).beside(call)
        again = self._compared([beside], declared, made.working, samples=_CONFIRMING)
        return bool(again.answers) and not again.reasons() and not self._ended

    def _smallest(
        self, reasons: list[Reason], made: Comparison, declared: torch.dtype
    ) -> tuple[list[Reason], Smallest | None]:
        """Make the failing calls alone, in new processes, and shrink the first that fails there, too."""
        smallest, checked = None, []
        for reason in reasons:
            if reason.position < 0 or reason.kind in UNDECIDED:
                checked.append(reason)
                continue
            call = replace(made.calls[reason.position], reuse="new", before=0)

            def alone(case: Case, call: Call = call) -> list[Reason]:
                made_alone = self._compared([replace(call, case=case)], declared, made.working, samples=_CONFIRMING)
                return [*made_alone.reasons(), *self._ended]

            def kinds(case: Case, alone: Callable[[Case], list[Reason]] = alone) -> set[str]:
                return {found.kind for found in alone(case)}

            found = alone(call.case)
            wrong = {one.kind for one in found}
            checked.append(of_alone(reason, found))
            if smallest is not None:
                continue
            case = call.case
            if wrong:
                clock = Stopwatch()
                fails = partial(_are_among, wrong, kinds)  # a smaller call may be invalid, and fail otherwise
                case = shrink(case, fails, lambda clock=clock: clock.seconds() < _SHRINK_SECONDS)  # type: ignore[misc]
            smallest = Smallest(
                checked[-1].kind, in_dtype(case, made.working).describe(), _code(self, call, case, made.working)
            )
        return _first_of_each(checked), smallest


def _are_among(wrong: set[str], kinds: Callable[[Case], set[str]], case: Case) -> bool:
    return bool(wrong & kinds(case))


def _rights(session: Session, calls: Sequence[Call]) -> dict[int, Right]:
    """What is right, by the positions of the calls that the reference takes."""
    found = {k: right_of(message, _asked(calls[k])) for k, message in session.answers.items() if k < len(calls)}
    return {k: right for k, right in found.items() if right is not None}


def _declared(base: Case) -> torch.dtype:
    """The dtype that the candidate is written for: the narrowest of the example's."""
    floating = [t.dtype for t in base.all_tensors.values() if is_differentiable(t)]
    real = [dtype.to_real() for dtype in floating]
    return max(real, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)


def _both(made: Comparison) -> tuple[list[Any], list[Any]]:
    """The results of the two calls of a probe, each beside the right one; nothing if one of them failed."""
    if not {0, 1} <= made.rights.keys() & made.answers.keys():
        return [], []
    pairs = [list(zip(made.answers[k].results, made.rights[k].bands, strict=False)) for k in (0, 1)]
    return (pairs[0], pairs[1]) if len(pairs[0]) == len(pairs[1]) else ([], [])


def _asked(call: Call) -> int:
    """Number of inputs that a call is differentiated in."""
    return sum(call.mask) if call.mask else len(call.case.wrt)


def _seen(session: Session) -> list[Reason]:
    """What the candidate was seen to do besides computing."""
    seen = (session.end or {}).get("seen")
    if not isinstance(seen, dict):
        return []
    return [Reason(kind, str(message)[:500]) for kind, message in seen.items() if kind in CHEATS]


def _first_of_each(found: Sequence[Reason]) -> list[Reason]:
    first: dict[str, Reason] = {}
    for reason in found:
        first.setdefault(reason.kind, reason)
    return list(first.values())


def _refusal(error: str, labels: Sequence[str]) -> str:
    """An exception, and the first of the calls that raise it."""
    calls = "a call" if len(labels) == 1 else f"{len(labels)} calls"
    return f"{error} ({calls}: {'; '.join(labels[:_SHOWN])}{'; …' * (len(labels) > _SHOWN)})"


def _left_out(labels: Sequence[str]) -> list[str]:
    """A remark on the calls that would take too long, if there are any."""
    more = "; …" * (len(labels) > _SHOWN)
    return [f"left out, since they would take too long: {'; '.join(labels[:_SHOWN])}{more}"] if labels else []


def _outcome(reasons: Sequence[Reason]) -> Outcome:
    kinds = {reason.kind for reason in reasons}
    if kinds & CHEATS.keys():
        return "cheats"
    if kinds - UNDECIDED.keys():
        return "wrong"
    return "inconclusive" if kinds else "right"


def _refuses(first: Comparison) -> bool:
    """Whether the first call raised."""
    answer = first.answers.get(0)
    return answer is None or bool(answer.error)


def _code(trial: _Trial, call: Call, case: Case, dtype: torch.dtype) -> str:
    """A call as a script, which prints where the results of both functions differ most."""
    case = in_dtype(case, dtype)
    names = variables(case)
    sources = {"candidate": trial.candidate, "reference": trial.reference}
    lines = entering_lines(trial.candidate.shown) if any(source.uses_triton for source in sources.values()) else []
    loading = [line for name, source in sources.items() for line in _loading(name, source)]
    lines += ["import torch", *dict.fromkeys(loading)]  # two files need one import of runpy
    if call.undefined:  # a name keeps the world
        world = f"interpreter.inside(interpreter.World(undefined={call.undefined}))"
        lines += [f"world = {world}  # in lanes that are masked off without `other`", "world.__enter__()"]
    asked = [p for p, asks in zip(case.wrt, call.mask or (True,) * len(case.wrt), strict=True) if asks]
    for position, value in case.all_tensors.items():
        lines.append(bind(names[position], value, ".requires_grad_()" if position in asked else ""))
    text, _, weights = (part.rstrip(", ") for part in call_text(case).partition(f"{WEIGHTS}="))
    made = f"torch.func.functional_call(fn, {weights}, ({text},))" if weights else f"fn({text})"
    weight = "1.0" if call.uniform else "torch.linspace(-1, 2, o.numel(), dtype=o.dtype).reshape(o.shape)"
    gradients = ", ".join(f"{f'gradient of {case.names[p]}'!r}: {names[p]}" for p in asked)
    comparing = _COMPARING.format(call=made, inputs=gradients, weight=weight)
    return "\n".join([*lines, *comparing.strip().splitlines()])


_COMPARING = """
def results(fn):
    leaves = torch.utils._pytree.tree_leaves({call})
    outs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    total = sum((o * {weight}).sum() for o in outs if o.requires_grad)
    inputs = {{{inputs}}}
    gradients = torch.autograd.grad(total, [*inputs.values()], materialize_grads=True) if inputs else []
    return {{f"output {{k}}": out for k, out in enumerate(outs)}} | dict(zip(inputs, gradients))

for (name, mine), right in zip(results(candidate).items(), results(reference).values()):
    at = (mine - right).abs().nan_to_num(nan=torch.inf).argmax()
    print(f"{{name}}: candidate {{mine.flatten()[at]}}, reference {{right.flatten()[at]}}")
"""
"""The end of a script; its results are the outputs, and the gradients of a weighted sum of them."""


def _loading(name: str, source: Source) -> list[str]:
    """Lines that bind a name to what users call."""
    place, _, path = source.spec.rpartition(":")
    if not source.spec:
        return [f"# {name} = {source.name}"]
    load = [f"from {place} import {path} as {name}"]
    if place.endswith(".py"):
        load = ["import runpy", f"{name} = runpy.run_path({place!r})[{path!r}]"]
    return [
        *load,
        f"if isinstance({name}, type):",
        f"    {name} = {name}.apply if issubclass({name}, torch.autograd.Function) else {name}()",
    ]

"""Findings about Triton kernels that are interpreted, from what they did in a run, or from two worlds' results."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from pullback.check.case import Case, is_differentiable
from pullback.check.cases.repro import bind, definition, variables
from pullback.check.derivative.agreement import TensorDifference, difference, subscript
from pullback.check.kernel_runs import KernelRun, kernel_runs
from pullback.check.trial import standard_cotangents
from pullback.dtypes import has_reals
from pullback.report.model import Evidence, Finding, Location

if TYPE_CHECKING:
    from pullback.check.audit import Audit
    from pullback.interpreter import Irregularity

_MOST = 3
"""Number of findings of a rule: one line may be reached in many ways."""


def irregularities(
    audit: Audit, rule: str, kind: Literal["out-of-bounds", "data-race", "uninitialised-memory"], hint: str
) -> Iterator[Finding]:
    """Yield a finding for each line of a kernel that accessed memory in an irregular way, for stores first."""
    first: dict[tuple[str, int], tuple[KernelRun, Irregularity]] = {}
    for run in kernel_runs(audit):
        for found in run.world.irregularities:
            if found.kind == kind:
                first.setdefault((found.file, found.line), (run, found))
    loads_last = sorted(first.values(), key=lambda pair: pair[1].is_load)
    for run, found in loads_last[:_MOST]:
        yield _irregular(audit, rule, run, found, hint)


def in_dtype(case: Case, dtype: torch.dtype) -> Case:
    """Return a call with its floats in another type."""
    values = tuple(v.to(dtype) if isinstance(v, Tensor) and is_differentiable(v) else v for v in case.values)
    return replace(case, values=values)


MAY_MISFIT = "the call was guessed, and its arguments may not fit each other: give inputs"


def may_misfit(audit: Audit) -> bool:
    """Whether the arguments of the example may not fit each other, for which kernels raise no error."""
    return audit.subject.is_interpreted and audit.guessed and len(audit.base.values) > 1


def _irregular(audit: Audit, rule: str, run: KernelRun, found: Irregularity, hint: str) -> Finding:
    where = f"kernel {found.kernel} ({shown_line(found.file, found.line)})"
    finding = audit.finding(
        rule,
        "error",
        "wrong",
        f"{where}, {found.told}" + (f"; with {run.case.phrase}" if run.case.is_variant else ""),
        case=run.case,
        tail=[
            audit.outs,
            *backward_lines(run.outputs if run.gradients is not None else ()),
            "print(*interpreter.world().irregularities, sep='\\n')",
            f"assert any(one.kind == {found.kind!r} for one in interpreter.world().irregularities)",
        ],
        hint=hint,
    )
    if run.case.doubtful or (run.case is audit.base and may_misfit(audit)):
        finding = replace(finding, severity="warning", verdict="inconclusive", hint=MAY_MISFIT)
    return at_line(audit, finding, found.file, found.line)


def backward_lines(outputs: Sequence[Tensor]) -> list[str]:
    """Return lines of a reproduction that call the backward; none if there are no outputs."""
    if not outputs:
        return []
    g = standard_cotangents(outputs)
    return [bind("g", g), "grads = torch.autograd.grad(outs, inputs, g, allow_unused=True)"]


def shown_line(file: str, line: int) -> str:
    """Write a line of a file by the file's name: "kernels.py:12"."""
    return f"{Path(file).name}:{line}"


def at_line(audit: Audit, finding: Finding, file: str, line: int) -> Finding:
    """Return a finding located at a line of a kernel, if that is in the file of the subject."""
    source, location = audit.subject.source, audit.subject.location
    if source is None or os.path.realpath(source.file) != os.path.realpath(file):
        return finding
    return replace(finding, location=Location(location.file, line))


def first_difference(one: KernelRun, other: KernelRun, rounding: float | None = None) -> TensorDifference | None:
    """Return where the values of two runs, or else their gradients, differ beyond rounding (as of `difference`).

    A sum in another order that cancels to 0 differs by a rounding error of its terms.
    """
    if len(one.results) != len(other.results):
        return None
    of_terms = _OF_TERMS if rounding is None else rounding**2
    floor = of_terms * max((float(t.detach().abs().nan_to_num(0.0, 0.0, 0.0).max()) for t in _numbers(one)), default=0)
    found = difference(one.outputs, other.outputs, rounding, floor)
    if found is not None or one.gradients is None or other.gradients is None:
        return found
    found = difference(one.gradients, other.gradients, rounding, floor)
    return None if found is None else replace(found, tensor_index=found.tensor_index + len(one.outputs))


_OF_TERMS = 2.0**-44
"""Rounding error of a sum in float64, relative to the largest input."""


def _numbers(run: KernelRun) -> Iterator[Tensor]:
    return (t for t in run.case.tensors if t.numel() and has_reals(t))


def rounding(lines: Sequence[str]) -> list[str]:
    """Return lines of a reproduction in a world in which kernels round as they are written."""
    return ["with interpreter.inside(interpreter.World(lifts=False)):", *(f"    {line}" for line in lines)]


def differing(
    audit: Audit,
    rule: str,
    run: KernelRun,
    where: TensorDifference,
    worlds: Sequence[str],
    message: str,
    hint: str,
) -> Finding:
    """Return the finding that a result depends on the world in which kernels run.

    Args:
        audit: the audit.
        rule: id of the rule.
        run: the run in the usual world.
        where: the difference.
        worlds: source of the arguments of both worlds.
        message: what differs, to be completed by the numbers.
        hint: what to do.
    """
    names, what = variables(run.case), run.name_of(where.tensor_index)
    grads = "torch.autograd.grad(outs, inputs, g, materialize_grads=True)"
    returned = "outs" if run.gradients is None else f"[*outs, *{grads}]"
    body = [audit.outs, f"return {returned}"]
    element = f"[{where.tensor_index}]{subscript(where.index) or '[()]'}.item()"
    tail = [bind("g", standard_cotangents(run.outputs)), *definition("results", run.case, body)]
    is_compiled = not audit.subject.is_interpreted
    tail += ["from pullback import interpreter"] * is_compiled
    for name, settings in zip(("first", "second"), worlds, strict=True):
        tail += [
            f"with {'interpreter.picking(), ' * is_compiled}interpreter.inside(interpreter.World({settings})):",
            f"    {name} = results([{', '.join(names[p] for p in run.case.wrt)}])",
        ]
    is_seen = where.index is not None
    return audit.finding(
        rule,
        "error",
        "wrong",
        f"{message}: {what}, {where}" + (f"; with {run.case.phrase}" if run.case.is_variant else ""),
        case=run.case,
        evidence=Evidence(
            expected=where.expected, got=where.got, worst_index=where.index, where=what, dtype=_dtype(run)
        ),
        tail=[*tail, f"print(first{element}, second{element})"] if is_seen else tail,
        hint=hint,
    )


def _dtype(run: KernelRun) -> str:
    kinds = [str(t.dtype).removeprefix("torch.") for t in run.case.tensors if is_differentiable(t)]
    return kinds[0] if kinds else ""

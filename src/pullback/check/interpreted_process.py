"""Calls whose kernels run on a GPU, made once more on the CPU, where they are interpreted: in a process without a GPU.

A process whose kernels are interpreted cannot run compiled ones, so the interpreter is entered in another one, which
imports the function anew.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pullback.check.case import Case, is_differentiable, make_case
from pullback.check.find.kernels import WITHOUT_GPU, entering_lines, recording
from pullback.check.find.modules import IN_PROGRAM
from pullback.check.kernel_runs import Results, run_once
from pullback.check.subject import Subject
from pullback.check.trial import Raised, describe_error
from pullback.report.model import Location

if TYPE_CHECKING:
    from pullback.check.facts import ExampleFacts

_TO_START = 30.0
"""Seconds for a Python that imports PyTorch, Triton and the function."""
_CALLS, _ANSWERS = "calls.pt", "answers.pt"


@dataclass(frozen=True, slots=True)
class Interpreted:
    """The results of one call whose kernels were interpreted.

    Attributes:
        as_written: rounded as the kernels' types tell; `None` if the call raises.
        lifted: the same in float64, from the same inputs.
        irregular: a clause on the first access to memory that no right kernel makes; "" if there is none.
        error: why there are no results.
    """

    as_written: Results | None
    lifted: Results | None
    irregular: str
    error: str


class NotInterpretedError(Exception):
    """The function cannot be called in another process; the message is why."""


def interpreted(audit: ExampleFacts, cases: Sequence[Case]) -> list[Interpreted]:
    """Make calls in a process without a GPU, with their kernels interpreted.

    Args:
        audit: of the function.
        cases: the calls, on the CPU.

    Returns:
        The results of each call; fewer if the time runs out.

    Raises:
        NotInterpretedError: if no other process can load the function, or the arguments of a call.
    """
    load = audit.subject.load
    if not load or load.startswith("# fn = ") or IN_PROGRAM in load or any(case.captured for case in cases):
        raise NotInterpretedError("no other process can load the function: define it in a file")
    with tempfile.TemporaryDirectory(prefix="pullback-") as name:
        folder = Path(name)
        torch.save([_sent(case) for case in cases], folder / _CALLS)
        program = [*entering_lines(), load, f"from {__name__} import answer", f"answer(fn, {name!r})"]
        failure = _run("\n".join(program), folder, audit)
        if not (folder / _ANSWERS).exists():
            raise NotInterpretedError(failure or "the calls did not end in time")
        answers = torch.load(folder / _ANSWERS, weights_only=True)
    return [_received(case, answer) for case, answer in zip(cases, answers, strict=False)]


def _run(program: str, folder: Path, audit: ExampleFacts) -> str:
    """Run a program until it ends or the time is over; return the last line that it prints if it fails."""
    environment = os.environ | WITHOUT_GPU | {"PYTHONPATH": os.pathsep.join(sys.path)}
    log = folder / "log.txt"
    with log.open("wb") as out:
        process = subprocess.Popen([sys.executable, "-c", program], stdout=out, stderr=out, env=environment)
        end = time.monotonic() + max(_TO_START, audit.options.budget)
        while process.poll() is None and time.monotonic() < end:
            audit.events.beat()
            time.sleep(0.1)
        process.kill()
        process.wait()
    lines = log.read_text(errors="replace").split("\n") if process.returncode > 0 else []
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


def _sent(case: Case) -> dict[str, Any]:
    args, kwargs, _ = case.arguments(moved=case.tensors)
    return {"args": args, "kwargs": kwargs, "wrt": list(case.wrt), "names": list(case.names)}


def _received(case: Case, answer: dict[str, Any]) -> Interpreted:
    found = [None if results is None else Results(case, *results) for results in answer["results"]]
    return Interpreted(found[0], found[1], answer["irregular"], answer["error"])


# ---- in the other process -------------------------------------------------------------------------------------------


def answer(fn: Callable[..., Any], folder: str) -> None:
    """Make the calls that a folder holds, and write the results there after each."""
    torch.set_num_threads(1)
    subject = Subject("fn", "callable", fn, Location(""), is_interpreted=True)
    answers: list[dict[str, Any]] = []
    for call in torch.load(Path(folder) / _CALLS, weights_only=True):
        plain = make_case(tuple(call["args"]), call["kwargs"], ())
        case = replace(plain, wrt=tuple(call["wrt"]), names=tuple(call["names"]))
        answers.append(_answered(subject, case))
        torch.save(answers, Path(folder) / "part.pt")
        (Path(folder) / "part.pt").replace(Path(folder) / _ANSWERS)


def _answered(subject: Subject, case: Case) -> dict[str, Any]:
    results: list[tuple[list[Tensor], list[Tensor | None] | None] | None] = []
    irregular = error = ""
    for lifts in (False, True):
        wide = tuple(v.double() if isinstance(v, Tensor) and is_differentiable(v) else v for v in case.values)
        with recording(lifts=lifts) as world:
            try:
                found = run_once(subject, replace(case, values=wide) if lifts else case)
            except Raised as raised:
                error = describe_error(raised.error)
                results.append(None)
                continue
        results.append((found.outputs, found.gradients))
        for one in world.irregularities[:1]:
            irregular = f"kernel {one.kernel} ({Path(one.file).name}:{one.line}), {one.told}"
    return {"results": results, "irregular": irregular, "error": error}

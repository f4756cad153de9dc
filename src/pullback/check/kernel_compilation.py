"""Interpreted kernels, shown to the front end of Triton's compiler for the types and constants of their launches."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pullback.check.case import Case
from pullback.check.cases import layouts
from pullback.check.find.kernels import refusal_of
from pullback.check.kernel_runs import KernelRun, kernel_runs, run_in_world
from pullback.check.runner.process import Channel, Process
from pullback.errors import RunnerError

if TYPE_CHECKING:
    from pullback.check.facts import ExampleFacts
    from pullback.check.find.kernels import Specialisation

_SECONDS = 0.5
"""After so long, no further call is looked at, and no kernel for other types or constants than before."""
_MOST = 5.0
"""Seconds for the front end: it takes some milliseconds for a kernel, and seconds for one with long unrolled loops."""
_TICK = 0.005
_OF_SIZES = re.compile(r"Input shapes should have|power of 2|at least \d+ rows|numel|broadcast|incompatible dimensions")
"""Matches a message that asks for other sizes of blocks: a function need not take every size."""
_SHORT = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class Uncompilable:
    """A launch whose kernel does not compile.

    Attributes:
        case: the call, in the dtypes in which it launches the kernel.
        kernel: name of the kernel.
        file, line: the statement, in the kernel or in a function that it calls.
        message: what the compiler says.
        arguments: parameters of the kernel with their types or values.
        outputs: the outputs of the call that are part of the graph; none if its backward raises.
    """

    case: Case
    kernel: str
    file: str
    line: int
    message: str
    arguments: str
    outputs: Sequence[Tensor]


def uncompilable(audit: ExampleFacts) -> Iterator[Uncompilable]:
    """Yield launches whose kernels do not compile, of the example and of calls that take new ways through kernels.

    The calls are made in the dtypes that the user gave. Float64 stands for any: such a call is made in float32, and
    kernels that compile for a shorter float are left out, as they may be meant for that.
    """
    launches = _launches(audit)
    is_any = torch.float64 in {t.dtype for t in _like(audit).all_tensors.values()}
    seen: set[tuple[str, int]] = set()
    refused = _refused(audit, [one for _, one in launches])
    for (run, one), fields in zip(launches, refused, strict=True):
        if fields is None or (place := (fields["file"], fields["line"])) in seen:
            continue
        if "*fp64" in fields["arguments"]:  # of a buffer that host code keeps: an earlier call made it in float64
            continue
        if run.case.is_variant and _OF_SIZES.search(fields["message"]):
            continue
        seen.add(place)
        if not (is_any and any(_compiles_in(audit, dtype, run.case, one) for dtype in _SHORT)):
            yield Uncompilable(run.case, **fields, outputs=() if run.gradients is None else run.outputs)


def has_other_sizes(audit: ExampleFacts, case: Case) -> bool:
    """Whether a call has tensors of other shapes than the example, or other numbers."""
    return any(_size(one) != _size(other) for one, other in zip(audit.base.values, case.values, strict=False))


def _size(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.shape
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _like(audit: ExampleFacts) -> Case:
    """Return the call that the user gave, of which the example may have wider floats; or the guessed example."""
    return audit.given[0] if audit.given and not audit.guessed else audit.base


def _launches(audit: ExampleFacts) -> list[tuple[KernelRun, Specialisation]]:
    """Return the launches of other types or constants, each with the first run that makes it.

    A kernel that raises when interpreted is left out: its error is reported already.
    """
    start = audit.clock.seconds()
    found: dict[Any, tuple[KernelRun, Specialisation]] = {}
    for index, run in enumerate(kernel_runs(audit)):
        if index and (not run.new or audit.clock.seconds() > start + _SECONDS):
            continue
        as_written = _as_written(audit, _as_given(audit, run.case))
        if as_written is not None:
            world = as_written.world
            new = {key: one for key, one in world.specialisations.items() if one.function not in world.failed}
            found |= {key: (as_written, one) for key, one in new.items() if key not in found}
    return list(found.values())


def _as_given(audit: ExampleFacts, case: Case) -> Case:
    """Return a call in the dtypes that the user gave, and in float32 where these are float64."""
    return _with_floats(layouts.as_dtypes_of(case, _like(audit)), torch.float64, torch.float32)


def _with_floats(case: Case, before: torch.dtype, after: torch.dtype) -> Case:
    tensors = {p: v.to(after) for p, v in enumerate(case.values) if isinstance(v, Tensor) and v.dtype == before}
    return replace(case, values=tuple(tensors.get(p, v) for p, v in enumerate(case.values)))


def _as_written(audit: ExampleFacts, case: Case) -> KernelRun | None:
    audit.events.beat()
    return run_in_world(audit, case, lifts=False, specialises=True)


def _compiles_in(audit: ExampleFacts, dtype: torch.dtype, case: Case, refused: Specialisation) -> bool:
    """Whether a kernel compiles if a call in float32 is made in another dtype."""
    run = _as_written(audit, _with_floats(case, torch.float32, dtype))
    launches = run.world.specialisations.values() if run else ()
    same = [one for one in launches if one.function is refused.function]
    return None in _refused(audit, same)


def _refused(audit: ExampleFacts, launches: Sequence[Specialisation]) -> list[dict[str, Any] | None]:
    """Return the refusal of each launch by the front end, `None` where it compiles.

    It runs in a process of its own, since it prints, and a fault of it may end the process or take forever.
    """

    def work(channel: Channel) -> None:
        start = time.monotonic()
        seen: set[Any] = set()
        for index, one in enumerate(launches):
            if one.function in seen and time.monotonic() > start + _SECONDS:
                continue
            seen.add(one.function)
            if (fields := refusal_of(one)) is not None:
                channel.send("refused", index=index, fields=fields)

    found: list[dict[str, Any] | None] = [None] * len(launches)
    try:
        process = Process(work)
    except RunnerError:
        return found
    end = time.monotonic() + _MOST
    is_over = False
    while not is_over:
        is_over = process.ended() or time.monotonic() > end
        for message in process.receive():
            found[message["index"]] = message["fields"]
        process.keep_output()
        audit.events.beat()
        time.sleep(_TICK)
    process.bury()
    return found

"""The work of one process: calls of the candidate or of the reference, and their results as raw bytes.

Calls come in a fixed order. Some get new tensors, some the memory, or the very tensors, of the call before with other
values in them; and after each call the results of the one before are sent again, which nothing may have changed.
"""

from __future__ import annotations

import inspect
import json
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.fx.experimental.symbolic_shapes  # the first backward of a process imports it, which takes a second
from torch import Tensor

from pullback._torch import tree_leaves, tree_unflatten
from pullback.check import trial
from pullback.check.case import Case, copy_tensor, is_differentiable
from pullback.check.clock import Stopwatch
from pullback.check.derivative.band import Band, Precision, bands, cast
from pullback.check.derivative.repeatable import fresh_memory_is_nan
from pullback.check.find.kernels import (
    ensure_no_kernel,
    enter_for_object,
    enter_for_target,
    hosting,
    is_interpreted,
    is_possible,
    is_unwritten,
    present,
    recording,
    target_uses_triton,
    uses_triton,
)
from pullback.check.find.resolve import load_object
from pullback.check.find.target import parse_target
from pullback.check.runner.process import Channel, limit_memory, ordinary_modes
from pullback.check.subject import is_carried
from pullback.check.trial import ForwardRun, Raised, describe_error, guarded, reseed, standard_cotangents, vjp
from pullback.errors import PullbackError
from pullback.judge import wire
from pullback.judge.sandbox import Watch, enter
from pullback.judge.wire import digest, sent

if TYPE_CHECKING:
    from pullback.check.find.kernels import World

WEIGHTS = "module weights"
"""Keyword of a case that holds the weights of the module, by their names: no argument has such a name."""

MOST_OF_RESULT = 300_000
"""Elements of the outputs of a call that are still compared."""

Reuse = Literal["new", "memory", "object"]
"""Whether a call gets new tensors, new tensors over the memory of the call before, or the tensors of that call."""


@dataclass(frozen=True)
class Call:
    """One call.

    Attributes:
        case: its arguments.
        label: what is special about it.
        kind: "example" (the example, or other values of that sort), "shape", "values", "settings", "layout" or
            "memory".
        reuse: see `Reuse`.
        cotangents: seed of the cotangents.
        uniform: whether these are ones, expanded, as `.sum()` gives.
        mask: which inputs require a gradient; all by default.
        fills_new: whether new tensors are filled with NaN.
        before: number of calls with shifted values before it, whose results are dropped.
        is_extreme: whether values are far outside the ordinary range.
        undefined: the number in lanes that a load of an interpreted kernel masks off without `other`.
    """

    case: Case
    label: str
    kind: str = "example"
    reuse: Reuse = "new"
    cotangents: int = 0
    uniform: bool = False
    mask: tuple[bool, ...] | None = None
    fills_new: bool = False
    before: int = 0
    is_extreme: bool = False
    undefined: float = 0.0


@dataclass(frozen=True)
class Source:
    """A candidate or a reference: an object, or where to import it from.

    Attributes:
        spec: "FILE:NAME" or "MODULE:NAME"; empty for an object.
        obj: the object.
        shown: the dtype that its interpreted host code sees for float64.
    """

    spec: str = ""
    obj: Any = None
    shown: torch.dtype = torch.float32

    @classmethod
    def of(cls, target: Any) -> Source:
        """Describe what a user gives."""
        return cls(spec=target) if isinstance(target, str) else cls(obj=target)

    @property
    def name(self) -> str:
        """Its name, for messages."""
        return self.spec or str(getattr(self.obj, "__name__", type(self.obj).__name__))

    @property
    def uses_triton(self) -> bool:
        """Whether its code uses Triton."""
        return target_uses_triton(parse_target(self.spec)) if self.spec else uses_triton(self.obj)

    @property
    def is_interpreted(self) -> bool:
        """Whether its Triton kernels are interpreted in the process that runs it."""
        return self.uses_triton and is_possible()

    def enter_interpreter(self) -> None:
        """Have its Triton kernels interpreted, if it has some and there is no GPU."""
        if self.spec:
            enter_for_target(parse_target(self.spec))
        else:
            enter_for_object(self.obj)
        if self.shown != torch.float32:
            present(self.shown)

    def load(self) -> Any:
        """Import the object; a class of modules is constructed, from the same random state everywhere.

        Raises:
            TargetError: if there is none, or it is a Triton kernel, which has no gradient.
        """
        found = load_object(self.spec) if self.spec else self.obj
        ensure_no_kernel(found, self.name.rpartition(":")[2])
        if isinstance(found, type) and issubclass(found, torch.nn.Module):
            reseed()
            return found()
        return found

    @property
    def file(self) -> Path | None:
        """The file that defines it."""
        if self.spec:
            path = Path(self.spec.rpartition(":")[0])
            return path if path.suffix == ".py" else None
        try:
            return Path(inspect.getfile(self.obj))
        except TypeError:
            return None


LATE = "late"
"""Stage of a call that is left out, since it would take too long."""


class Pace:
    """Tells whether a larger call, if time grows as in those before it, takes more than seconds."""

    _MOST = 4.0

    def __init__(self) -> None:
        self._clock = Stopwatch()
        self._done = 0.0
        self._numel, self._seconds, self._power = 1, 0.0, 1.0

    def is_too_slow(self, call: Call) -> bool:
        """Whether to leave a call out."""
        expected = self._seconds * (_numel(call) / self._numel) ** self._power
        return call.kind == "shape" and expected > self._MOST

    def end(self, call: Call) -> None:
        """Note that a call has ended."""
        now = self._clock.seconds()
        numel, seconds = _numel(call), now - self._done
        self._done = now
        if numel <= _SMALL:
            return
        grown = numel / self._numel
        self._power = 1.0
        if grown > 2 and min(seconds, self._seconds) > 0:  # scores of all pairs of rows, say, grow as the square
            self._power = min(max(math.log(seconds / self._seconds, grown), 1.0), 3.0)
        self._numel, self._seconds = numel, seconds


_SMALL = 500
"""Elements below which the time of a call is that of its operations, and tells nothing of larger ones."""


def _numel(call: Call) -> int:
    return sum(t.numel() for t in call.case.all_tensors.values())


@dataclass(frozen=True)
class Scales:
    """What is a large element, on the example, of each output and of the gradient of each input."""

    outputs: Sequence[float]
    gradients: Sequence[float]

    def of(self, call: Call) -> list[float]:
        """Those of the outputs and gradients of a call."""
        asked = call.mask or (True,) * len(call.case.wrt)
        return [*self.outputs, *(scale for scale, asks in zip(self.gradients, asked, strict=True) if asks)]


@dataclass
class Result:
    """The result of a call.

    Attributes:
        positions: outputs that are differentiable.
        outputs: the outputs.
        sent: the same in JSON, as they were before the backward.
        gradients: one for each input that requires one.
        after: the tensors among the arguments.
        error: the exception of the backward; then there are no gradients.
        irregular: what no right kernel does to memory, of the first access that does; "" if all are right.
    """

    positions: list[int]
    outputs: list[Tensor]
    sent: list[dict[str, Any]]
    gradients: list[Tensor | None] = field(default_factory=list)
    after: list[Tensor] = field(default_factory=list)
    error: str = ""
    irregular: str = ""


@dataclass
class Runner:
    """Runs calls of one function.

    Attributes:
        target: the function, the Function or the module.
        positions: outputs that are differentiated; all by default.
        seed: of the random state at each call.
        is_as_written: whether interpreted kernels round as their types tell, but for TF32, rather than in float64.
    """

    target: Any
    positions: Sequence[int] | None = None
    seed: int = 0
    is_as_written: bool = False
    _held: list[Any] = field(default_factory=list)

    def compute(self, call: Call, case: Case) -> list[Tensor | None]:
        """Every output and every gradient, on fresh copies of a case."""
        run, cotangents = self._run(call, case, [t.clone() if isinstance(t, Tensor) else t for t in case.values])
        _limit(run.outputs)
        return [*(out.detach() for out in run.outputs), *self._gradients(run, cotangents)]

    def answer(self, call: Call, dtype: torch.dtype) -> Result:
        """Make a call in a dtype.

        Raises:
            Raised: if the forward does.
        """
        case = in_dtype(call.case, dtype)
        for shift in range(call.before):
            self.compute(call, case.map_inputs(lambda t, by=shift: t.roll(by + 1) if t.numel() else t, ""))  # type: ignore[misc]
        leaves = self._leaves(case, call.reuse)
        fills = fresh_memory_is_nan() if call.fills_new else nullcontext()
        with fills, self._recording(call.undefined) as world:
            run, cotangents = self._run(call, case, leaves)
            _limit(run.outputs)
            # Sent before the backward, which may fail, or change them.
            result = Result(run.differentiable, run.outputs, [sent(out) for out in run.outputs])
            try:
                result.gradients = self._gradients(run, cotangents)
            except Raised as error:
                result.error = describe_error(error.error)
        self._held = leaves
        if world is not None:
            asked = call.mask or (True,) * len(case.wrt)
            wrt = [case.names[p] for p, asks in zip(case.wrt, asked, strict=True) if asks]
            named: list[tuple[str, Tensor | None]] = [(f"output {k}", out) for k, out in enumerate(result.outputs)]
            named += [(f"the gradient of {name}", g) for name, g in zip(wrt, result.gradients, strict=False)]
            result.irregular = _irregular(world, named)
        result.after = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        return result

    def _recording(self, undefined: float) -> AbstractContextManager[World | None]:
        if not is_interpreted(self.target):
            return nullcontext()
        rounding = {"lifts": False, "rounds_tf32": False} if self.is_as_written else {}
        return recording(undefined=undefined, **rounding)

    def _leaves(self, case: Case, reuse: Reuse) -> list[Any]:
        """The arguments of a call, in memory as `reuse` says."""
        fits = len(self._held) == len(case.values) and all(
            not isinstance(v, Tensor) or (v.shape, v.dtype, v.stride()) == (h.shape, h.dtype, h.stride())
            for h, v in zip(self._held, case.values, strict=True)
            if isinstance(v, Tensor) == isinstance(h, Tensor)
        )
        leaves = []
        for position, value in enumerate(case.values):
            if not isinstance(value, Tensor):
                leaves.append(value)
            elif reuse == "new" or not fits:
                leaves.append(copy_tensor(value))
            else:
                held = self._held[position]
                held.data.copy_(value)
                leaves.append(held if reuse == "object" else held.detach())
        return leaves

    def _gradients(self, run: ForwardRun, cotangents: list[Tensor]) -> list[Tensor | None]:
        return vjp(run, cotangents) if cotangents else [None] * len(run.inputs)

    def _run(self, call: Call, case: Case, leaves: list[Any]) -> tuple[ForwardRun, list[Tensor]]:
        """Run the forward; return it, and the cotangents for its backward.

        Raises:
            Raised: if the function does.
        """
        twins: dict[int, Tensor] = {}
        for position in case.wrt:  # a tensor that is passed twice is one input
            leaves[position] = twins.setdefault(id(case.values[position]), leaves[position])
        asked = call.mask or (True,) * len(case.wrt)
        for position, asks in zip(case.wrt, asked, strict=True):
            leaves[position].requires_grad_(asks)
            leaves[position].grad = None
        args, kwargs = tree_unflatten(list(leaves), case.spec)
        self._set_weights(kwargs.pop(WEIGHTS, {}), leaves)
        inputs = [leaves[p] for p, asks in zip(case.wrt, asked, strict=True) if asks]
        reseed(self.seed)
        with guarded("forward"), torch.enable_grad():
            result = self._called(*args, **kwargs)
        found = [torch.as_tensor(leaf) if isinstance(leaf, float | int) else leaf for leaf in tree_leaves(result)[0]]
        outputs = [leaf for leaf in found if isinstance(leaf, Tensor)]
        roots = [p for p, out in enumerate(outputs) if is_differentiable(out) and out.requires_grad]
        if self.positions is not None:
            roots = [p for p in roots if p in self.positions]
        run = ForwardRun(inputs, outputs, roots, result, args)
        seeds = [1000 * call.cotangents + p for p in roots]
        cotangents = standard_cotangents(run.roots, seeds)
        if call.uniform:
            cotangents = [torch.ones((), dtype=g.dtype).expand(g.shape) for g in cotangents]
        return run, cotangents

    @property
    def _called(self) -> Callable[..., Any]:
        is_function = isinstance(self.target, type) and (
            issubclass(self.target, torch.autograd.Function) or is_carried(self.target)
        )
        if is_function:
            return self.target.apply  # type: ignore[no-any-return]
        return hosting(self.target) if is_interpreted(self.target) else self.target

    def _set_weights(self, weights: dict[str, Tensor], leaves: list[Any]) -> None:
        """Give the module its weights, and put its own parameters in their place among the arguments."""
        for name, value in weights.items():
            owner = self.target if isinstance(self.target, torch.nn.Module) else torch.nn.Module()
            held = dict(owner.named_parameters()) | dict(owner.named_buffers())
            if name not in held or held[name].shape != value.shape:
                what = f"the candidate has no weight {name} of shape {list(value.shape)}, as the reference has"
                raise Raised("forward", ValueError(what))
            held[name].data = value.data
            held[name].grad = None
            held[name].requires_grad_(value.requires_grad)
            leaves[next(k for k, leaf in enumerate(leaves) if leaf is value)] = held[name]


def in_dtype(case: Case, dtype: torch.dtype) -> Case:
    """The case in a dtype, with strides as they are: a conversion alone closes the gaps of a sliced tensor."""
    new = cast(case, dtype)
    pairs = {p: (t, new.values[p]) for p, t in case.strided.items() if t.stride() != new.values[p].stride()}
    return new.with_values({p: _strided_as(like, t) for p, (like, t) in pairs.items()})


def _strided_as(like: Tensor, t: Tensor) -> Tensor:
    """The tensor in memory as that of another of its shape, where no element lies on another."""
    length = 1 + sum((size - 1) * stride for size, stride in zip(like.shape, like.stride(), strict=True))
    is_apart = 0 not in like.stride() and t.numel() > 0
    return t.new_zeros(length).as_strided(like.shape, like.stride()).copy_(t) if is_apart else t


def _irregular(world: World, results: Sequence[tuple[str, Tensor | None]]) -> str:
    """Describe the first irregular access to memory, or a result that is unwritten in part; "" if there is none."""
    for one in world.irregularities:
        return f"kernel {one.kernel} ({Path(one.file).name}:{one.line}), {one.told}"
    for name, t in results:
        if t is not None and 0 < (count := int(is_unwritten(t).sum())) < t.numel():
            return f"{count} of {t.numel()} elements of {name} are memory that no kernel wrote"
    return ""


def _limit(outputs: Sequence[Tensor]) -> None:
    """Refuse a call whose outputs take too long to compare.

    Raises:
        Raised: if they do.
    """
    if sum(out.numel() for out in outputs) > MOST_OF_RESULT:
        raise Raised("call", ValueError("its outputs are too large to be compared"))


@dataclass(frozen=True)
class Job:
    """What a process is to do.

    Attributes:
        source: what it runs.
        calls: its calls.
        dtype: the dtype of its floating tensors.
        positions: outputs that are differentiated; all by default.
        seconds: when to stop between two calls.
        memory: bytes that it may take.
        folder: for its temporary files.
        is_as_written: as of `Runner`.
    """

    source: Source
    calls: Sequence[Call]
    dtype: torch.dtype
    positions: Sequence[int] | None
    seconds: float
    memory: int
    folder: str
    is_as_written: bool = False


_OURS = (trial, wire, Channel, Watch, Runner)
"""What a candidate might replace to be judged by other numbers than it computes."""


def serve_candidate(job: Job, reference: Source, forbidden: Sequence[str], channel: Channel) -> None:
    """Make the calls of a candidate, and tell what it does besides."""
    same_file = job.source.file is not None and reference.file is not None
    same_file = same_file and job.source.file.resolve() == reference.file.resolve()  # type: ignore[union-attr]
    limit_memory(job.memory)
    enter(job.folder)
    with suppress(PullbackError):  # a target that there is not: `load` says so
        job.source.enter_interpreter()
    watch = Watch(None if same_file or not reference.spec else reference.file, _OURS)
    if not reference.spec:
        watch.guard(reference.obj)
    try:
        is_known, target = job.source.uses_triton, job.source.load()
        if not is_known:  # what it imports may use Triton, though its source does not show that
            watch.patches()
            enter_for_object(target)
            watch.begin()
        runner = Runner(target, job.positions, is_as_written=job.is_as_written)
    except PullbackError as error:
        channel.send("refused", error=type(error).__name__, message=str(error))
        return
    guards = _Guards(watch, reference)
    guards.look()
    with ordinary_modes():
        held: list[Tensor] = []
        pace = Pace()
        for k, call in enumerate(job.calls):
            channel.send("begin", call=k)
            if pace.is_too_slow(call):
                channel.send("answer", call=k, error="it would take too long", stage=LATE)
                continue
            held = _tell(runner, job, k, call, held, channel)
            pace.end(call)
            guards.look()
        if forbidden and job.calls:
            names = _ops_of(runner, job)
            for name in forbidden:
                used = [op for op in names if _is_named(name, op)] or [m for m in sys.modules if m == name]
                if used:
                    watch.seen["forbidden"] = f"it uses {used[0]}, and {name} is forbidden"
    watch.patches()
    channel.send("end", seen=watch.seen)


def _tell(runner: Runner, job: Job, k: int, call: Call, held: list[Tensor], channel: Channel) -> list[Tensor]:
    """Make one call and send its answer; return the tensors that it handed out."""
    try:
        result = runner.answer(call, job.dtype)
    except Raised as error:
        channel.send("answer", call=k, error=describe_error(error.error), stage=error.stage)
        return []
    channel.send(
        "answer",
        call=k,
        outputs=result.sent,
        gradients=[None if g is None else sent(g) for g in result.gradients],
        after=[digest(t) for t in result.after],
        earlier=[digest(t) for t in held] if call.reuse == "new" else [],
        irregular=result.irregular,
        **({"error": result.error, "stage": "backward"} if result.error else {}),
    )
    return [*result.outputs, *(g for g in result.gradients if g is not None)]


class _Guards:
    """Guards the reference in every module that the candidate has loaded from its file, or by its name."""

    def __init__(self, watch: Watch, reference: Source) -> None:
        self._watch = watch
        self._place, _, self._name = reference.spec.rpartition(":")
        self._file = None if reference.file is None else reference.file.resolve()
        self._known: set[int] = set()

    def look(self) -> None:
        """Guard it in modules that were loaded since."""
        for module in list(sys.modules.values()) if self._place else []:
            if id(module) in self._known:
                continue
            self._known.add(id(module))
            found = getattr(module, self._name, None) if self._is_its(module) else None
            if found is not None:
                self._watch.guard(found)

    def _is_its(self, module: ModuleType) -> bool:
        at = getattr(module, "__file__", None)
        if self._file is None or not isinstance(at, str):
            return getattr(module, "__name__", "") == self._place
        return at.endswith(self._file.name) and Path(at).resolve() == self._file


def _ops_of(runner: Runner, job: Job) -> list[str]:
    """The names of the operators that the first call runs, on any thread."""
    trace = Path(job.folder) / "operators.json"
    observer = torch.profiler.ExecutionTraceObserver()
    observer.register_callback(str(trace))
    observer.start()
    with suppress(Raised):
        runner.answer(replace(job.calls[0], before=0, reuse="new"), job.dtype)
    observer.stop()
    observer.unregister_callback()
    return sorted({node["name"] for node in json.loads(trace.read_text())["nodes"]})


def _is_named(name: str, op: str) -> bool:
    """Whether an operator, "aten::_softmax", is one that a user calls `softmax`, `torch.softmax` or `aten::softmax`."""
    wanted, found = (text.rpartition("::")[2].rpartition(".")[2].strip("_") for text in (name, op))
    found = found.removeprefix("native_").removesuffix("_backward").removesuffix("_forward")
    return "::" in op and wanted == found


def serve_reference(job: Job, precision: Precision, seed: int, scales: Scales, channel: Channel) -> None:
    """Compute the right values of every call, with their error bars."""
    limit_memory(job.memory)
    enter(job.folder)
    runner = Runner(job.source.load(), job.positions)
    clock, pace = Stopwatch(), Pace()
    with ordinary_modes():
        for k, call in enumerate(job.calls):
            if clock.seconds() > job.seconds or pace.is_too_slow(call):
                break
            generator = torch.Generator().manual_seed(seed + k)
            channel.send("begin", call=k)
            try:
                compute, usual = partial(runner.compute, call), scales.of(call)
                found = bands(compute, call.case, precision, generator, call.is_extreme, usual)
                after = runner.answer(replace(call, before=0, reuse="new"), torch.float64).after
            except Raised as error:
                channel.send("band", call=k, error=describe_error(error.error))
                continue
            pace.end(call)
            channel.send("band", call=k, bands=[_sent_band(band) for band in found], after=[digest(t) for t in after])
    channel.send("end")


def _sent_band(band: Band) -> dict[str, Any]:
    dtype = None if band.dtype is None else str(band.dtype).removeprefix("torch.")
    shape = None if band.shape is None else list(band.shape)
    return {"shape": shape, "dtype": dtype, "values": [sent(t) for t in (band.expected, band.low, band.high)]}

"""The example of a judgement: given, made by a function of the user, or guessed from the reference.

All of it happens in a process of the reference: the process that compares runs nobody's code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from pullback.check.case import Case, is_differentiable, make_case
from pullback.check.cases.given import examples
from pullback.check.cases.signature import parameters
from pullback.check.derivative.band import cast
from pullback.check.find.discover import subject_of
from pullback.check.runner.process import Channel, limit_memory, ordinary_modes
from pullback.check.runner.task import Sender
from pullback.check.subject import Options, Subject
from pullback.check.trial import Raised, as_real, describe_error
from pullback.check.weights import given_call
from pullback.check.working_example import prepare
from pullback.errors import OptionError, PullbackError
from pullback.judge.sandbox import enter
from pullback.judge.wire import received, sent
from pullback.judge.worker import WEIGHTS, Call, Job, Runner, Scales

_PLAIN = (bool, int, str, type(None))


@dataclass(frozen=True, slots=True)
class Plan:
    """What a judgement starts from.

    Attributes:
        base: the example.
        full: the same with numbers that have defaults; `None` if it has them all.
        positions: outputs of the reference that are differentiated.
        scales: of its results.
    """

    base: Case
    full: Case | None
    positions: tuple[int, ...]
    scales: Scales


def serve_plan(job: Job, given: tuple[Sequence[Any], Mapping[str, Any]] | None, inputs: str, channel: Channel) -> None:
    """Find the example and run it; send what `planned` takes."""
    limit_memory(job.memory)
    enter(job.folder)
    try:
        target = job.source.load()
        subject = subject_of(target)
        if given is None and inputs:
            calls = examples(inputs)(target, subject.name)
            given = None if not calls else calls[0]
    except PullbackError as error:
        channel.send("refused", error=type(error).__name__, message=str(error))
        return
    try:
        described = _described(job, target, subject, given, is_given=given is not None and not inputs, channel=channel)
    except PullbackError as error:  # of this kind: the command is as it should be
        channel.send("refused", error="PullbackError", message=str(error))
    except Raised as error:
        what = f"the reference does not run on the example in float64: {describe_error(error.error)}"
        channel.send("refused", error="PullbackError", message=what)
    else:
        channel.send("end", plan=described)


def _described(
    job: Job,
    target: Any,
    subject: Subject,
    given: tuple[Sequence[Any], Mapping[str, Any]] | None,
    is_given: bool,
    channel: Channel,
) -> dict[str, Any]:
    """Run the example; return the plan in JSON.

    Raises:
        PullbackError: if no example can be made, or what the reference does with it determines no result.
        Raised: if the reference does not run on it.
    """
    with ordinary_modes():
        if given is not None:
            case = given_call(subject, *given)
        else:
            audit, why = prepare(subject, Options(), [], Sender(channel), frozenset())
            if audit is None:
                raise OptionError(f"no example of a call of {job.source.name}: {why}; give inputs")
            case = cast(audit.base, torch.float32)
        weights = _weights(target)
        call = Call(_with_weights(case, weights), "")
        result, other = (Runner(target, seed=seed).answer(call, torch.float64) for seed in (0, 1))
    if result.error:
        raise OptionError(f"the backward of the reference raises {result.error}")
    if result.sent != other.sent:
        raise OptionError("the reference draws random numbers: give them to it as inputs")
    return {
        "args": None if is_given else _encoded(_tree(case)),
        "names": case.names,
        "wrt": case.wrt,
        "fixed": sorted(case.fixed | {size for t, _ in weights.values() for size in t.shape}),
        "defaults": _encoded(_defaults(subject, case)),
        "weights": {name: [sent(t), is_parameter] for name, (t, is_parameter) in weights.items()},
        "positions": result.positions,
        "scales": [_largest(result.outputs), _largest(result.gradients)],
    }


def planned(message: dict[str, Any], given: tuple[Sequence[Any], Mapping[str, Any]] | None) -> Plan:
    """The plan that a process sent."""
    args, kwargs = given if message["args"] is None and given is not None else _decoded(message["args"])
    plain = make_case(args, kwargs, ())
    base = replace(plain, names=tuple(message["names"]), wrt=tuple(message["wrt"]), fixed=frozenset(message["fixed"]))
    weights = {name: (received(t).tensor(), is_parameter) for name, (t, is_parameter) in message["weights"].items()}
    full = make_case((*args, *_decoded(message["defaults"])), kwargs, ()) if message["defaults"]["list"] else None
    full = None if full is None or weights else replace(full, names=(*base.names, *full.names[len(base.names) :]))
    return Plan(_with_weights(base, weights), full, tuple(message["positions"]), Scales(*message["scales"]))


def _defaults(subject: Subject, case: Case) -> list[Any]:
    """The defaults of the arguments that follow those of a call, if all of them are numbers, flags or words."""
    args, kwargs, _ = case.arguments(moved=case.tensors)
    left = [] if kwargs else parameters(subject)[len(args) :]
    usual = [
        p.default for p in left if p.kind is p.POSITIONAL_OR_KEYWORD and type(p.default) in (bool, int, float, str)
    ]
    return usual if len(usual) == len(left) else []


def _largest(tensors: Sequence[Tensor | None]) -> list[float]:
    """The largest finite magnitude in each tensor."""
    flat = [torch.zeros(1) if t is None or not t.numel() else as_real(t) for t in tensors]
    return [float(t.abs().nan_to_num(nan=0.0, posinf=0.0).amax()) for t in flat]


def _weights(target: Any) -> dict[str, tuple[Tensor, bool]]:
    """The parameters and the buffers of a module, by name, and which of them are differentiated."""
    if not isinstance(target, torch.nn.Module):
        return {}
    found = {name: (p.detach(), p.requires_grad) for name, p in target.named_parameters()}
    return found | {name: (b.detach(), False) for name, b in target.named_buffers()}


def _with_weights(case: Case, weights: Mapping[str, tuple[Tensor, bool]]) -> Case:
    """The case with the weights among its arguments, after all others."""
    if not weights:
        return case
    args, kwargs = _tree(case)
    whole = make_case(args, {**kwargs, WEIGHTS: {name: t for name, (t, _) in weights.items()}}, ())
    first = len(case.values)
    asked = [first + k for k, (t, is_parameter) in enumerate(weights.values()) if is_parameter and is_differentiable(t)]
    return replace(whole, names=(*case.names, *weights), wrt=(*case.wrt, *asked), fixed=case.fixed)


def _tree(case: Case) -> tuple[tuple[Any, ...], dict[str, Any]]:
    args, kwargs, _ = case.arguments(moved=case.tensors)
    return args, kwargs


def _encoded(tree: Any) -> Any:
    """Arguments in JSON.

    Raises:
        OptionError: if one is neither a tensor nor a number, a string or a container of these.
    """
    if isinstance(tree, Tensor):
        return {"tensor": sent(tree)}
    if type(tree) in (list, tuple):
        return {type(tree).__name__: [_encoded(item) for item in tree]}
    if type(tree) is dict and all(isinstance(key, str) for key in tree):
        return {"dict": {key: _encoded(item) for key, item in tree.items()}}
    if isinstance(tree, float):
        return {"float": repr(float(tree))}
    if isinstance(tree, torch.dtype):
        return {"dtype": str(tree).removeprefix("torch.")}
    if isinstance(tree, _PLAIN):
        return {"plain": tree}
    raise OptionError(f"an example holds a {type(tree).__name__}: call pullback.judge from Python, with that argument")


def _decoded(message: Any) -> Any:
    ((kind, content),) = message.items()
    match kind:
        case "tensor":
            return received(content).tensor()
        case "list" | "tuple":
            items = [_decoded(item) for item in content]
            return items if kind == "list" else tuple(items)
        case "dict":
            return {key: _decoded(item) for key, item in content.items()}
        case "float":
            return float(content)
        case "dtype":
            return getattr(torch, content)
    return content

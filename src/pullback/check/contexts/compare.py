"""Comparison of a function's gradients in a context with those of eager mode, and the findings.

A context may refuse the function: PyTorch's errors about unsupported transforms have advice for the author.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from pullback import _torch
from pullback.check.cases.repro import bind, call_text, variables
from pullback.check.contexts.eager import EagerReference, Slots
from pullback.check.derivative.agreement import TensorDifference, show, subscript
from pullback.check.subject import Kind, Subject
from pullback.check.trial import Raised, guarded
from pullback.errors import PullbackError
from pullback.report.model import Evidence, Finding, Severity

if TYPE_CHECKING:
    from pullback.check.audit import Audit

SPLIT = "torch.func needs forward(ctx, …) split into forward(…) and setup_context(ctx, inputs, output)"
"""Advice for a Function in the old style."""
_LENGTH = 200
_NO_SETUP_CONTEXT = "must override the setup_context staticmethod"


Blame = Literal["", "function", "PyTorch"]
TransformKind = Literal["vectorised", "traced", "other"]
"""Kind of a transform: it runs a function on batches, traces it, or does neither."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason for an exception.

    Attributes:
        clear: whether it says plainly that the context is not supported.
        blame: whose fault it must be: the function's, which its author can mend, or PyTorch's.
        reason: the message, in one line.
        hint: what to do.
    """

    clear: bool
    reason: str
    hint: str
    blame: Blame = ""


@dataclass(frozen=True, slots=True)
class _Known:
    """A known error of PyTorch: its pattern, the advice, whether it is a plain refusal, and whose fault it is."""

    pattern: str
    hint: str
    clear_in: tuple[TransformKind, ...] = ("vectorised", "traced", "other")
    blame: Blame = ""


_KNOWN = (
    _Known(_NO_SETUP_CONTEXT, SPLIT),
    _Known(
        "does not have vmap support",
        "set generate_vmap_rule = True if forward and backward are made of PyTorch operations, "
        "or define a vmap staticmethod",
    ),
    _Known(
        "must implement the jvp function",
        "define a jvp staticmethod if you need forward mode; torch.compile(fullgraph=True) then refuses the Function",
    ),
    _Known(
        "custom jvp",
        "it runs, in pieces: PyTorch traces no Function with a jvp; keep it only if forward mode is needed",
        clear_in=("traced",),
    ),
    _Known(
        r"use forward AD with .* that does not support it",
        "an operation in it has no forward derivative: use reverse mode, or replace the operation",
    ),
    _Known(
        r"vmap: [\w: ]+\(self, \*extra_args\) is not possible",
        "vmap cannot write a batch into an unbatched tensor: offer an out-of-place variant",
    ),
    _Known(
        "random operation",
        "draw random numbers in the forward and save them",
    ),
    _Known(
        r"modified by an inplace operation|derivative for .* is not implemented",
        "the backward is dropped here and the forward alone cannot be differentiated: make it a custom op",
        clear_in=("traced",),
    ),
    _Known(
        "no fake impl",
        "register a fake implementation: op.register_fake",
        clear_in=("traced",),
    ),
    _Known(
        r"vmap over .* isn't supported",
        "PyTorch cannot vectorise a branch on tensor values: use torch.where",
        clear_in=("vectorised",),
    ),
    _Known(
        "^InternalTorchDynamoError",
        "PyTorch's compiler fails on it: torch.compiler.disable on the function that calls it leaves it out",
        clear_in=("traced",),
        blame="PyTorch",
    ),
    _Known(
        r"is_nonzero|data-dependent|^DataDependent|\.item\(\)|dynamic shape|local_scalar_dense|\bbool\(\)|nonzero",
        "a branch, .item() or boolean mask on tensor values cannot be followed here: use torch.where",
        clear_in=("traced",),
    ),
    _Known(
        "Batching rule not implemented",
        "PyTorch cannot vectorise that operation, or it leaves PyTorch's operations (numpy): use another one",
    ),
    _Known(
        r"data pointer|\.numpy\(\)|have storage|unsupported ScalarType",
        "it leaves PyTorch's operations (numpy, a raw pointer): make it a custom op, or define vmap",
    ),
    _Known(
        r"ctx\.saved_tensors in backward, make sure to do so only once",
        "read ctx.saved_tensors once: x, y = ctx.saved_tensors",
        clear_in=(),
        blame="function",
    ),
    _Known(
        "same dtype|expected scalar type|have different dtypes|must match the other",
        "put torch.amp.custom_fwd on forward and custom_bwd on backward (device_type=…), or cast in backward",
        clear_in=(),
    ),
)


def is_promised(subject: Subject, *, vmap: bool) -> bool:
    """Whether the author declares support for `torch.func`, or for `vmap`: an error there breaks a promise.

    A Function declares it by `setup_context`, and by a rule for `vmap`. A callable declares nothing.
    """
    if subject.kind != "function":
        return subject.is_made
    takes_func = _torch.defines_method(subject.target, "setup_context")
    return takes_func and (
        not vmap or subject.target.generate_vmap_rule or _torch.defines_method(subject.target, "vmap")
    )


def refusal(error: Raised, kind: Kind, context: TransformKind = "other") -> Refusal:
    """Read an error that a transform raised."""
    text = f"{type(error.error).__name__}: {error.error}"
    reason = first_line(error.error)
    if isinstance(error.error, PullbackError):
        return Refusal(True, reason, "")
    if kind == "op" and _NO_SETUP_CONTEXT in text:
        hint = "torch.func cannot differentiate PyTorch's custom ops: use torch.autograd.grad"
        return Refusal(True, reason, hint)
    for known in _KNOWN:
        if re.search(known.pattern, text):
            return Refusal(context in known.clear_in, reason, known.hint, known.blame)
    return Refusal(isinstance(error.error, NotImplementedError), reason, "")


def first_line(error: BaseException) -> str:
    """Return the class and the first sentence of an error, of bounded length."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = re.split(r"(?<=[\w)])\. (?=[A-Z])", lines[0])[0] if lines else ""
    if len(text) > _LENGTH:
        text = text[: _LENGTH - 1] + "…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@dataclass(frozen=True)
class ContextCall:
    """One context for a function.

    Attributes:
        name: the name as a user would write it, e.g. "torch.func.vjp".
        run: returns the gradient of each input there.
        code: lines of a reproduction that bind `got` to that gradient, given `preamble`'s names.
        hint: what to do about a difference.
        raising: what to do about an unknown error.
        severity: severity of a difference.
        cause: cause of a difference, if known.
        context: its kind.
        refused_as: severity if it raises; by default info if PyTorch gives a clear reason, else a warning.
    """

    name: str
    run: Callable[[EagerReference], Sequence[Tensor | None]]
    code: Sequence[str]
    hint: str = ""
    raising: str = ""
    severity: Severity = "error"
    cause: str = ""
    context: TransformKind = "other"
    refused_as: Severity | None = None


def compare(
    audit: Audit, rule: str, known: Sequence[EagerReference], ways: Sequence[ContextCall], promised: bool = True
) -> Iterator[Finding]:
    """Yield the refusals, without repeated reasons, up to the first difference.

    Args:
        audit: the audit of the subject.
        rule: id of the calling rule.
        known: the eager results.
        ways: the contexts.
        promised: whether the author declares that they are supported; otherwise an error there is an info.
    """
    refusals: set[str] = set()
    for way in ways:
        for setting in known:
            found = compare_one(audit, rule, setting, way if promised else replace(way, refused_as="info"))
            if found is None:
                continue
            if found.verdict == "wrong":
                yield found
                return
            reason = found.message.partition(": ")[2]
            if reason not in refusals:
                refusals.add(reason)
                yield found
            break


def compare_one(audit: Audit, rule: str, setting: EagerReference, way: ContextCall) -> Finding | None:
    """The difference or the refusal of one context on one reference, if there is any."""
    audit.events.beat()
    code = [*preamble(setting), *way.code]
    try:
        with guarded(way.name):
            got = way.run(setting)
    except Raised as error:
        refused = RefusalText(way.name, code, way.raising, way.context, way.refused_as)
        return refusing(audit, rule, setting, error, refused)
    different = setting.differs(got)
    if different is None or _has_changed(setting):
        return None
    return differing(
        audit, rule, setting, different, DifferenceText(way.name, code, way.hint, way.severity, cause=way.cause)
    )


def _has_changed(setting: EagerReference) -> bool:
    """Whether eager mode now gives another gradient, since a call has changed state of the function."""
    try:
        return setting.differs(setting.gradient_of(setting.function())) is not None
    except Raised:
        return True


@dataclass(frozen=True)
class DifferenceText:
    """Report of a difference.

    Attributes:
        name: the context.
        code: lines of the reproduction, after the case's script.
        hint: what to do.
        severity: severity of the finding.
        cause: cause of the difference, if known.
        labels: labels of the compared tensors; by default the gradient of each input.
        yardstick: the reference of the context.
    """

    name: str
    code: Sequence[str]
    hint: str
    severity: Severity = "error"
    cause: str = ""
    labels: Sequence[str] = ()
    yardstick: str = "in eager mode"


def differing(
    audit: Audit, rule: str, setting: EagerReference, different: TensorDifference, text: DifferenceText
) -> Finding:
    """Build the finding that a context differs from its reference."""
    labels = text.labels or [f"gradient of {name}" for name in setting.names]
    label = labels[different.tensor_index]
    at = subscript(different.index)
    got, expected = show(different.got), show(different.expected)
    cause = f": {text.cause}" if text.cause else ""
    return audit.finding(
        rule,
        text.severity,
        "wrong",
        f"under {text.name} the {label}{at} is {got}, {text.yardstick} {expected}{cause}",
        case=setting.case,
        evidence=Evidence(
            expected=different.expected,
            got=different.got,
            worst_index=different.index,
            where=f"{label} under {text.name}",
            dtype=str(setting.inputs[0].dtype).removeprefix("torch."),
        ),
        tail=text.code,
        hint=text.hint,
    )


@dataclass(frozen=True)
class RefusalText:
    """Report of a refusal: see `ContextCall`; `hint` is for an unknown error."""

    name: str
    code: Sequence[str]
    hint: str = ""
    context: TransformKind = "other"
    severity: Severity | None = None


def refusing(audit: Audit, rule: str, setting: EagerReference, error: Raised, refused: RefusalText) -> Finding:
    """Build the finding that a context is not supported, or that the function itself fails in it."""
    why = refusal(error, audit.subject.kind, refused.context)
    severity = _BY_BLAME.get(why.blame) or refused.severity or ("info" if why.clear else "warning")
    says = f"unsupported under {refused.name}" if severity == "info" else f"under {refused.name} it raises"
    return audit.finding(
        rule,
        severity,
        "wrong" if why.blame == "function" else "unsupported",
        f"{says}: {why.reason}",
        case=setting.case,
        tail=refused.code,
        hint=why.hint or refused.hint,
    )


_BY_BLAME: dict[str, Severity] = {"function": "error", "PyTorch": "info"}

GRADIENT = (
    "kept = [(o, g) for o, g in zip(outs, cotangents) if o.requires_grad]",
    "got = torch.autograd.grad([o for o, _ in kept], inputs, [g for _, g in kept], allow_unused=True) if kept else 0",
)
"""Binds `got` to the gradient through `outs`, which may have lost their graph."""
PRINT = ("print('eager mode:', expected)", "print('here:', got)")
"""Last lines of the code of a context."""


def preamble(setting: EagerReference, slots: Slots | None = None) -> list[str]:
    """Return lines that follow a case's script and bind `call`, `cotangents`, `points` and `expected`.

    `call` maps the differentiated inputs, or the tensors at `slots`, to a list of the differentiable outputs;
    without `slots`, `points` are the inputs detached and `expected` is their eager gradient.
    """
    names = variables(setting.case)
    inputs = ", ".join(names[slot[0]] for slot in slots or setting.slots)
    lines = [
        f"def call({inputs}):",
        *(f"    {line}" for line in _outputs(setting)),
        bind("cotangents", tuple(setting.cotangents)),
    ]
    if slots is not None:
        return lines
    if len(setting.slots) < len(setting.case.wrt):
        lines.append(f"inputs = [{inputs}]")
    return [
        *lines,
        "points = [x.detach() for x in inputs]",
        "expected = torch.autograd.grad(call(*inputs), inputs, cotangents, allow_unused=True)",
    ]


def _outputs(setting: EagerReference) -> list[str]:
    text = f"fn({call_text(setting.case)})"
    if setting.form == "tensor":
        return [f"return ({text},)"]
    chosen = "return " + "".join(f"outs[{position}], " for position in setting.outputs).rstrip()
    if setting.form == "tensors":
        return [f"outs = {text}", chosen]
    leaves = f"torch.utils._pytree.tree_leaves({text})"
    return [f"outs = [o for o in {leaves} if isinstance(o, torch.Tensor)]", chosen]

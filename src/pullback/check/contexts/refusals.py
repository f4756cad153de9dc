"""PyTorch's errors about unsupported transforms, each with advice for the author."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from pullback import _torch
from pullback.check.subject import Kind, Subject
from pullback.check.trial import Raised
from pullback.errors import PullbackError

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
        "define a jvp staticmethod, if forward mode is needed: torch.compile(fullgraph=True) refuses a "
        "Function that has one",
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
    takes_func = _torch.given_by(subject.target, "setup_context")
    return takes_func and (not vmap or subject.target.generate_vmap_rule or _torch.given_by(subject.target, "vmap"))


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

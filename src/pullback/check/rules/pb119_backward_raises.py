"""backward-raises (PB119): the backward raises on an input that the forward accepts.

## What it finds
Any exception of the backward on the example or on one of its variants: sizes 0 and 1, exact zeros, transposed or
expanded tensors, float32 and half precision, one tensor passed twice, and each module switched between train and eval
mode. Also an exception of the forward with a flag set, on whole-number inputs that it takes without the flag, where it
takes the flag with others: as a label that marks padding, beside an option that looks up what it finds there. Failures
that have a rule of their own (PB103, PB104, PB108, PB112, PB113; PB502 for cotangents with other
strides) are reported by that rule.

## Why it hurts
The error comes late: the forward and the evaluation work, and training stops at the first unusual batch.

## Limits
- An error: on the example, on the example with other strides or in float32 and, unless it was guessed, in half
  precision; on any variant, unless the example was guessed, if a name has no value (`NameError`).
- A warning: on other values and sizes, which may not be valid inputs; a `NotImplementedError`; a forward with a flag,
  unless the function itself raises.
- An info: an index is out of bounds or a matrix singular in such a variant; an operation has no kernel for half
  precision; the backward rejects `torch.autograd.grad` with a clear error, as reentrant checkpoints do (the audit goes
  on with `.backward()`); or the forward may accept the input by accident, such as a shape that happens to broadcast, a
  size that no longer fits an integer argument or the subject's state, or a dimension of size 0 other than the first
  dimension of the first tensor.

## Bad
```python
class SquaredLength(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * x).sum()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (2 * g * x.view(-1)).view(x.shape)

def inputs():
    return (torch.randn(3, 5, dtype=torch.float64, requires_grad=True),)
```

## Good
```python
class SquaredLength(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * x).sum()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (2 * g * x.reshape(-1)).reshape(x.shape)

def inputs():
    return (torch.randn(3, 5, dtype=torch.float64, requires_grad=True),)
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Module

from pullback.check.case import Case
from pullback.check.cases.repro import call_text
from pullback.check.cases.sizes import may_hold_sizes
from pullback.check.cases.values import of_whole_numbers, other_numbers
from pullback.check.derivative.agreement import gradients
from pullback.check.find.objects import answers
from pullback.check.optional_arguments import with_defaults
from pullback.check.rules._rule import Rule
from pullback.check.trial import Raised, forward, refusal_of_grad
from pullback.check.weights import in_other_mode, modules_of
from pullback.report.model import Finding, Severity

if TYPE_CHECKING:
    from pullback.check.audit import Audit

_ELSEWHERE = re.compile(r"returned an (invalid gradient|incorrect number)|different (from|than) None")
_OF_MODE = re.compile(r"training mode|eval(uation)? mode|not supported|not implemented", re.IGNORECASE)
_WITHOUT_FORMULA = "no autograd formula was registered"
_BACKWARD = "torch.autograd.backward(outs, [torch.ones_like(o) for o in outs])"


def _run(audit: Audit) -> Iterator[Finding]:
    if audit.varied and not audit.backward_works:
        return
    reported: set[Severity] = set()
    if not audit.varied and audit.backward_works:
        yield from _refusal_of_grad(audit)
        yield from _in_other_mode(audit)
        yield from _of_a_flag(audit)
    for result in audit.results():
        error = result.error
        if error is None or (_ELSEWHERE.search(str(error)) and audit.running(("PB103", "PB104", "PB108"))):
            continue
        severity = _severity(result.case, error, audit.guessed)
        is_meant = audit.subject.kind == "op" and _WITHOUT_FORMULA in str(error)  # the backward of another op, say
        severity = "info" if is_meant else severity
        resized = any(a.shape != b.shape for a, b in zip(result.case.tensors, audit.base.tensors, strict=False))
        if resized and severity == "warning" and _holds_sizes(audit.subject.target):
            severity = "info"
        if severity in reported:
            continue
        reported.add(severity)
        smallest = result.case
        if severity == "error":
            smallest = audit.shrink(result.case, lambda case: _error_on(audit, case) is not None)
            error = _error_on(audit, smallest) or error
        yield audit.finding(
            "PB119",
            severity,
            "wrong" if severity == "error" else "unsupported",
            f"{error}" + (f" (with {result.case.phrase})" if result.case.is_variant else ""),
            case=smallest,
            tail=[
                audit.outs,
                _BACKWARD,
            ],
            hint="register_autograd adds one, if it is to be differentiated" if is_meant else _hint(result.case, error),
        )


def _refusal_of_grad(audit: Audit) -> Iterator[Finding]:
    """Report a backward that works by `.backward()` alone, which all later checks then used."""
    if refusal := refusal_of_grad():
        tail = [audit.outs, "torch.autograd.grad(outs, inputs, [torch.ones_like(o) for o in outs])"]
        message = f"torch.autograd.grad is not supported: {refusal}"
        hint = "take gradients by torch.autograd.grad inside of the backward, and return them"
        yield audit.finding("PB119", "info", "unsupported", message, case=audit.base, tail=tail, hint=hint)


def _in_other_mode(audit: Audit) -> Iterator[Finding]:
    """Report a backward that raises with the subject's modules, or those in its arguments, in the other mode."""
    modules = modules_of(audit.subject, audit.base)
    try:
        with in_other_mode(modules):
            gradients(audit.subject, audit.base) if modules else None
    except Raised as error:
        text, module = next(iter(modules.items()))
        mode = "eval" if module.training else "train"
        if error.stage == "backward" and not _OF_MODE.search(str(error.error)):
            tail = [f"{text}.{mode}()", f"out = fn({call_text(audit.base)})", audit.outs, _BACKWARD]
            hint = f"accept in the backward what the forward accepts in .{mode}() mode"
            message = f"{error} (in .{mode}() mode)"
            yield audit.finding("PB119", "error", "wrong", message, case=audit.base, tail=tail, hint=hint)


def _of_a_flag(audit: Audit) -> Iterator[Finding]:
    """Report a forward that raises with a flag, on whole numbers that it takes otherwise, and as it does with others.

    Without the last, the flag may need what the example lacks, or belong to another dtype.
    """
    usual = with_defaults(audit)
    for case in other_numbers(usual, audit.words):
        has_flag = any(type(a) is bool and a is not b for a, b in zip(case.values, usual.values, strict=True))
        error = _refusal(audit, case) if has_flag else None
        if error is None or error.is_deliberate or isinstance(error.error, NotImplementedError):
            continue
        for other in of_whole_numbers(case):
            if _refusal(audit, other) is None:
                message = f"{error} (with {case.label}, and not with {other.label})"
                hint = "let the option pass over what the function passes over without it, or reject it"
                yield audit.finding("PB119", "warning", "unsupported", message, case=case, hint=hint)
                return


def _refusal(audit: Audit, case: Case) -> Raised | None:
    try:
        forward(audit.subject, case)
    except Raised as error:
        return error
    return None


def _error_on(audit: Audit, case: Case) -> Raised | None:
    result = audit.compare(case)
    return None if result is None else result.error


_OUT_OF_BOUNDS = re.compile(r"index -?\d+ is out of bounds|Expected index \[")
_UNDEFINED = re.compile(r"the name '\w+' is not defined here$")
"""Matches what the interpreter of kernels says of a name without a value."""
_OF_THE_GUESS = re.compile(r"sparse|layout|unsupported|not supported|'NoneType' object is not callable", re.IGNORECASE)


def _holds_sizes(target: Any) -> bool:
    """Whether a function closes over an object, or is a method of one, that may have been made for certain sizes."""
    cells = getattr(target, "__closure__", None) or ()
    held = [getattr(target, "__self__", None), *(cell.cell_contents for cell in cells)]
    return any(answers(value) and not isinstance(value, Module) and may_hold_sizes(value) for value in held)


def _severity(case: Case, error: Raised, guessed: bool) -> Severity:
    """Return how grave it is that a backward raises.

    It is loud. An example that was made up here may be one that the function is not for: nobody makes it, or the
    forward takes it by accident.
    """
    tensors = list(case.all_tensors.values())
    empty = any(not v.numel() for v in tensors)
    is_half = case.label in ("bfloat16", "float16")
    if is_half and "not implemented for" in str(error.error):
        return "info"  # PyTorch lacks a kernel, and says so
    if case.doubtful or (empty and (0 not in tensors[0].shape[:1] or 0 in tensors[0].shape[1:])):
        return "info"  # nothing but a batch is empty in practice
    is_singular = isinstance(error.error, torch.linalg.LinAlgError)  # type: ignore[attr-defined]
    if case.is_variant and (is_singular or _OUT_OF_BOUNDS.search(str(error.error))):
        return "info"  # the error rejects the variant as invalid input: a singular matrix, a number that is an index
    is_slip = isinstance(error.error, NameError) or _UNDEFINED.search(str(error.error))
    if is_slip and not guessed:
        return "error"  # a name without a value is no refusal of the input
    if case.is_variant and error.is_deliberate:
        return "warning"
    if isinstance(error.error, NotImplementedError):
        return "warning"  # there is no backward, with a clear error
    if guessed and _OF_THE_GUESS.search(str(error.error)):
        return "warning"  # of another kind of tensor, or of a callable that was not given
    is_plain = case.layout_only or case.label.startswith("float") or (is_half and not guessed)
    return "error" if is_plain or not case.is_variant else "warning"


def _hint(case: Case, error: Raised) -> str:
    if not case.is_variant and "KernelError: " in str(error):
        return "fix the kernel at that line"
    if case.layout_only:
        return "use reshape, or .contiguous(), where a view is taken"
    if case.doubtful:
        return "accept in the backward what the forward accepts, or reject such shapes in the forward"
    return "accept in the backward what the forward accepts, or reject it in the forward"


RULE = Rule(
    __doc__,
    runtime=_run,
    blames="backward",
    shrinks=False,
    varies=True,
    column="eager",
    needs_repeatable=False,
    context="some inputs that forward accepts",
)

"""Shared parts of the rules about double backward."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import torch

from pullback.check.case import Case
from pullback.check.cases.repro import bind, definition
from pullback.check.derivative.agreement import show
from pullback.check.find.kernels import recording
from pullback.check.find.syntax import decorator_names
from pullback.check.trial import Raised, forward, standard_cotangents, vjp
from pullback.report.model import Evidence, Finding, Severity

if TYPE_CHECKING:
    from pullback.check.audit import Audit
    from pullback.check.derivative.second_order import SecondOrder


def is_once_differentiable(audit: Audit) -> bool:
    """Whether the backward is decorated with `once_differentiable`, judging by its source or its error."""
    source = audit.subject.source
    backward = source.methods.get("backward") if source else None
    if backward is not None and "once_differentiable" in decorator_names(backward):
        return True
    return audit.second is not None and "once_differentiable" in str(audit.second.error or "")


def runs_without_grad(audit: Audit) -> bool:
    """Whether the backward is decorated to run without autograd recording it."""
    source = audit.subject.source
    backward = source.methods.get("backward") if source else None
    return backward is not None and bool({"no_grad", "inference_mode"} & decorator_names(backward))


def launches_kernels(audit: Audit) -> bool:
    """Whether the backward launches interpreted kernels."""
    if not audit.subject.is_interpreted:
        return False
    with recording() as world, suppress(Raised):
        run = forward(audit.subject, audit.base)
        before = world.launches
        vjp(run, standard_cotangents(run.roots, run.differentiable))
        return world.launches > before
    return False


def silently_wrong(
    audit: Audit,
    rule: str,
    second: SecondOrder,
    hint: str,
    because: str = "",
    on: Case | None = None,
    severity: Severity = "error",
) -> Finding:
    """Build the finding of a second derivative that is wrong without an error, on the example or another case."""
    case = on or audit.base
    if second.changed:
        message, evidence = second.changed, None
    else:
        what = "double backward" if second.composite else "double backward, at a fixed cotangent,"
        message = (
            f"{what} by {second.way} gives {show(second.got)}; "
            f"the derivative of the gradient is {show(second.expected)}"
        )
        evidence = Evidence(
            second.expected,
            second.got,
            second.bar,
            where="second derivative along u and v",
            dtype="float64",
            failing=1,
            directions=1,
        )
    return audit.finding(
        rule,
        severity,
        "wrong" if severity == "error" else "unstable",
        message + because,
        case=case,
        evidence=evidence,
        tail=_tail(audit, second, case),
        hint=_OF_KERNELS if launches_kernels(audit) else hint,
    )


_OF_KERNELS = (
    "PyTorch does not differentiate kernels: begin the backward with `if torch.is_grad_enabled(): raise "
    "NotImplementedError('no second derivative')`, without `@once_differentiable`, which disables gradients there and "
    "does not raise in torch.autograd.grad"
)


def _tail(audit: Audit, second: SecondOrder, case: Case) -> list[str]:
    """Return lines that print a second derivative by autograd, and by differences of the first one."""
    complex_ = any(t.is_complex() for t in (*audit.base.tensors, *audit.base_run.roots))
    product = "({0}.conj() * {1}).real.sum()" if complex_ else "({0} * {1}).sum()"
    term = product.format("w", "o * o" if second.composite else "o")
    body = [
        audit.outs,
        f"loss = sum({term} for w, o in zip(weights, outs))",
        *(
            ["torch.autograd.grad(loss, inputs, retain_graph=True, allow_unused=True)"]
            if second.is_after_another
            else []
        ),
        "first = torch.autograd.grad(loss, inputs, create_graph=create_graph, materialize_grads=True)",
        "return loss, first",
    ]
    lines = [
        bind("weights", standard_cotangents(audit.base_run.roots)),
        *definition("gradient_at", case, body, "create_graph"),
    ]
    if second.changed:
        return [
            *lines,
            "print('without create_graph:', gradient_at(inputs, False)[1])",
            "print('with create_graph:', gradient_at(inputs, True)[1])",
        ]
    step = 1e-4 if all(t.dtype in (torch.float64, torch.complex128) for t in case.tensors) else 1e-2
    moved = "gradient_at([(x {} * t).detach().requires_grad_() for x, t in zip(inputs, v)], False)[1]"
    return [
        *lines,
        "def dot(a, b):",
        f"    return sum({product.format('x', 'y')} for x, y in zip(a, b))",
        bind("u", list(second.u)),
        bind("v", list(second.v)),
        f"above = {moved.format(f'+ {step}')}",  # before a backward that may write to its inputs
        f"below = {moved.format(f'- {step}')}",
        "loss, first = gradient_at(inputs, True)",
        *(_WITH_LOSS if second.uses_output else _WITHOUT_LOSS),
        *(_BY_BACKWARD if second.way == ".backward()" else _BY_GRAD),
        f"got = (dot(v, both) - dot(v, {'first' if second.uses_output else '[2 * x for x in inputs]'})).item()",
        f"print('double backward gives', got, 'and differences of the gradient', "
        f"((dot(u, above) - dot(u, below)) / {2 * step}).item())",
    ]


_WITH_LOSS = ("total = loss + dot(u, first)  # with the loss there is always a graph",)
_WITHOUT_LOSS = ("total = dot(inputs, inputs) + dot(u, first)  # with the squares there is always a graph",)
_BY_GRAD = ("both = torch.autograd.grad(total, inputs, materialize_grads=True)",)
_BY_BACKWARD = (
    "total.backward()",
    "both = [torch.zeros_like(x) if x.grad is None else x.grad for x in inputs]",
)

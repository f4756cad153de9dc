"""Tensors that a formula reads beside its arguments. Its rule gives them no gradient: one that needs it is refused.

A formula is given its arguments detached. What it returns requires grad only if something else did.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from pullback import _torch
from pullback.bind.rule import Record, Rule
from pullback.dtypes import has_derivative
from pullback.errors import DerivativeError
from pullback.graph.reads import reads_of


def value_of(rule: Rule, record: Record, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Run the formula of a rule, as its `evaluate` does.

    Raises:
        DerivativeError: if the value depends on a tensor that is differentiated and is no argument.
    """
    if not record.recording or _reads_arguments_alone(rule):
        return rule.evaluate(record, tensors)
    with torch.enable_grad():
        outputs, kept = rule.evaluate(record, [t.detach() if t.requires_grad else t for t in tensors])
    for out in outputs:
        if out.requires_grad or _torch.requires_grad_below(out):
            raise _refusal(rule, _origin(out))
    return outputs, [t if t.grad_fn is None else t.detach() for t in kept]


def _reads_arguments_alone(rule: Rule) -> bool:
    """Whether the code of a formula shows that it reads no other tensor: a small call is to stay cheap."""
    reads = rule.reads
    if reads is None or not (reads.obstacle or reads.unchanged()):
        reads = rule.reads = reads_of(rule.formula)
    return not reads.obstacle


class Foreign(TorchFunctionMode):
    """Refuses tensors that a transform differentiates by, and that a formula reads beside its arguments.

    A Function runs its forward below such transforms, where their tensors lose what they carry.
    """

    def __init__(self, rule: Rule, arguments: Sequence[Tensor]) -> None:
        super().__init__()
        self._rule, self._arguments = rule, arguments

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _DETACHES:
            for t in _torch.tree_leaves((args, kwargs))[0]:
                if isinstance(t, Tensor) and has_derivative(t) and self._is_differentiated(t):
                    raise _refusal(self._rule, t)
        return func(*args, **(kwargs or {}))

    def _is_differentiated(self, t: Tensor) -> bool:
        if _torch.is_differentiated_by_functorch(t):
            return True
        if not _torch.in_dual_level() or _torch.in_functorch() or any(t is a for a in self._arguments):
            return False
        with _torch.forward_grad_enabled():  # PyTorch turns it off in a Function
            return forward_ad.unpack_dual(t).tangent is not None


_DETACHES = frozenset({Tensor.detach, Tensor.data.__get__})  # type: ignore[attr-defined]


def _origin(t: Tensor) -> Tensor:
    """Return the tensor that another one was computed from: the first that requires grad by itself."""
    node: Any = t.grad_fn
    while node is not None and not hasattr(node, "variable"):
        node = next((after for after, _ in node.next_functions if after is not None), None)
    return t if node is None else node.variable


def _around(function: Callable[..., Any]) -> dict[str, Any]:
    """Return what a function closes over, and the globals that it names."""
    found = inspect.getclosurevars(inspect.unwrap(function))
    return {**found.globals, **found.nonlocals}


def _refusal(rule: Rule, t: Tensor) -> DerivativeError:
    name = next((f" ({name})" for name, value in _around(rule.formula).items() if value is t), "")
    return reads_more(rule.name, f"a tensor of shape {tuple(t.shape)}{name}")


def reads_more(name: str, what: str) -> DerivativeError:
    """Return the error for an op with a rule whose formula reads more than its arguments."""
    return DerivativeError(
        f"{name} reads {what} that is differentiated and is no argument: its rule gives gradients to arguments alone. "
        "Pass it as an argument; or, if it is a constant, detach it in the formula."
    )

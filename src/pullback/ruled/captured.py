"""Tensors that the formula of a rule captures: they get no gradient, so a captured tensor that needs one is refused.

A formula with a rule runs without autograd, so `requires_grad` of its result does not show them. A mode tracks them.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from types import CodeType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pullback import _torch
from pullback.call import TENSOR, Tree
from pullback.dtypes import has_derivative
from pullback.errors import DerivativeError, report_internal_error
from pullback.graph.captures import captures_of
from pullback.graph.identity import ATOMS
from pullback.modes import tensors_in
from pullback.ruled.rule import CallRecord, DerivativeRule


def value_of(
    rule: DerivativeRule, record: CallRecord, tensors: Sequence[Tensor], tracked: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """Run the formula of a rule, as its `evaluate` does; track captured tensors if asked, or if its code is unclear.

    Raises:
        DerivativeError: if the value depends on a differentiated tensor that is not an argument, or the formula writes
            to a differentiated argument.
    """
    if not tracked and not record.recording:
        return rule.evaluate(record, tensors)
    if not tracked and _reads_only_arguments(rule, record):
        return _evaluate(rule, record, tensors)
    mode = _CaptureMode(rule, record, tensors)
    with torch.no_grad() if torch.is_grad_enabled() else nullcontext(), mode:
        outputs, saved = _evaluate(rule, record, tensors)
    for out in outputs:
        if (origin := mode.origin_of(out)) is not None:
            raise _refusal(rule, origin)
    return outputs, saved


def may_capture_or_write(formula: Any) -> bool:
    """Whether the code of a formula may read more than its arguments, or write to a tensor."""
    code = getattr(inspect.unwrap(formula), "__code__", None)
    return code is None or bool(captures_of(formula).obstacle) or _may_write(code)


def _may_write(code: CodeType) -> bool:
    """Whether a function may write to a tensor itself; one that it calls may, too, and is not looked at."""
    if any(name.endswith("_") and not name.startswith("_") for name in code.co_names) or "'out'" in str(code.co_consts):
        return True
    steps = [(step.opname, step.argrepr) for step in dis.get_instructions(code)]
    return any(name in _STORING or (name == "BINARY_OP" and sign.endswith("=")) for name, sign in steps)


_STORING = frozenset({"STORE_SUBSCR", "STORE_SLICE"})


def check_captures(rule: DerivativeRule, args: Sequence[Any], live: Sequence[bool]) -> None:
    """Run the formula in place of a compiler's trace, and raise the errors of `value_of`.

    It runs on tensors without data, so it changes none that it closes over. `args` are those of a call, with (shape,
    dtype, device) in place of each tensor; `live` says which of these are differentiated.
    """
    with _torch.new_thread() as fresh:  # modes belong to a thread
        fresh.submit(_check_captures, rule, args, live).result()


def _check_captures(rule: DerivativeRule, args: Sequence[Any], live: Sequence[bool]) -> None:
    with _torch.fake_mode(), _torch.without_fake_tensor_log(), torch.no_grad():
        made = [torch.empty(a[0], dtype=a[1], device=a[2]) if type(a) is tuple else a for a in args]
        tree, tensors = Tree.of(tuple(t.requires_grad_() if yes else t for t, yes in zip(made, live, strict=True)))
        record = CallRecord(tree, [(t.shape, t.dtype) for t in tensors], recording=True)
        try:
            value_of(rule, record, tensors, tracked=False)
        except DerivativeError:
            raise
        except Exception as error:  # the formula needs values
            report_internal_error(error, rule.name)


def _evaluate(rule: DerivativeRule, record: CallRecord, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Run the formula, which must not write to an input of its rule: the derivative would miss the write."""
    before = []  # one plain loop: this runs at every call
    for t in tensors:
        if t.requires_grad and record.recording:
            before.append((t, _torch.version_of(t)))
    outputs, saved = rule.evaluate(record, tensors)
    require_unwritten(rule, before)
    return outputs, saved


def require_unwritten(rule: DerivativeRule, before: list[tuple[Tensor, int]]) -> None:
    """Refuse a formula that has written to an input: each is given with its version before.

    Raises:
        DerivativeError: if one has been written to.
    """
    for t, version in before:
        if _torch.version_of(t) != version:
            raise DerivativeError(
                f"{rule.name} writes in place to an input of shape {tuple(t.shape)} that is differentiated: its rule "
                "gives the derivative of what it returns alone. Compute on a copy, `x.clone()`."
            )


def _is_differentiated(record: CallRecord, t: Tensor) -> bool:
    return (record.recording and _torch.unwrapped(t).requires_grad) or _torch.is_differentiated_outside(t)


def _reads_only_arguments(rule: DerivativeRule, record: CallRecord) -> bool:
    """Whether the code of a formula proves that it reads no other tensor, so that a small call stays cheap.

    An argument that is an object, such as a module, may lead to tensors.
    """
    for leaf in record.args.template:
        if leaf is not TENSOR and type(leaf) not in ATOMS:
            return False
    captures = rule.captures
    if captures is None or not (captures.obstacle or captures.unchanged()):
        captures = rule.captures = captures_of(rule.formula)
    return not captures.obstacle


class _CaptureMode(TorchFunctionMode):
    """Tracks values computed from differentiated tensors that the formula neither made nor received.

    Transforms run the forward of a Function below their own level, where a captured tensor is unwrapped and loses its
    dependence.
    """

    def __init__(self, rule: DerivativeRule, record: CallRecord, arguments: Sequence[Tensor]) -> None:
        super().__init__()
        self._rule, self._record = rule, record
        self._known: dict[int, tuple[Tensor, Tensor | None]] = {id(t): (t, None) for t in arguments}

    def origin_of(self, t: Tensor) -> Tensor | None:
        """Return the differentiated tensor that another was computed from, or is; `None` if there is none."""
        if id(t) in self._known:
            return self._known[id(t)][1]
        return t if has_derivative(t) and self._is_differentiated(t) else None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        origin = next((o for t in _operands(func, args, kwargs) if (o := self.origin_of(t)) is not None), None)
        try:
            result = func(*args, **(kwargs or {}))
        except RuntimeError as error:  # of tensors that are read below the transform that they belong to
            if origin is None or not _torch.is_differentiated_outside(origin):
                raise
            raise _refusal(self._rule, origin) from error
        written = [args[0]] if args and getattr(func, "__name__", "") == "__setitem__" else []
        for t in tensors_in((result, *written, (kwargs or {}).get("out"))):
            self._known[id(t)] = t, origin if has_derivative(t) else None
        return result

    def _is_differentiated(self, t: Tensor) -> bool:
        if _is_differentiated(self._record, t):
            return True
        if not _torch.in_dual_level():
            return False
        with _torch.forward_grad_enabled():  # PyTorch turns it off in a Function
            return _torch.has_tangent_below(t)


def _operands(func: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """Yield the tensors whose values a function reads; others it asks for their kind alone."""
    name = getattr(func, "__name__", "")
    if func in _DETACHES or name.endswith("_like") or name.startswith("new_"):
        return iter(())
    return tensors_in(args[:1] if name.endswith("_as") or name == "to" else (args, kwargs))


_DETACHES = frozenset({Tensor.detach, Tensor.data.__get__, Tensor.grad.__get__})  # type: ignore[attr-defined, union-attr]


def _refusal(rule: DerivativeRule, t: Tensor) -> DerivativeError:
    found = inspect.getclosurevars(inspect.unwrap(rule.formula)) if inspect.isfunction(rule.formula) else None
    around = {**found.globals, **found.nonlocals} if found else {}
    name = next((f" ({name})" for name, value in around.items() if value is t), "")
    return DerivativeError(
        f"{rule.name} depends on a tensor of shape {tuple(t.shape)}{name} that is differentiated but is not an "
        "argument: its rule gives gradients to arguments alone. Pass it as an argument; or, if it is a constant, "
        "detach it in the formula."
    )

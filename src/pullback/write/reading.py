"""A target and an example call, taken apart into a definition."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pullback import _torch
from pullback.autograd_function import AutogradFunction
from pullback.bind.call import Call
from pullback.dtypes import has_derivative
from pullback.errors import FormulaError, OptionError, PullbackError
from pullback.introspect import input_names
from pullback.op import Op
from pullback.write.called import camel, names_of
from pullback.write.definition import Definition
from pullback.write.ruled import add_rule, without_residuals


def definition_of(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Definition, list[Tensor]]:
    """Take a target apart for a call; return its definition and the tensors of the call.

    Raises:
        OptionError: if the target is of a kind that cannot be written.
        FormulaError: if the call does not work.
    """
    op = op_of(target)
    bound = op._signature.bind(*args, **kwargs)
    bound.apply_defaults()
    args, kwargs = bound.args, bound.kwargs
    call = Call(args, kwargs, grad=False)
    if not call.tensors:
        raise OptionError(f"{op.__name__} was given no tensor.")
    _require_meant(target, op, call)
    formula = without_residuals(op)
    d = Definition(
        name=op.__name__,
        class_name=camel(op.__name__),
        summary=_summary(target),
        names=names_of(input_names(op._signature, args, kwargs)),
        fixed=_plain(op._signature, args, kwargs),
        value=call.flat(formula),
        soft=call.flat(op._soft or formula),
        original=call.flat(op),
        kind=op.kind,
    )
    if op.kind != "ruled" and op._soft is None:
        d.soft = d.value
    forms = op._stable.forms(args, kwargs) if op._stable is not None and op.kind == "derived" else None
    d.forms = forms if forms is not None and forms.derivatives is not None else None
    if forms is not None and forms.derivatives is None and not forms.certificates:  # holes are filled
        d.value = d.soft = lambda *given: [forms.native.of(2)(*given)]
    d.wanted = [i for i, x in enumerate(call.tensors) if has_derivative(x)]
    d.is_tuple = _is_tuple(d, call.tensors)
    if op._rule is not None:
        add_rule(d, op._rule, call)
        d.is_linear = op.linear is not False
    return d, call.tensors


def op_of(target: Any) -> Op:
    """Return the op of an op, a Function or a function.

    Raises:
        OptionError: if it is of another kind.
    """
    if isinstance(target, Op):
        return target
    if isinstance(target, type) and getattr(target, "_is_pullback_function", False):
        carried = target._carried  # type: ignore[attr-defined]
        if isinstance(carried, Op):
            return carried
    if isinstance(target, type) and issubclass(target, torch.autograd.Function):
        given = ["forward", *(["setup_context"] if _torch.given_by(target, "setup_context") else [])]
        body = {name: staticmethod(getattr(target, name)) for name in given}
        made: Any = type(target.__name__, (AutogradFunction,), body)
        op = Op(made._carried._formula, stable=False)
        op.__name__ = target.__name__
        return op
    if isinstance(target, type) or not callable(target):
        raise OptionError(f"write takes an op, an autograd.Function or a function, not {target!r}.")
    return Op(target, stable=False)


def _require_meant(target: Any, op: Op, call: Call) -> None:
    """Refuse a Function whose forward is flat and whose backward is not: its gradient is no derivative on purpose."""
    if not (isinstance(target, type) and _torch.given_by(target, "backward")):
        return
    own, derived = (_gradients(call.flat(f), call.tensors) for f in (target.apply, op))  # type: ignore[attr-defined]
    if not any(bool(g.any()) for g in derived) and any(bool(g.any()) for g in own):
        raise FormulaError(
            f"{op.__name__} cannot be written: the derivative of its forward is 0, and its backward returns "
            "another. Say what is meant with pullback.function(derivative_of=...)."
        )


def _gradients(flat: Any, tensors: Sequence[Tensor]) -> list[Tensor]:
    given = [x.detach().clone().requires_grad_(has_derivative(x)) for x in tensors]
    outs = [out for out in flat(*given) if isinstance(out, Tensor) and out.requires_grad]
    leaves = [x for x in given if x.requires_grad]
    try:
        found = torch.autograd.grad([out.sum() for out in outs], leaves, allow_unused=True) if outs else []
    except Exception:  # any error of a wrong backward, which is not written anyway
        return []
    return [g for g in found if g is not None]


def _is_tuple(d: Definition, tensors: Sequence[Tensor]) -> bool:
    """Whether the result is more than one tensor."""
    try:
        result = d.original(*(x.detach() for x in tensors))
    except PullbackError:
        raise
    except Exception as error:  # any error of a user's function
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise FormulaError(f"{d.name} cannot be written: the example call raises {reason}.") from error
    if not result or not all(isinstance(leaf, Tensor) for leaf in result):
        raise FormulaError(f"{d.name} cannot be written: it returns something that is not a tensor.")
    return len(result) > 1


def _summary(target: Any) -> str:
    text = inspect.cleandoc(target.__doc__ or "")  # `inspect.getdoc` would also return the docstring of a base class
    first = " ".join(text.split("\n\n")[0].split())
    return first if len(first) < 400 else ""


def _plain(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    arguments = signature.bind(*args, **kwargs).arguments
    return {name: v for name, v in arguments.items() if not _holds_tensor(v) and v not in ((), {})}


def _holds_tensor(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in _torch.tree_leaves(value)[0])

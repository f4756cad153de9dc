"""A target and an example call, taken apart into a definition."""

from __future__ import annotations

import functools
import inspect
import keyword
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pullback import _torch
from pullback.call import Call
from pullback.check.case import Case
from pullback.check.cases.probe import probe
from pullback.check.find.discover import subject_of
from pullback.dtypes import has_derivative
from pullback.errors import FormulaError, OptionError, PullbackError
from pullback.function_class import AutogradFunction
from pullback.introspect import input_names
from pullback.op import Op
from pullback.ruled.rule import Rule
from pullback.write.spec import FunctionSpec


def spec_of(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[FunctionSpec, list[Tensor]]:
    """Take a target apart for a call; return its definition and the tensors of the call.

    Raises:
        OptionError: if the target is of a kind that cannot be written.
        FormulaError: if the call does not work.
    """
    op = as_op(target)
    bound = op._signature.bind(*args, **kwargs)
    bound.apply_defaults()
    args, kwargs = bound.args, bound.kwargs
    call = Call(args, kwargs, grad=False)
    if not call.tensors:
        raise OptionError(f"{op.__name__} was given no tensor.")
    _require_meant(target, op, call)
    formula = without_residuals(op)
    d = FunctionSpec(
        name=op.__name__,
        class_name=camel(op.__name__),
        summary=_summary(target),
        names=identifiers(input_names(op._signature, args, kwargs)),
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


def as_op(target: Any) -> Op:
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


def _is_tuple(d: FunctionSpec, tensors: Sequence[Tensor]) -> bool:
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


class _Silent:
    """Receives the news of the search for an example."""

    def step(self, rule: str, what: str, reproduce: str) -> None:
        pass

    def beat(self) -> None:
        pass

    def finding(self, finding: Any) -> None:
        pass


def example_of(target: Any, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments that a target takes.

    Raises:
        OptionError: if none are found.
    """
    found = _found(target) or _found(target)  # the search is bounded in time, and first calls are slow
    if found is None:
        raise OptionError(
            f"{name} cannot be called with guessed arguments: give an example call (--inputs on the command line)."
        )
    args, kwargs, _ = found.arguments()
    return single_precision_call(target, args, kwargs)


def single_precision_call(
    target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call in single precision, with several numbers for each one if the formula takes them.

    Only then do conversions show: a conversion of float64 to float64 leaves no op.
    """
    for change in (lambda x: _single(_several(x)), _single):
        changed = tuple(_of_each(change, a) for a in args), {k: _of_each(change, v) for k, v in kwargs.items()}
        try:
            (target.apply if hasattr(target, "apply") else target)(*changed[0], **changed[1])
        except Exception:  # any error means that it does not take such tensors
            continue
        return changed
    return args, kwargs


def _found(target: Any) -> Case | None:
    generator = torch.Generator().manual_seed(0)
    return probe(subject_of(target), generator, _Silent(), lambda case: False).case


def _of_each(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)(_of_each(change, v) for v in value)
    return change(value.detach()) if isinstance(value, Tensor) else value


def _single(x: Tensor) -> Tensor:
    return x.float() if x.dtype == torch.float64 else x


def _several(x: Tensor) -> Tensor:
    """Return several numbers near a single one."""
    if x.dim() or not (x.is_floating_point() or x.dtype == torch.bool):
        return x
    near = torch.linspace(0.7, 1.0, 15, dtype=torch.float64).reshape(3, 5)
    return x * near.to(x.dtype) if x.is_floating_point() else near < 0.9


def without_residuals(op: Op) -> Callable[..., Any]:
    """Return the formula of an op, without the residuals that it returns for its rule."""
    if not op._residuals:
        return op._formula

    @functools.wraps(op._formula)
    def value(*args: Any, **kwargs: Any) -> Any:
        return op._formula(*args, **kwargs)[0]

    return value


def add_rule(d: FunctionSpec, rule: Rule, call: Call) -> None:
    """Have the derivative of a rule, called as the engine calls it."""
    places = [next(i for i, leaf in enumerate(call.leaves) if leaf is x) for x in call.tensors]
    if any(isinstance(a, list | tuple | dict) for a in call.arguments()[0]):
        raise FormulaError(f"{d.name} cannot be written: its rule takes containers of tensors.")

    def called(function: Callable[..., Any], first: Any, outs: Sequence[Tensor], given: Sequence[Tensor]) -> Any:
        out = tuple(outs) if d.is_tuple else outs[0]

        def rule_of(*args: Any) -> Any:
            saved = (rule.formula(*args)[1],) if rule.residuals else ()
            needs = {"needs": tuple(isinstance(a, Tensor) for a in args)} if rule.wants_needs else {}
            found = function(first(args), out, *saved, *args, **(needs if function is rule.vjp else {}))
            return found if isinstance(found, tuple) else (found,)

        return call.flat(rule_of)(*given)

    if rule.vjp is not None:

        def pull(gs: Sequence[Tensor], outs: Sequence[Tensor], given: Sequence[Tensor]) -> list[Any]:
            found = called(rule.vjp, lambda _: tuple(gs) if d.is_tuple else gs[0], outs, given)  # type: ignore[arg-type]
            return [found[place] for place in places]

        d.pull = pull
    if rule.jvp is not None:

        def push(ts: Sequence[Tensor | None], outs: Sequence[Tensor], given: Sequence[Tensor]) -> list[Any]:
            def tangents(args: Sequence[Any]) -> tuple[Any, ...]:
                every: list[Any] = [None] * len(args)
                for place, t in zip(places, ts, strict=True):
                    every[place] = t
                return tuple(every)

            return list(called(rule.jvp, tangents, outs, given))  # type: ignore[arg-type]

        d.push = push


_TAKEN = {"torch", "F", "ctx", "inputs", "output", "out", "g", "Tensor", "Function", *keyword.kwlist, "math"}


def identifiers(found: Sequence[str]) -> list[str]:
    """Return identifiers for tensors with such names as "tensors[0]"."""
    names: list[str] = []
    for name in found:
        plain = re.sub(r"\W+", "_", name).strip("_") or "x"
        plain = f"{plain}_" if plain in _TAKEN or plain[0].isdigit() else plain
        number = 1
        while plain in names:
            number += 1
            plain = f"{re.sub(r'_?[0-9]+$', '', plain)}_{number}"
        names.append(plain)
    return names


def camel(name: str) -> str:
    """Return the name of a class for a function of that name."""
    words = [w for w in re.split(r"\W|_", name) if w]
    made = "".join(w[0].upper() + w[1:] for w in words) or "Written"
    return made if not made[0].isdigit() else f"F{made}"

"""A target and an example call, read into a `FunctionSpec`; an example call for a target that comes without one."""

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
from pullback.check.cases.probe import probe
from pullback.check.find.discover import subject_of
from pullback.dtypes import has_derivative
from pullback.errors import FormulaError, OptionError, PullbackError
from pullback.function_class import AutogradFunction
from pullback.introspect import input_names
from pullback.op import Op
from pullback.ruled.rule import DerivativeRule
from pullback.write.spec import FunctionSpec

_MOST_SUMMARY = 400
"""Length, in characters, beyond which the first paragraph of a target's docstring is not a summary."""


def spec_of(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[FunctionSpec, list[Tensor]]:
    """Read a target at a call into a specification; also return the tensors of the call.

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
    _refuse_surrogate_gradient(target, op, call)
    value = call.flat(_without_residuals(op))
    spec = FunctionSpec(
        name=op.__name__,
        class_name=_camel_case(op.__name__),
        summary=_summary(target),
        names=_identifiers(input_names(op._signature, args, kwargs)),
        constants=_plain_arguments(op._signature, args, kwargs),
        value=value,
        surrogate=value if op._relaxation is None else call.flat(op._relaxation),
        reference=call.flat(op),
        kind=op.kind,
        active_inputs=[i for i, x in enumerate(call.tensors) if has_derivative(x)],
    )
    if op._stable is not None and op.kind == "derived":
        _add_forms(spec, op._stable.forms(args, kwargs))
    spec.is_tuple = _returns_tuple(spec, call.tensors)
    if op._rule is not None:
        _add_rule(spec, op._rule, call)
        spec.is_linear = op.linear is not False
    return spec, call.tensors


def as_op(target: Any) -> Op:
    """Make an op of a target: itself, the op behind a Function, or the forward of a Function or function.

    Raises:
        OptionError: if the target is of another kind.
    """
    if isinstance(target, Op):
        return target
    if isinstance(target, type) and getattr(target, "_is_pullback_function", False):
        carried = target._carried  # type: ignore[attr-defined]
        if isinstance(carried, Op):
            return carried
    if isinstance(target, type) and issubclass(target, torch.autograd.Function):
        given = ["forward", *(["setup_context"] if _torch.defines_method(target, "setup_context") else [])]
        body = {name: staticmethod(getattr(target, name)) for name in given}
        made: Any = type(target.__name__, (AutogradFunction,), body)
        op = Op(made._carried._formula, stable=False)
        op.__name__ = target.__name__
        return op
    if isinstance(target, type) or not callable(target):
        raise OptionError(f"write takes an op, an autograd.Function or a function, not {target!r}.")
    return Op(target, stable=False)


def _refuse_surrogate_gradient(target: Any, op: Op, call: Call) -> None:
    """Refuse a Function whose forward has a zero derivative and whose backward returns another gradient on purpose."""
    if not (isinstance(target, type) and _torch.defines_method(target, "backward")):
        return
    own, derived = (_gradients(call.flat(f), call.tensors) for f in (target.apply, op))  # type: ignore[attr-defined]
    if not any(bool(g.any()) for g in derived) and any(bool(g.any()) for g in own):
        raise FormulaError(
            f"{op.__name__} cannot be written: the derivative of its forward is 0 (it rounds, detaches or launches a "
            "kernel), and its backward returns another gradient. Declare the function to differentiate with "
            "pullback.function(derivative_of=...)."
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


def _add_forms(spec: FunctionSpec, forms: Any) -> None:
    """Replace the formula by its stable forms, or by one whose removable singularities are filled."""
    if forms is None:
        return
    if forms.derivatives is not None:
        spec.forms = forms
    elif not forms.certificates:
        spec.value = spec.surrogate = lambda *inputs: [forms.composite.of(2)(*inputs)]


def _returns_tuple(spec: FunctionSpec, tensors: Sequence[Tensor]) -> bool:
    """Whether the example call returns more than one tensor.

    Raises:
        FormulaError: if the call fails, or returns something that is not a tensor.
    """
    try:
        result = spec.reference(*(x.detach() for x in tensors))
    except PullbackError:
        raise
    except Exception as error:  # any error of a user's function
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise FormulaError(f"{spec.name} cannot be written: the example call raises {reason}.") from error
    if not result or not all(isinstance(leaf, Tensor) for leaf in result):
        raise FormulaError(f"{spec.name} cannot be written: it returns something that is not a tensor.")
    return len(result) > 1


def _summary(target: Any) -> str:
    text = inspect.cleandoc(target.__doc__ or "")  # `inspect.getdoc` would also return the docstring of a base class
    first = " ".join(text.split("\n\n")[0].split())
    return first if len(first) < _MOST_SUMMARY else ""


def _plain_arguments(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    arguments = signature.bind(*args, **kwargs).arguments
    return {name: v for name, v in arguments.items() if not _holds_tensor(v) and v not in ((), {})}


def _holds_tensor(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in _torch.tree_leaves(value)[0])


def _without_residuals(op: Op) -> Callable[..., Any]:
    """The formula of an op, without the residuals that it returns for its rule."""
    if not op._residuals:
        return op._formula

    @functools.wraps(op._formula)
    def value(*args: Any, **kwargs: Any) -> Any:
        return op._formula(*args, **kwargs)[0]

    return value


def _add_rule(spec: FunctionSpec, rule: DerivativeRule, call: Call) -> None:
    """Take vjp and jvp of a specification from a rule, called with the arguments of the example's structure."""
    positions = [next(i for i, leaf in enumerate(call.leaves) if leaf is x) for x in call.tensors]
    if any(isinstance(a, list | tuple | dict) for a in call.arguments()[0]):
        raise FormulaError(f"{spec.name} cannot be written: its rule takes containers of tensors.")

    def run(function: Callable[..., Any], first: Any, outs: Sequence[Tensor], inputs: Sequence[Tensor]) -> Any:
        out = tuple(outs) if spec.is_tuple else outs[0]

        def rule_of(*args: Any) -> Any:
            saved = (rule.formula(*args)[1],) if rule.residuals else ()
            needs = {"needs": tuple(isinstance(a, Tensor) for a in args)} if rule.wants_needs else {}
            found = function(first(args), out, *saved, *args, **(needs if function is rule.vjp else {}))
            return found if isinstance(found, tuple) else (found,)

        return call.flat(rule_of)(*inputs)

    def vjp_rule(gs: Sequence[Tensor], outs: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Any]:
        found = run(rule.vjp, lambda _: tuple(gs) if spec.is_tuple else gs[0], outs, inputs)  # type: ignore[arg-type]
        return [found[i] for i in positions]

    def jvp_rule(ts: Sequence[Tensor | None], outs: Sequence[Tensor], inputs: Sequence[Tensor]) -> list[Any]:
        def tangents(args: Sequence[Any]) -> tuple[Any, ...]:
            by_position = dict(zip(positions, ts, strict=True))
            return tuple(by_position.get(i) for i in range(len(args)))

        return list(run(rule.jvp, tangents, outs, inputs))  # type: ignore[arg-type]

    spec.vjp_rule = vjp_rule if rule.vjp is not None else None
    spec.jvp_rule = jvp_rule if rule.jvp is not None else None


_RESERVED = {"torch", "F", "ctx", "inputs", "output", "out", "g", "Tensor", "Function", *keyword.kwlist, "math"}
"""Names that the written code uses otherwise."""


def _identifiers(names: Sequence[str]) -> list[str]:
    """Distinct Python identifiers for tensors, from such names as "tensors[0]"."""
    found: list[str] = []
    for name in names:
        plain = re.sub(r"\W+", "_", name).strip("_") or "x"
        plain = f"{plain}_" if plain in _RESERVED or plain[0].isdigit() else plain
        number = 1
        while plain in found:
            number += 1
            plain = f"{re.sub(r'_?[0-9]+$', '', plain)}_{number}"
        found.append(plain)
    return found


def _camel_case(name: str) -> str:
    """Name of the class for a function of that name."""
    words = [w for w in re.split(r"\W|_", name) if w]
    made = "".join(w[0].upper() + w[1:] for w in words) or "Written"
    return made if not made[0].isdigit() else f"F{made}"


def example_of(target: Any, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Search for arguments that a target takes, as the audit does; in single precision.

    Raises:
        OptionError: if none are found.
    """
    subject = subject_of(target)
    for _ in range(2):  # the search is bounded in time, and first calls are slow
        generator = torch.Generator().manual_seed(0)
        found = probe(subject, generator, _NoEvents(), lambda case: False)
        if found.case is not None:
            args, kwargs, _ = found.case.arguments()
            return single_precision_call(target, args, kwargs)
    why = f" ({found.reasons[0]})" if found.reasons else ""
    raise OptionError(
        f"{name} cannot be called with guessed arguments{why}: give an example call (--inputs on the command line)."
    )


class _NoEvents:
    """Ignores the events of the search for an example."""

    def step(self, rule: str, what: str, reproduce: str) -> None:
        pass

    def beat(self) -> None:
        pass

    def finding(self, finding: Any) -> None:
        pass


def single_precision_call(
    target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Convert the arguments of a call to single precision, and numbers to small matrices if the target takes these.

    A conversion from float64 to float64 leaves no op in a trace; from float32 it does.
    """
    for convert in (lambda x: _single(_matrix_near(x)), _single):
        changed = tuple(_mapped(convert, a) for a in args), {k: _mapped(convert, v) for k, v in kwargs.items()}
        try:
            (target.apply if hasattr(target, "apply") else target)(*changed[0], **changed[1])
        except Exception:  # any error means that it does not take such tensors
            continue
        return changed
    return args, kwargs


def _mapped(convert: Callable[[Tensor], Tensor], value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)(_mapped(convert, v) for v in value)
    return convert(value.detach()) if isinstance(value, Tensor) else value


def _single(x: Tensor) -> Tensor:
    return x.float() if x.dtype == torch.float64 else x


def _matrix_near(x: Tensor) -> Tensor:
    """A 3 × 5 matrix of numbers near that of a tensor without dimensions; any other tensor as it is."""
    if x.dim() or not (x.is_floating_point() or x.dtype == torch.bool):
        return x
    near = torch.linspace(0.7, 1.0, 15, dtype=torch.float64).reshape(3, 5)
    return x * near.to(x.dtype) if x.is_floating_point() else near < 0.9

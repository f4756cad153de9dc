"""Private PyTorch of ops: custom ops, schemas, and variants of ATen ops."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from pullback._torch.private import private

_OpOverload: Any = type(torch.ops.aten.sin.default)
_OpOverloadPacket: Any = type(torch.ops.aten.sin)
_custom_ops = private("torch._library.custom_ops")


def custom_ops() -> list[Any]:
    """Live results of `torch.library.custom_op`, the oldest first.

    Relies on `torch._library.custom_ops.OPDEFS`, which maps qualified names to `CustomOpDef`s.
    """
    return list(_custom_ops.OPDEFS.values())


def custom_op_function(op: Any) -> Callable[..., Any]:
    """The function that `torch.library.custom_op` or `triton_op` decorated.

    Relies on `CustomOpDef._init_fn`.
    """
    return decorated_function(op._init_fn)


def decorated_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of a user that `triton_op` has wrapped, or the function itself.

    Relies on the wrapper's module, `torch._library.triton`, and its free variable `fn`.
    """
    if function.__module__ != "torch._library.triton":
        return function
    inner: Callable[..., Any] = inspect.getclosurevars(function).nonlocals.get("fn", function)
    return inner


def is_custom_op(obj: Any) -> bool:
    """Whether `obj` is a result of `torch.library.custom_op`."""
    return isinstance(obj, custom_op_type())


def custom_op_type() -> Any:
    """The class of the results of `torch.library.custom_op`.

    Relies on `torch._library.custom_ops.CustomOpDef` and its methods `register_kernel(device_types, fn)` and
    `register_autograd(backward, setup_context=)`, through which `torch.library` registers them.
    """
    return _custom_ops.CustomOpDef


def is_dispatched_op(obj: Any) -> bool:
    """Whether `obj` is `torch.ops.ns.name` or `torch.ops.ns.name.overload`.

    Relies on `torch._ops.OpOverload` and `OpOverloadPacket` being their classes.
    """
    return isinstance(obj, _OpOverload | _OpOverloadPacket)


def op_parameters(op: Any) -> list[inspect.Parameter]:
    """Parameters of `torch.ops.ns.name` or `torch.ops.ns.name.overload`, annotated with their schema types.

    Relies on `OpOverloadPacket.default`, `OpOverload._schema.arguments` and their attributes `name`, `type`,
    `kwarg_only`, `has_default_value()` and `default_value`.
    """
    arguments = getattr(op, "default", op)._schema.arguments
    return [
        inspect.Parameter(
            argument.name,
            inspect.Parameter.KEYWORD_ONLY if argument.kwarg_only else inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=argument.default_value if argument.has_default_value() else inspect.Parameter.empty,
            annotation=str(argument.type),
        )
        for argument in arguments
    ]


def op_name(op: Any) -> str:
    """Qualified name: "ns::name" of a custom op or packet, "ns::name.overload" of an overload.

    Relies on `CustomOpDef._qualname`, `OpOverloadPacket._qualified_op_name` and `OpOverload.name()`.
    """
    if is_custom_op(op):
        return str(op._qualname)
    return str(op._qualified_op_name) if isinstance(op, _OpOverloadPacket) else str(op.name())


def is_mutable(op: Any) -> bool:
    """Whether an ATen op writes to an argument.

    Relies on `OpOverload._schema.is_mutable`.
    """
    return isinstance(op, _OpOverload) and bool(op._schema.is_mutable)


def mutated_arguments(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Arguments that an ATen op writes to.

    Relies on `alias_info.is_write` of the arguments of `OpOverload._schema`.
    """
    found: list[torch.Tensor] = []
    for i, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[i] if i < len(args) else kwargs.get(argument.name)
            found += [x for x in (given if isinstance(given, list | tuple) else [given]) if isinstance(x, torch.Tensor)]
    return found


def functional_variant(op: Any) -> Any:
    """Functional variant of an in-place ATen op `aten::name_`; `None` if there is none.

    Both must have the same arguments: those of `pow_.Scalar` differ from those of `pow.Scalar`. Relies on
    `OpOverload._schema.name` and `_overloadname`.
    """
    name, overload = op._schema.name.partition("::")[2], op._overloadname
    pure = getattr(getattr(torch.ops.aten, name.removesuffix("_"), None), overload, None)
    if pure is None or not name.endswith("_") or is_mutable(pure):
        return None
    ours, theirs = ([(a.name, str(a.type)) for a in one._schema.arguments] for one in (pure, op))
    return pure if ours == theirs else None


def is_view(op: Any) -> bool:
    """Whether a node of a graph may alias an argument: an ATen op by its schema, or an item of a result.

    Relies on `OpOverload._schema.returns` and their `alias_info`.
    """
    return not isinstance(op, _OpOverload) or any(r.alias_info is not None for r in op._schema.returns)


def kernel_of(op: Any) -> Any:
    """The C++ callable of an ATen op, without its Python wrapper.

    Relies on `OpOverload._op`.
    """
    return op._op if isinstance(op, _OpOverload) else op


def is_tripwire(target: Any) -> bool:
    """Whether a node of a graph calls the op `pullback::tripwire`.

    Relies on `OpOverload.namespace`.
    """
    return getattr(target, "namespace", "") == "pullback"

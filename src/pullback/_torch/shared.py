"""Private PyTorch that auditing and making use both: trees, ops by their schemas, modes, tensors without values."""

from __future__ import annotations

import functools
import gc
import importlib
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.autograd.function import once_differentiable

from pullback._torch.private import Missing, private
from pullback.errors import RunnerError

_DisableTorchFunction = private("torch._C.DisableTorchFunction")
_get_tracing_state = private("torch._C._get_tracing_state")
_len_torch_dispatch_stack = private("torch._C._len_torch_dispatch_stack")
_FrameAction = private("torch._C._dynamo.eval_frame._FrameAction")
_FrameExecStrategy = private("torch._C._dynamo.eval_frame._FrameExecStrategy")
_set_code_exec_strategy = private("torch._C._dynamo.eval_frame.set_code_exec_strategy")
_peek_interpreter_stack = private("torch._C._functorch.peek_interpreter_stack")
_custom_ops = private("torch._library.custom_ops")
_DataDependent = private("torch._subclasses.fake_tensor.DataDependentOutputException")
_FakeTensor = private("torch._subclasses.fake_tensor.FakeTensor")
_FakeTensorMode = private("torch._subclasses.fake_tensor.FakeTensorMode")
_disable_current_modes = private("torch.utils._python_dispatch._disable_current_modes")
_tree_flatten_with_path = private("torch.utils._pytree.tree_flatten_with_path")
_tree_flatten = private("torch.utils._pytree.tree_flatten")
_tree_unflatten = private("torch.utils._pytree.tree_unflatten")
_get_node_type = private("torch.utils._pytree._get_node_type")
_SUPPORTED_NODES = private("torch.utils._pytree.SUPPORTED_NODES")
_TreeSpec = private("torch.utils._pytree.TreeSpec")
_LEAF_SPEC = private("torch.utils._pytree._LEAF_SPEC")
_OpOverload: Any = type(torch.ops.aten.sin.default)
_OpOverloadPacket: Any = type(torch.ops.aten.sin)

if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode
elif isinstance(TorchDispatchMode := private("torch.utils._python_dispatch.TorchDispatchMode"), Missing):

    class TorchDispatchMode:  # a class can be derived from it; it cannot be entered
        __init__ = __enter__ = __exit__ = TorchDispatchMode


_F = TypeVar("_F", bound=Callable[..., Any])


class DispatchMode(TorchDispatchMode):
    """A base for modes whose `__torch_dispatch__` sees every ATen op: that of `torch.utils._python_dispatch`.

    PyTorch has Dynamo leave that method alone, and imports Dynamo for it, which takes a second. Relies on
    `TorchDispatchMode._should_skip_dynamo`.

    Beneath a mode, PyTorch's sums and products with a number read the memory of zeros that have none, and the process
    ends. Here such zeros get some before.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)  # type: ignore[no-untyped-call]
        if "__torch_dispatch__" in vars(cls):
            cls.__torch_dispatch__ = _given_memory(left_alone_by_dynamo(vars(cls)["__torch_dispatch__"]))  # type: ignore[method-assign]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def _given_memory(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    """Return a mode's method that sees zeros with memory where PyTorch reads it."""

    def dispatched(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READING_MEMORY and is_zero_tensor(args[0]):
            args = (torch.zeros_like(args[0]), *args[1:])
        return dispatch(self, func, types, args, kwargs)

    return left_alone_by_dynamo(dispatched)


_READING_MEMORY = frozenset([torch.ops.aten.mul.Scalar, torch.ops.aten.add.Scalar])


def tree_flatten(tree: Any) -> tuple[list[Any], Any, list[tuple[Any, ...]]]:
    """Flatten nested tuples, lists and dicts: leaves, structure, and the path of each leaf.

    Relies on `torch.utils._pytree.tree_flatten_with_path` and its `SequenceKey.idx`, `MappingKey.key`,
    `GetAttrKey.name`.
    """
    keyed, spec = _tree_flatten_with_path(tree)
    paths = [tuple(_step(key) for key in path) for path, _ in keyed]
    return [leaf for _, leaf in keyed], spec, paths


def tree_unflatten(leaves: list[Any], spec: Any) -> Any:
    """Put leaves back into the structure that `tree_flatten` returned.

    Relies on `torch.utils._pytree.tree_unflatten`.
    """
    return _tree_unflatten(leaves, spec)


def _step(key: Any) -> Any:
    for attribute in ("idx", "key", "name"):
        if hasattr(key, attribute):
            return getattr(key, attribute)
    return key


def is_custom_op(obj: Any) -> bool:
    """Whether `obj` is a result of `torch.library.custom_op`.

    Relies on `torch._library.custom_ops.CustomOpDef` being its class.
    """
    return isinstance(obj, _custom_ops.CustomOpDef)


def is_dispatched_op(obj: Any) -> bool:
    """Whether `obj` is `torch.ops.ns.name` or `torch.ops.ns.name.overload`.

    Relies on `torch._ops.OpOverload` and `OpOverloadPacket` being their classes.
    """
    return isinstance(obj, _OpOverload | _OpOverloadPacket)


def op_parameters(op: Any) -> list[inspect.Parameter]:
    """Return the parameters of `torch.ops.ns.name` or `torch.ops.ns.name.overload`, annotated by their schema types.

    Relies on `OpOverloadPacket.default`, `OpOverload._schema.arguments` and, of these, `name`, `type`,
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
    """Return "ns::name" of a custom op, "ns::name" or "ns::name.overload" of a `torch.ops` object.

    Relies on `CustomOpDef._qualname`, `OpOverloadPacket._qualified_op_name` and `OpOverload.name()`.
    """
    if is_custom_op(op):
        return str(op._qualname)
    return str(op._qualified_op_name) if isinstance(op, _OpOverloadPacket) else str(op.name())


def given_by(function: type[torch.autograd.Function], name: str) -> bool:
    """Whether a Function defines the method `name`, itself or through a base that is not PyTorch's.

    Relies on `torch.autograd.function` being the module of the classes that have it as a stub.
    """
    return any(name in vars(cls) and cls.__module__ != "torch.autograd.function" for cls in function.__mro__)


def may_be_traced() -> bool:
    """Whether a mode, a tracer or a transform may look at the ops that run, and not only run them.

    Relies on `torch._C._functorch.peek_interpreter_stack`, `_len_torch_dispatch_stack` and `_get_tracing_state`.
    """
    return bool(
        _peek_interpreter_stack() is not None or _len_torch_dispatch_stack() or _get_tracing_state() is not None
    )


def is_plain_kind(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one of PyTorch's own strided ones, or a fake of one: no subclass, nested nor sparse tensor.

    Relies on `torch._subclasses.fake_tensor.FakeTensor`.
    """
    return type(tensor) in _PLAIN_KINDS and tensor.layout is torch.strided and not tensor.is_nested


_PLAIN_KINDS = (torch.Tensor, torch.nn.Parameter, _FakeTensor)


def fake_mode() -> Any:
    """Return a mode in which tensors have shapes, strides and dtypes, and no values.

    Relies on `torch._subclasses.fake_tensor.FakeTensorMode` and its `from_tensor`.
    """
    import_dynamo()
    return _FakeTensorMode(allow_non_fake_inputs=True)


@functools.cache
def import_dynamo() -> None:
    """Import Dynamo, as the first fake tensor of a process does, without the collector.

    The import makes some 400 000 objects and no garbage; collections would take a third of its time. Afterwards
    `freeze` and `unfreeze` move these objects to the oldest generation, where the next collections do not visit them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        importlib.import_module("torch._dynamo")
        if not gc.get_freeze_count():  # else `unfreeze` would undo what the program has frozen
            gc.freeze()
            gc.unfreeze()
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def outside_modes() -> Iterator[None]:
    """A context that computes with values, regardless of enclosing modes and tracers.

    Relies on `torch.utils._python_dispatch._disable_current_modes` and `torch._C.DisableTorchFunction`.
    """
    with _DisableTorchFunction(), _disable_current_modes():
        yield


def is_fake(tensor: Any) -> bool:
    """Whether a tensor has no values.

    Relies on `torch._subclasses.fake_tensor.FakeTensor`.
    """
    return isinstance(tensor, _FakeTensor)


META = torch.device("meta")


DATA_DEPENDENT: tuple[type[Exception], ...] = () if isinstance(_DataDependent, Missing) else (_DataDependent,)
"""Exception of a fake tensor whose value is read: `torch._subclasses.fake_tensor.DataDependentOutputException`."""


is_zero_tensor: Callable[[torch.Tensor], bool] = private("torch.Tensor._is_zerotensor")
"""Whether a tensor is one of zeros that has no memory, as autograd makes where it knows a derivative to be zero."""


def is_mutable(op: Any) -> bool:
    """Whether an ATen op writes to an argument.

    Relies on `OpOverload._schema.is_mutable`.
    """
    return isinstance(op, _OpOverload) and bool(op._schema.is_mutable)


def written_by(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the arguments that an ATen op writes to.

    Relies on `alias_info.is_write` of the arguments of `OpOverload._schema`.
    """
    found: list[torch.Tensor] = []
    for i, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[i] if i < len(args) else kwargs.get(argument.name)
            found += [x for x in (given if isinstance(given, list | tuple) else [given]) if isinstance(x, torch.Tensor)]
    return found


def out_of_place(op: Any) -> Any:
    """Return the functional ATen op of an in-place one, `aten::name_`; `None` if there is none.

    Relies on `OpOverload._schema.name`, `_overloadname`, and on both having the same arguments (those of `pow_.Scalar`
    are not those of `pow.Scalar`).
    """
    name, overload = op._schema.name.partition("::")[2], op._overloadname
    pure = getattr(getattr(torch.ops.aten, name.removesuffix("_"), None), overload, None)
    if pure is None or not name.endswith("_") or is_mutable(pure):
        return None
    ours, theirs = ([(a.name, str(a.type)) for a in one._schema.arguments] for one in (pure, op))
    return pure if ours == theirs else None


def is_view(op: Any) -> bool:
    """Whether a node of a graph returns memory of an argument: an ATen op by its schema, or a part of a result.

    Relies on `OpOverload._schema.returns` and their `alias_info`.
    """
    return not isinstance(op, _OpOverload) or any(r.alias_info is not None for r in op._schema.returns)


def constant_while_compiling(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have Dynamo run a function while it traces, and take its result for a constant.

    It is `torch.compiler.assume_constant_result`, which imports Dynamo, for a second, when it is called. Relies on
    `_dynamo_marked_constant`.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def left_alone_by_dynamo(function: _F) -> _F:
    """Have Dynamo run a function, and all that it calls, as it stands, where it meets it outside of a graph.

    It would compile it after a graph break. `torch.compiler.disable` says so too, and imports Dynamo, for a second:
    it is for a PyTorch with other names. Relies on `torch._C._dynamo.eval_frame.set_code_exec_strategy`,
    `_FrameExecStrategy` and `_FrameAction`.
    """
    try:
        skip = _FrameAction.SKIP
        _set_code_exec_strategy(function.__code__, _FrameExecStrategy(skip, skip))
    except RunnerError:
        return torch.compiler.disable(function)  # type: ignore[no-any-return]
    return function


def version_of(tensor: torch.Tensor) -> int:
    """Return how often a tensor was written to in place.

    Relies on `Tensor._version`.
    """
    return tensor._version


def is_once_differentiable(function: Any) -> bool:
    """Whether a backward was marked by `torch.autograd.function.once_differentiable`.

    Relies on the name of what that returns, as its code has it.
    """
    code = getattr(function, "__code__", None)
    return code is not None and code.co_qualname.startswith(once_differentiable.__name__ + ".")


def storage_of(tensor: torch.Tensor) -> int:
    """Return the identity of a tensor's storage, equal for tensors that share memory, fake ones included.

    Relies on `UntypedStorage._cdata`.
    """
    return int(tensor.untyped_storage()._cdata)


share_memory: Callable[[torch.Tensor, torch.Tensor], bool] = private("torch._C._is_alias_of")
"""Whether two tensors share a storage."""


def is_tripwire(target: Any) -> bool:
    """Whether a node of a graph calls the op `pullback::tripwire`.

    Relies on `OpOverload.namespace`.
    """
    return getattr(target, "namespace", "") == "pullback"


def tree_leaves(tree: Any, containers: list[Any] | None = None) -> tuple[list[Any], Any]:
    """Return the leaves of nested tuples, lists and dicts, and their structure.

    `containers`, where given, receives the type, the context (the keys of a dict) and the number of children of each
    container, and `None` for each leaf, parents before children.

    As `torch.utils._pytree.tree_flatten`, which leaves at each call a closure that names itself: garbage for the
    collector. Relies on `_get_node_type`, `SUPPORTED_NODES`, `TreeSpec` and `_LEAF_SPEC` of that module.
    """
    if not _NODES_ARE_KNOWN and containers is None:
        return _tree_flatten(tree)  # type: ignore[no-any-return]
    leaves: list[Any] = []
    return leaves, _spec_of(tree, leaves, containers)


_NODES_ARE_KNOWN = not any(isinstance(x, Missing) for x in (_get_node_type, _SUPPORTED_NODES, _TreeSpec, _LEAF_SPEC))


def _spec_of(node: Any, leaves: list[Any], containers: list[Any] | None) -> Any:
    kind = _get_node_type(node)
    container = _SUPPORTED_NODES.get(kind)
    if container is None:
        leaves.append(node)
        if containers is not None:
            containers.append(None)
        return _LEAF_SPEC
    children, context = container.flatten_fn(node)
    children = list(children)
    if containers is not None:
        containers.append((kind, context, len(children)))
    return _TreeSpec(kind, context, [_spec_of(child, leaves, containers) for child in children])


def is_jit_tracing() -> bool:
    """Whether `torch.jit.trace` is running.

    Relies on `torch._C._get_tracing_state`.
    """
    return _get_tracing_state() is not None


def kernel_of(op: Any) -> Any:
    """Return the C++ callable of an ATen op, without the Python wrapper around it.

    Relies on `OpOverload._op`.
    """
    return op._op if isinstance(op, _OpOverload) else op


@contextmanager
def quiet_fake_tensors() -> Iterator[None]:
    """Keep fake tensors from logging an error, with its traceback, that the user gets as one line or not at all.

    Relies on the logger "torch._subclasses.fake_tensor".
    """
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)

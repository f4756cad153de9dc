"""Every use of a private PyTorch API, one small function each.

`tests/test_torch_private.py` has a test for each of them that says what it relies on.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import torch
from torch import fx
from torch._C import (
    _get_tracing_state,
    _is_any_autocast_enabled,
    _len_torch_dispatch_stack,
    _len_torch_function_stack,
)
from torch._C._dynamo import eval_frame as _eval_frame
from torch._C._functorch import TransformType as _TransformType
from torch._C._functorch import get_interpreter_stack as _get_interpreter_stack
from torch._C._functorch import get_unwrapped as _get_unwrapped
from torch._C._functorch import is_functorch_wrapped_tensor as _is_functorch_wrapped
from torch._C._functorch import is_gradtrackingtensor as _is_gradtrackingtensor
from torch._C._functorch import maybe_get_level as _maybe_get_level
from torch._C._functorch import peek_interpreter_stack as _peek_interpreter_stack
from torch._decomp import decomposition_table
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack as _one_level_down
from torch._library import custom_ops as _custom_ops
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable
from torch.autograd.graph import _engine_run_backward
from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

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
    keyed, spec = _pytree.tree_flatten_with_path(tree)
    paths = [tuple(_step(key) for key in path) for path, _ in keyed]
    return [leaf for _, leaf in keyed], spec, paths


def tree_unflatten(leaves: list[Any], spec: Any) -> Any:
    """Put leaves back into the structure that `tree_flatten` returned.

    Relies on `torch.utils._pytree.tree_unflatten`.
    """
    return _pytree.tree_unflatten(leaves, spec)


def _step(key: Any) -> Any:
    for attribute in ("idx", "key", "name"):
        if hasattr(key, attribute):
            return getattr(key, attribute)
    return key


def is_custom_op(obj: Any) -> bool:
    """Whether `obj` is what `torch.library.custom_op` returns.

    Relies on `torch._library.custom_ops.CustomOpDef` being its class.
    """
    return isinstance(obj, _custom_ops.CustomOpDef)


def custom_ops() -> list[Any]:
    """Return every live result of `torch.library.custom_op`, the oldest first.

    Relies on `torch._library.custom_ops.OPDEFS`, which maps qualified names to `CustomOpDef`s.
    """
    return list(_custom_ops.OPDEFS.values())


def custom_op_function(op: Any) -> Callable[..., Any]:
    """Return the function that `torch.library.custom_op` decorated.

    Relies on `CustomOpDef._init_fn`.
    """
    function: Callable[..., Any] = op._init_fn
    return function


def is_dispatched_op(obj: Any) -> bool:
    """Whether `obj` is `torch.ops.ns.name` or `torch.ops.ns.name.overload`.

    Relies on `torch._ops.OpOverload` and `OpOverloadPacket` being their classes.
    """
    return isinstance(obj, OpOverload | OpOverloadPacket)


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
    return str(op._qualified_op_name) if isinstance(op, OpOverloadPacket) else str(op.name())


def compile_in_this_process() -> AbstractContextManager[Any]:
    """Return a context in which Inductor starts no worker processes.

    Relies on `torch._inductor.config.patch` and its option `compile_threads`.
    """
    from torch._inductor import config

    patched: AbstractContextManager[Any] = config.patch(compile_threads=1)
    return patched


def given_by(function: type[torch.autograd.Function], name: str) -> bool:
    """Whether a Function defines the method `name`, itself or through a base that is not PyTorch's.

    Relies on `torch.autograd.function` being the module of the classes that have it as a stub.
    """
    return any(name in vars(cls) and cls.__module__ != "torch.autograd.function" for cls in function.__mro__)


def is_plain_eager() -> bool:
    """Whether nothing but eager autograd sees the ops of this thread: no transform, tracer, mode or autocast.

    Relies on `torch._C._functorch.peek_interpreter_stack`, `_len_torch_dispatch_stack`,
    `_len_torch_function_stack`, `_get_tracing_state`, `_is_any_autocast_enabled` and
    `torch.autograd.forward_ad._current_level`. Dynamo is asked for apart, by `torch.compiler.is_compiling`.
    """
    return not (
        _peek_interpreter_stack() is not None
        or _len_torch_dispatch_stack()
        or _len_torch_function_stack()
        or _is_any_autocast_enabled()
        or forward_ad._current_level >= 0
        or _get_tracing_state() is not None
    )


def autograd_alone_records() -> bool:
    """Whether a graph that is recorded is autograd's: no transform of `torch.func` is running, and no tracer.

    Relies on what `in_functorch`, `is_recorded` and `is_jit_tracing` rely on.
    """
    return not (in_functorch() or is_recorded() or is_jit_tracing())


def in_dual_level() -> bool:
    """Whether a forward-mode level is open.

    Relies on `torch.autograd.forward_ad._current_level`.
    """
    return forward_ad._current_level >= 0


def may_be_traced() -> bool:
    """Whether a mode, a tracer or a transform may look at the ops that run, and not only run them.

    Relies on `torch._C._functorch.peek_interpreter_stack`, `_len_torch_dispatch_stack` and `_get_tracing_state`.
    """
    return bool(
        _peek_interpreter_stack() is not None or _len_torch_dispatch_stack() or _get_tracing_state() is not None
    )


def is_recorded() -> bool:
    """Whether a tracer records the ATen ops that run (`make_fx`, `torch.export`).

    Relies on `torch.fx.experimental.proxy_tensor.get_proxy_mode`.
    """
    return get_proxy_mode() is not None


def forward_grad_enabled() -> AbstractContextManager[Any]:
    """Return a context in which ops carry tangents: PyTorch calls a Function's `jvp` without, and loses outer ones.

    Relies on `torch.autograd.forward_ad._set_fwd_grad_enabled`.
    """
    context: AbstractContextManager[Any] = forward_ad._set_fwd_grad_enabled(True)
    return context


def in_functorch() -> bool:
    """Whether a `torch.func` transform is running.

    Relies on `torch._C._functorch.peek_interpreter_stack`.
    """
    return _peek_interpreter_stack() is not None


def differentiations() -> int:
    """Return how many transforms that differentiate are running inside each other: of `torch.func`, or a dual level.

    Relies on `torch._C._functorch.get_interpreter_stack` and `TransformType`, and on `torch.func.jvp` opening a dual
    level too.
    """
    kinds = [level.key() for level in _get_interpreter_stack() or ()]
    duals = in_dual_level() and _TransformType.Jvp not in kinds
    return duals + sum(kind in (_TransformType.Grad, _TransformType.Jvp) for kind in kinds)


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor below the transforms of `torch.func` that are running.

    Relies on `torch._C._functorch.is_functorch_wrapped_tensor` and `get_unwrapped`.
    """
    while _is_functorch_wrapped(tensor):
        tensor = _get_unwrapped(tensor)
    return tensor


def is_differentiated(tensor: torch.Tensor) -> bool:
    """Whether autograd, a dual level or a transform of `torch.func` differentiates by a tensor, where that is read.

    Each level is asked where it is the innermost. Relies on `torch._C._functorch.maybe_get_level`, `get_unwrapped`,
    `peek_interpreter_stack` and `TransformType`, and on `torch._functorch.pyfunctorch`'s
    `temporarily_pop_interpreter_stack`.
    """
    if tensor.requires_grad:
        return True
    level = _peek_interpreter_stack()
    has_duals = in_dual_level() and (level is None or level.key() == _TransformType.Jvp)
    if has_duals and forward_ad.unpack_dual(tensor).tangent is not None:
        return True
    if level is None:
        return False
    with _one_level_down():
        return is_differentiated(_get_unwrapped(tensor) if _maybe_get_level(tensor) == level.level() else tensor)


def is_differentiated_outside(tensor: torch.Tensor) -> bool:
    """Whether a transform of `torch.func` differentiates by a tensor and is not running where it is read.

    A Function runs its forward below the transforms that differentiate it. Relies on
    `torch._C._functorch.is_functorch_wrapped_tensor`, `is_gradtrackingtensor`, `maybe_get_level`, `get_unwrapped`,
    `get_interpreter_stack` and `TransformType`.
    """
    while _is_functorch_wrapped(tensor):
        if _is_gradtrackingtensor(tensor):
            differentiating = (_TransformType.Grad, _TransformType.Jvp)
            running = {level.level() for level in _get_interpreter_stack() or () if level.key() in differentiating}
            if _maybe_get_level(tensor) not in running:
                return True
        tensor = _get_unwrapped(tensor)
    return False


def has_tangent_below(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a tangent of a dual level, below the transforms of `torch.func` that are running.

    Relies on `torch.autograd.forward_ad.unpack_dual`.
    """
    return forward_ad.unpack_dual(unwrapped(tensor)).tangent is not None


def is_plain_kind(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one of PyTorch's own strided ones, or a fake of one: no subclass, nested nor sparse tensor.

    Relies on `torch._subclasses.fake_tensor.FakeTensor`.
    """
    return type(tensor) in _PLAIN_KINDS and tensor.layout is torch.strided and not tensor.is_nested


_PLAIN_KINDS = (torch.Tensor, torch.nn.Parameter, FakeTensor)


is_grads_batch: Callable[[torch.Tensor], bool] = torch._C._functorch.is_legacy_batchedtensor
"""Whether a tensor stands for a batch of cotangents of `is_grads_batched`: it never says that it requires grad."""


def has_no_memory(error: RuntimeError) -> bool:
    """Whether an error says that a tensor of a transform has no values for NumPy or a kernel to read.

    Relies on the words "doesn't have storage".
    """
    return "doesn't have storage" in str(error)


def below_autograd() -> AbstractContextManager[Any]:
    """Return a context in which ops skip their autograd kernels.

    Relies on `torch._C._AutoDispatchBelowAutograd`.
    """
    context: AbstractContextManager[Any] = torch._C._AutoDispatchBelowAutograd()
    return context


def views_untracked() -> AbstractContextManager[Any]:
    """Return a context in which ops that return views do not make them known as such.

    Relies on `torch._C._ExcludeDispatchKeyGuard`, `torch._C.DispatchKeySet` and the key `ADInplaceOrView`.
    """
    context: AbstractContextManager[Any] = torch._C._ExcludeDispatchKeyGuard(
        torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
    )
    return context


def dispatch_kept() -> AbstractContextManager[Any]:
    """Return a context that leaves the dispatcher as it was, whatever happens inside.

    `Tensor.__repr__`, which PyTorch calls for its own messages, disables functorch until its frame is gone. An
    exception keeps that, and functorch is left disabled. Relies on `torch._C._PreserveDispatchKeyGuard`.
    """
    context: AbstractContextManager[Any] = torch._C._PreserveDispatchKeyGuard()
    return context


def fake_mode() -> Any:
    """Return a mode in which tensors have shapes, strides and dtypes, and no values.

    Relies on `torch._subclasses.fake_tensor.FakeTensorMode` and its `from_tensor`.
    """
    return FakeTensorMode(allow_non_fake_inputs=True)


@contextmanager
def outside_modes() -> Iterator[None]:
    """A context that computes with values, whatever mode or tracer is active around it.

    Relies on `torch.utils._python_dispatch._disable_current_modes` and `torch._C.DisableTorchFunction`.
    """
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


def is_fake(tensor: Any) -> bool:
    """Whether a tensor has no values.

    Relies on `torch._subclasses.fake_tensor.FakeTensor`.
    """
    return isinstance(tensor, FakeTensor)


NO_TORCH_FUNCTION = torch._C._disabled_torch_function_impl
"""As `__torch_function__` of a subclass: functions take its tensors as they take others."""

CPU = torch.device("cpu")
META = torch.device("meta")


def on_cpu(kind: type[torch.Tensor], elem: torch.Tensor) -> torch.Tensor:
    """Return a tensor of a subclass, with the memory of one on the meta device, that is dispatched as one on the CPU.

    Nobody may read what is at its address. Relies on `Tensor._make_subclass`, its options `dispatch_device` and
    `device_for_backend_keys`, and `torch._C._set_throw_on_mutable_data_ptr`.
    """
    made: torch.Tensor = torch.Tensor._make_subclass(kind, elem, dispatch_device=True, device_for_backend_keys=CPU)
    torch._C._set_throw_on_mutable_data_ptr(made)
    return made


def asks_device(op: Any) -> bool:
    """Whether a mode is asked for the device of a tensor of such a subclass.

    Relies on `torch.ops.prim.device.default`.
    """
    return op is torch.ops.prim.device.default


def is_aten(op: Any) -> bool:
    """Whether a mode was given one of PyTorch's own ops.

    Relies on `OpOverload.namespace`.
    """
    return isinstance(op, OpOverload) and op.namespace == "aten"


def is_composite(op: OpOverload) -> bool:
    """Whether an op is made of others on the CPU, which autograd sees in its place.

    Relies on `OpOverload.has_kernel_for_dispatch_key` and the keys `CompositeImplicitAutograd` and `CPU`.
    """
    keys = torch._C.DispatchKey
    return op.has_kernel_for_dispatch_key(keys.CompositeImplicitAutograd) and not op.has_kernel_for_dispatch_key(
        keys.CPU
    )


BITS_ARE_BATCHED = torch.ops.aten.view.dtype.has_kernel_for_dispatch_key(torch._C.DispatchKey.FuncTorchBatched)
"""Whether `vmap` takes `Tensor.view(dtype)`: from PyTorch 2.13 on."""


def pulled(
    roots: Sequence[torch.Tensor],
    leaves: Sequence[torch.Tensor],
    cotangents: Sequence[torch.Tensor],
    keep: bool = False,
    record: bool = False,
) -> list[torch.Tensor | None]:
    """Return gradients, None where there is no dependence, of roots with cotangents of their shapes.

    As `torch.autograd.grad`, which imports sympy to compare shapes where it is given cotangents. Relies on
    `torch.autograd.graph._engine_run_backward`.

    Args:
        keep: whether the roots can be differentiated once more.
        record: whether the gradients can.
    """
    unused = True
    return list(
        _engine_run_backward(
            tuple(roots), tuple(cotangents), keep, record, tuple(leaves), unused, accumulate_grad=False
        )
    )


DATA_DEPENDENT: tuple[type[Exception], ...] = (DataDependentOutputException,)
"""What a fake tensor raises where a value is needed: `torch._subclasses.fake_tensor.DataDependentOutputException`."""


_TRACING = threading.RLock()
"""That a trace is running is a global of torch.fx, which two threads would leave wrong for good."""


_LENT = threading.local()
"""Of a thread that runs `apart`: it holds the lock of the one that waits for it."""


@contextmanager
def tracing() -> Iterator[None]:
    """Wait until no other thread traces; the thread that does may come in again.

    Its backward passes run in itself, as AOTAutograd's do. Autograd has one thread for all backward passes on a GPU:
    to wait for that one, which may be in a backward that waits to trace, would be for ever.
    """
    lock = nullcontext() if getattr(_LENT, "lock", False) else _TRACING
    with lock, torch.autograd.set_multithreading_enabled(False):
        yield


def apart(function: Callable[[], Any]) -> Any:
    """Call a function where no transform, mode, tracer or autocast of this thread sees its ops: in a thread of its own.

    Relies on the states of all these being local to a thread. It may trace, while this thread waits for it.
    """
    outcome: list[Any] = []

    def run() -> None:
        _LENT.lock = True
        torch.get_num_threads()  # until it is asked, a new thread computes on as many as there are cores
        try:
            outcome.extend((function(), None))
        except BaseException as error:
            outcome.extend((None, error))

    _replace_guard()
    with tracing():
        thread = threading.Thread(target=run, name="pullback-apart")
        thread.start()
        thread.join()
    result, error = outcome
    if error is not None:
        raise error
    return result


def new_thread() -> ThreadPoolExecutor:
    """Return an executor with one thread, which no transform, mode or tracer of this thread reaches.

    Relies on the states of all these being local to a thread.
    """
    _replace_guard()
    return ThreadPoolExecutor(1)


@functools.cache
def _replace_guard() -> None:
    """Do what the first fake tensor does where there is no GPU, before a thread that ends has one.

    PyTorch replaces the guard of CUDA devices. In a CUDA build of 2.11 the process crashes once the thread that did so
    has ended. Relies on `torch._C._ensureCUDADeviceGuardSet`, which fake tensors call.
    """
    replace = getattr(torch._C, "_ensureCUDADeviceGuardSet", None)
    if replace is not None and not torch.cuda.is_available():
        replace()


fx.has_side_effect(torch.ops.aten._linalg_check_errors.default)
"""It has no result, only an error: torch.fx of PyTorch 2.11 would remove it from a graph as dead code."""


def trace_ops(function: Callable[..., Any], *tensors: torch.Tensor) -> fx.GraphModule:
    """Record the ATen ops of a call, without decompositions, on fake tensors.

    Relies on `torch.fx.experimental.proxy_tensor.make_fx` and its options. Without a table of decompositions, PyTorch
    2.15 and later write `alias` for `detach`: the derivative of such a graph is that of another formula.
    """
    with tracing():
        traced: fx.GraphModule = make_fx(
            function, decomposition_table={}, tracing_mode="fake", _allow_non_fake_inputs=True
        )(*tensors)
    return traced


def trace_symbolic(
    function: Callable[..., Any], tensors: Sequence[torch.Tensor], table: dict[Any, Callable[..., Any]]
) -> fx.GraphModule:
    """Record the ATen ops of a call on fake tensors with symbolic sizes; ops in the table as what that makes of them.

    Relies on `torch.fx.experimental.proxy_tensor.make_fx` and its options.
    """
    with tracing():
        traced: fx.GraphModule = make_fx(
            function, decomposition_table=table, tracing_mode="symbolic", _allow_non_fake_inputs=True
        )(*tensors)
    return traced


def shape_guards(traced: fx.GraphModule) -> list[Any]:
    """Return the sympy conditions on the sizes that a graph of `trace_symbolic` holds for.

    Relies on `GraphModule.shape_env` and `ShapeEnv.guards`.
    """
    environment: Any = traced.shape_env
    return [environment.simplify(guard.expr) for guard in environment.guards]


def size_hints(tensor: torch.Tensor) -> list[int]:
    """Return the sizes that a tensor without values had in the example that was traced.

    Relies on `torch.SymInt.node.hint`.
    """
    return [s if isinstance(s, int) else int(s.node.hint) for s in tensor.shape]


def trace_for_sizes(
    function: Callable[..., Any], tensors: Sequence[torch.Tensor], varying: Collection[int]
) -> tuple[fx.GraphModule, bool]:
    """Record the ATen ops of a call on fake tensors; each size among `varying` is one symbol, which is not 0 nor 1.

    Returns:
        The graph, and whether nothing that was done depends on what the symbols are.

    Relies on `torch.fx.experimental.proxy_tensor.make_fx`, `FakeTensorMode.from_tensor`, `ConstantSource`, and of
    `torch.fx.experimental.symbolic_shapes` on `StatelessSymbolicContext`, `DimDynamic` and `ShapeEnv`, with its
    `guards`, `replacements`, `deferred_runtime_asserts` and `var_to_range`.
    """
    from torch._dynamo.source import ConstantSource  # late: they take a second
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    fakes = []
    for i, tensor in enumerate(tensors):
        how = [DimDynamic.DUCK if n in varying else DimDynamic.STATIC for n in tensor.shape]
        context: Any = StatelessSymbolicContext(dynamic_sizes=how)
        fakes.append(mode.from_tensor(tensor, source=ConstantSource(f"x{i}"), symbolic_context=context))
    before = dict(environment.var_to_range)
    with tracing():
        traced: fx.GraphModule = make_fx(function, decomposition_table={}, _allow_non_fake_inputs=True)(*fakes)
    noted = (environment.guards, environment.replacements, environment.deferred_runtime_asserts)
    return traced, not any(noted) and environment.var_to_range == before


def example_of(number: Any) -> tuple[int, Any]:
    """Return what a size was in the example that was traced, and its sympy expression if it has symbols.

    Relies on `torch.SymInt.node`, its `hint` and its `expr`.
    """
    if not isinstance(number, torch.SymInt):
        return int(number), None
    expression: Any = number.node.expr
    return int(number.node.hint), expression if expression.free_symbols else None


def evaluated(expression: Any, symbols: Mapping[Any, int]) -> int:
    """Return the number that an expression in sizes comes to.

    Relies on these being sympy's.
    """
    return int(expression.subs(symbols))


def decompositions() -> dict[str, list[tuple[Any, Callable[..., Any]]]]:
    """Return what PyTorch's ops are made of: for each name its overloads, each with a function in other ops.

    Relies on `torch._decomp.decomposition_table`.
    """
    found: dict[str, list[tuple[Any, Callable[..., Any]]]] = {}
    for op, made in decomposition_table.items():
        packet = getattr(op, "overloadpacket", None)
        if packet is not None:
            found.setdefault(packet.__name__, []).append((op, made))
    return found


def size_symbols(tensor: torch.Tensor) -> list[Any]:
    """Return the sizes of a tensor without values: numbers, or sympy expressions.

    Relies on `torch.SymInt.node.expr`.
    """
    return [s if isinstance(s, int) else s.node.expr for s in tensor.shape]


def compiled_by_inductor(
    module: fx.GraphModule, examples: list[Any], is_small: bool = False, **options: Any
) -> Callable[..., list[Any]]:
    """Compile a graph of ATen ops, for inputs like the examples, in this process.

    Ops of 16 bits round their results, as PyTorch's kernels do: comparisons would not agree otherwise.

    Args:
        module: the graph.
        examples: its inputs, without values.
        is_small: whether threads are not worth it: if not, Inductor decides.
        options: of `standalone_compile`.

    Relies on `torch._inductor.standalone_compile`, its option `config_patches`, and Inductor's `compile_threads`,
    `emulate_precision_casts` and `cpp.threads`.
    """
    patches: dict[str, Any] = {"compile_threads": 1, "emulate_precision_casts": True}
    if is_small:
        patches["cpp.threads"] = 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it warns of is its own
        from torch._inductor import standalone_compile  # late: it takes seconds

        return standalone_compile(module, examples, options={"config_patches": patches}, **options)


def symbols_in(expressions: Sequence[Any]) -> list[Any]:
    """Return the symbols of sympy expressions in sizes, in an order that depends on their names alone.

    Relies on these being sympy's.
    """
    return sorted({symbol for expression in expressions for symbol in expression.free_symbols}, key=str)


def compiled_for_sizes(
    module: fx.GraphModule,
    sizes: Mapping[Any, int],
    others: Sequence[Any],
    kinds: Sequence[tuple[Sequence[Any], Sequence[Any], torch.dtype]],
    is_small: bool = False,
) -> tuple[Callable[..., list[Any]], Callable[[Sequence[int]], bool]]:
    """Compile a graph of ATen ops for tensors on the CPU of many sizes, in this process.

    Args:
        module: takes the sizes, then the other numbers, then tensors. All symbols have to be among the sizes: guards on
            others are not kept with what Inductor keeps on disk.
        sizes: the symbols, with what they are in an example: neither 0 nor 1.
        others: expressions in these.
        kinds: size, strides and dtype of each tensor, in such expressions.
        is_small: whether threads are not worth it.

    Returns:
        What is compiled, and what says of other sizes whether it holds for them: Inductor may have noted guards.

    Relies on what `compiled_by_inductor` does; on `dynamic_shapes="from_tracing_context"`, `torch._guards.tracing` and
    `TracingContext`, `FakeTensorMode`, `ConstantSource`; and of `torch.fx.experimental.symbolic_shapes` on `DimDynamic`
    and `ShapeEnv`, with its `create_symbol`, `create_symintnode`, `produce_guards_expression` and
    `evaluate_guards_expression`.
    """
    from torch._dynamo.source import ConstantSource  # late: they take a second
    from torch._guards import TracingContext
    from torch._guards import tracing as in_context
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

    environment = ShapeEnv()
    symbols = {
        symbol: environment.create_symbol(n, ConstantSource(f"n{i}"), DimDynamic.DYNAMIC)
        for i, (symbol, n) in enumerate(sizes.items())
    }

    def number(expression: Any) -> Any:
        if isinstance(expression, int):
            return expression
        return environment.create_symintnode(expression.xreplace(symbols), hint=evaluated(expression, sizes))

    mode = FakeTensorMode(shape_env=environment, allow_non_fake_inputs=True)
    with mode:
        tensors = [
            torch.empty_strided([*map(number, shape)], [*map(number, stride)], dtype=dtype)
            for shape, stride, dtype in kinds
        ]
    given = [number(symbol) for symbol in sizes]
    examples = [*given, *map(number, others), *tensors]
    with in_context(TracingContext(mode)):
        run = compiled_by_inductor(module, examples, is_small, dynamic_shapes="from_tracing_context")
    guards = environment.produce_guards_expression(given)

    def admits(numbers: Sequence[int]) -> bool:
        return guards is None or bool(ShapeEnv().evaluate_guards_expression(guards, numbers))

    return run, admits


def names_traced() -> list[str]:
    """Return the names of the nodes that `trace_ops`, which is running, has recorded so far.

    Relies on `torch.fx.experimental.proxy_tensor.get_proxy_mode` and its `tracer.graph`.
    """
    mode = get_proxy_mode()
    assert mode is not None
    return [node.name for node in mode.tracer.graph.nodes]


def traced_value(node: fx.Node) -> torch.Tensor:
    """Return the tensor without values that a node of a graph stood for when `trace_ops` recorded it.

    Relies on `node.meta["val"]`.
    """
    value: torch.Tensor = node.meta["val"]
    return value


is_zero_tensor: Callable[[torch.Tensor], bool] = torch.Tensor._is_zerotensor
"""Whether a tensor is one of zeros that has no memory, as autograd makes where it knows a derivative to be zero."""


def is_mutable(op: Any) -> bool:
    """Whether an ATen op writes to an argument.

    Relies on `OpOverload._schema.is_mutable`.
    """
    return isinstance(op, OpOverload) and bool(op._schema.is_mutable)


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
    """Return the ATen op that computes what `aten::name_` writes to its first argument; `None` if there is none.

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
    return not isinstance(op, OpOverload) or any(r.alias_info is not None for r in op._schema.returns)


def constant_while_compiling(function: Callable[..., Any]) -> Callable[..., Any]:
    """Have Dynamo run a function while it traces, and take its result for a constant.

    It is `torch.compiler.assume_constant_result`, which imports Dynamo, for a second, when it is called. Relies on
    `_dynamo_marked_constant`.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def left_alone_by_dynamo(function: _F) -> _F:
    """Have Dynamo run a function, and all that it calls, as it stands, where it meets it outside of a graph.

    It would compile it after a graph break. `torch.compiler.disable` says so too, and imports Dynamo, for a second.
    Relies on `torch._C._dynamo.eval_frame.set_code_exec_strategy`, `_FrameExecStrategy` and `_FrameAction`.
    """
    skip = _eval_frame._FrameAction.SKIP
    _eval_frame.set_code_exec_strategy(function.__code__, _eval_frame._FrameExecStrategy(skip, skip))
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
    """Return what is equal for two tensors that share memory, also for fake ones.

    Relies on `UntypedStorage._cdata`.
    """
    return int(tensor.untyped_storage()._cdata)


share_memory: Callable[[torch.Tensor, torch.Tensor], bool] = torch._C._is_alias_of  # type: ignore[attr-defined]
"""Whether two tensors lie in one storage."""


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
    leaves: list[Any] = []
    return leaves, _spec_of(tree, leaves, containers)


def _spec_of(node: Any, leaves: list[Any], containers: list[Any] | None) -> Any:
    kind = _pytree._get_node_type(node)
    container = _pytree.SUPPORTED_NODES.get(kind)
    if container is None:
        leaves.append(node)
        if containers is not None:
            containers.append(None)
        return _pytree._LEAF_SPEC
    children, context = container.flatten_fn(node)
    children = list(children)
    if containers is not None:
        containers.append((kind, context, len(children)))
    return _pytree.TreeSpec(kind, context, [_spec_of(child, leaves, containers) for child in children])


def any_autocast() -> bool:
    """Whether autocast is on, for any device.

    Relies on `torch._C._is_any_autocast_enabled`.
    """
    return bool(_is_any_autocast_enabled())


def is_jit_tracing() -> bool:
    """Whether `torch.jit.trace` is running.

    Relies on `torch._C._get_tracing_state`.
    """
    return _get_tracing_state() is not None


@contextmanager
def without_saved_tensors_hooks() -> Iterator[None]:
    """Have the caller's saved-tensor hooks not called: what is traced saves tensors that have no values.

    Relies on `torch._C._autograd._saved_tensors_hooks_set_tracing`.
    """
    before = torch._C._autograd._saved_tensors_hooks_set_tracing(True)
    try:
        yield
    finally:
        torch._C._autograd._saved_tensors_hooks_set_tracing(before)


def held_by_their_node_alone(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether `ctx.saved_tensors[k:]` are tensors that nothing refers to but their node, which made them for itself.

    Then they may be written over. A hook, another tensor on the same memory, `grad_fn.saved_tensors` and weak
    references count as well. Relies on `Tensor._use_count` and `torch._C._storage_Use_Count`.
    """
    return _holders(tensors) == _least_holders() * len(tensors)


def _holders(tensors: Sequence[torch.Tensor]) -> list[tuple[int, ...]]:
    """Return for each tensor how many refer to it and its storage, in Python and below; and weak references."""
    counts: list[tuple[int, ...]] = []
    for t in tensors:
        storage = t.untyped_storage()
        below = t._use_count(), torch._C._storage_Use_Count(storage._cdata)  # type: ignore[attr-defined]
        counts.append((sys.getrefcount(t), sys.getrefcount(storage), *below, weakref.getweakrefcount(t)))
    return counts


@functools.cache
def _least_holders() -> list[tuple[int, ...]]:
    """Measure the counts of `_holders` for a tensor that only the node which saved it holds."""
    found: list[tuple[int, ...]] = []

    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x, x * 2)
            return x + 1

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            kept = ctx.saved_tensors
            found.extend(_holders(kept[1:]))
            return g

    with torch.enable_grad(), without_saved_tensors_hooks():
        Probe.apply(torch.zeros(1, requires_grad=True)).backward()  # type: ignore[no-untyped-call]
    return found


def keeps_graph() -> bool:
    """Whether the graph of the backward pass that is running can be gone through again (`retain_graph`).

    Relies on `torch._C._autograd._get_current_graph_task_keep_graph`, which says so outside of a backward pass.
    """
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def kernel_of(op: Any) -> Any:
    """Return what an ATen op calls, without the Python wrapper around it.

    Relies on `OpOverload._op`.
    """
    return op._op if isinstance(op, OpOverload) else op


def plain_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return the `apply` of an old-style Function for plain eager mode, without the look for transforms (1 µs).

    Relies on `torch.autograd.Function.apply` ending in its base's `apply` where no transform is running.
    """
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply


@contextmanager
def quiet_fake_tensors() -> Iterator[None]:
    """Keep fake tensors from logging an error, with its traceback, that is told to the user as one line or not at all.

    Relies on the logger "torch._subclasses.fake_tensor".
    """
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def without_trace_log() -> Iterator[None]:
    """Keep PyTorch's compiler from writing to its structured log, which test runners show below a test that fails.

    Relies on the logger "torch.__trace".
    """
    logger = logging.getLogger("torch.__trace")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def on_values(function: Callable[..., torch.Tensor], *nested: torch.Tensor) -> torch.Tensor:
    """Return a pointwise function of jagged tensors, which all have the structure of the first.

    Relies on `torch.nested._internal.nested_tensor.NestedTensor._ragged_idx`.
    """
    values = function(*(t.values() for t in nested))
    first: Any = nested[0]
    made: torch.Tensor = torch.nested.nested_tensor_from_jagged(
        values, first.offsets(), first.lengths(), jagged_dim=first._ragged_idx
    )
    return made


def observe_functions(note: Callable[[type, tuple[Any, ...]], None]) -> Callable[[], None]:
    """Have `note` called with each custom function that is applied, and its arguments; return what ends that.

    However the function was had: `apply` of `torch.autograd.Function`, which Dynamo knows, stays as it is. Where it is
    written in Python, it asks its base for the rest. Relies on `torch.autograd.function._SingleLevelFunction` being
    that base, without an `apply` of its own, and on `torch._C._FunctionBase.apply`. Where it is written in C++, from
    PyTorch 2.15 on, what it calls is observed, of the functions that are there now: see `_observe_contexts`.
    """
    if not isinstance(vars(torch.autograd.Function).get("apply"), classmethod):
        return _observe_contexts(note)
    base: Any = torch.autograd.function._SingleLevelFunction
    before = vars(base).get("apply")

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        note(cls, args)
        return (before.__get__(None, cls) if before else super(base, cls).apply)(*args, **kwargs)

    base.apply = classmethod(apply)

    def end() -> None:
        if before is None:
            del base.apply
        else:
            base.apply = before

    return end


_Note = Callable[[type, tuple[Any, ...]], None]
_notes: list[_Note] = []
_observed: list[tuple[Any, str, Any]] = []


def _observe_contexts(note: _Note) -> Callable[[], None]:
    """Observe the first method of each custom function that gets a context: `setup_context`, or else `forward`.

    Those that are defined later on are observed, too. Relies on `_forward_cls` of a context's class, the function that
    is applied, and on `torch.autograd.function.FunctionMeta.__init__`.
    """
    if not _notes:
        pending: list[Any] = torch.autograd.Function.__subclasses__()
        for cls in pending:
            pending += [sub for sub in cls.__subclasses__() if sub not in pending]
            _observe(cls)
        meta: Any = torch.autograd.function.FunctionMeta
        init = meta.__init__
        _observed.append((meta, "__init__", init))

        def init_observed(cls: Any, *args: Any, **kwargs: Any) -> None:
            init(cls, *args, **kwargs)
            _observe(cls)

        meta.__init__ = init_observed
    _notes.append(note)

    def end() -> None:
        _notes.remove(note)
        while _observed and not _notes:
            setattr(*_observed.pop())

    return end


def _observe(cls: Any) -> None:
    name = "setup_context" if given_by(cls, "setup_context") else "forward"
    if isinstance(own := vars(cls).get(name), staticmethod):
        _observed.append((cls, name, own))
        setattr(cls, name, _noting(own.__func__, name == "setup_context"))


def _noting(method: Callable[..., Any], are_together: bool) -> staticmethod[..., Any]:
    """Return a method that calls all `_notes` first, but in what Dynamo traces: that is to hold on to none of them."""

    @functools.wraps(method)
    def called(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_compiling():
            _note_all(type(ctx), args[0] if are_together and args else args)
        return method(ctx, *args, **kwargs)

    return staticmethod(called)


def _note_all(context: Any, args: tuple[Any, ...]) -> None:
    applied: Any = getattr(context, "_forward_cls", None)
    for note in reversed(_notes) if applied is not None else ():
        note(applied, args)

"""Private PyTorch that ops use: the context that a call is in, and the tensors that autograd refers to."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.autograd import forward_ad

from pullback._torch.private import private
from pullback._torch.shared import is_jit_tracing

_AutoDispatchBelowAutograd = private("torch._C._AutoDispatchBelowAutograd")
_DispatchKey = private("torch._C.DispatchKey")
_DispatchKeySet = private("torch._C.DispatchKeySet")
_ExcludeDispatchKeyGuard = private("torch._C._ExcludeDispatchKeyGuard")
_keep_graph = private("torch._C._autograd._get_current_graph_task_keep_graph")
_set_hooks_tracing = private("torch._C._autograd._saved_tensors_hooks_set_tracing")
_storage_use_count = private("torch._C._storage_Use_Count")
_use_count = private("torch.Tensor._use_count")
_get_tracing_state = private("torch._C._get_tracing_state")
_is_any_autocast_enabled = private("torch._C._is_any_autocast_enabled")
_len_torch_dispatch_stack = private("torch._C._len_torch_dispatch_stack")
_len_torch_function_stack = private("torch._C._len_torch_function_stack")
_TransformType = private("torch._C._functorch.TransformType")
_get_interpreter_stack = private("torch._C._functorch.get_interpreter_stack")
_get_unwrapped = private("torch._C._functorch.get_unwrapped")
_is_functorch_wrapped = private("torch._C._functorch.is_functorch_wrapped_tensor")
_is_gradtrackingtensor = private("torch._C._functorch.is_gradtrackingtensor")
_maybe_get_level = private("torch._C._functorch.maybe_get_level")
_peek_interpreter_stack = private("torch._C._functorch.peek_interpreter_stack")
_one_level_down = private("torch._functorch.pyfunctorch.temporarily_pop_interpreter_stack")
_get_proxy_mode = private("torch.fx.experimental.proxy_tensor.get_proxy_mode")


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


def is_recorded() -> bool:
    """Whether a tracer records the ATen ops that run (`make_fx`, `torch.export`).

    Relies on `torch.fx.experimental.proxy_tensor.get_proxy_mode`.
    """
    return _get_proxy_mode() is not None


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


is_grads_batch: Callable[[torch.Tensor], bool] = private("torch._C._functorch.is_legacy_batchedtensor")
"""Whether a tensor is a batch of cotangents of `is_grads_batched`, whose `requires_grad` is never true."""


def has_no_memory(error: RuntimeError) -> bool:
    """Whether an error is about a transform's tensor, which has no values for NumPy or a kernel to read.

    Relies on the words "doesn't have storage".
    """
    return "doesn't have storage" in str(error)


def below_autograd() -> AbstractContextManager[Any]:
    """Return a context in which ops skip their autograd kernels.

    Relies on `torch._C._AutoDispatchBelowAutograd`.
    """
    context: AbstractContextManager[Any] = _AutoDispatchBelowAutograd()
    return context


def views_untracked() -> AbstractContextManager[Any]:
    """Return a context in which ops that return views do not make them known as such.

    Relies on `torch._C._ExcludeDispatchKeyGuard`, `torch._C.DispatchKeySet` and the key `ADInplaceOrView`.
    """
    context: AbstractContextManager[Any] = _ExcludeDispatchKeyGuard(_DispatchKeySet(_DispatchKey.ADInplaceOrView))
    return context


def _are_bits_batched() -> bool:
    """Relies on `OpOverload.has_kernel_for_dispatch_key` and the key `FuncTorchBatched`."""
    try:
        has_kernel = torch.ops.aten.view.dtype.has_kernel_for_dispatch_key
        return bool(has_kernel(torch._C.DispatchKey.FuncTorchBatched))
    except AttributeError:
        return False


BITS_ARE_BATCHED = _are_bits_batched()
"""Whether `vmap` is known to take `Tensor.view(dtype)`, as from PyTorch 2.13 on."""


def any_autocast() -> bool:
    """Whether autocast is on, for any device.

    Relies on `torch._C._is_any_autocast_enabled`.
    """
    return bool(_is_any_autocast_enabled())


@contextmanager
def without_saved_tensors_hooks() -> Iterator[None]:
    """Disable the caller's saved-tensor hooks: a trace saves tensors without data.

    Relies on `torch._C._autograd._saved_tensors_hooks_set_tracing`.
    """
    before = _set_hooks_tracing(True)
    try:
        yield
    finally:
        _set_hooks_tracing(before)


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
        below = _use_count(t), _storage_use_count(storage._cdata)
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
    """Whether the graph of the running backward pass can be used a second time (`retain_graph`).

    Relies on `torch._C._autograd._get_current_graph_task_keep_graph`, which says so outside of a backward pass.
    """
    return bool(_keep_graph())


def plain_apply(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return the `apply` of an old-style Function for plain eager mode, without the look for transforms (1 µs).

    Relies on `torch.autograd.Function.apply` ending in its base's `apply` where no transform is running.
    """
    apply: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return apply


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

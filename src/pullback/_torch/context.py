"""Private PyTorch of the context of a call: transforms, dual levels, modes and tracers that see its ops."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd import forward_ad

from pullback._torch.dynamo import skip_in_dynamo
from pullback._torch.private import Missing, private
from pullback._torch.tensors import is_zero_tensor

_AutoDispatchBelowAutograd = private("torch._C._AutoDispatchBelowAutograd")
_DisableTorchFunction = private("torch._C.DisableTorchFunction")
_DispatchKey = private("torch._C.DispatchKey")
_DispatchKeySet = private("torch._C.DispatchKeySet")
_ExcludeDispatchKeyGuard = private("torch._C._ExcludeDispatchKeyGuard")
_TransformType = private("torch._C._functorch.TransformType")
_disable_current_modes = private("torch.utils._python_dispatch._disable_current_modes")
_get_interpreter_stack = private("torch._C._functorch.get_interpreter_stack")
_get_proxy_mode = private("torch.fx.experimental.proxy_tensor.get_proxy_mode")
_get_tracing_state = private("torch._C._get_tracing_state")
_get_unwrapped = private("torch._C._functorch.get_unwrapped")
_is_any_autocast_enabled = private("torch._C._is_any_autocast_enabled")
_is_functorch_wrapped = private("torch._C._functorch.is_functorch_wrapped_tensor")
_is_gradtrackingtensor = private("torch._C._functorch.is_gradtrackingtensor")
_len_torch_dispatch_stack = private("torch._C._len_torch_dispatch_stack")
_len_torch_function_stack = private("torch._C._len_torch_function_stack")
_maybe_get_level = private("torch._C._functorch.maybe_get_level")
_one_level_down = private("torch._functorch.pyfunctorch.temporarily_pop_interpreter_stack")
_peek_interpreter_stack = private("torch._C._functorch.peek_interpreter_stack")

if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode
elif isinstance(TorchDispatchMode := private("torch.utils._python_dispatch.TorchDispatchMode"), Missing):

    class TorchDispatchMode:  # a class can be derived from it; it cannot be entered
        __init__ = __enter__ = __exit__ = TorchDispatchMode


def is_plain_eager() -> bool:
    """Whether eager autograd alone sees the ops of this thread: no transform, dual level, tracer, mode or autocast.

    Dynamo is not among these: see `torch.compiler.is_compiling`. Relies on
    `torch._C._functorch.peek_interpreter_stack`, `_len_torch_dispatch_stack`, `_len_torch_function_stack`,
    `_get_tracing_state`, `_is_any_autocast_enabled` and `torch.autograd.forward_ad._current_level`.
    """
    return not (
        _peek_interpreter_stack() is not None
        or _len_torch_dispatch_stack()
        or _len_torch_function_stack()
        or _is_any_autocast_enabled()
        or forward_ad._current_level >= 0
        or _get_tracing_state() is not None
    )


def only_autograd_records() -> bool:
    """Whether a recorded graph is autograd's: no `torch.func` transform and no tracer is running.

    Relies on what `in_functorch`, `in_proxy_tracing` and `in_jit_tracing` rely on.
    """
    return not (in_functorch() or in_proxy_tracing() or in_jit_tracing())


def in_dual_level() -> bool:
    """Whether a forward-mode level is open.

    Relies on `torch.autograd.forward_ad._current_level`.
    """
    return forward_ad._current_level >= 0


def in_proxy_tracing() -> bool:
    """Whether a proxy tracer records the ATen ops that run (`make_fx`, `torch.export`).

    Relies on `torch.fx.experimental.proxy_tensor.get_proxy_mode`.
    """
    return _get_proxy_mode() is not None


def in_jit_tracing() -> bool:
    """Whether `torch.jit.trace` is running.

    Relies on `torch._C._get_tracing_state`.
    """
    return _get_tracing_state() is not None


def may_be_traced() -> bool:
    """Whether a dispatch mode, tracer or transform may inspect the ops that run.

    Relies on `torch._C._functorch.peek_interpreter_stack`, `_len_torch_dispatch_stack` and `_get_tracing_state`.
    """
    return bool(
        _peek_interpreter_stack() is not None or _len_torch_dispatch_stack() or _get_tracing_state() is not None
    )


def any_autocast() -> bool:
    """Whether autocast is on, for any device.

    Relies on `torch._C._is_any_autocast_enabled`.
    """
    return bool(_is_any_autocast_enabled())


def in_functorch() -> bool:
    """Whether a `torch.func` transform is running.

    Relies on `torch._C._functorch.peek_interpreter_stack`.
    """
    return _peek_interpreter_stack() is not None


def differentiation_depth() -> int:
    """Nesting depth of differentiation: running transforms of `torch.func`, or a dual level.

    Relies on `torch._C._functorch.get_interpreter_stack` and `TransformType`, and on `torch.func.jvp` opening a dual
    level, too.
    """
    kinds = [level.key() for level in _get_interpreter_stack() or ()]
    duals = in_dual_level() and _TransformType.Jvp not in kinds
    return duals + sum(kind in (_TransformType.Grad, _TransformType.Jvp) for kind in kinds)


def in_vmap() -> bool:
    """Whether a `torch.func.vmap` is running.

    Relies on `torch._C._functorch.get_interpreter_stack` and `TransformType`.
    """
    return any(level.key() == _TransformType.Vmap for level in _get_interpreter_stack() or ())


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor within the wrappers of `torch.func` transforms.

    Relies on `torch._C._functorch.is_functorch_wrapped_tensor` and `get_unwrapped`.
    """
    while _is_functorch_wrapped(tensor):
        tensor = _get_unwrapped(tensor)
    return tensor


def is_differentiated(tensor: torch.Tensor) -> bool:
    """Whether autograd, a dual level or a `torch.func` transform differentiates with respect to a tensor.

    Only the innermost level can answer for its tensors, so the levels are popped one by one. Relies on
    `torch._C._functorch.maybe_get_level`, `get_unwrapped`, `peek_interpreter_stack` and `TransformType`, and on
    `torch._functorch.pyfunctorch.temporarily_pop_interpreter_stack`.
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
    """Whether a `torch.func` transform that is not running here differentiates with respect to a tensor.

    A Function runs its forward below the transforms that differentiate it, so a captured tensor may be of such a one.
    Relies on `torch._C._functorch.is_functorch_wrapped_tensor`, `is_gradtrackingtensor`, `maybe_get_level`,
    `get_unwrapped`, `get_interpreter_stack` and `TransformType`.
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
    """Whether a tensor has a tangent of a dual level, below the running `torch.func` transforms.

    Relies on `torch.autograd.forward_ad.unpack_dual`.
    """
    return forward_ad.unpack_dual(unwrapped(tensor)).tangent is not None


is_batched_cotangent: Callable[[torch.Tensor], bool] = private("torch._C._functorch.is_legacy_batchedtensor")

"""Whether a tensor is a batch of cotangents of `is_grads_batched`, whose `requires_grad` is never true."""


def forward_grad_enabled() -> AbstractContextManager[Any]:
    """Context in which ops propagate tangents: PyTorch disables that in a Function's `jvp`, and loses outer tangents.

    Relies on `torch.autograd.forward_ad._set_fwd_grad_enabled`.
    """
    context: AbstractContextManager[Any] = forward_ad._set_fwd_grad_enabled(True)
    return context


def below_autograd() -> AbstractContextManager[Any]:
    """Context in which ops skip their autograd kernels.

    Relies on `torch._C._AutoDispatchBelowAutograd`.
    """
    context: AbstractContextManager[Any] = _AutoDispatchBelowAutograd()
    return context


def without_view_tracking() -> AbstractContextManager[Any]:
    """Context in which ops that return views do not track them as views.

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


VMAP_HAS_VIEW_DTYPE = _are_bits_batched()

"""Whether `vmap` has a batching rule for `Tensor.view(dtype)`, as from PyTorch 2.13 on."""


@contextmanager
def without_modes() -> Iterator[None]:
    """Compute with real values, outside of enclosing modes and tracers.

    Relies on `torch.utils._python_dispatch._disable_current_modes` and `torch._C.DisableTorchFunction`.
    """
    with _DisableTorchFunction(), _disable_current_modes():
        yield


class DispatchMode(TorchDispatchMode):
    """Base of modes whose `__torch_dispatch__` sees every ATen op, as `TorchDispatchMode`.

    PyTorch imports Dynamo, which takes a second, to mark that method as one that Dynamo must not trace into. Here the
    mark is set without the import. Relies on `TorchDispatchMode._should_skip_dynamo`.

    Below a mode, PyTorch's sums and products with a number read the memory of efficient zero tensors, which have none,
    and the process crashes. Here such tensors are materialised first.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)  # type: ignore[no-untyped-call]
        if "__torch_dispatch__" in vars(cls):
            cls.__torch_dispatch__ = _given_memory(skip_in_dynamo(vars(cls)["__torch_dispatch__"]))  # type: ignore[method-assign]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def _given_memory(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a mode's method so that zero tensors are materialised where PyTorch reads their memory."""

    def dispatched(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READING_MEMORY and is_zero_tensor(args[0]):
            args = (torch.zeros_like(args[0]), *args[1:])
        return dispatch(self, func, types, args, kwargs)

    return skip_in_dynamo(dispatched)


_READING_MEMORY = frozenset([torch.ops.aten.mul.Scalar, torch.ops.aten.add.Scalar])

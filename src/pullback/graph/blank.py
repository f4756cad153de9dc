"""CPU tensors without data for common ops: PyTorch's fake tensors, without importing Dynamo.

A fake tensor of PyTorch imports Dynamo and sympy, which takes more than a second once, and costs 0.1 ms per op. Blank
tensors support the ops of `shapes` and views. Any other op, device or kind of tensor ends the run; the caller then runs
the formula on PyTorch's fake tensors and uses their result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.errors import is_from_ours
from pullback.graph.rules import Answer, UnknownError
from pullback.graph.shapes import is_known, is_loop_in_place, is_written_by, results_of

_VIEWS = """
    alias detach diagonal expand permute select slice split split_with_sizes squeeze t transpose unbind unfold unsqueeze
    view
"""
"""View ops whose kernel for all devices is PyTorch's own, in C++: their results alias the argument."""
_NEVER = {torch.Tag.nondeterministic_seeded, torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_PLAIN = (type(None), int, float, bool, str, torch.dtype, torch.memory_format)


class Left(BaseException):
    """Ends a run that blank tensors are not for; no `except Exception` of a formula stops it."""


class Blank(Tensor):
    """A CPU tensor without data.

    Attributes:
        elem: its counterpart on the meta device.
        home: the mode that it belongs to, if any.
        node: its node in the graph being recorded, if any.
        extents: its size and strides, in a graph for all sizes (`pullback.graph.symbolic`).
    """

    elem: Tensor
    home: Blanks | None = None
    node: fx.Node | None = None
    extents: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    __torch_function__ = _torch.NO_TORCH_FUNCTION

    def __new__(cls, *args: Any, **kwargs: Any) -> Blank:
        """Refuse: a formula may call `type(x)`."""
        raise TypeError("tensors without values are not made by their class")

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The one of the tensor that it replaces."""
        return _torch.CPU

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Answer where no mode does."""
        if _torch.asks_device(func):
            return _torch.CPU
        for x in _torch.tree_leaves((args, kwargs))[0]:
            if isinstance(x, Blank) and x.home is not None:  # it may be running, and another thread computes for it
                x.home.left = True
        raise RuntimeError("a tensor without values was kept beyond the run that it was made for")


def blank_of(elem: Tensor, home: Blanks | None = None) -> Blank:
    """Return a blank tensor with the metadata and the storage of a meta tensor."""
    made: Any = _torch.on_cpu(Blank, elem)
    made.elem, made.home = elem, home
    return made  # type: ignore[no-any-return]


def has_no_values(x: Any) -> bool:
    """Whether a tensor is a blank one, or one of PyTorch's fakes."""
    return isinstance(x, Blank) or _torch.is_fake(x)


def is_plain_kind(x: Tensor) -> bool:
    """Whether a tensor is a plain strided tensor of PyTorch, or a tensor without data that replaces one."""
    return type(x) is Blank or _torch.is_plain_kind(x)


class Blanks(_torch.DispatchMode):
    """Mode that dispatches the ops of blank tensors.

    Attributes:
        left: whether the run met something unsupported, even if the formula caught the exception.
        error: the exception of an op that ended the run: PyTorch's fake tensors raise it too, unless we are at fault.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.left = False
        self.error: Exception | None = None
        self._given: dict[int, Tensor] = {}  # by their memory, which they keep from being used again

    def from_tensor(self, t: Tensor) -> Blank:
        """Return a blank tensor in place of a real one; call it outside the mode.

        Raises:
            Left: if there is none for this kind of tensor, or it shares memory with an earlier one.
        """
        storage = _torch.storage_of(t) if _is_plain(t) else None
        if storage is None or storage in self._given:
            self.leave("a tensor that is not plain")
        self._given[storage] = t
        memory = torch.empty(t.untyped_storage().nbytes(), dtype=torch.uint8, device=_torch.META).untyped_storage()
        elem = torch.empty(0, dtype=t.dtype, device=_torch.META)
        return blank_of(elem.set_(memory, t.storage_offset(), t.shape, t.stride()), self)

    def __exit__(self, *raised: Any) -> None:
        """Release the given tensors: results may outlive the mode, and refer to it."""
        super().__exit__(*raised)  # type: ignore[no-untyped-call]
        self._given.clear()

    def fault(self) -> Exception | None:
        """Return the stored exception if our own code raised it, and clear it: its traceback refers to this mode."""
        error, self.error = self.error, None
        return error if error is not None and is_from_ours(error) else None

    def leave(self, why: str) -> NoReturn:
        """End the run."""
        self.left = True
        raise Left(why)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute the metadata of an op's results."""
        if _torch.asks_device(func):
            return _torch.CPU
        run = _how(func)
        if run is None:
            self.leave(f"{func} is not among the ops")
        if func is torch.ops.aten.lift_fresh.default:
            return self.from_tensor(args[0])  # which a blank tensor is not
        try:
            out = run(_elems(args), {name: _elems(a) for name, a in (kwargs or {}).items()})
        except UnknownError:
            self.leave(f"{func} is not known for such arguments")
        except Exception as error:  # the cause may be a tensor without data: the formula must not catch it
            self.error = error
            self.leave(f"{func}: {error}")
        if out is None:
            return args[0]
        return blank_of(out, self) if isinstance(out, Tensor) else type(out)(blank_of(one, self) for one in out)


@functools.cache
def _how(func: Any) -> Callable[..., Any] | None:
    """Return a function from an op's arguments to its results on the meta device, or to `None` for its first argument.

    Return `None` for an op without a rule.
    """
    if func is torch.ops.aten.lift_fresh.default:
        return _viewed(func)
    if not _torch.is_aten(func) or _torch.is_composite(func) or _NEVER.intersection(func.tags):
        return None
    if _torch.is_mutable(func):
        return _written(func) if is_loop_in_place(func) else None
    if func is torch.ops.aten._unsafe_view.default:  # a view whose argument has no other reference
        return _viewed(torch.ops.aten.view.default)
    if func.overloadpacket.__name__ in _VIEWS.split():
        return _viewed(func)
    return _computed(func) if is_known(func) else None


def _written(func: Any) -> Callable[..., None]:
    def run(args: list[Any], kwargs: dict[str, Any]) -> None:
        if not is_written_by(func, args, kwargs):
            raise UnknownError

    return run


def _viewed(func: Any) -> Callable[..., Any]:
    return lambda args, kwargs: func(*args, **kwargs)


def _computed(func: Any) -> Callable[..., Any]:
    def run(args: list[Any], kwargs: dict[str, Any]) -> Any:
        device, layout = kwargs.pop("device", None), kwargs.pop("layout", None)
        if (device or _torch.CPU).type != "cpu" or kwargs.pop("pin_memory", None) or layout not in _STRIDED:
            raise UnknownError
        answers = results_of(func, args, kwargs)
        return tuple(map(_made, answers)) if isinstance(answers, list) else _made(answers)

    return run


def _made(answer: Answer) -> Tensor:
    shape, strides, dtype = answer
    if dtype.is_complex:
        raise UnknownError
    return torch.empty_strided(shape, strides, dtype=dtype, device=_torch.META)


_STRIDED = (None, torch.strided)


def _is_plain(t: Any) -> bool:
    """Whether a blank tensor can replace a real tensor."""
    return (
        type(t) in (Tensor, torch.nn.Parameter)
        and t.layout is torch.strided
        and t.device.type == "cpu"
        and not (t.is_nested or t.is_quantized or t.is_complex() or t.is_neg())
    )


def _elems(value: Any) -> Any:
    """Return arguments with each blank tensor replaced by its meta tensor."""
    if type(value) is Blank:
        if value.elem.shape != value.shape or value.elem.stride() != value.stride():  # `x.data = y`
            raise UnknownError
        return value.elem
    if type(value) in _PLAIN or isinstance(value, torch.device | torch.layout):
        return value
    if isinstance(value, list | tuple):
        return [_elems(v) for v in value]
    raise UnknownError

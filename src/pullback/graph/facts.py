"""Facts about one call of a formula, from a run on fake tensors: its outputs, and why a graph cannot replace it."""

from __future__ import annotations

import os
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from pullback import _torch
from pullback.errors import FormulaError, report_internal_error

Flat = Callable[..., list[Any]]
"""A formula as a function of its tensors alone; it returns a list of outputs."""

_TORCH = Path(str(torch.__file__)).parent
_PYTORCH = str(_TORCH) + os.sep
_LIBRARIES = (_PYTORCH, str(Path(__file__).parent.parent) + os.sep)
_METHODS = tuple(str(_TORCH / name) for name in ("overrides.py", "_tensor.py", "_subclasses/fake_tensor.py"))
"""Files with the methods of tensors: the caller is the frame above."""

_VALUE_READERS = {
    "item": ".item()",
    "tolist": ".tolist()",
    "numpy": ".numpy()",
    "__array__": "NumPy",
    "__bool__": "a tensor as a condition (`if`, `while`, `and`, `not`)",
    "__float__": "float(tensor)",
    "__int__": "int(tensor)",
    "__index__": "a tensor as an index of a Python list or range",
    "__complex__": "complex(tensor)",
    "data_ptr": ".data_ptr()",
    "__dlpack__": "DLPack",
}
_PRINTERS = frozenset({"__repr__", "__format__"})
_IDENTITY_QUERIES = frozenset({"is_leaf", "grad_fn", "grad", "_version", "_base", "storage_offset"})
"""Properties in which tensors of one kind differ, and fake tensors from the ones that they replace."""
_QUERIES = _PRINTERS | _IDENTITY_QUERIES | _VALUE_READERS.keys() | {"register_hook", "requires_grad"}


@dataclass(slots=True)
class FormulaFacts:
    """Facts about one call of a formula.

    Attributes:
        outputs: the flattened outputs, tensors as fake ones.
        obstacle: why a graph cannot replace the formula, in words; empty if it can.
        asks_grad: whether the formula reads `requires_grad` of a tensor.
        sets_grad: whether it switches the grad mode.
    """

    outputs: list[Any] = field(default_factory=list)
    obstacle: str = ""
    asks_grad: bool = False
    sets_grad: bool = False


def facts_of(flat: Flat, tensors: Sequence[Tensor], name: str, in_place: bool = False) -> FormulaFacts:
    """Run a formula on fake tensors like `tensors`; with `in_place` it may write to tensors that it made itself.

    Raises:
        FormulaError: if it needs the value of a tensor, or writes to an input.
    """
    obstacles, queries = _OpObstacles(in_place), _ValueQueries(name)
    facts = FormulaFacts()
    plain = [_plain(t) for t in tensors]
    with _restored_generators(), _torch.fake_mode() as mode:
        fakes = [mode.from_tensor(t, static_shapes=True) for t in plain]
        fakes = [_alike(fake, t) for fake, t in zip(fakes, tensors, strict=True)]
        obstacles.inputs, queries.inputs = _memory(fakes), fakes
        versions = [_torch.version_of(fake) for fake in fakes]
        try:
            with torch.enable_grad(), _torch.without_fake_tensor_log(), obstacles, queries:
                facts.outputs = flat(*fakes)
        except _WrittenError as error:
            facts.obstacle = str(error)
        except _torch.DATA_DEPENDENT as error:
            facts.obstacle = f"an op that it calls needs a value ({error})"
        except FormulaError:
            raise
        except Exception as error:
            _refuse_mixed_devices(tensors, name, error)
            report_internal_error(error, name)
            facts.obstacle = f"it cannot be run without values ({type(error).__name__}: {_first_line(error)})"
        written = [i for i, (fake, v) in enumerate(zip(fakes, versions, strict=True)) if _torch.version_of(fake) != v]
    if queries.refusal is not None:  # the formula may have caught it
        raise queries.refusal
    if written:
        which = f" {written[0] + 1} of {len(tensors)}" if len(tensors) > 1 else ""
        raise FormulaError(
            f"{name} writes to its input (tensor{which}, of shape {tuple(tensors[written[0]].shape)}): the caller's "
            "tensor would change under autograd. Work on a copy: `x = x.clone()`."
        )
    facts.obstacle = facts.obstacle or queries.obstacle or obstacles.obstacle or _alias(facts.outputs, fakes)
    facts.asks_grad, facts.sets_grad = queries.asks_grad, queries.sets_grad
    return facts


@contextmanager
def _restored_generators() -> Iterator[None]:
    """Restore the random generators of Python and NumPy: the call itself is still to draw from them."""
    numpy = sys.modules.get("numpy")
    python, legacy = random.getstate(), None if numpy is None else numpy.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(legacy)


def _plain(t: Tensor) -> Tensor:
    """Detach a tensor: `from_tensor` reads `.grad`, which warns for a non-leaf, and `_version`."""
    if t.is_inference() and t.layout is torch.strided:
        return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)
    return t.detach()


def _alike(fake: Tensor, tensor: Tensor) -> Tensor:
    """Fake tensor that is not a leaf, so that it can be written to, and requires grad if the real one does."""
    if not tensor.requires_grad:
        return fake
    made = fake.requires_grad_() * 1
    if made.stride() == fake.stride() or not fake.numel():
        return made
    extent = 1 + sum((n - 1) * step for n, step in zip(fake.shape, fake.stride(), strict=True))
    memory = fake.detach().new_empty(extent).requires_grad_() * 1  # whether a reshape copies depends on the strides
    return memory.as_strided(fake.shape, fake.stride())


def _memory(tensors: Sequence[Tensor]) -> set[int]:
    return {_torch.storage_of(t) for t in tensors if t.layout is torch.strided}


def _alias(outputs: Sequence[Any], inputs: Sequence[Tensor]) -> str:
    memory = _memory(inputs)
    for out in outputs:
        if isinstance(out, Tensor):
            if out.layout is not torch.strided:
                return "it returns a sparse tensor"
            if not _torch.is_fake(out):
                return "it returns a tensor that was not made from its inputs"
            storage = _torch.storage_of(out)
            if storage in memory:
                return "an output is a view of an input or of another output"
            memory.add(storage)
    return ""


_NORMALISING = frozenset({"aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::miopen_batch_norm"})
"""Ops that update their arguments 3 and 4 if argument 5 is true, which their schema does not show."""


_WITHOUT_WORKSPACE = frozenset({"aten::mkldnn_rnn_layer"})
"""Ops whose backward takes a tensor that may be undefined, which Python cannot pass."""


class _WrittenError(BaseException):
    """A write to a real tensor, which ends the run: no `except Exception` of a formula catches it."""


class _OpObstacles(_torch.DispatchMode):
    """Mode that finds the first op of a call that a graph cannot repeat."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.obstacle = ""
        self.inputs: set[int] = set()
        self._in_place = in_place

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _torch.is_mutable(func) and not all(map(_torch.is_fake, _torch.mutated_arguments(func, args, kwargs or {}))):
            raise _WrittenError("it writes to a tensor that it closes over")
        if torch.Tag.nondeterministic_seeded in func.tags:
            self.obstacle = self.obstacle or f"it draws random numbers ({func})"
        elif func.name() in _NORMALISING and any(isinstance(a, Tensor) for a in args[3:5]) and True in args[5:6]:
            self.obstacle = self.obstacle or "it updates running statistics"
        elif func.name() in _WITHOUT_WORKSPACE:
            self.obstacle = self.obstacle or f"PyTorch alone can call the derivative of {func}"
        elif _torch.is_mutable(func) and not self._in_place:
            self.obstacle = self.obstacle or f"it works in place ({func})"
        elif func is torch.ops.aten.as_strided.default and _torch.storage_of(args[0]) in self.inputs:
            self.obstacle = self.obstacle or "it addresses the memory of an input by itself"
        elif func is not torch.ops.aten.lift_fresh.default:
            leaves, _ = _torch.tree_leaves((args, kwargs or {}))
            if any(isinstance(a, Tensor) and not _torch.is_fake(a) for a in leaves):
                self.obstacle = self.obstacle or "it closes over a tensor"
        return func(*args, **(kwargs or {}))


class _ValueQueries(TorchFunctionMode):
    """Mode that refuses reads of a tensor's value, with the user's line; those by PyTorch's own code are obstacles."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.obstacle = ""
        self.refusal: FormulaError | None = None
        self.inputs: Sequence[Tensor] = ()
        self.asks_grad = self.sets_grad = False
        self._name = name

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        called = getattr(func, "__name__", "")
        if called == "__get__":
            called = getattr(func.__self__, "__name__", "")
        if called == "_set_grad_enabled":  # in a formula: nothing around the call does so while it runs
            self.sets_grad = True
        elif called in _QUERIES and args and _torch.is_fake(args[0]):
            by_pytorch = _pytorch_calls(sys._getframe(1))
            if called == "register_hook":
                if any(args[0] is x for x in self.inputs):  # which stays on the caller's tensor
                    self.obstacle = self.obstacle or "it puts a hook on an input"
            elif called in _PRINTERS:
                self.obstacle = self.obstacle or "it shows a tensor"
            elif called == "requires_grad":
                self.asks_grad = True
            elif called in _IDENTITY_QUERIES:
                self.obstacle = self.obstacle or ("" if by_pytorch else f"it asks for `{called}` of a tensor")
            elif by_pytorch:
                self.obstacle = self.obstacle or f"PyTorch reads a value in it ({_VALUE_READERS[called]})"
            else:
                self.refusal = FormulaError(
                    f"{self._name} needs the value of a tensor: {_VALUE_READERS[called]}{_users_line()}. What depends "
                    "on values cannot be differentiated, compiled or batched as one formula: use torch.where, "
                    "torch.clamp or masks, or define the derivative with `@op.vjp` or a `backward`."
                )
                raise self.refusal
        return func(*args, **(kwargs or {}))


def _pytorch_calls(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename.startswith(_METHODS):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_PYTORCH)


def _users_line() -> str:
    """Line of the user's code: that of the innermost frame that is neither PyTorch's nor Pullback's."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(_LIBRARIES):
            return f", in {frame.filename}:{frame.lineno}: `{frame.line}`"
    return ""


def _refuse_mixed_devices(tensors: Sequence[Tensor], name: str, error: Exception) -> None:
    """Raise if an op mixes tensors of several devices; zero-dimensional CPU tensors may be mixed with any."""
    devices = {t.device: i for i, t in reversed(list(enumerate(tensors))) if t.dim()}
    if len(devices) > 1 and "device" in str(error):
        where = ", ".join(f"input {i} on {device}" for device, i in sorted(devices.items(), key=lambda item: item[1]))
        raise FormulaError(f"{name} was given tensors on several devices: {where}. Move them to one.") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:200]

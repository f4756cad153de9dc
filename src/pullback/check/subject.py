"""An audited function: its name, its source location, and how to call it.

Rules compare, vary and print tensors on the CPU. A subject that needs an accelerator is called with copies of them
there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from pullback._torch import tree_leaves, tree_unflatten
from pullback.check.find.kernels import hosting
from pullback.check.find.source import FunctionSource
from pullback.errors import OptionError
from pullback.report.model import Location


class OnDevice:
    """A call that moves its tensors to a device and its results back, recorded by autograd."""

    def __init__(self, call: Callable[..., Any], device: torch.device) -> None:
        """Wrap a call.

        Args:
            call: takes tensors on the device.
            device: the device.
        """
        self._call = call
        self._device = device

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Make the call."""
        args, kwargs = _moved((args, kwargs), self._device)
        return to_cpu(self._call(*args, **kwargs))


def to_cpu(tree: Any) -> Any:
    """Return a tree with its tensors on the CPU."""
    return _moved(tree, torch.device("cpu"))


def _moved(tree: Any, device: torch.device) -> Any:
    leaves, spec = tree_leaves(tree)
    return tree_unflatten([leaf.to(device) if isinstance(leaf, Tensor) else leaf for leaf in leaves], spec)


def device_of(examples: Iterable[Any]) -> torch.device | None:
    """Return the device that the tensors of some examples are on; `None` if that is the CPU.

    Raises:
        OptionError: if they are on several, or on one where tensors have no values.
    """
    found = {t.device for t in tree_leaves(list(examples))[0] if isinstance(t, Tensor)} - {torch.device("cpu")}
    if len(found) > 1:
        devices = ", ".join(sorted(map(str, found)))
        raise OptionError(f"the tensors of the example are on {devices}: move them to one device")
    device = next(iter(found), None)
    if device is not None and device.type == "meta":
        raise OptionError("the example is on meta, where tensors have no values: give it on the CPU or on a GPU")
    return device


def accelerator() -> torch.device | None:
    """Return the accelerator of this machine, if there is one."""
    return torch.accelerator.current_accelerator(check_available=True)


def on_device_lines(device: torch.device) -> list[str]:
    """Lines of a reproduction after which `fn` takes and returns tensors on the CPU."""
    return [
        "on_device, leaves = fn, torch.utils._pytree.tree_map",
        "def fn(*args, **kwargs):",
        f"    there = leaves(lambda t: t.to({str(device)!r}) if isinstance(t, torch.Tensor) else t, (args, kwargs))",
        "    out = on_device(*there[0], **there[1])",
        "    return leaves(lambda t: t.cpu() if isinstance(t, torch.Tensor) else t, out)",
        "fn.__self__ = getattr(on_device, '__self__', None)",
    ]


Kind = Literal["function", "op", "callable"]
"""An `autograd.Function` class, a `torch.library` custom op, or any other callable.

An op of `pullback.function`, or a class derived from `pullback.AutogradFunction`, is a callable: it sees itself to
the contract that rules for Functions check.
"""

Inputs = Sequence[tuple[tuple[Any, ...], Mapping[str, Any]]]
"""Examples of a call: `(args, kwargs)` pairs."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of an audit.

    Attributes:
        select: rule id prefixes to run; empty for all.
        ignore: rule id prefixes to leave out.
        seed: seed of all random choices.
        budget: seconds for each subject; contract rules run whatever it is.
        deep: also run slow checks: Inductor, and inputs that differ in several ways at once.
        jobs: number of concurrent subjects; by default one per usable core.
        reference: a formula in plain PyTorch that the value and the gradients are compared with, if there is one.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    seed: int = 0
    budget: float = 10.0
    deep: bool = False
    jobs: int | None = None
    reference: Callable[..., Any] | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """One audited function.

    Attributes:
        name: the name as the user would write it.
        kind: see `Kind`.
        target: the object; `None` if only its source is available.
        location: location of its definition.
        source: its parsed source; `None` if there is none.
        load: Python lines that bind `fn` to the callable, for reproductions.
        why_unaudited: why there is no target, in one sentence; empty otherwise.
        absent: a missing import of its module, which a stand-in replaces.
        device: device of its tensors, if not the CPU: rules pass and receive tensors on the CPU.
        is_interpreted: whether an interpreter runs the Triton kernels that it launches, on the CPU.
    """

    name: str
    kind: Kind
    target: Any
    location: Location
    source: FunctionSource | None = None
    load: str = ""
    why_unaudited: str = ""
    absent: tuple[str, ...] = ()
    device: torch.device | None = None
    is_interpreted: bool = False

    @property
    def is_made(self) -> bool:
        """Whether it is an op of `pullback.function`."""
        return is_made(self.target)

    @property
    def relaxation(self) -> Callable[..., Any] | None:
        """The function whose derivatives it declares to have; `None` if it declares none."""
        relaxation: Callable[..., Any] | None = self.target.relaxation if self.is_made else None
        return relaxation

    @property
    def called(self) -> Callable[..., Any]:
        """The callable that its users call, for tensors on the CPU."""
        call: Callable[..., Any] = self.target.apply if self.kind == "function" else self.target
        if self.is_interpreted and self.kind != "function":  # the methods of a Function enter by themselves
            call = hosting(call)
        return call if self.device is None else OnDevice(call, self.device)

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the subject as its users do."""
        return self.called(*args, **kwargs)


def is_made(obj: Any) -> bool:
    """Whether an object is an op of `pullback.function`."""
    return bool(inspect.getattr_static(type(obj), "_is_pullback_op", False))


def is_carried(obj: Any) -> bool:
    """Whether an object is a class derived from `pullback.AutogradFunction`, with a forward.

    Safe for any object of a module, such as a class that raises for every attribute since a package is missing.
    """
    is_ours = isinstance(obj, type) and inspect.getattr_static(obj, "_is_pullback_function", False)
    return bool(is_ours) and hasattr(obj, "forward")


Given = Callable[[Subject], Inputs | None]
"""Example inputs for a subject, `None` where there are none. Called in the subject's process."""

"""Functions of tensors on an accelerator, as functions of tensors on the CPU: rules compare, vary and print those."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from pullback._torch import tree_leaves, tree_unflatten
from pullback.errors import OptionError


class OnDevice:
    """A call whose tensors are moved to a device first, and whose results are moved back, as autograd records."""

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
        places = ", ".join(sorted(map(str, found)))
        raise OptionError(f"the tensors of the example are on {places}: move them to one device")
    device = next(iter(found), None)
    if device is not None and device.type == "meta":
        raise OptionError("the example is on meta, where tensors have no values: give it on the CPU or on a GPU")
    return device


def accelerator() -> torch.device | None:
    """Return the accelerator of this machine, if there is one."""
    return torch.accelerator.current_accelerator(check_available=True)


def lines(device: torch.device) -> list[str]:
    """Return the lines of a reproduction after which `fn` takes and returns tensors on the CPU."""
    return [
        "on_device, leaves = fn, torch.utils._pytree.tree_map",
        "def fn(*args, **kwargs):",
        f"    there = leaves(lambda t: t.to({str(device)!r}) if isinstance(t, torch.Tensor) else t, (args, kwargs))",
        "    out = on_device(*there[0], **there[1])",
        "    return leaves(lambda t: t.cpu() if isinstance(t, torch.Tensor) else t, out)",
        "fn.__self__ = getattr(on_device, '__self__', None)",
    ]

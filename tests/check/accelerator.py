"""A fake accelerator: its tensors keep their values on the CPU, where its ops compute them.

As a program, audits functions that require the device, and prints the findings as JSON.
"""

import json
import sys

import torch
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import pullback

NAME = "fake"


class There(torch.Tensor):
    """A tensor on the device."""

    @staticmethod
    def __new__(cls, here):
        """Make a tensor of the device from a tensor on the CPU."""
        made = torch._C._acc.create_empty_tensor(here.shape, here.dtype)
        made.__class__ = cls
        return made

    def __init__(self, here):
        self.here = here


def compute(op, *args, **kwargs):
    """Run any op of the device on the CPU."""
    here, options = tree_map(lambda x: x.here if isinstance(x, There) else x, (args, kwargs))
    if op is torch.ops.aten._copy_from.default:
        (args[1].here if isinstance(args[1], There) else args[1]).copy_(here[0])
        return args[1]
    leaves = options.get("device") is not None and torch.device(options["device"]).type == "cpu"
    out = op(*here, **(options | ({"device": "cpu"} if "device" in options else {})))
    changed = next((there for x, there in zip(here, args, strict=True) if x is out), None)
    if leaves or changed is not None:
        return out if leaves else changed
    return tree_map(lambda x: There(x) if isinstance(x, torch.Tensor) else x, out)


class Cube(torch.autograd.Function):
    """w x³."""

    @staticmethod
    def forward(ctx, x, w):
        if x.device.type != NAME:
            raise RuntimeError("expected a CUDA tensor")
        ctx.save_for_backward(x, w)
        return x**3 * w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return 3 * x**2 * g * w, x**3 * g


class Wrong(Cube):
    """The same, with another gradient."""

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return 2 * x**2 * g * w, x**3 * g


class Narrow(Cube):
    """The same, with a gradient in float32."""

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return (3 * x**2 * g * w).float(), x**3 * g


class Elsewhere(Cube):
    """The same, with a gradient on the CPU."""

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return (3 * x**2 * g * w).cpu(), x**3 * g


class Doubled(Cube):
    """The same, with twice the gradient of w."""

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return 3 * x**2 * g * w, 2 * x**3 * g


class Layer(torch.nn.Module):
    """A module whose weight is the w of a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.w = torch.nn.Parameter(torch.linspace(1, 2, 4))

    def forward(self, x):
        """Apply the function."""
        return self.function.apply(x, self.w.to(x.device))


def audited(function, *inputs):
    """Return the errors and warnings of an audit, and PB006, with the reproduction of the first finding."""
    report = pullback.check(function, *inputs, select=("PB0", "PB1", "PB2", "PB401", "PB5"), budget=60)
    findings = [(f.rule, f.severity, f.message) for f in report.findings if f.severity != "info" or f.rule == "PB006"]
    return findings, report.findings[0].reproduce if report.findings else ""


if __name__ == "__main__":
    _setup_privateuseone_for_python_backend(NAME)
    library = torch.library.Library("_", "IMPL")
    library.fallback(compute, "PrivateUse1")
    example = [torch.linspace(0.5, 2, 4, dtype=torch.float64).to(NAME) for _ in range(2)]
    given = {cls.__name__: audited(cls, *example) for cls in (Cube, Wrong, Narrow, Elsewhere)}
    given |= {f"Layer({cls.__name__})": audited(Layer(cls), example[0]) for cls in (Cube, Doubled)}
    json.dump({"given": given, "guessed": {cls.__name__: audited(cls) for cls in (Cube, Wrong)}}, sys.stdout)

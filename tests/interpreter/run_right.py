"""Runs the right Functions at all their sizes in the interpreted world; prints the largest error of each, as JSON."""

from __future__ import annotations

import json

from pullback import interpreter

interpreter.enter()

import torch  # noqa: E402

from tests.check.triton_functions.mutants import function_of, load_right, right_names  # noqa: E402


def error_of(found: torch.Tensor | None, expected: torch.Tensor | None) -> float:
    if found is None or expected is None or not found.numel():
        return float((found is None) != (expected is None))
    return float((found - expected).abs().max() / (1 + expected.abs().max()))


def errors(module, size: dict, strided: bool) -> tuple[float, int]:
    """Return the largest error of outputs and gradients against the reference, and the number of irregularities."""
    args = [
        x.detach().clone().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for x in module.example(**size)
    ]
    leaves = [x for x in args if isinstance(x, torch.Tensor) and x.requires_grad]
    found, worst = [], 0.0
    for call in (function_of(module).apply, module.reference):
        out = call(*args)
        outs = [o for o in (out if isinstance(out, tuple) else (out,)) if o.requires_grad]
        cotangents = [torch.cos(torch.arange(o.numel(), dtype=torch.float64)).view(o.shape) for o in outs]
        if strided:
            cotangents = [torch.stack([c, c], -1)[..., 0] for c in cotangents]
        found.append([*outs, *torch.autograd.grad(outs, leaves, cotangents, allow_unused=True)])
    for ours, theirs in zip(*found, strict=True):
        worst = max(worst, error_of(ours, theirs))
    return worst, len(interpreter.world().irregularities)


report = {}
for name in right_names():
    module = load_right(name)
    with interpreter.inside(interpreter.World()):
        report[name] = [errors(module, size, strided) for size in module.SIZES for strided in (False, True)]
print(json.dumps(report))

"""Shows kernels of the right Functions to Triton's compiler, in float32, at two sizes of each; prints refusals."""

from __future__ import annotations

import json

from pullback import interpreter

interpreter.enter()

import torch  # noqa: E402

from tests.check.triton_functions.mutants import function_of, load_right, right_names  # noqa: E402


def launch(module, size: dict) -> None:
    """Run forward and backward of a module's Function on float32 tensors."""
    args = [
        x.detach().float().requires_grad_() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        for x in module.example(**size)
    ]
    leaves = [x for x in args if isinstance(x, torch.Tensor) and x.requires_grad]
    out = function_of(module).apply(*args)
    outs = [o for o in (out if isinstance(out, tuple) else (out,)) if o.requires_grad]
    torch.autograd.grad(outs, leaves, [torch.ones_like(o) for o in outs], allow_unused=True)


report = {}
for name in right_names():
    module = load_right(name)
    with interpreter.inside(interpreter.World(lifts=False, specialises=True)) as world:
        for size in (module.SIZES[0], module.SIZES[-1]):
            launch(module, size)
    refused = [(one.kernel, one.line, one.message) for one in interpreter.refusals(world)]
    report[name] = {"launches": len(world.specialisations), "refused": refused}
print(json.dumps(report))

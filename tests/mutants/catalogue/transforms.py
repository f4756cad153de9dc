"""Right in eager first and second order; wrong or broken under a transform, a context or a compiler."""

from ..model import Mutant

MUTANTS = (
    Mutant(
        id="phase/captured-parameter",
        base="phase",
        old="OFFSET = torch.tensor(0.3, dtype=torch.float64)",
        new="OFFSET = torch.nn.Parameter(torch.tensor(0.3, dtype=torch.float64))",
        mode=44,
        expects=("PB118",),
        note="A parameter that forward reads from the module: it never gets a gradient.",
    ),
    Mutant(
        id="x-sin/saved-tensors-twice",
        base="x_sin",
        old="slope = x.sin() + x * x.cos()",
        new="slope = x.sin() + x * ctx.saved_tensors[0].cos()",
        mode=37,
        expects=("PB411",),
        note="Checkpoint without reentrance forbids the second access.",
    ),
    Mutant(
        id="masked-scale/cached-by-address",
        base="masked_scale",
        old="ctx.save_for_backward(x, s, mask)",
        new="ctx.save_for_backward(x, s)\n        MASKS[x.data_ptr()] = mask",
        also=(
            (
                "x, s, mask = ctx.saved_tensors",
                "x, s = ctx.saved_tensors\n        mask = MASKS[x.data_ptr()]",
            ),
            ("class MaskedScale", "MASKS = {}\n\n\nclass MaskedScale"),
        ),
        mode=36,
        expects=("PB411", "PB412"),
        note="The address of a saved tensor as a key: offloading and checkpointing move it.",
    ),
    Mutant(
        id="linear/autocast",
        base="linear",
        old="gx = (g.to(w.dtype) @ w).to(x.dtype)",
        new="gx = g @ w",
        mode=50,
        expects=("PB413",),
        note="Forward under autocast gives bfloat16, backward multiplies it by a float32 weight.",
    ),
    Mutant(
        id="dot/vmap-out-dims",
        base="dot",
        old="return Dot.apply(x, y), 0",
        new="return Dot.apply(x, y), -1",
        mode=59,
        expects=("PB406",),
        note="The batch dimension said to be the last; of a square result the shape is the same.",
    ),
    Mutant(
        id="dot/vmap-ignores-second-in-dim",
        base="dot",
        old="batch_first(y, y_dim, rank)",
        new="batch_first(y, x_dim, rank)",
        mode=59,
        expects=("PB406",),
        note="Takes the batch dimension of x for that of y.",
    ),
    Mutant(
        id="dot/vmap-without-rank",
        base="dot",
        old="return x.reshape(x.shape[0], *(1,) * (rank + 1 - x.dim()), *x.shape[1:])",
        new="return x",
        mode=59,
        expects=("PB406",),
        note="Where the two inputs have different ranks, the batch meets another dimension.",
    ),
    Mutant(
        id="tanh/item-in-forward",
        base="tanh",
        old="        return x.tanh()\n",
        new="        if x.numel() and x.abs().max().item() > 20:\n"
        "            return x.sign()\n"
        "        return x.tanh()\n",
        mode=59,
        expects=("PB406", "PB408"),
        note="generate_vmap_rule promises a forward that vmap can run; .item() breaks it.",
    ),
    Mutant(
        id="tanh/boolean-mask-in-forward",
        base="tanh",
        old="        return x.tanh()\n",
        new="        out = x.sign()\n"
        "        small = x.abs() < 30\n"
        "        out[small] = x[small].tanh()\n"
        "        return out\n",
        mode=59,
        expects=("PB406",),
        note="A boolean mask: its size depends on the data.",
    ),
    Mutant(
        id="cube/branches-on-cotangent",
        base="cube",
        old="return 3 * x * x * g",
        new="return 3 * x * x * g if g.any() else torch.zeros_like(x)",
        mode=59,
        expects=("PB406", "PB408"),
        note="Data-dependent control flow in backward: jacrev and is_grads_batched fail.",
    ),
    Mutant(
        id="tanh/vmap-out-dim-unmoved",
        base="tanh",
        old="    generate_vmap_rule = True\n",
        new="    @staticmethod\n"
        "    def vmap(info, in_dims, x):\n"
        "        return Tanh.apply(x.movedim(in_dims[0], 0)), in_dims[0]\n",
        mode=59,
        expects=("PB406",),
        note="Moves the batch dimension to the front and says it is where it was.",
    ),
    Mutant(
        id="softmax/other-formula-when-compiling",
        base="softmax",
        old="mean = (g * out).sum(ctx.dim, keepdim=True)",
        new="mean = 0 if torch.compiler.is_compiling() else (g * out).sum(ctx.dim, keepdim=True)",
        mode=64,
        expects=("PB409",),
        note="A shortcut for the compiler, and it is wrong.",
    ),
    Mutant(
        id="affine/forward-detaches",
        base="affine",
        old="return scale * x + shift",
        new="return scale.detach() * x.detach() + shift.detach()",
        mode=67,
        expects=("PB410", "PB415"),
        note="Harmless in eager; where forward is traced and backward dropped, the gradient is gone.",
    ),
    Mutant(
        id="tanh/forward-detaches",
        base="tanh",
        old="        return x.tanh()\n",
        new="        return x.detach().tanh()\n",
        mode=62,
        expects=("PB410", "PB415"),
        note="compile(func.grad(f)) and export inline forward: gradient 0.",
    ),
    Mutant(
        id="x-sin/script-under-checkpoint",
        base="x_sin",
        old="class XSin",
        new="@torch.jit.script\ndef x_sin(x):\n    return x * x.sin()\n\n\nclass XSin",
        also=(
            (
                "        ctx.save_for_backward(x)\n        return x * x.sin()\n",
                "        with torch.enable_grad():\n"
                "            ctx.x = x.detach().requires_grad_()\n"
                "            ctx.out = x_sin(ctx.x)\n"
                "        return ctx.out.detach()\n",
            ),
            (
                "        (x,) = ctx.saved_tensors\n        slope = x.sin() + x * x.cos()\n        return g * slope\n",
                "        return torch.autograd.grad(ctx.out, ctx.x, g, retain_graph=True)[0]\n",
            ),
        ),
        mode=38,
        expects=("PB411",),
        note="A checkpoint that stops early cannot leave TorchScript. Second derivatives are lost too.",
    ),
)

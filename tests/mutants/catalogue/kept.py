"""The gradient of one call is right; what it keeps lives too long, shares memory, or changes between calls."""

from ..model import Mutant

MUTANTS = (
    Mutant(
        id="softmax/output-as-attribute",
        base="softmax",
        old="ctx.save_for_backward(output)",
        new="ctx.out = output",
        also=(("(out,) = ctx.saved_tensors", "out = ctx.out"),),
        mode=33,
        expects=("PB204",),
        note="The output holds its node and the node its output, until the collector runs.",
    ),
    Mutant(
        id="x-sin/list-of-all-outputs",
        base="x_sin",
        old="        return x * x.sin()\n",
        new="        out = x * x.sin()\n        XSin.seen.append(out)\n        return out\n",
        also=(('    """out = x sin(x)."""\n', '    """out = x sin(x)."""\n\n    seen = []\n'),),
        mode=34,
        expects=("PB204",),
        note="Every output of every call stays.",
    ),
    Mutant(
        id="rms-norm/saves-what-it-computes-again",
        base="rms_norm",
        old="ctx.save_for_backward(x, w)",
        new="ctx.save_for_backward(x, w, x * inverse)",
        also=(("x, w = ctx.saved_tensors", "x, w, _ = ctx.saved_tensors"),),
        mode=45,
        expects=("PB205",),
        note="A third tensor of the size of x is kept, and not read.",
    ),
    Mutant(
        id="gain/slope-scaled-in-place",
        base="gain",
        old="        ctx.save_for_backward(x)\n        root = torch.sqrt(1 + x)\n",
        new="        root = torch.sqrt(1 + x)\n        ctx.slope = -0.5 / root / (1 + root) / (1 + root)\n",
        also=(
            (
                "        (x,) = ctx.saved_tensors\n"
                "        root = torch.sqrt(1 + x)\n"
                "        slope = -0.5 / root / (1 + root) / (1 + root)\n"
                "        return g * slope\n",
                "        return ctx.slope.mul_(g)\n",
            ),
        ),
        mode=19,
        expects=("PB206",),
        note="A second backward finds the first gradient in the place of the slope.",
    ),
    Mutant(
        id="x-sin/adds-to-saved-leaf",
        base="x_sin",
        old="ctx.save_for_backward(x)",
        new="ctx.leaf = x.detach().requires_grad_()",
        also=(
            (
                "        (x,) = ctx.saved_tensors\n        slope = x.sin() + x * x.cos()\n        return g * slope\n",
                "        with torch.enable_grad():\n"
                "            (ctx.leaf * ctx.leaf.sin()).backward(g)\n"
                "        return ctx.leaf.grad\n",
            ),
        ),
        mode=20,
        expects=("PB206",),
        note="A nested backward adds to what the last one left in .grad.",
    ),
    Mutant(
        id="columns/shares-memory",
        base="columns",
        old="x.mT.clone(memory_format=torch.contiguous_format)",
        new="x.mT.detach()",
        mode=23,
        expects=("PB207",),
        note="`out += 1` changes x, and autograd does not know.",
    ),
    Mutant(
        id="x-sin/frees-its-input",
        base="x_sin",
        old="        return x * x.sin()\n",
        new="        out = x * x.sin()\n        x.untyped_storage().resize_(0)\n        return out\n",
        also=(("ctx.save_for_backward(x)", "ctx.save_for_backward(x.clone())"),),
        mode=43,
        expects=("PB202",),
        note="A skip connection that reads x afterwards ends the process.",
    ),
    Mutant(
        id="pair/mask-looks-differentiable",
        base="pair",
        old="return x * x + y * y, x * y",
        new="return x * x + y * y, x * y, (x > y).to(x.dtype)",
        also=(("def backward(ctx, g_total, g_product):", "def backward(ctx, g_total, g_product, _):"),),
        mode=24,
        expects=("PB208",),
        note="A mask in floating point requires grad and gives zeros.",
    ),
    Mutant(
        id="x-sin/saves-data",
        base="x_sin",
        old="ctx.save_for_backward(x)",
        new="ctx.save_for_backward(x.data)",
        mode=35,
        expects=("PB209",),
        note="The version of `x.data` is nobody's: a change of x is not noticed.",
    ),
    Mutant(
        id="gather-rows/index-data",
        base="gather_rows",
        old="ctx.save_for_backward(index)",
        new="ctx.save_for_backward(index.data)",
        mode=35,
        expects=("PB209",),
        note="An index buffer that is used again sends the gradient to the rows of the next batch.",
    ),
    Mutant(
        id="columns/backward-on-the-input",
        base="columns",
        old="        return x.mT",
        new="        ctx.save_for_backward(x)\n        return x.mT",
        also=(
            (
                "        return g.mT\n",
                "        (x,) = ctx.saved_tensors\n"
                "        if x.is_leaf and not torch.is_grad_enabled():\n"
                "            with torch.enable_grad():\n"
                "                x.mT.backward(g)\n"
                "        return g.mT\n",
            ),
        ),
        mode=42,
        expects=("PB210",),
        note="A nested backward reaches x itself: its .grad is written, and then doubled.",
    ),
    Mutant(
        id="x-sin/nested-backward-keeps-its-graph",
        base="x_sin",
        old="        (x,) = ctx.saved_tensors\n        slope = x.sin() + x * x.cos()\n        return g * slope\n",
        new="        (x,) = ctx.saved_tensors\n"
        "        with torch.enable_grad():\n"
        "            out = x * x.sin()\n"
        "        again = torch.is_grad_enabled()\n"
        "        return torch.autograd.grad(out, x, g, retain_graph=True, create_graph=again)[0]\n",
        mode=41,
        expects=("PB815",),
        note="Each backward makes a graph and leaves its memory to whoever still holds it.",
    ),
    Mutant(
        id="x-sin/differentiates-its-own-output",
        base="x_sin",
        old="        ctx.save_for_backward(x)\n        return x * x.sin()\n",
        new="        out = x * x.sin()\n        ctx.save_for_backward(x, out)\n        return out\n",
        also=(
            (
                "        (x,) = ctx.saved_tensors\n        slope = x.sin() + x * x.cos()\n        return g * slope\n",
                "        x, out = ctx.saved_tensors\n"
                "        with torch.enable_grad():\n"
                "            return torch.autograd.grad(out, x, g)[0]\n",
            ),
        ),
        mode=40,
        expects=("PB002",),
        note="The node of `out` is this very one: the backward calls itself until the stack ends.",
    ),
)

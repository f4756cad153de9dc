"""Every number is right, but the function saves or computes more than it needs."""

from ..model import Mutant

MUTANTS = (
    Mutant(
        id="linear/every-gradient",
        base="linear",
        old="if ctx.needs_input_grad[1]:",
        new="if True:",
        mode=45,
        expects=("PB704",),
        note="With w frozen, its gradient, a matrix product, is computed and thrown away.",
    ),
    Mutant(
        id="linear/gradient-of-frozen-data",
        base="linear",
        old="if ctx.needs_input_grad[0]:",
        new="if any(ctx.needs_input_grad):",
        mode=45,
        expects=("PB704",),
        note="The first layer's input is data: its gradient is thrown away.",
    ),
    Mutant(
        id="relu6/mask-in-float64",
        base="relu6",
        old="ctx.save_for_backward(x)",
        new="ctx.save_for_backward(((x > 0) & (x < 6)).to(x.dtype))",
        also=(
            ("(x,) = ctx.saved_tensors", "(mask,) = ctx.saved_tensors"),
            ("        inside = (x > 0) & (x < 6)\n        return torch.where(inside, g, 0)", "        return g * mask"),
        ),
        mode=0,
        expects=("PB702",),
        note="Eight bytes an element for what fits in one.",
    ),
    Mutant(
        id="softplus/kept-and-computed-again",
        base="softplus",
        old="ctx.save_for_backward(x)",
        new="ctx.save_for_backward(x, torch.sigmoid(x))",
        also=(("(x,) = ctx.saved_tensors", "x, _ = ctx.saved_tensors"),),
        mode=0,
        expects=("PB705",),
        note="The slope is kept, and computed from x as well.",
    ),
    Mutant(
        id="masked-scale/copies-its-input",
        base="masked_scale",
        old="ctx.save_for_backward(x, s, mask)",
        new="ctx.save_for_backward(x.clone(), s, mask)",
        mode=0,
        expects=("PB701",),
        note="x is alive anyway; the copy is memory for nothing.",
    ),
)

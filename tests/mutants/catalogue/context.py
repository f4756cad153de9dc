"""The derivative is right; tensors are changed in place, or kept on the context instead of saved."""

from ..model import Mutant

MUTANTS = (
    Mutant(
        id="x-sin/input-on-ctx",
        base="x_sin",
        old="ctx.save_for_backward(x)\n",
        new="ctx.x = x\n",
        also=(("(x,) = ctx.saved_tensors", "x = ctx.x"),),
        mode=35,
        expects=("PB201",),
        note="An in-place change of x after the forward goes unnoticed.",
    ),
    Mutant(
        id="tanh/output-on-ctx",
        base="tanh",
        old="ctx.save_for_backward(output)",
        new="ctx.kept = [output]",
        also=(("(out,) = ctx.saved_tensors", "(out,) = ctx.kept"),),
        mode=33,
        expects=("PB201",),
        note="The output holds its node, which holds the output.",
    ),
    Mutant(
        id="energy/scaled-in-place",
        base="energy",
        old="return (x * x).sum(dim, keepdim=keepdim)",
        new="return x.pow_(2).sum(dim, keepdim=keepdim)",
        also=(("ctx.save_for_backward(x)", "ctx.save_for_backward(x.clone())"),),
        mode=21,
        expects=("PB202",),
        note="The caller's x holds squares afterwards.",
    ),
    Mutant(
        id="x-sin/cotangent-in-place",
        base="x_sin",
        old="return g * slope",
        new="return g.mul_(slope)",
        mode=17,
        expects=("PB203",),
        note="A sibling branch that shares the cotangent gets the product.",
    ),
    Mutant(
        id="x-sin/saved-input-in-place",
        base="x_sin",
        old="return g * slope",
        new="return torch.mul(g, slope, out=x.detach())",
        mode=18,
        expects=("PB203",),
        note="The gradient is written into the input's memory.",
    ),
)

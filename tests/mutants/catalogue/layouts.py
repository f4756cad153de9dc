"""Right for the shapes, strides and calls of an ordinary test, wrong for others."""

from ..model import Mutant

MUTANTS = (
    Mutant(
        id="columns/reads-input-as-contiguous",
        base="columns",
        old="x.mT.clone",
        new="x.as_strided(x.shape, torch.empty(x.shape).stride(), x.storage_offset()).mT.clone",
        mode=16,
        expects=("PB501",),
        note="A transposed input is read in the order of its memory: the value is of other elements.",
    ),
    Mutant(
        id="energy/views-input",
        base="energy",
        old="return (x * x).sum(dim, keepdim=keepdim)",
        new="x = x.view(-1).view(x.shape)\n        return (x * x).sum(dim, keepdim=keepdim)",
        mode=16,
        expects=("PB501",),
        note="`view` fails on an input whose strides do not allow it.",
    ),
    Mutant(
        id="columns/reads-cotangent-as-contiguous",
        base="columns",
        old="return g.mT",
        new="return g.as_strided(g.shape, torch.empty(g.shape).stride(), g.storage_offset()).mT",
        mode=14,
        expects=("PB502",),
        note="A transposed cotangent is read in the order of its memory, an expanded one beyond its end.",
    ),
    Mutant(
        id="cross-entropy/empty-batch",
        base="cross_entropy",
        old="return x.logsumexp(1)",
        new="x = x - x.max()\n        return x.logsumexp(1)",
        mode=52,
        expects=("PB503",),
        note="The largest of no elements: the forward raises on an empty batch, as the last of an epoch may be.",
    ),
    Mutant(
        id="dot/squeezes-the-batch",
        base="dot",
        old="return (x * y).sum(-1)",
        new="return (x * y).sum(-1, keepdim=True).squeeze()",
        mode=10,
        expects=("PB504",),
        note="A batch of one comes out without its dimension.",
    ),
    Mutant(
        id="softplus/one-dimension-at-least",
        base="softplus",
        old="return x.clamp(min=0)",
        new="x = torch.atleast_1d(x)\n        return x.clamp(min=0)",
        mode=10,
        expects=("PB505",),
        note="A number comes out as a vector of one element.",
    ),
    Mutant(
        id="tanh/forgets-the-tail",
        base="tanh",
        old="return x.tanh()",
        new="full = x.numel() // 64 * 64\n"
        "        tail = torch.arange(x.numel(), device=x.device).view(x.shape) >= full\n"
        "        return torch.where(tail & (full > 0), 0.5, x.tanh())",
        also=(
            (
                "        return g * (1 - out * out)\n",
                "        full = out.numel() // 64 * 64\n"
                "        tail = torch.arange(out.numel(), device=out.device).view(out.shape) >= full\n"
                "        return torch.where(tail & (full > 0), 0, g * (1 - out * out))\n",
            ),
        ),
        mode=10,
        expects=("PB506",),
        note="What is left over after the last block of 64 is a constant, in forward and backward alike.",
    ),
    Mutant(
        id="dot/sums-full-blocks",
        base="dot",
        old="        gx = fit(g * y, x)",
        new="        n = y.shape[-1]\n"
        "        inside = torch.arange(n, device=y.device) < max(n // 16 * 16, 16)\n"
        "        gx = fit(torch.where(inside, g * y, 0), x)",
        mode=10,
        expects=("PB101", "PB506"),
        note="Of more than one block of 16, those after the last full one get no gradient.",
    ),
    Mutant(
        id="softmax/first-size-kept",
        base="softmax",
        old="return x.softmax(dim)",
        new="if Softmax.scale is None:\n"
        "            Softmax.scale = torch.ones(x.shape, dtype=x.dtype, device=x.device)\n"
        "        return (x * Softmax.scale).softmax(dim)",
        also=(('sum(dim)."""\n', 'sum(dim)."""\n\n    scale = None\n'),),
        mode=57,
        expects=("PB507",),
        note="A buffer of the first shape and dtype serves all that follow.",
    ),
    Mutant(
        id="energy/table-by-shape",
        base="energy",
        old="return (x * x).sum(dim, keepdim=keepdim)",
        new="key = (x.shape, dim)\n"
        "        if key not in Energy.keeps:\n"
        "            Energy.keeps[key] = keepdim\n"
        "        ctx.keepdim = Energy.keeps[key]\n"
        "        return (x * x).sum(dim, keepdim=Energy.keeps[key])",
        also=(('sum(dim, keepdim)."""\n', 'sum(dim, keepdim)."""\n\n    keeps = {}\n'),),
        mode=57,
        expects=("PB507",),
        note="A cache that leaves `keepdim` out of its key.",
    ),
)

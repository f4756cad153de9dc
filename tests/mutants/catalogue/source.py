"""Mistakes that only the source shows; the numbers are right."""

from ..model import Mutant

MUTANTS = (
    Mutant(
        id="x-sin/forward-not-static",
        base="x_sin",
        old="    @staticmethod\n    def forward(ctx, x):",
        new="    def forward(ctx, x):",
        mode=70,
        expects=("PB801",),
        note="It works as long as nobody calls it on an instance.",
    ),
    Mutant(
        id="x-sin/classmethod-forward",
        base="x_sin",
        old="    @staticmethod\n    def forward(ctx, x):",
        new="    @classmethod\n    def forward(cls, ctx, x):",
        mode=66,
        expects=("PB801",),
        note="torch.compile does not trace it.",
    ),
    Mutant(
        id="x-sin/saved-variables",
        base="x_sin",
        old="ctx.saved_tensors",
        new="ctx.saved_variables",
        mode=70,
        expects=("PB802",),
        note="Deprecated: where warnings are errors, the first backward raises.",
    ),
    Mutant(
        id="x-sin/variable-in-the-backward",
        base="x_sin",
        old="slope = x.sin()",
        new="slope = torch.autograd.Variable(x).sin()",
        mode=70,
        expects=("PB802",),
        note="From the time when tensors had to be wrapped.",
    ),
    Mutant(
        id="x-sin/called-as-an-instance",
        base="x_sin",
        old="def inputs():",
        new="def x_sin(x):\n    return XSin()(x)\n\n\ndef inputs():",
        mode=70,
        expects=("PB803",),
        note="The call raises.",
    ),
    Mutant(
        id="x-sin/writes-through-data",
        base="x_sin",
        old="return g * slope",
        new="g.data.mul_(slope)\n        return g.clone()",
        mode=17,
        expects=("PB203", "PB807"),
        note="The cotangent changes, and its version does not.",
    ),
)

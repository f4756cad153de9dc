"""Source of a hundred distinct Functions: ten variants of ten templates.

Nine templates are correct; the tenth has a gradient that is one per cent too large. They are typical code: one input or
several, one output or two, old and new style, reductions, matrix products, kinks, a straight-through estimator.
"""

ONE_INPUT = """
class {name}(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return {value}

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ({derivative})
"""

ONE_INPUT_SPLIT = """
class {name}(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return {value}

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ({derivative})
"""

NUMBER = """
class {name}(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale: float = {a}):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return scale * ({value})

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * ctx.scale * ({derivative}), None
"""

TWO_INPUTS = """
class {name}(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return {a} * x * y + {b} * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        gx = {a} * g * y
        gy = g * ({a} * x + {b})
        return gx.sum_to_size(x.shape), gy.sum_to_size(y.shape)
"""

TWO_OUTPUTS = """
class {name}(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.sin({a} * x), torch.cos({b} * x)

    @staticmethod
    def backward(ctx, g_sin, g_cos):
        (x,) = ctx.saved_tensors
        return {a} * g_sin * torch.cos({a} * x) - {b} * g_cos * torch.sin({b} * x)
"""

REDUCTION = """
class {name}(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return {a} * (x * x).sum(-1, keepdim={keep})

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * {a} * (g if {keep} else g.unsqueeze(-1)) * x
"""

LINEAR = """
class {name}(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return {a} * x @ weight.t() + bias

    @staticmethod
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return {a} * g @ weight, {a} * g.t() @ x, g.sum(0)
"""

SOFTMAX = """
class {name}(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = torch.softmax({a} * x, -1)
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return {a} * out * (g - (g * out).sum(-1, keepdim=True))
"""

QUANTISE = """
class {name}(torch.autograd.Function):
    '''Rounds to steps of {a}, with a straight-through gradient.'''

    @staticmethod
    def forward(ctx, x):
        return torch.round(x / {a}) * {a}

    @staticmethod
    def backward(ctx, g):
        return g.clone()
"""

CURVES = (
    ("torch.sin({a} * x)", "{a} * torch.cos({a} * x)"),
    ("torch.exp(-{a} * x * x)", "-2 * {a} * x * torch.exp(-{a} * x * x)"),
    ("torch.tanh({a} * x)", "{a} * (1 - torch.tanh({a} * x) ** 2)"),
    ("{a} * x**3 - {b} * x", "3 * {a} * x**2 - {b}"),
    ("torch.sigmoid({a} * x)", "{a} * torch.sigmoid({a} * x) * torch.sigmoid(-{a} * x)"),
    ("x / (1 + {a} * x * x)", "(1 - {a} * x * x) / (1 + {a} * x * x) ** 2"),
    ("torch.atan({a} * x)", "{a} / (1 + ({a} * x) ** 2)"),
    ("torch.clamp(x, min=-{a})", "(x >= -{a})"),
    ("torch.nn.functional.softplus(x) * {a}", "{a} * torch.sigmoid(x)"),
    ("torch.sqrt(x * x + {a})", "x / torch.sqrt(x * x + {a})"),
)
"""Forward and derivative, for the templates that take any function of one input."""

RIGHT = (ONE_INPUT, ONE_INPUT_SPLIT, NUMBER, TWO_INPUTS, TWO_OUTPUTS, REDUCTION, LINEAR, SOFTMAX, QUANTISE)


def hundred() -> str:
    """Return the source; names of wrong Functions start with Wrong, those of the others with Right."""
    templates = [(f"Right{order}", text, 1.0) for order, text in enumerate(RIGHT)] + [("Wrong", ONE_INPUT, 1.01)]
    parts = ["import torch\n"]
    for order, (kind, text, factor) in enumerate(templates):
        for variant, (value, derivative) in enumerate(CURVES):
            numbers = {"a": 0.5 + variant / 8, "b": 0.25 + order / 16}
            filled = {"value": value.format(**numbers), "derivative": f"{factor} * ({derivative.format(**numbers)})"}
            parts.append(text.format(name=f"{kind}Variant{variant}", keep=variant % 2 == 0, **numbers, **filled))
    return "\n".join(parts)

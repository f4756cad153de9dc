"""Columns of the composition table: one op, whose derivatives differ from those of the ops in its forward.

Every op has the derivatives of x³. The derived ones, the formula and the Function of x³ have its value, too. All others
have the value x, so that a lost rule (the derivative of the forward's own ops, or none) shows in every order. At dyadic
points all of this is exact in every floating dtype, however it is computed, so tests compare bits.
"""

import torch

import pullback
from tests.forms import stable_op

X = torch.tensor([0.5, -1.25, 2.0, 3.0], dtype=torch.float64)
"""Where derivatives are taken. Nowhere is 3x² equal to 1."""


def value(column, x=X):
    """Return the value of a column's op."""
    return x * x * x if column.startswith("derived") or "of x³" in column else x


def derivative(order, x=X):
    """Return the derivative of x³."""
    return {1: 3 * x * x, 2: 6 * x, 3: torch.full_like(x, 6)}[order]


@pullback.function
def derived(x):
    return x * x * x


def with_forms(x):
    """A derived op with stable forms: its derivatives use composite forms, not the formula."""
    return x * x * x


with_forms = stable_op(
    with_forms,
    {(): "otherwise: x * x * x", ("x",): "otherwise: 3 * (x * x)", ("x", "x"): "otherwise: 6 * x"},
    torch.float64,
    torch.float32,
    torch.bfloat16,
)


@pullback.function
def with_masks(x):
    """The same formula with a mask that is never true, a comparison of computed values."""
    return torch.maximum(x * x * x, x - 100).masked_fill(x > 50, 0.0)


@pullback.function(derivative_of=lambda x: x * x * x)
def relaxed(x):
    return x.clone()


@pullback.function
def ruled(x):
    return x.clone()


@ruled.vjp
def _(g, out, x):
    return g * 3 * x * x


@pullback.function
def ruled_by_jvp(x):
    return x.clone()


@ruled_by_jvp.jvp
def _(tangents, out, x):
    return tangents[0] * 3 * x * x


class OldStyle(torch.autograd.Function):
    """A Function in the style of the tutorials."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * x


def old_style_function(x):
    return OldStyle.apply(x)


class NewStyle(torch.autograd.Function):
    """A Function that defines every method that PyTorch offers."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * x

    @staticmethod
    def jvp(ctx, t):
        (x,) = ctx.saved_tensors
        return t * 3 * x * x


def new_style_function(x):
    return NewStyle.apply(x)


@torch.library.custom_op("pullback_compose::cube_gradient", mutates_args=())
def custom_op(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@custom_op.register_fake
def _(x):
    return torch.empty_like(x)


@custom_op.register_vmap
def _(info, in_dims, x):
    return custom_op(x), in_dims[0]


def _setup(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, g):
    (x,) = ctx.saved_tensors
    return g * 3 * x * x


custom_op.register_autograd(_backward, setup_context=_setup)


def formula(x):
    """The plain formula x³, differentiated by PyTorch."""
    return x * x * x


class Plain:
    """The plain formula as an object with `__get__`, as ops have, so that it may be a method."""

    def __call__(self, x):
        return formula(x)

    def __get__(self, instance, owner=None):
        return self


class Cube(torch.autograd.Function):
    """A Function whose backward is the derivative of its forward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * x


def cube_function(x):
    return Cube.apply(x)


def formula_with_cumprod(x):
    """x³ and a product of two zeros at x = 0.5, where PyTorch's forward mode of `cumprod` loses what is nested."""
    zero = x - 0.5
    return x * x * x + (torch.stack([zero, zero]).cumprod(0)[1] - zero * zero)


@pullback.function
def with_cumprod(x):
    return formula_with_cumprod(x)


OURS = {"derived": derived, "relaxed": relaxed, "ruled": ruled, "ruled by jvp": ruled_by_jvp}
OTHERS = {
    "Function, old style": old_style_function,
    "Function, new style": new_style_function,
    "Function of x³": cube_function,
    "custom_op": custom_op,
}
FURTHER = {
    "derived, stable forms": with_forms,
    "derived, extremes and masks": with_masks,
    "derived, cumprod": with_cumprod,
    "formula of x³": formula,
    "formula of x³, cumprod": formula_with_cumprod,
}
"""Measured only for the page."""
COLUMNS = OURS | FURTHER | OTHERS

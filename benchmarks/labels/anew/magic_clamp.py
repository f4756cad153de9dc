"""magic-clamp: what is known of its custom functions.

Both are covered: `ClampWithConditionalSTEFunction` with and without its norm, `ConstraintWithHyperPGDFunction` by the
sphere that applies it. Truth: what their gradients are documented to be. Strided inputs and cotangents, two backwards,
checkpoints, changes in place.
"""

import torch

from labels import Call, Package

PACKAGE = Package("magic-clamp", "0.0.4", "generative models")

PROJECTED = "by design: the gradient is projected, and may be scaled to the norm of the cotangent"
DOUBTFUL = dict.fromkeys(
    ("PB101", "PB109", "PB110", "PB111", "PB305", "PB401", "PB404", "PB408", "PB301", "PB604"), PROJECTED
)


def _clamped(keeps_norm):
    from magic_clamp.autograd import ClampWithConditionalSTEFunction

    torch.manual_seed(0)
    return ClampWithConditionalSTEFunction, (2 * torch.randn(3, 4), -1.0, 1.0, keeps_norm)


def clamped():
    return _clamped(True)


def clamped_plainly():
    return _clamped(False)


def sphere():
    from magic_clamp.core import magic_sphere

    torch.manual_seed(0)
    return magic_sphere, (2 * torch.randn(3, 4),)


CALLS = tuple(Call(make, "other", doubtful=DOUBTFUL) for make in (clamped, clamped_plainly, sphere))

"""nerfstudio: what is known of its custom functions.

Both are covered. Truth: the formulas; float64 central differences within the range that is not clipped (7e-9 of 3e2);
half precision, strided inputs, double backward, frozen arguments.
"""

import torch

from labels import Call, Package
from labels.blind import bare, stub

PACKAGE = Package("nerfstudio", "1.1.5", "radiance fields", ("jaxtyping", "wadler-lindig"))

CLIPPED = "documented: the gradient is clipped, beyond 15"
SCALED = "by design: the gradient is scaled, and what is differentiated twice is no derivative"
VIEW = "the outputs are the inputs: changing them in place raises, with PyTorch's message on views"


# Right: exp, and the derivative with the argument clipped to 15; the backward is plain, differentiable PyTorch.
def trunc_exp():
    bare("nerfstudio", "nerfstudio.field_components")
    from nerfstudio.field_components.activations import _TruncExp

    torch.manual_seed(0)
    return _TruncExp, (4 * torch.randn(2, 5, 1),)


# Right: the gradient times the scaling, and that of the scaling as it is.
def gradient_scaler():
    bare("nerfstudio", "nerfstudio.cameras", "nerfstudio.field_components", "nerfstudio.model_components")
    stub("nerfstudio.cameras.rays", RaySamples=None)
    stub("nerfstudio.field_components.field_heads", FieldHeadNames=None)
    stub("nerfstudio.data")
    stub("nerfstudio.data.scene_box", OrientedBox=None)
    from nerfstudio.model_components.losses import _GradientScaler

    torch.manual_seed(1)
    return _GradientScaler, (torch.rand(2, 5, 3), torch.rand(2, 5, 1))


CALLS = (
    Call(
        trunc_exp,
        "other",
        doubtful={"PB101": CLIPPED, "PB401": CLIPPED, "PB305": CLIPPED},
        judged={"PB303": (False, "the gradient stops to grow on purpose; it loses no digits")},
    ),
    Call(gradient_scaler, "other", doubtful={"PB101": SCALED, "PB401": SCALED, "PB207": VIEW}),
)

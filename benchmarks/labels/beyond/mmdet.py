"""mmdet: what is known of its custom function.

`SigmoidGeometricMean` is its only one. What its module imports beside PyTorch takes no part in it and is left empty.
Truth: float64 central differences of first and second derivatives; each argument frozen, strided inputs and cotangents,
two backwards, checkpoints, changes in place, autocast, half precision.
"""

from functools import partial
from importlib import import_module

import torch

from labels import Bug, Call, Package
from labels.blind import bare, stub
from labels.last import derivative_of_backward_is_wrong

PACKAGE = Package("mmdet", "3.3.0", "detection")

MODULES = (
    *("mmengine", "mmengine.structures", "mmengine.utils", "six", "six.moves"),
    *("mmdet.structures", "mmdet.structures.bbox", "mmdet.structures.mask", "mmdet.utils"),
)
NAMES = (
    *("BaseBoxes", "BitmapMasks", "InstanceData", "OptInstanceList", "PolygonMasks", "SampleList"),
    *("get_box_type", "stack_boxes"),
)
SMALL = "where both scores are below e**-44 their product leaves float32; the plain gradient is NaN there"


# First order right: differences.
def sigmoid_geometric_mean():
    bare("mmdet", "mmdet.models", "mmdet.models.utils")
    for name in MODULES:
        stub(name, **dict.fromkeys(NAMES, object), digit_version=lambda _: (2, 13), map=map, zip=zip)
    torch.manual_seed(0)
    function = import_module("mmdet.models.utils.misc").SigmoidGeometricMean
    return function, (2 * torch.randn(6, 4), 2 * torch.randn(6, 4))


CALLS = (
    Call(
        sigmoid_geometric_mean,
        bugs=(
            Bug(
                "the two sigmoids are saved, and are no outputs: the second derivative is silently wrong",
                ("PB401", "PB402", "PB404", "PB604"),
                partial(derivative_of_backward_is_wrong, sigmoid_geometric_mean),
            ),
        ),
        doubtful=dict.fromkeys(("PB302", "PB303"), SMALL),
    ),
)

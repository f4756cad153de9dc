"""pytorchvideo: what is known of its custom function.

`SwishFunction` is covered by itself and by the module that applies it to a video. Truth: float64 central differences of
first and second order. Strided inputs and cotangents, two backwards, checkpoints, changes in place, other dtypes.
"""

import torch

from labels import Call, Package

PACKAGE = Package("pytorchvideo", "0.1.5", "video")


# Right, twice: differences.
def swish():
    from pytorchvideo.layers.swish import SwishFunction

    torch.manual_seed(0)
    return SwishFunction, (torch.randn(3, 4),)


# Right, twice: differences.
def module():
    from pytorchvideo.layers.swish import Swish

    torch.manual_seed(0)
    return Swish(), (torch.randn(1, 2, 2, 3, 3),)


CALLS = (Call(swish), Call(module))

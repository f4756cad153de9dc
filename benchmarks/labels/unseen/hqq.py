"""hqq: what is known of its custom functions.

All three are covered, with a quantised layer of the package. Truth: float64 central differences. Double backward,
frozen arguments, strided inputs and cotangents, two backwards, checkpoints, changes in place, half precision.
"""

import torch

from labels import Call, Package

PACKAGE = Package("hqq", "0.2.8.post1", "quantised language models", ("termcolor", "tqdm"))

SUMMED = "the gradient of the bias keeps a dimension of the batch, which autograd sums away: it is right"
UNUSED = "the input is saved, and its gradient does not need it"
DOUBTFUL = {"PB104": SUMMED, "PB115": SUMMED, "PB205": UNUSED}


def _layer(bias):
    from hqq.core.quantize import BaseQuantizeConfig, HQQLinear

    torch.manual_seed(0)
    linear = torch.nn.Linear(16, 8, bias=bias)
    config = BaseQuantizeConfig(nbits=4, group_size=16)
    return HQQLinear(linear, config, compute_dtype=torch.float32, device="cpu")


# Right, twice: differences.
def product():
    from hqq.core.quantize import HQQMatmulNoCacheMul

    layer = _layer(True)
    weight = layer.dequantize()

    def matmul(x, transpose=True):
        return torch.matmul(x, (weight.t() if transpose else weight).to(x.dtype))

    return HQQMatmulNoCacheMul, (torch.randn(3, 16), matmul, layer.bias.detach().clone())


# Right, twice: differences.
def dequantised():
    from hqq.core.quantize import HQQMatmulNoCacheDeq

    layer = _layer(True)
    weight = layer.dequantize().double()
    return HQQMatmulNoCacheDeq, (torch.randn(2, 3, 16).double(), lambda: weight, layer.bias.detach().double())


# Right: differences.
def whole_layer():
    layer = _layer(True)
    return layer.forward_pytorch_backprop, (torch.randn(2, 3, 16),)


# Right, twice: differences.
def cached():
    from hqq.core.quantize import HQQMatmulCachedDeq

    layer = _layer(False)
    return HQQMatmulCachedDeq, (torch.randn(2, 3, 16), layer, None)


MIXED = (
    True,
    "under autocast the forward gives bfloat16, and its backward multiplies that by a float32 matrix and raises",
)

CALLS = (
    *(Call(make, doubtful=DOUBTFUL) for make in (product, dequantised)),
    *(Call(make, doubtful=DOUBTFUL, judged={"PB413": MIXED}) for make in (whole_layer, cached)),
)

"""micronet: what is known of its custom functions.

All five are covered. Truth: the straight-through gradients that the sources name. Strided inputs and cotangents, one
output alone, two backwards, checkpoints, changes in place, other dtypes, autocast.
"""

import torch

from labels import Call, Package

PACKAGE = Package("micronet", "1.12.0", "quantisation")

STRAIGHT = "by design: the gradient goes straight through, or is 0 where the input saturates"
DOUBTFUL = dict.fromkeys(("PB101", "PB110", "PB305", "PB401", "PB404", "PB604", "PB302"), STRAIGHT)


def binary_activation():
    from micronet.compression.quantization.wbwtab.quantize import BinaryActivation

    torch.manual_seed(0)
    return BinaryActivation, (torch.randn(3, 4),)


def binary_weight():
    from micronet.compression.quantization.wbwtab.quantize import BinaryWeight

    torch.manual_seed(0)
    return BinaryWeight, (torch.randn(2, 3, 3, 3),)


def ternary():
    from micronet.compression.quantization.wbwtab.quantize import Ternary

    torch.manual_seed(0)
    return Ternary, (torch.randn(2, 3, 3, 3),)


def rounded():
    from micronet.compression.quantization.wqaq.dorefa.quantize import Round

    torch.manual_seed(0)
    return Round, (3 * torch.randn(3, 4),)


def rounded_in_range():
    from micronet.compression.quantization.wqaq.iao.quantize import Round

    torch.manual_seed(0)
    return Round, (3 * torch.randn(3, 4), torch.tensor([-3.0]), torch.tensor([3.0]), 0)


CALLS = (
    *(Call(make, "other", doubtful=DOUBTFUL) for make in (binary_activation, binary_weight, rounded)),
    Call(
        ternary,
        "other",
        doubtful={
            **DOUBTFUL,
            **dict.fromkeys(
                ("PB111", "PB208", "PB114", "PB112"),
                "the threshold gets no gradient: it is an output that the package takes for comparisons alone",
            ),
        },
    ),
    Call(
        rounded_in_range,
        "other",
        doubtful={**DOUBTFUL, "PB107": "the observed range is a buffer, for which no gradient is meant"},
    ),
)

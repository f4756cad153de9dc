"""diffsptk: what is known of its custom functions.

All three are covered. Truth: the formulas; half precision, strided inputs, double backward, empty and single inputs.
Importing the whole package needs torchaudio, which takes no part in them.
"""

from importlib import import_module

import torch

from labels import Call, Package
from labels.blind import bare, stub

PACKAGE = Package("diffsptk", "4.0.1", "speech signals")

LOCAL = "the gradient is that of the values that are kept; what reaches interpolated ones is dropped, by design or not"
VIEW = "the output may be the input, or a view: changing it in place raises, with PyTorch's message on views"


def _module(name):
    bare("diffsptk", "diffsptk.modules", "diffsptk.utils")
    stub("torchaudio")
    return import_module(f"diffsptk.modules.{name}")


def _waveform():
    torch.manual_seed(0)
    return 4 * torch.randn(3, 5)


# A masked gradient (see above): 1 where a value is kept, 0 where it is interpolated.
def interpolation():
    pitch = torch.tensor([[0.0, 1.0, 2.0, 0.0, 4.0, 0.0], [0.5, 0.0, 0.0, 2.0, 1.5, 3.0]]).unsqueeze(-1)
    return _module("magic_intpl").MagicNumberInterpolationImpl, (pitch, torch.tensor(0.0))


# Straight-through, right.
def floor():
    return _module("quantize").Floor, (_waveform(),)


# Straight-through, right.
def rounding():
    return _module("quantize").Round, (_waveform(),)


CALLS = (
    Call(interpolation, "other", doubtful={"PB101": LOCAL, "PB106": LOCAL, "PB207": VIEW}),
    Call(floor, "other"),
    Call(rounding, "other"),
)

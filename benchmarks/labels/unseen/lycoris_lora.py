"""lycoris-lora: what is known of its custom functions.

The two that run on a CPU are covered, of eighteen, with the weights that its modules pass. Truth: float64 central
differences. Double backward, frozen arguments, strided inputs and cotangents, two backwards, checkpoints, changes in
place, half precision, autocast.
"""

import torch

from labels import Call, Package
from labels.blind import bare

PACKAGE = Package("lycoris-lora", "4.1.3", "fine-tuning of diffusion models")


def _loha():
    bare("lycoris", "lycoris.functional")
    from lycoris.functional import loha

    torch.manual_seed(0)
    return loha


def _scaled(**kwargs):
    loha = _loha()
    return lambda *weights: loha.diff_weight(*weights, **kwargs, gamma=torch.tensor(0.5, dtype=weights[0].dtype))


# Right, twice: differences.
def unscaled():
    return _loha().HadaWeight, (torch.randn(2, 5), torch.randn(4, 2), torch.randn(2, 5), torch.randn(4, 2))


# Right, twice: differences.
def linear_weight():
    loha = _loha()

    def weight(*weights):
        return loha.diff_weight(*weights, None, None, gamma=torch.tensor(0.5, dtype=weights[0].dtype))

    return weight, (torch.randn(2, 5), torch.randn(4, 2), torch.randn(2, 5), torch.randn(4, 2))


# Right, twice: differences.
def tucker_of_convolution():
    function = _scaled()
    sizes = ((2, 5), (2, 4), (2, 5), (2, 4), (2, 2, 3, 3), (2, 2, 3, 3))
    return function, tuple(torch.randn(size) for size in sizes)


CALLS = tuple(Call(make) for make in (unscaled, linear_weight, tucker_of_convolution))

"""torchcomp: what is known of its custom function.

`CompressorFunction` is covered by itself and by the gains of compressor and limiter, which apply it; the average applies
the recursive filter of torchlpc, as its backward does. Truth: float64 central differences of first and second
derivatives, forward mode, torch.func.vmap and grad; each argument frozen, strided inputs and cotangents, two backwards,
checkpoints, changes in place.
"""

import torch

from labels import Call, Package

PACKAGE = Package("torchcomp", "0.2.1", "audio", ("torchlpc==0.6", "numba==0.68.1", "llvmlite==0.50.0"))

NARROW = "Numba takes no half precision: the forward says so"
DOUBTFUL = {
    **dict.fromkeys(("PB119", "PB413", "PB105"), NARROW),
    "PB408": "a vectorised backward raises: the filter goes through NumPy",
    "PB305": "where the gain meets the input there is a kink",
}
CHECKED = {"PB406": "torch.func.vmap raises: the arguments are checked by their values", **DOUBTFUL}


# Right, twice: differences.
def smoothed():
    from torchcomp.core import CompressorFunction

    torch.manual_seed(0)
    times = torch.tensor([0.3, 0.5]), torch.tensor([0.1, 0.2])
    return CompressorFunction, (torch.rand(2, 7), torch.ones(2), *times)


# Right, twice: differences.
def compressor():
    from torchcomp import compexp_gain

    torch.manual_seed(0)

    def gain(level, threshold, ratio, attack, release):
        return compexp_gain(level, threshold, ratio, -40.0, 0.5, attack, release)

    numbers = map(torch.tensor, (-8.0, 3.0, 0.3, 0.1))
    return gain, (torch.rand(2, 7) + 0.05, *numbers)


# Right, twice: differences.
def limiter():
    from torchcomp import limiter_gain

    torch.manual_seed(0)
    return limiter_gain, (torch.randn(2, 7), torch.tensor([-10.0, -5.0]), torch.tensor(0.3), torch.tensor(0.1))


# Right, twice: differences.
def average():
    from torchcomp import avg

    torch.manual_seed(0)
    return avg, (torch.rand(2, 7), torch.tensor([0.3, 0.6]))


LEAKS = {"PB204": (True, "an output is saved for forward mode: nodes and inputs of 30 calls live after a collection")}

CALLS = (
    Call(smoothed, doubtful=DOUBTFUL, judged=LEAKS),
    Call(compressor, doubtful=CHECKED, judged=LEAKS),
    *(Call(make, doubtful=CHECKED) for make in (limiter, average)),
)

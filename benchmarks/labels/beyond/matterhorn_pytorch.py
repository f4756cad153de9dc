"""matterhorn-pytorch: what is known of its custom functions.

Of those of temporal networks four are covered, and the one that shifts spikes; two that compare spikes raise in the
forward. Of those of spiking networks the surrogate of the Gaussian and a neuron, which applies it and another one, step
by step; the others are like it. What needs its compiled part is not covered. Truth: float64 central differences, and the
formulas of the surrogates. Ties and times at infinity, each argument frozen, strided inputs and cotangents, two
backwards, checkpoints, changes in place, autocast, half precision.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import first_is_wrong, gradients, raises

PACKAGE = Package("matterhorn-pytorch", "2.0.0", "spiking networks")

SURROGATE = "by design: the gradient is that of a surrogate"
INTERMEDIATE = "the derivative of the surrogate is saved; that of a surrogate is no derivative anyway"
TIES = "where the times are the same both get the cotangent: each is the derivative of one side"
NEVER = "by design: times at infinity, of spikes that never come, get no gradient"
SCRIPTED = "the checkpoint stops early by an exception, which TorchScript, that runs the steps, turns into another"
SURROGATES = {
    **dict.fromkeys(("PB101", "PB107", "PB110", "PB114", "PB305"), SURROGATE),
    **dict.fromkeys(("PB401", "PB402", "PB404", "PB604"), INTERMEDIATE),
}


def _times():
    torch.manual_seed(0)
    return 8 * torch.rand(3, 4), 8 * torch.rand(3, 4)


# Right, twice: differences.
def later():
    from matterhorn_pytorch.tnn.functional import t_add

    return t_add, (_times()[0], 2)


# Right, twice: differences.
def earliest():
    from matterhorn_pytorch.tnn.functional import t_min

    return t_min, _times()


# Right, twice: differences.
def latest():
    from matterhorn_pytorch.tnn.functional import t_max

    return t_max, _times()


# Wrong.
def inhibited():
    from matterhorn_pytorch.tnn.functional import t_lt

    return t_lt, _times()


# Wrong.
def shifted():
    from matterhorn_pytorch.tnn.functional import s_add

    torch.manual_seed(0)
    return s_add, ((torch.rand(6, 2, 3) > 0.5).float(), 2)


# Its formula.
def gaussian():
    from matterhorn_pytorch.snn.functional import heaviside_gaussian

    torch.manual_seed(0)
    return heaviside_gaussian, (torch.randn(3, 4),)


# Its formula.
def neuron():
    from matterhorn_pytorch.snn.functional import lif_neuron

    torch.manual_seed(0)
    numbers = torch.tensor(1.0), torch.tensor(0.0), torch.tensor(2.0)
    return (lambda x, h: lif_neuron(x, h, *numbers)), (3 * torch.rand(4, 2, 3), torch.rand(2, 3))


CALLS = (
    Call(later),
    *(
        Call(make, doubtful={"PB305": TIES, "PB101": TIES, **dict.fromkeys(("PB302", "PB301"), NEVER)})
        for make in (earliest, latest)
    ),
    Call(
        inhibited,
        "other",
        bugs=(
            Bug(
                "the surrogate of the backward is called without its width: it raises, always",
                ("PB119", "PB111"),
                lambda: raises(lambda: gradients(inhibited), "missing value for argument"),
            ),
        ),
        doubtful=SURROGATES,
    ),
    Call(
        shifted,
        bugs=(
            Bug(
                "the output is the input some steps later, and the cotangent is sent back without the steps",
                ("PB101", "PB106", "PB110"),
                partial(first_is_wrong, shifted, 0),
            ),
        ),
    ),
    Call(gaussian, "other", doubtful=SURROGATES),
    Call(neuron, "other", doubtful={**SURROGATES, **dict.fromkeys(("PB411", "PB412"), SCRIPTED)}),
)

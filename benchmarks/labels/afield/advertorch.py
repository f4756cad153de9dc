"""advertorch: what is known of its custom functions.

The three that `BPDAWrapper` makes are covered: with a defence of the package and the identity for its gradient, with a
substitute, which is the function itself or another, and with a gradient that is given. Left out: those of the defences
themselves, whose backward says that there is none. Truth: float64 central differences. Double backward, each argument
alone, strided inputs and cotangents, two backwards, checkpoints, autocast, changes in place.
"""

from functools import partial

import torch
import torch.nn.functional as F

from labels import Bug, Call, Package
from labels.afield import stand_in
from labels.blind import bare
from labels.fresh import second_is_wrong

PACKAGE = Package("advertorch", "0.2.3", "adversarial robustness")

IDLE = "the input is saved and not used: memory, no wrong number"
SUBSTITUTED = "the gradient is that of a substitute, of which a second derivative is not asked"


def _wrapped(forward, **arguments):
    bare("advertorch")
    from advertorch.bpda import BPDAWrapper

    torch.manual_seed(0)
    return BPDAWrapper(forward, **arguments)


def squeezing():
    bare("advertorch")
    stand_in("torchvision")
    stand_in("torchvision.transforms", ToPILImage=object, ToTensor=object)
    stand_in("PIL")
    stand_in("PIL.Image")
    from advertorch.defenses import BitSqueezing

    return _wrapped(BitSqueezing(4)), (torch.rand(2, 3, 4, 4),)


def softened():
    return _wrapped(F.relu, forwardsub=F.softplus), (torch.randn(1, 2, 4, 4),)


# Right, twice: differences.
def given():
    return _wrapped(torch.exp, backward=lambda inputs, outputs: outputs[0] * inputs[0].exp()), (torch.randn(2, 3, 4),)


# First order right: differences.
def smoothing():
    def average(x):
        return F.avg_pool2d(x, 3, 1, 1)

    return _wrapped(average, forwardsub=average), (torch.rand(1, 2, 4, 4),)


# First order right: differences.
def product():
    def scaled(x, y):
        return x * y.exp()

    return _wrapped(scaled, forwardsub=scaled), (torch.rand(3, 4), torch.rand(3, 4))


CALLS = (
    Call(squeezing, "other", doubtful={"PB205": IDLE, "PB701": IDLE}),
    Call(
        softened,
        "other",
        doubtful=dict.fromkeys(("PB401", "PB402", "PB404", "PB604"), SUBSTITUTED),
        judged={"PB101": (False, "by design: the gradient is that of the substitute")},
    ),
    Call(given),
    *(
        Call(
            make,
            bugs=(
                Bug(
                    "the backward differentiates detached copies: the second derivative is silently wrong",
                    ("PB401", "PB402", "PB404", "PB604"),
                    partial(second_is_wrong, make),
                ),
            ),
        )
        for make in (smoothing, product)
    ),
)

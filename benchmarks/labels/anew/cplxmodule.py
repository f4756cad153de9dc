"""cplxmodule: what is known of its custom functions.

Both are covered, one also by the penalty that applies it. Truth: float64 central differences. Double backward, strided
inputs and cotangents, two backwards, checkpoints, changes in place.
"""

import torch

from labels import Call, Package
from labels.anew import NARROW, NO_FUNC

PACKAGE = Package("cplxmodule", "2022.6", "complex networks, variational dropout", ("scipy==1.17.1",))

DOUBTFUL = {
    **dict.fromkeys(("PB119", "PB413", "PB105"), NARROW),
    **dict.fromkeys(("PB405", "PB406", "PB407", "PB408"), NO_FUNC),
    **dict.fromkeys(("PB301", "PB302", "PB304"), "exp(-log_alpha) overflows or vanishes beyond all that is trained"),
}
BOGUS = "by design: the value is 0, and the gradient that of the exponential integral"


# Right, twice: differences.
def expi():
    from cplxmodule.nn.relevance.complex.vd import ExpiFunction

    torch.manual_seed(0)
    return ExpiFunction, (-torch.exp(-torch.randn(3, 4)),)


# Right, twice: differences.
def penalty():
    from cplxmodule.nn.relevance.complex.vd import torch_expi

    torch.manual_seed(0)
    return (lambda log_alpha: -log_alpha - torch_expi(-torch.exp(-log_alpha))), (torch.randn(3, 4),)


def bogus():
    from cplxmodule.nn.relevance.extensions.complex import BogusExpiFunction

    torch.manual_seed(0)
    return BogusExpiFunction, (-torch.exp(-torch.randn(3, 4)),)


CALLS = (
    *(Call(make, doubtful=DOUBTFUL) for make in (expi, penalty)),
    Call(bogus, "other", doubtful={**DOUBTFUL, **dict.fromkeys(("PB101", "PB110", "PB302", "PB305"), BOGUS)}),
)

"""torchlogix: what is known of its custom functions.

Both are covered with what the layers pass. Neither is meant to be a derivative: `GradFactor` scales the gradient, and
`LearnableConnectionFunction` replaces that of a choice; each was held against what it stands for.
"""

import torch

from labels import Call, Package
from labels.blind import bare

PACKAGE = Package("torchlogix", "0.2.2", "logic networks")

VIEW = "the output is the input: changing it in place raises, with PyTorch's message on views"


def factor():
    bare("torchlogix")
    from torchlogix.functional import GradFactor

    torch.manual_seed(0)
    return GradFactor, (torch.rand(3, 4), 2.0)


def _connections(gumbel):
    bare("torchlogix")
    from torchlogix.connections import LearnableConnectionFunction

    torch.manual_seed(0)
    indices = torch.randint(0, 4, (3, 2, 5))

    def function(x, weights):
        return LearnableConnectionFunction.apply(x, weights, torch.tensor(0.5), gumbel, indices)

    return function, (torch.rand(2, 4), torch.randn(3, 2, 5))


def connections():
    return _connections(False)


def drawn_connections():
    return _connections(True)


CALLS = (
    Call(factor, "other", doubtful={"PB207": VIEW, "PB209": VIEW}),
    *(
        Call(
            make, "other", judged={"PB119": (False, "weights of another shape than the indices in the closure are for")}
        )
        for make in (connections, drawn_connections)
    ),
)

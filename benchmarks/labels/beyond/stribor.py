"""stribor: what is known of its custom function.

`FuncAndDiagJac` is covered by the network that applies it, with a latent vector and without, and by itself with a second
order. Truth: float64 central differences, for the weights the same computation without the function, for the diagonal
the Jacobian. Double backward, each argument frozen, strided inputs and cotangents, one output alone, two backwards,
checkpoints, changes in place.
"""

from functools import cache, partial

import torch

from labels import Bug, Call, Package
from labels.fresh import gradients, raises
from labels.last import derivative_of_backward_is_wrong

PACKAGE = Package(
    "stribor", "0.2.0", "normalising flows", ("torchtyping==0.1.5", "typeguard==2.13.3", "torchdiffeq==0.2.5")
)

LAYOUT = "inputs of other strides raise in the forward, with PyTorch's message on views"
HELD = "the graph within the forward is kept for the backward, by design"


@cache
def _net(latent=0):
    """A network, made once: its masks are drawn from a generator without a seed."""
    import stribor

    torch.manual_seed(0)
    return stribor.net.DiffeqExactTraceMLP(3, [5], 3, 2, latent_dim=latent).double().requires_grad_()


def _time_and_place(*sizes):
    torch.manual_seed(1)
    return tuple(torch.randn(size, dtype=torch.float64) for size in ((1,), *sizes))


# First order right, of the weights too: differences, and the same without the function.
def perceptron():
    return _net(), _time_and_place((4, 2, 3))


# First order right: differences.
def perceptron_with_latent():
    return _net(2), _time_and_place((4, 3), (4, 2))


# Wrong.
def second_order():
    from stribor.net import FuncAndDiagJac
    from stribor.util import flatten_params

    nets = _net().exclusive_net, _net().dimwise_net
    return (lambda t, x: FuncAndDiagJac.apply(*nets, t, x, None, flatten_params(*nets), 2)), _time_and_place((4, 3))


def _frozen_raises(make):
    net, arguments = make()
    net.requires_grad_(False)
    try:
        output = net(*(a.requires_grad_() for a in arguments))[0]
        return raises(output.sum().backward, "does not require grad")
    finally:
        net.requires_grad_()


def _network(make):
    return Call(
        make,
        bugs=(
            Bug(
                "the gradients within the backward are taken without a graph: the second derivative is silently wrong",
                ("PB401", "PB402", "PB404", "PB604"),
                partial(derivative_of_backward_is_wrong, make),
            ),
            Bug(
                "where weights of the networks are frozen, the backward asks for their gradients all the same, and raises",
                ("PB113", "PB119"),
                partial(_frozen_raises, make),
            ),
        ),
        doubtful={**dict.fromkeys(("PB501", "PB119"), LAYOUT), "PB703": HELD, "PB204": HELD},
    )


CALLS = (
    *map(_network, (perceptron, perceptron_with_latent)),
    Call(
        second_order,
        bugs=(
            Bug(
                "where the order is given, the backward returns too few gradients, and raises",
                ("PB103", "PB119"),
                lambda: raises(lambda: gradients(second_order), "incorrect number of gradients"),
            ),
        ),
        doubtful=dict.fromkeys(("PB501",), LAYOUT),
    ),
)

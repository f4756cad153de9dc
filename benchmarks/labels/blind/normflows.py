"""normflows: what is known of its custom function.

Truth: float64 central differences with random and with equal cotangents of the log-determinants, second derivatives,
frozen weights, two backwards, half precision, changes in place. The noise of the estimator is fixed.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import first_is_wrong, raises, second_is_wrong

PACKAGE = Package("normflows", "1.7.3", "normalising flows")

ONCE = "the graph within is freed by the first backward: a second one raises, with a message on changes in place"
INNER = "the graph of the inner network is used up"
DOUBTFUL = {"PB206": ONCE, "PB203": ONCE, "PB119": ONCE, "PB209": INNER, "PB412": INNER, "PB120": INNER}


class _Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(0.3 * torch.randn(3, 3, dtype=torch.float64))

    def forward(self, x):
        return torch.tanh(x @ self.weight.to(x.dtype))


def _flow(network):
    from normflows.flows.residual import basic_logdet_estimator, mem_eff_wrapper

    torch.manual_seed(1)
    noise = torch.randn(4, 3)

    def flow(x):
        return mem_eff_wrapper(basic_logdet_estimator, network, x, 4, noise.to(x.dtype), lambda k: 1.0, True)

    torch.manual_seed(2)
    return flow, (torch.randn(4, 3),)


# Wrong where the log-determinants of a batch have cotangents of their own: differences.
def residual():
    return _flow(_Network())


# First order right: differences (1e-11). The mean gives all of them one cotangent.
def residual_of_mean():
    flow, arguments = residual()

    def mean(x):
        y, logarithms = flow(x)
        return y, logarithms.mean()

    return mean, arguments


def frozen_weight_raises():
    flow, (x,) = _flow(_Network().requires_grad_(False))
    return raises(lambda: flow(x), "does not require grad")


SECOND = "the second derivative is silently wrong: a backward within the forward keeps no graph"
TWICE = ("PB401", "PB404", "PB403", "PB604")
FROZEN = Bug("where a weight is frozen, the forward raises", ("PB113", "PB119"), frozen_weight_raises)

CALLS = (
    Call(
        residual,
        bugs=(
            Bug(
                "the gradient is that of the first cotangent of the batch, for all: with weighted samples it is wrong",
                ("PB101", "PB111"),
                partial(first_is_wrong, residual, 0),
            ),
            Bug(SECOND, TWICE, partial(second_is_wrong, residual)),
        ),
        judged={"PB113": (True, "where a weight is frozen, the forward raises, as for the other call")},
        doubtful=DOUBTFUL,
    ),
    Call(
        residual_of_mean,
        bugs=(Bug(SECOND, TWICE, partial(second_is_wrong, residual_of_mean)), FROZEN),
        doubtful=DOUBTFUL,
    ),
)

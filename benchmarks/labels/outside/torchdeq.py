"""torchdeq: what is known of its custom functions.

`IFTGrad`, made anew for each call, is covered by the equilibrium model that applies it; `DEQGradCkpt` by `mem_gc`,
with a module and with dropout. Truth: float64 central differences, with solvers that go on to the last digits. Double
backward, strided and expanded inputs and cotangents, arguments frozen, weights, two backwards, checkpoints, changes
in place, autocast.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import first_is_wrong, input_change_is_unnoticed, second_backward_differs
from labels.last import derivative_of_backward_is_wrong

PACKAGE = Package("torchdeq", "0.1.0", "equilibrium models")

DOUBTFUL = {
    **dict.fromkeys(("PB405", "PB406", "PB407"), "torch.func does not take it: it has no setup_context"),
    "PB303": "an iteration that ends at a tolerance",
    "PB408": "a vectorised backward raises: the solver and the random numbers take no batch",
    "PB119": "a solver that factorises matrices takes no half precision",
    "PB413": "the backward runs as it is called, without autocast: in another precision than the forward",
    "PB207": "the output is the input: changing it in place raises, with PyTorch's message on views",
    "PB815": "the graph of the inner backward goes with its outputs",
}


# First order right: differences.
def equilibrium():
    from torchdeq import get_deq

    torch.manual_seed(0)
    weight = 0.2 * torch.randn(4, 4)
    tight = {"f_max_iter": 200, "f_tol": 1e-12, "b_max_iter": 200, "b_tol": 1e-12}
    model = get_deq(ift=True, f_solver="fixed_point_iter", b_solver="fixed_point_iter", **tight)

    def function(x, weight):
        return model(lambda z: torch.tanh(z @ weight.to(x.dtype) + x), torch.zeros_like(x))[0][-1]

    return function, (torch.randn(3, 4), weight)


def _recomputed(*layers):
    from torchdeq.utils.mem import mem_gc

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), *layers)

    def function(x):
        module.to(x.dtype)
        return mem_gc(module, (x,))

    return function, (torch.randn(3, 4),)


# First order right: differences.
def recomputed():
    return _recomputed(torch.nn.Tanh(), torch.nn.Linear(4, 2))


# Wrong.
def recomputed_dropout():
    return _recomputed(torch.nn.Dropout(0.5))


def _bugs(make):
    return (
        Bug(
            "the backward differentiates without making a graph: the second derivative is silently wrong",
            ("PB401", "PB402", "PB404", "PB604"),
            partial(derivative_of_backward_is_wrong, make),
        ),
        Bug(
            "the backward runs the module again on tensors that nothing watches: changing one in place silently changes the gradient",
            ("PB209", "PB201", "PB118"),
            partial(input_change_is_unnoticed, make, 0),
        ),
    )


CALLS = (
    Call(equilibrium, bugs=_bugs(equilibrium), doubtful=DOUBTFUL),
    Call(recomputed, bugs=_bugs(recomputed), doubtful=DOUBTFUL),
    Call(
        recomputed_dropout,
        bugs=(
            Bug(
                "the backward draws another mask: the gradient is that of another function",
                ("PB602", "PB101"),
                partial(first_is_wrong, recomputed_dropout, 0),
            ),
            Bug(
                "a second backward over a retained graph draws once more, and silently gives another gradient",
                ("PB602", "PB206", "PB601"),
                partial(second_backward_differs, recomputed_dropout),
            ),
        ),
        doubtful={**DOUBTFUL, **dict.fromkeys(("PB201", "PB209", "PB603"), "as without dropout")},
        judged={"PB401": (False, "its numbers are those of different masks: with one mask the two agree")},
    ),
)

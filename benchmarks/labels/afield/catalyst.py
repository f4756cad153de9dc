"""catalyst: what is known of its custom function.

`WARP` is covered through the loss that applies it, with as many trials as there are classes, and with one. It draws
the negatives; the weight of a row counts the trials, and is constant where nothing is equal. Truth: float64 central
differences from a fixed seed. Double backward, strided inputs and cotangents, two backwards, checkpoints, in place,
dtypes.
"""

import torch

from labels import Call, Package

PACKAGE = Package("catalyst", "22.4", "recommender systems", ("six",))

OLD = "ctx.saved_variables is an old name of ctx.saved_tensors, and does what that does"


def _loss(*trials):
    from catalyst.contrib.losses.recsys import WARPLoss

    torch.manual_seed(0)
    loss, targets = WARPLoss(*trials), torch.eye(5)[[1, 3, 0]]
    return (lambda outputs: loss(outputs, targets)), (torch.randn(3, 5),)


# Right, twice: differences.
def all_trials():
    return _loss()


# Right, twice: differences.
def one_trial():
    return _loss(1)


CALLS = tuple(Call(make, doubtful={"PB802": OLD}) for make in (all_trials, one_trial))

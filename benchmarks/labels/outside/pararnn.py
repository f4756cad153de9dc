"""pararnn-torch: what is known of its custom function.

`_NewtonFixedPoint` is covered as `newton_apply` applies it: an LSTM and a Hopfield cell, from a state; read and
compared for seven other cells. Truth: backpropagation through the same cells, one step at a time, and float64 central
differences; the cells' weights are held, and get their gradients. Double backward, strided and expanded inputs and
cotangents, arguments frozen, two backwards, checkpoints, changes in place, also of weights.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import linear, second_is_wrong

PACKAGE = Package("pararnn-torch", "0.17.4", "recurrent networks", ("triton==3.6.0",))

ITERATED = "an iteration that ends where the residual is small enough: 1e-5, if nothing else is said"
DOUBTFUL = {
    **dict.fromkeys(("PB405", "PB406", "PB407"), "torch.func does not take it: it has no setup_context"),
    **dict.fromkeys(("PB101", "PB303"), ITERATED),
    "PB408": "a vectorised backward raises, where an operation has no rule for it",
    "PB105": "a cell has one dtype",
    "PB413": "by design: autocast is off inside",
}


def _cell(name, with_state=False, **config):
    import pararnn.cells
    from pararnn.solvers.newton import NewtonConfig, newton_apply

    torch.manual_seed(0)
    cell = getattr(pararnn.cells, name)(3, 4)
    x = torch.randn(2, 6, 3)

    def function(x, *state):
        cell.to(x.dtype)
        return newton_apply(cell, x, NewtonConfig(**config), h0=state[0] if state else None)

    function.cell = cell
    if not with_state:
        return function, (x,)
    with torch.no_grad():
        shape = function(x)[:, -1].shape
    return function, (x, 0.3 * torch.randn(shape))


# First order right: differences.
def lstm_from_state():
    return _cell("ParaLSTM", True, max_iters=8, residual_atol=None)


# First order right: differences.
def hopfield():
    return _cell("ParaHopfield", True, max_iters=8, residual_atol=None)


def _gradients(make, function=None, between=None):
    mine, arguments = make()
    function = function or mine
    leaves = [a.double().requires_grad_() for a in arguments]
    value = linear([function(*leaves)])
    if between is not None:
        with torch.no_grad():
            between(mine)
    return torch.autograd.grad(value, leaves)


def weight_change_is_unnoticed(make):
    """Whether a change of the weights between forward and backward silently changes the gradient."""

    def between(function):
        for weight in function.cell.parameters():
            weight.mul_(2)

    plain, changed = _gradients(make)[0], _gradients(make, between=between)[0]
    return not torch.allclose(plain, changed, rtol=0.01)


def is_single(make):
    """Whether the float64 gradient of the input has only the digits of float32, though the value has all of its."""
    from pararnn.solvers.sequential import sequential_apply

    function, arguments = make()
    reference = lambda x, *state: sequential_apply(function.cell.to(x.dtype), x, *state)  # noqa: E731
    found, expected = _gradients(make)[0], _gradients(make, reference)[0]
    values = [f(*[a.double() for a in arguments]) for f in (function, reference)]
    error = float((found - expected).abs().max() / expected.abs().max())
    return 1e-9 < error < 1e-6 and torch.allclose(*values, rtol=1e-12, atol=1e-12)


def _bugs(make):
    return (
        Bug(
            "the backward's scan runs without a graph: the second derivative is silently wrong",
            ("PB401", "PB402", "PB404", "PB604"),
            partial(second_is_wrong, make),
        ),
        Bug(
            "the backward reads the cell's weights as they are by then: changing them in between silently changes the gradient",
            ("PB209", "PB118", "PB201", "PB120"),
            partial(weight_change_is_unnoticed, make),
        ),
    )


def _single(make):
    return Bug(
        "the backward computes in float32, also for float64: half of the gradient's digits are silently lost",
        ("PB303", "PB101", "PB105"),
        partial(is_single, make),
    )


CALLS = (
    Call(
        lstm_from_state,
        bugs=(*_bugs(lstm_from_state), _single(lstm_from_state)),
        doubtful={rule: why for rule, why in DOUBTFUL.items() if rule not in ("PB101", "PB303", "PB105")},
    ),
    Call(hopfield, bugs=_bugs(hopfield), doubtful=DOUBTFUL),
)

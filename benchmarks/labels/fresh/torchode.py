"""torchode: what is known of its custom function.

It has one, `BacksolveFunction`, called as `BacksolveAdjoint.solve` does. Truth: float64 central differences, and the
package's `AutoDiffAdjoint`, which is plain autograd (2e-8 and 5e-8, the tolerance of the solver).
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import differences, far, first_is_wrong, linear, prepared, second_is_wrong

PACKAGE = Package("torchode", "1.0.1", "differential equations", needs=("torchtyping", "typeguard==2.13.3"))

VIEW = "the output is a view, or saved: changing it in place raises, with PyTorch's message"
SOLVED = "the gradient is that of an adjoint equation, solved to a tolerance of 1e-7"
ONCE = "a vectorised backward raises: the solver branches on numbers"
DOUBTFUL = {"PB207": VIEW, "PB209": VIEW, "PB303": SOLVED, "PB408": ONCE}


class Field(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.weight = torch.nn.Parameter(torch.randn(2, 2, dtype=torch.float64))

    def forward(self, t, y):
        return torch.tanh(y @ self.weight) + 0.1 * t[..., None] * y


def _adjoint(automatic):
    import torchode

    term = torchode.ODETerm(Field())
    controller = torchode.IntegralController(atol=1e-7, rtol=1e-7, term=term)
    method = torchode.Tsit5(term=term)
    return (
        torchode.AutoDiffAdjoint(method, controller)
        if automatic
        else torchode.BacksolveAdjoint(term, method, controller)
    )


def _solution(times=None, automatic=False, ends=False):
    def solution(y0, *limits):
        import torchode

        start, end = limits or (torch.zeros(3, dtype=y0.dtype), torch.ones(3, dtype=y0.dtype))
        given = None if times is None else torch.tensor(times, dtype=y0.dtype).repeat(3, 1)
        problem = torchode.InitialValueProblem(y0=y0, t_start=start, t_end=end, t_eval=given)
        return _adjoint(automatic).solve(problem).ys

    y0 = torch.randn(3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    limits = (torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)) if ends else ()
    return solution, (y0, *limits)


# First order right in the state: differences (2e-8).
def final_state():
    return _solution()


# First order right in the state: differences (5e-8).
def states_from_the_start():
    return _solution((0.0, 0.3, 0.6, 1.0))


# Wrong: differences, and AutoDiffAdjoint.
def states_from_later():
    return _solution((0.2, 0.4, 0.6, 0.8))


# First order right in the state: differences (2e-8); no gradient of the times, which AutoDiffAdjoint has.
def final_state_and_times():
    return _solution(ends=True)


def times_get_none():
    function, arguments, which = prepared(final_state_and_times)
    leaves = [arguments[i].requires_grad_() for i in which]
    found = torch.autograd.grad(linear([function(*arguments)]), leaves, allow_unused=True)
    automatic, _ = _solution(automatic=True, ends=True)
    expected = torch.autograd.grad(linear([automatic(*arguments)]), leaves)
    by_differences = differences(
        lambda end: linear([automatic(arguments[0], arguments[1], end)]).detach(), arguments[2], 1e-4
    )
    is_right = not far(expected[2], by_differences, 0.01)
    return is_right and found[1] is None and found[2] is None and bool(expected[2].abs().max() > 0.1)


def _lost(make):
    return Bug(
        "the gradient comes without a graph under create_graph: what it adds to a second derivative is lost",
        ("PB401", "PB404", "PB403", "PB604"),
        partial(second_is_wrong, make),
    )


CALLS = (
    Call(
        final_state,
        bugs=(_lost(final_state),),
        doubtful={**DOUBTFUL, "PB603": "it is the call that is labelled here which sets the seed, to make its field"},
    ),
    Call(states_from_the_start, bugs=(_lost(states_from_the_start),), doubtful=DOUBTFUL),
    Call(
        states_from_later,
        bugs=(
            Bug(
                "where the first time asked for is later than the start, the gradient is that of the state then",
                ("PB101",),
                partial(first_is_wrong, states_from_later, 0),
            ),
            _lost(states_from_later),
        ),
        doubtful=DOUBTFUL,
    ),
    Call(
        final_state_and_times,
        bugs=(
            Bug(
                "start and end get no gradient, without a word, where plain autograd has one",
                ("PB107", "PB101"),
                times_get_none,
            ),
            _lost(final_state_and_times),
        ),
        doubtful=DOUBTFUL,
    ),
)

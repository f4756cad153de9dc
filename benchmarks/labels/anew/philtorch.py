"""philtorch: what is known of its custom functions.

All five are covered; their recurrences are compiled, and their backwards are Python. Truth: `gradcheck` and
`gradgradcheck`, real and complex, also in forward mode; float64 central differences. Strided inputs and cotangents, two
backwards, checkpoints, changes in place, frozen arguments, one step.
"""

import torch

from labels import Bug, Call, Package
from labels.anew import NARROW, column_major
from labels.blind import raises_with
from labels.fresh import gradients, raises

PACKAGE = Package("philtorch", "0.5.1", "audio filters")

DOUBTFUL = {
    **dict.fromkeys(("PB119", "PB413"), NARROW),
    **dict.fromkeys(("PB406", "PB408"), "three of the five have no rule for vmap: PyTorch says so"),
    "PB503": "a signal of no steps is refused: the compiled code says so",
    "PB504": "a signal of no steps is refused: the compiled code says so",
}


def _random(*sizes):
    torch.manual_seed(0)
    return tuple(0.5 * torch.randn(size, dtype=torch.float64) for size in sizes)


# Right, twice, and forwards.
def all_pole():
    from philtorch._torchlpc import AllPole

    return AllPole, _random((2, 5), (2, 5, 3), (2, 3))


# Right, twice, and forwards.
def scan():
    from philtorch._torchlpc import ScanRecurrence

    return ScanRecurrence, _random((2, 5), (2, 5), (2,))


# Right, twice, and forwards.
def scalar():
    from philtorch.lti.recur import LTIRecurrence

    return LTIRecurrence, _random((2,), (2,), (2, 5))


# Right, twice, and forwards.
def shared_scalar():
    from philtorch.lti.recur import LTIRecurrence

    return LTIRecurrence, _random((), (2,), (2, 5))


# Right, twice, and forwards.
def matrix():
    from philtorch.lti.ssm import LTIMatrixRecurrence

    return LTIMatrixRecurrence, _random((3, 3), (2, 3), (2, 5, 3))


# Right, twice, and forwards.
def matrices():
    from philtorch.lti.ssm import LTIMatrixRecurrence

    return LTIMatrixRecurrence, _random((2, 2, 2), (2, 2), (2, 5, 2))


# Right, twice, and forwards.
def varying():
    from philtorch.lpv.ssm import MatrixRecurrence

    return MatrixRecurrence, _random((2, 5, 3, 3), (2, 3), (2, 5, 3))


# Right, twice, and forwards.
def shared_varying():
    from philtorch.lpv.ssm import MatrixRecurrence

    return MatrixRecurrence, _random((5, 2, 2), (2, 2), (2, 5, 2))


def _in_columns():
    return raises_with(scan, lambda i, x: column_major(x) if i == 0 else x, "Output must be contiguous")


def _cotangent_in_columns():
    """Whether a cotangent in columns makes the backward fail where the initial state is fixed."""
    function, (impulse, decay, initial) = scan()
    output = function.apply(impulse.requires_grad_(), decay, initial)
    return raises(lambda: output.backward(column_major(torch.ones_like(output))), "Output must be contiguous")


def _one_step(make):
    """Whether the backward fails for a signal of one step, which the forward takes."""

    def short():
        function, (a, initial, x) = make()
        return function, (a, initial, x[:, :1])

    function, arguments = short()
    function.apply(*arguments)
    return raises(lambda: gradients(short), "at least one time step")


def _scalar(make):
    return Call(
        make,
        bugs=(
            Bug(
                "the backward of a signal of one step, which the forward takes, raises",
                ("PB504", "PB119"),
                lambda: _one_step(make),
            ),
        ),
        doubtful=DOUBTFUL,
    )


CALLS = (
    *(Call(make, doubtful=DOUBTFUL) for make in (all_pole, matrix, matrices, varying, shared_varying)),
    Call(
        scan,
        bugs=(
            Bug("an impulse with its steps first in memory raises an internal assertion", ("PB501",), _in_columns),
            Bug(
                "where the initial state is fixed, a cotangent with its steps first in memory raises the same",
                ("PB502", "PB113", "PB501"),
                _cotangent_in_columns,
            ),
        ),
        doubtful=DOUBTFUL,
    ),
    *map(_scalar, (scalar, shared_scalar)),
)

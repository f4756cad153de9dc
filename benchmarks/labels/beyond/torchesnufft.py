"""torchesnufft: what is known of its custom functions.

`SpreadFunction` and `InterpFunction` are covered alone and within the transforms that apply them, in one and two
dimensions. Truth: float64 central differences. Double backward, strided inputs and cotangents, frozen arguments, two
backwards, checkpoints, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.last import derivative_of_backward_is_wrong

PACKAGE = Package("torchesnufft", "0.1.2", "non-uniform Fourier transforms")

DOUBTFUL = {
    **dict.fromkeys(("PB405", "PB406", "PB407"), "torch.func does not take it: it has no setup_context"),
    "PB408": "a vectorised backward raises: it writes to a tensor that has no batch",
    "PB303": "the transform, and its derivative the more, is known to some digits only",
    **dict.fromkeys(("PB305", "PB301"), "at the edge of the kernel, where its value is 1e-7 of its largest"),
}


def _randn(*shape):
    torch.manual_seed(0)
    return torch.randn(*shape, dtype=torch.float64)


def _points(dimensions, number):
    torch.manual_seed(1)
    return 3 * torch.rand(dimensions, number, dtype=torch.float64) - 1.5


def _settings(*sizes):
    from torchesnufft.utils import helpers

    alpha, beta, h, n, *_ = helpers.setup(len(sizes), sizes, 1e-6, torch.float64, torch.device("cpu"))
    return alpha, beta, len(sizes), h, n


def _complex(x):
    return torch.complex(x[..., 0], x[..., 1])


# First order right: differences.
def spread():
    from torchesnufft.utils.spreadinterp import SpreadFunction

    settings = _settings(4)
    return (lambda x, c: SpreadFunction.apply(x, _complex(c), *settings)), (_points(1, 7), _randn(1, 2, 7, 2))


# First order right: differences.
def interpolate():
    from torchesnufft.utils.spreadinterp import InterpFunction

    settings = _settings(4)
    grid = _randn(1, 2, int(settings[-1][0]), 2)
    return (lambda x, b: InterpFunction.apply(x, _complex(b), *settings)), (_points(1, 7), grid)


# First order right: differences.
def first_type():
    from torchesnufft.functional import nufft1

    return (lambda x, c: nufft1(x, _complex(c), (3, 4))), (_points(2, 5), _randn(1, 1, 5, 2))


# First order right: differences.
def second_type():
    from torchesnufft.functional import nufft2

    return (lambda x, f: nufft2(x, _complex(f))), (_points(2, 5), _randn(1, 1, 3, 4, 2))


def _constant(make):
    return Call(
        make,
        bugs=(
            Bug(
                "the kernel is saved, and to double backward it does not depend on the points: silently, a term is lost",
                ("PB401", "PB402", "PB404", "PB604"),
                partial(derivative_of_backward_is_wrong, make, 0),
            ),
        ),
        doubtful=DOUBTFUL,
    )


CALLS = tuple(map(_constant, (spread, interpolate, first_type, second_type)))

"""deepblast: what is known of its custom functions.

The four without CUDA are covered by the two decoders: the score with both arguments, the score of the matches alone, and
the alignment that `decode` differentiates out of the score, which the package trains on. Truth: float64 central
differences. Double backward, strided inputs and cotangents, each argument frozen, two backwards, checkpoints, in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import first_is_wrong, second_is_wrong
from labels.unseen import argument_gets_none

PACKAGE = Package("deepblast", "1.0.2", "bio-informatics", ("numba==0.68.1", "llvmlite==0.50.0"))

NARROW = "the loops are Numba's, which has neither bfloat16 nor half precision: the forward says so"
DOUBTFUL = {
    **dict.fromkeys(("PB119", "PB413", "PB105"), NARROW),
    **dict.fromkeys(("PB406", "PB408"), "a vectorised backward raises: NumPy takes no batch"),
    **dict.fromkeys(("PB203",), "it writes to what is saved the ones that are there"),
}


def _scores():
    torch.manual_seed(0)
    return torch.randn(2, 3, 4), torch.nn.functional.logsigmoid(torch.randn(2, 3, 4))


# Wrong for the gaps.
def global_score():
    from deepblast.nw import NeedlemanWunschDecoder

    return NeedlemanWunschDecoder("softmax"), _scores()


# Right, twice: differences.
def global_score_of_matches():
    function, (matches, gaps) = global_score()
    return (lambda theta: function(theta, gaps.to(theta.dtype))), (matches,)


# Wrong for the gaps. First order right for the matches: differences.
def local_score():
    from deepblast.sw import SmithWatermanDecoder

    return SmithWatermanDecoder("softmax"), _scores()


# Right for the matches: differences. None for the gaps.
def global_alignment():
    function, arguments = global_score()

    def decode(*given):
        return function.decode(*[x if x.requires_grad else x.detach().requires_grad_() for x in given])

    return decode, arguments


def _gaps(make):
    return Bug(
        "the gaps get themselves as their gradient, whatever the cotangent: it is silently wrong",
        ("PB101", "PB106", "PB109", "PB111"),
        partial(first_is_wrong, make, 1),
    )


CALLS = (
    Call(global_score, bugs=(_gaps(global_score),), doubtful=DOUBTFUL),
    Call(
        global_score_of_matches,
        doubtful=DOUBTFUL,
        judged=dict.fromkeys(("PB101", "PB409"), (False, "the gaps in the closure do not follow another length")),
    ),
    Call(
        local_score,
        bugs=(
            _gaps(local_score),
            Bug(
                "the forward starts in the second row and column, and the adjoint pass in the first: second order is wrong",
                ("PB401", "PB404"),
                partial(second_is_wrong, local_score),
            ),
        ),
        doubtful=DOUBTFUL,
    ),
    Call(
        global_alignment,
        bugs=(
            Bug(
                "the alignment changes with the gaps, which get no gradient: silently, they are not trained",
                ("PB107", "PB101", "PB604"),
                partial(argument_gets_none, global_alignment, 1),
            ),
            Bug(
                "the adjoint pass goes through NumPy: the second derivative of the alignment is silently wrong",
                ("PB401", "PB402", "PB604"),
                partial(second_is_wrong, global_alignment),
            ),
        ),
        doubtful=DOUBTFUL,
        judged={"PB102": (True, "the alignment has no tangent, silently, though it moves with the scores")},
    ),
)

"""ddtw: what is known of its custom functions.

That of the PyTorch backend is covered, as the package's modules call it with costs; left out are those of the other
backends, which need Numba or CUDA. Truth: float64 central differences (below 2e-10 but for what is labelled), also with
other steps, weights of steps, lengths, and costs computed from sequences.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import first_is_wrong, second_is_wrong

PACKAGE = Package("ddtw", "0.1.2", "alignment of sequences")

KINK = "where two paths are equally short, the gradient is that of one of them"
WIDTH = "the weights are float32 unless another dtype is asked for"
DOUBTFUL = {"PB303": WIDTH}


def _aligned(name, *arguments, **options):
    import ddtw

    module = getattr(ddtw, name)(backend="torch", **options)

    def aligned(costs):
        return module(C=costs, **dict(arguments))

    torch.manual_seed(0)
    return aligned, (torch.rand(2, 3, 4),)


# First order right: differences (3e-11).
def soft():
    return _aligned("SDTW")


# First order right: differences (7e-11).
def smooth():
    return _aligned("smoothDTW")


# First and second order right: differences (1e-11).
def hard():
    return _aligned("DTW")


# Wrong: differences. The compensation is the default.
def subsequence():
    return _aligned("subSDTW")


# First order right: differences (2e-10).
def subsequence_without_compensation():
    return _aligned("subSDTW", compensate_subseq=False)


# Wrong: differences.
def end_penalty():
    return _aligned("dDTW", ("end_penalty", [[2.0], [2.0]]))


# Wrong: differences.
def start_penalty():
    return _aligned("dDTW", ("start_penalty", [[2.0], [2.0]]))


def _second(make):
    return Bug(
        "the second derivative is wrong: the weights of the paths are saved, without their graph",
        ("PB401", "PB404", "PB604", "PB403"),
        partial(second_is_wrong, make),
    )


def _first(make, what):
    return Bug(what, ("PB101",), partial(first_is_wrong, make, 0))


CALLS = (
    Call(soft, bugs=(_second(soft),), doubtful=DOUBTFUL),
    Call(smooth, bugs=(_second(smooth),), doubtful=DOUBTFUL),
    Call(hard, doubtful={**DOUBTFUL, "PB305": KINK, "PB302": KINK}),
    Call(
        subsequence,
        bugs=(
            _first(
                subsequence, "what the compensation for left out parts makes of the costs is missing in the gradient"
            ),
            _second(subsequence),
        ),
        doubtful=DOUBTFUL,
    ),
    Call(
        subsequence_without_compensation,
        bugs=(_second(subsequence_without_compensation),),
        doubtful=DOUBTFUL,
    ),
    Call(
        end_penalty,
        bugs=(
            _first(end_penalty, "the cost that a penalty at the end multiplies is missing in the gradient"),
            _second(end_penalty),
        ),
        doubtful=DOUBTFUL,
    ),
    Call(
        start_penalty,
        bugs=(
            _first(start_penalty, "the gradient at the start is not multiplied by the penalty"),
            _second(start_penalty),
        ),
        doubtful=DOUBTFUL,
    ),
)

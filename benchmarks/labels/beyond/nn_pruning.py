"""nn-pruning: what is known of its custom functions.

Both binarizers of scores are covered; they are straight-through estimators. Truth: the gradient is the cotangent, and
the mask keeps the highest scores. Strided inputs and cotangents, two backwards, checkpoints, changes in place, autocast,
half precision, sizes of 1.
"""

import torch

from labels import Bug, Call, Package

PACKAGE = Package("nn-pruning", "0.1.2", "pruning")

STRAIGHT = "by design: a straight-through estimator"
DOUBTFUL = {
    **dict.fromkeys(("PB101", "PB110", "PB305"), STRAIGHT),
    "PB503": "scores of no weights at all have no smallest one",
}


def _scores():
    torch.manual_seed(0)
    return torch.randn(4, 6)


# Straight-through, right.
def threshold():
    from nn_pruning.modules.binarizer import ThresholdBinarizer

    return ThresholdBinarizer, (_scores(), 0.1, False)


# Straight-through, right.
def sigmoid_threshold():
    from nn_pruning.modules.binarizer import ThresholdBinarizer

    return ThresholdBinarizer, (_scores(), 0.5, True)


# Straight-through, right where the scores are contiguous.
def top():
    from nn_pruning.modules.binarizer import TopKBinarizer

    return TopKBinarizer, (_scores(), 0.4)


def transposed_scores_are_no_mask():
    """Whether the mask of scores that lie transposed in memory is the scores themselves."""
    function, (scores, share) = top()
    laid = scores.t().contiguous().t()
    return torch.equal(function.apply(laid, share), scores) and not torch.equal(function.apply(scores, share), scores)


CALLS = (
    Call(threshold, "other", doubtful=DOUBTFUL),
    Call(sigmoid_threshold, "other", doubtful=DOUBTFUL),
    Call(
        top,
        "other",
        bugs=(
            Bug(
                "the mask is written to a copy where the scores are not contiguous: silently, the scores are returned",
                ("PB501",),
                transposed_scores_are_no_mask,
            ),
        ),
        doubtful=DOUBTFUL,
    ),
)

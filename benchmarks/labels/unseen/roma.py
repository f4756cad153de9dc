"""roma: what is known of its custom functions.

All three are covered, by the functions that apply them. Truth: float64 central differences; what a regularisation adds
is no derivative, by design. Double backward, strided inputs and cotangents, two backwards, checkpoints, changes in
place, half precision, autocast.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.last import derivative_of_backward_is_wrong

PACKAGE = Package("roma", "1.8.0", "rotations")

DAMPED = "by design: the derivative is damped where the rotation is hardly determined"
NARROW = "singular values have no half precision on a CPU, and the forward says so"
DOUBTFUL = {**dict.fromkeys(("PB101", "PB302", "PB303", "PB305"), DAMPED), "PB413": NARROW, "PB119": NARROW}


def _matrices(size=3):
    torch.manual_seed(0)
    return torch.randn(2, size, size)


# First order right: differences.
def by_singular_values():
    import roma

    return (lambda m: roma.procrustes(m, True, method="svd")), (_matrices(),)


# First order right: differences.
def orthogonal_with_singular_values():
    import roma

    return (lambda m: roma.procrustes(m, return_singular_values=True)), (_matrices(4),)


# Right, twice: differences.
def closed_form():
    import roma

    return roma.special_procrustes, (_matrices(),)


# Right, twice: differences.
def quaternion():
    import roma

    return roma.special_procrustes_unitquat, (_matrices(),)


# Identity in the rotation; what the matrix gets is by design.
def regularised():
    import roma
    from roma.mappings import _ProcrustesRegularization

    m = _matrices()
    return _ProcrustesRegularization, (m, roma.special_procrustes(m), 0.5)


def _lost(make):
    return Bug(
        "the saved factors are outputs marked as not differentiable: the second derivative is silently wrong",
        ("PB401", "PB404"),
        partial(derivative_of_backward_is_wrong, make),
    )


ALSO = {"PB407": (True, "the same second derivative, taken in reverse over forward mode")}

CALLS = (
    Call(by_singular_values, bugs=(_lost(by_singular_values),), doubtful=DOUBTFUL, judged=ALSO),
    Call(
        orthogonal_with_singular_values,
        bugs=(_lost(orthogonal_with_singular_values),),
        doubtful=DOUBTFUL,
        judged=ALSO,
    ),
    Call(closed_form, doubtful=DOUBTFUL),
    Call(quaternion, doubtful=DOUBTFUL),
    Call(
        regularised,
        "other",
        doubtful={
            **dict.fromkeys(
                ("PB102", "PB109", "PB110", "PB114"), "documented: the term does not depend on the cotangent"
            ),
            "PB207": "the output is a view of the rotation: changing it in place raises, with PyTorch's message",
        },
    ),
)

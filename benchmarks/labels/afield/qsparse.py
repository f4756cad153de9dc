"""qsparse: what is known of its custom functions.

All three are covered, with the arguments that the layers pass; two of them with and without a gradient that passes.
None is meant to be a derivative. Cotangents, strided and expanded, two backwards, checkpoints, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.afield import expanded_cotangent_raises, stand_in
from labels.blind import bare
from labels.last import gradients_of

PACKAGE = Package("qsparse", "2.0.1", "quantisation")

CLIPPED = "by design: the gradient is cut off at limits"
FLOAT = "the output is float32 whatever the input is"
SCALER = "by design: the scaler gets no gradient"


def _quantize():
    bare("qsparse")
    for name in ("sklearn", "scipy"):
        stand_in(name)
    stand_in("sklearn.cluster", AgglomerativeClustering=None)
    stand_in("scipy.optimize")
    from qsparse import quantize

    torch.manual_seed(0)
    return quantize


def decimal():
    return _quantize().DecimalQuantization, (torch.randn(3, 4), 8, 5)


def scaler():
    function = _quantize().ScalerQuantization
    return (lambda x: function.apply(x, 8, torch.tensor(0.01))), (torch.randn(3, 4),)


def passed_decimal():
    return _quantize().DecimalQuantization, (torch.randn(3, 4), 8, 5, 1, False, True)


def passed_scaler():
    function = _quantize().ScalerQuantization
    return (lambda x: function.apply(x, 8, torch.tensor(0.1), 1, False, True)), (torch.randn(3, 4),)


def line():
    return _quantize().LineQuantization, (torch.randn(3, 4), 8, (-1.0, 1.0))


def large_cotangent_is_changed(make):
    """Whether a cotangent beyond the limits is changed in place."""
    kept = []

    def cotangent(y):
        kept.append(torch.full_like(y, 100.0))
        return kept[-1]

    gradients_of(make, cotangent)
    return any(bool((c != 100.0).any()) for c in kept)


def _clamped(make):
    return Call(
        make,
        "other",
        bugs=(
            Bug(
                "the backward cuts its cotangent off in place: silently, other branches get what is left",
                ("PB203",),
                partial(large_cotangent_is_changed, make),
            ),
            Bug(
                "the backward writes to its cotangent, and raises where that is expanded, as sum() hands it in",
                ("PB502", "PB119", "PB203"),
                partial(expanded_cotangent_raises, make, "single memory location"),
            ),
        ),
        doubtful={
            **dict.fromkeys(("PB109", "PB101", "PB401"), CLIPPED),
            **dict.fromkeys(("PB105", "PB413"), FLOAT),
        },
    )


CALLS = (
    _clamped(decimal),
    _clamped(scaler),
    *(
        Call(make, "other", doubtful=dict.fromkeys(("PB105", "PB413"), FLOAT))
        for make in (passed_decimal, passed_scaler)
    ),
    Call(line, "other"),
)

"""unit-scaling: what is known of its custom functions.

All five are covered; with the same scale twice the first is a derivative, with two it is not, by design. Truth: float64
central differences of first and second derivatives, and the rounding of numbers to few bits. Strided inputs and
cotangents, two backwards, checkpoints, changes in place, autocast, double and half precision.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.blind import raises_in

PACKAGE = Package(
    "unit-scaling", "0.3.5", "number formats", ("einops==0.8.2", "docstring-parser==0.18.0", "tabulate==0.9.0")
)

SCALED = "by design: forward and backward are scaled by two numbers"
ROUNDED = "by design: one direction is rounded to few bits, the other is not"
VIEW = "the output is the input: changing it in place raises, with PyTorch's message on views"
RECORDED = "what is recorded for a report is on what the call was given, by design"


def _x():
    torch.manual_seed(0)
    return torch.randn(3, 4)


# By its two scales, right.
def scaled():
    from unit_scaling.scale import _ScaledGrad

    return _ScaledGrad, (_x(), 0.5, 2.0)


# Right, twice: differences.
def scaled_alike():
    from unit_scaling.scale import _ScaledGrad

    return _ScaledGrad, (_x(), 0.5, 0.5)


# Right in float32.
def rounded_forward():
    from unit_scaling.formats import FPFormat

    return FPFormat(4, 3, rounding="nearest").quantise_fwd, (_x(),)


# Right in float32.
def rounded_backward():
    from unit_scaling.formats import FPFormat

    return FPFormat(5, 2, rounding="nearest").quantise_bwd, (_x(),)


# Right, twice: identity.
def tracked():
    from unit_scaling.utils import ScalePair, ScaleTracker

    return ScaleTracker, (_x(), ScalePair())


# Right, twice: identity.
def tracked_in_graph():
    from unit_scaling.transforms._track_scales import ScaleTrackingAutogradFunction

    return ScaleTrackingAutogradFunction, (_x(), {})


def _rounded(make, **doubtful):
    return Call(
        make,
        "other",
        bugs=(
            Bug(
                "what is rounded is not the copy in float32, whose bits it means: in half and double precision it raises",
                ("PB104", "PB119", "PB413", "PB105"),
                partial(raises_in, make, torch.bfloat16, "shape compatible with"),
            ),
        ),
        doubtful={**dict.fromkeys(("PB101", "PB109", "PB110", "PB305", "PB302", "PB303"), ROUNDED), **doubtful},
    )


CALLS = (
    Call(scaled, "other", doubtful=dict.fromkeys(("PB101", "PB110"), SCALED)),
    Call(scaled_alike),
    _rounded(rounded_forward),
    _rounded(rounded_backward, PB207=VIEW, **dict.fromkeys(("PB401", "PB604", "PB501", "PB502"), ROUNDED)),
    Call(tracked, doubtful={"PB207": VIEW, **dict.fromkeys(("PB120", "PB601"), RECORDED)}),
    Call(
        tracked_in_graph,
        doubtful={**dict.fromkeys(("PB120", "PB601"), RECORDED), "PB503": "there is nothing to record of no numbers"},
    ),
)

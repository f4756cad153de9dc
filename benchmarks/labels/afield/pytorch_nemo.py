"""pytorch_nemo: what is known of its custom functions.

`PACT_QuantFunc` and `PACT_QuantFunc_Asymm` are covered as the layers apply them. Left out: the deprecated signed one.
The gradient of what is quantised passes straight through; that of a limit is its derivative, up to the rounding: held
against differences over several steps of quantisation.
"""

import torch

from labels import Bug, Call, Package
from labels.blind import bare
from labels.fresh import prepared

PACKAGE = Package("pytorch-nemo", "0.0.8", "quantisation")

STEP = "by design: the step of the quantisation gets no gradient"
OLD = "saved_variables is an old name of saved_tensors"
DOUBTFUL = {**dict.fromkeys(("PB107", "PB604"), STEP), "PB802": OLD}


def _pact():
    bare("nemo", "nemo.quant")
    from nemo.quant import pact

    torch.manual_seed(0)
    return pact


def activation():
    return _pact().pact_quantize, (torch.randn(3, 4), torch.tensor([1 / 16]), torch.tensor([1.0]))


def asymmetric():
    return _pact().pact_quantize_asymm, (
        torch.randn(3, 4),
        torch.tensor([1 / 16]),
        torch.tensor([1.0]),
        torch.tensor([0.75]),
    )


def lower_limit_has_wrong_sign():
    """Whether the gradient of the lower limit is that of differences over two steps, with the other sign."""
    function, arguments, _ = prepared(asymmetric)
    x, step, lower, upper = arguments
    x[0, 0] = -3.0
    lower.requires_grad_()
    (found,) = torch.autograd.grad(function(x, step, lower, upper).sum(), lower)
    with torch.no_grad():
        ahead, behind = (function(x, step, lower + d * step, upper).sum() for d in (1, -1))
        slope = float((ahead - behind) / (2 * step))
    return slope < -0.5 and float(found) > 0.5 and abs(slope + float(found)) < 0.01


CALLS = (
    Call(activation, "other", doubtful=DOUBTFUL),
    Call(
        asymmetric,
        "other",
        bugs=(
            Bug(
                "the gradient of the lower limit has the wrong sign: where the output is -alpha, it is taken for alpha",
                ("PB101",),
                lower_limit_has_wrong_sign,
            ),
        ),
        doubtful=DOUBTFUL,
    ),
)

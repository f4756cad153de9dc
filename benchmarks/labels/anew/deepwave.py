"""deepwave: what is known of its custom functions.

Three of its four are covered by the propagators that apply them, one of them with its own second derivative
(`ScalarBackwardFunc`); what they call is compiled C without PyTorch. The largest velocity is given, for the absorbing
border hangs on it. Truth: float64 central differences. Double backward, strided inputs and cotangents, two backwards,
checkpoints, changes in place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.anew import NARROW, NO_FUNC, SECOND
from labels.last import derivative_of_backward_is_wrong

PACKAGE = Package("deepwave", "0.0.21", "seismic waves")

SOURCE, RECEIVERS = torch.tensor([[[2, 2]]]), torch.tensor([[[1, 4], [3, 3]]])
DOUBTFUL = {
    **dict.fromkeys(("PB119", "PB413", "PB105"), NARROW),
    **dict.fromkeys(("PB405", "PB406", "PB407", "PB408"), NO_FUNC),
    **dict.fromkeys(("PB503", "PB504", "PB505", "PB117"), "a model has two dimensions, and its locations lie in it"),
    "PB303": "the wave is stepped in time",
}


def _propagator(name, *, of="", output=-1):
    import deepwave

    def propagated(*given):
        *model, amplitudes = given
        return getattr(deepwave, name)(
            *model,
            5.0,
            0.001,
            accuracy=2,
            pml_width=2,
            pml_freq=20.0,
            max_vel=2000.0,
            **{
                f"source_amplitudes{of}": amplitudes,
                f"source_locations{of}": SOURCE,
                f"receiver_locations{of}": RECEIVERS,
            },
        )[output]

    return propagated


def _model():
    torch.manual_seed(0)
    return 1.5 + 0.1 * torch.rand(5, 6, dtype=torch.float64), torch.randn(1, 1, 8, dtype=torch.float64)


# Right, twice: differences.
def scalar():
    propagated = _propagator("scalar")
    return (lambda v, amplitudes: propagated(1000 * v, amplitudes)), _model()


# First order right: differences.
def born():
    propagated = _propagator("scalar_born")
    v, amplitudes = _model()
    scatter = 0.02 * torch.randn_like(v)
    return (lambda v, scatter, amplitudes: propagated(1000 * v, 1000 * scatter, amplitudes)), (v, scatter, amplitudes)


# First order right: differences.
def elastic():
    propagated = _propagator("elastic", of="_y", output=-2)
    v, amplitudes = _model()
    mu = 0.5 * v**2

    def scaled(lamb, mu, buoyancy, amplitudes):
        return propagated(1e9 * lamb, 1e9 * mu, 1e-3 * buoyancy, amplitudes)

    return scaled, (2 * v**2 - 2 * mu, mu, torch.full_like(v, 0.5), 1e6 * amplitudes)


def _once(make):
    return Bug(
        "once_differentiable lets through a second derivative that is silently wrong",
        SECOND,
        partial(derivative_of_backward_is_wrong, make),
    )


CRASHES = {"PB002": (True, "bfloat16, which the forward takes, corrupts memory: so it does in plain PyTorch")}

CALLS = (
    Call(scalar, doubtful=DOUBTFUL, judged=CRASHES),
    *(Call(make, bugs=(_once(make),), doubtful=DOUBTFUL, judged=CRASHES) for make in (born, elastic)),
)

"""mri_nufft: what is known of its custom functions.

`_NUFFT_OP` and `_NUFFT_ADJOP` are covered by the module that applies them, with the CPU's transform in double
precision: of an image, of data, with coils, with trajectories in radians and in cycles, both of which it takes, and with
a batch that has maps and trajectories of its own. Left out: field maps. Truth: float64 central differences of real and
imaginary parts. Double backward, each argument alone, strided and expanded cotangents, two backwards, checkpoints,
changes in place.
"""

from functools import partial

import numpy
import torch

from labels import Bug, Call, Package
from labels.afield import stand_in, with_parts
from labels.fresh import first_is_wrong, raises_in_checkpoint, second_is_wrong
from labels.last import derivative_of_backward_is_wrong

PACKAGE = Package("mri-nufft", "1.5.1", "MRI", ("finufft==2.5.1", "tqdm==4.70.1"))

WIDTH = "an operator is of one precision, and says so"
DOUBTFUL = {
    **dict.fromkeys(("PB119", "PB413", "PB105"), WIDTH),
    "PB408": "a vectorised backward raises: NumPy takes no batch",
    "PB406": "torch.func does not take it: it has no setup_context",
    "PB303": "a non-uniform transform is known to some digits only",
}
HELD = "by design: the operator that a call holds is moved to the trajectory of the call"
PI = 3.141592653589793


def _operator(coils=False, **options):
    for name in ("deepinv", "deepinv.physics"):
        stand_in(name)
    stand_in("deepinv.physics.forward", LinearPhysics=object)
    import mrinufft
    from mrinufft.operators.autodiff import MRINufftAutoGrad

    generator = numpy.random.default_rng(0)
    maps = generator.standard_normal((2, 2, 4, 6)) @ numpy.eye(6)
    operator = mrinufft.get_operator("finufft")(
        2 * PI * (generator.random((7, 2)) - 0.5),
        (4, 6),
        n_coils=2,
        smaps=maps[0] + 1j * maps[1] if coils else None,
        squeeze_dims=False,
        eps=1e-12,
    )
    torch.manual_seed(0)
    return MRINufftAutoGrad(operator, **options)


def _complex(*shape):
    return torch.randn(*shape, dtype=torch.complex128)


# First order right: differences.
def image():
    return _operator().op, (_complex(1, 2, 4, 6),)


# First order right: differences.
def data():
    return _operator().adj_op, (_complex(1, 2, 7),)


# First order right: differences.
def image_of_coils():
    return _operator(True).op, (_complex(1, 1, 4, 6),)


def _moved(name, x, scale):
    operator = _operator(wrt_traj=True)

    def function(x, trajectory):
        operator.samples = trajectory
        return getattr(operator, name)(x)

    return function, (x, scale * (0.8 * torch.rand(7, 2, dtype=torch.float64) - 0.4))


# First order right: differences.
def trajectory_in_radians():
    return _moved("op", _complex(1, 2, 4, 6), 2 * PI)


# First order right: differences.
def trajectory_in_radians_of_data():
    return _moved("adj_op", _complex(1, 2, 7), 2 * PI)


# The gradient of the image is right: differences. That of the trajectory is not.
def trajectory_in_cycles():
    return _moved("op", _complex(1, 2, 4, 6), 1)


# Wrong.
def batch():
    operator = _operator(True, paired_batch=True)
    maps = _complex(2, 2, 4, 6).numpy()
    trajectories = 2 * PI * (0.8 * torch.rand(2, 7, 2, dtype=torch.float64) - 0.4)
    return (lambda x: operator.op(x, smaps=maps, samples=trajectories)), (_complex(2, 1, 1, 4, 6),)


def _cut(make, proof=second_is_wrong, position=0):
    return Bug(
        "the backward goes through NumPy and returns a new leaf: the second derivative is silently wrong",
        ("PB401", "PB402", "PB404", "PB604"),
        partial(proof, with_parts(make), position),
    )


CALLS = (
    *(Call(make, bugs=(_cut(make),), doubtful=DOUBTFUL) for make in (image, data, image_of_coils)),
    *(
        Call(
            make,
            bugs=(_cut(make, derivative_of_backward_is_wrong, 1),),
            doubtful={**DOUBTFUL, **dict.fromkeys(("PB120", "PB507"), HELD)},
            judged={"PB101": (True, "a trajectory within a half is taken for cycles: a factor of two pi is missing")},
        )
        for make in (trajectory_in_radians, trajectory_in_radians_of_data)
    ),
    Call(
        trajectory_in_cycles,
        bugs=(
            Bug(
                "a trajectory within a half is taken for cycles, and its gradient lacks the factor of two pi",
                ("PB101",),
                partial(first_is_wrong, with_parts(trajectory_in_cycles), 1),
            ),
            _cut(trajectory_in_cycles, derivative_of_backward_is_wrong, 1),
        ),
        doubtful={**DOUBTFUL, **dict.fromkeys(("PB120", "PB507"), HELD)},
    ),
    Call(
        batch,
        bugs=(
            Bug(
                "the members of a batch share one operator: all gradients are those of the last one's maps and trajectory",
                ("PB101", "PB120", "PB507"),
                partial(first_is_wrong, with_parts(batch), 0),
            ),
            Bug(
                "the exception by which a checkpoint stops early is caught: the backward raises",
                ("PB411",),
                partial(raises_in_checkpoint, with_parts(batch), "Failed at batch index"),
            ),
        ),
        doubtful=DOUBTFUL,
    ),
)

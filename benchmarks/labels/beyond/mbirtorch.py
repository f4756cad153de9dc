"""mbirtorch: what is known of its custom functions.

Both projections are covered with two geometries. They are linear, and compute in float32. Truth: the matrix of the
projection, column by column; its transpose is the gradient, and the second derivative of a square is made of both.
Strided inputs and cotangents, two backwards, checkpoints, changes in place, autocast.
"""

import numpy as np
import torch

from labels import Call, Package

PACKAGE = Package("mbirtorch", "0.2.0", "tomography")

DOUBTFUL = {
    **dict.fromkeys(("PB405", "PB406", "PB407"), "torch.func does not take it: it has no setup_context"),
    "PB408": "a vectorised backward raises: the projection takes no batch",
    "PB303": "the projection is computed in float32, whatever its input is in",
}


def _parallel():
    import mbirtorch

    return mbirtorch.ParallelBeamModel((5, 2, 8), np.linspace(0, np.pi, 5, endpoint=False))


def _cone():
    import mbirtorch

    angles = np.linspace(0, 2 * np.pi, 5, endpoint=False)
    return mbirtorch.ConeBeamModel((5, 4, 8), angles, source_detector_dist=40, source_iso_dist=20)


def _forward(model):
    from mbirtorch.autograd import forward_project_differentiable

    torch.manual_seed(0)
    return (lambda x: forward_project_differentiable(model, x)), (torch.randn(*model.get_params("recon_shape")),)


def _back(model):
    from mbirtorch.autograd import back_project_differentiable

    torch.manual_seed(0)
    return (lambda y: back_project_differentiable(model, y)), (torch.randn(*model.get_params("sinogram_shape")),)


# Right, twice: the transpose.
def parallel():
    return _forward(_parallel())


# Right, twice: the transpose.
def parallel_back():
    return _back(_parallel())


# Right, twice: the transpose.
def cone():
    return _forward(_cone())


# Right, twice: the transpose.
def cone_back():
    return _back(_cone())


CALLS = tuple(Call(make, doubtful=DOUBTFUL) for make in (parallel, parallel_back, cone, cone_back))

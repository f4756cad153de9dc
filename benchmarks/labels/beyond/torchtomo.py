"""torchtomo: what is known of its custom function.

`_DiscreteAdjoint` is covered by the adjoint of three projectors, which applies it; the other Functions need CUDA.
Truth: float64 central differences. Double backward, strided inputs and cotangents, two backwards, checkpoints, changes
in place, autocast.
"""

from copy import deepcopy

import torch

from labels import Call, Package

PACKAGE = Package("torchtomo", "0.5.0", "tomography")

DOUBTFUL = {
    **dict.fromkeys(("PB405", "PB406", "PB407"), "torch.func does not take it: it has no setup_context"),
    "PB408": "a vectorised backward raises: the projection takes no more dimensions",
    "PB207": "the output may be a view: changing it in place raises, with PyTorch's message on views",
    **dict.fromkeys(("PB105", "PB413"), "PyTorch has no half precision for sparse matrices, and says so"),
}


def _adjoint(projector):
    def adjoint(y):
        return deepcopy(projector).to(y.dtype).adjoint(y)

    torch.manual_seed(0)
    return adjoint, (torch.randn(2, 1, 5, projector.n_det, dtype=torch.float64),)


# Right, twice: differences.
def parallel():
    from torchtomo import ParallelBeam

    return _adjoint(ParallelBeam(img_size=6, n_angles=5, n_det=6))


# Right, twice: differences.
def parallel_sparse():
    from torchtomo import ParallelBeam

    return _adjoint(ParallelBeam(img_size=6, n_angles=5, n_det=6, sparse_adjoint=True))


# Right, twice: differences.
def fan():
    from torchtomo import FanBeam

    return _adjoint(FanBeam(img_size=6, n_angles=5))


CALLS = tuple(Call(make, doubtful=DOUBTFUL) for make in (parallel, parallel_sparse, fan))

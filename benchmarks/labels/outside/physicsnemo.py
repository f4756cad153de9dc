"""nvidia-physicsnemo: what is known of one of its custom functions.

`_SobolevDisplacement` is covered on a plane mesh with a fixed point and on a surface; what the others need is no CPU.
Truth: float64 central differences, with the tolerance of the package for float64. Double backward, strided and
expanded inputs and cotangents, arguments frozen, two backwards, checkpoints, changes in place, float32.
"""

import importlib

import torch

from labels import Call, Package
from labels.blind import bare

PACKAGE = Package("nvidia-physicsnemo", "2.2.2", "mesh deformation")

ONCE = "once_differentiable, and documented as first order: torch.autograd.grad may leave the term out"
DOUBTFUL = {
    **dict.fromkeys(("PB405", "PB406", "PB407"), "torch.func does not take it: it has no setup_context"),
    **dict.fromkeys(("PB401", "PB402", "PB404", "PB604"), ONCE),
    "PB303": "an iteration that ends at a tolerance",
    "PB408": "a vectorised backward raises: the iteration looks at numbers",
    **dict.fromkeys(("PB109", "PB119", "PB301", "PB302"), "squares of a cotangent of 1e-20 leave the range of float32"),
    **dict.fromkeys(("PB409", "PB410", "PB415"), "a loop of a hundred steps, which compiling unrolls"),
    "PB705": "by design: the operators are assembled again, to be differentiated",
}
FOLDERS = ("physicsnemo", "nn", "functional", "geometry", "deform")


def _function():
    bare(*(".".join(FOLDERS[: i + 1]) for i in range(len(FOLDERS))))
    torch.manual_seed(0)
    return importlib.import_module(".".join((*FOLDERS, "_sobolev_torch_impl")))._SobolevDisplacement


# Right: differences.
def plane():
    function = _function()
    points = torch.tensor([[[0, 0], [1, 0], [0, 1], [1, 1.1], [2, 0.3], [2, 1.2]]], dtype=torch.float64)
    cells = torch.tensor([[0, 1, 2], [1, 3, 2], [1, 4, 3], [4, 5, 3]])
    displacement = 0.1 * torch.randn(1, 6, 2, dtype=torch.float64)
    free = torch.tensor([[False, True, True, True, True, True]])
    return function, (points, cells, displacement, free, 0.7, 128, 1e-10)


# Right: differences.
def surface():
    function = _function()
    points = torch.tensor([[[0, 0, 0], [1, 0, 0.2], [0, 1, 0.1], [1, 1, 0.5]]], dtype=torch.float64)
    cells = torch.tensor([[0, 1, 2], [1, 3, 2]])
    displacement = 0.1 * torch.randn(1, 4, 3, dtype=torch.float64)
    return function, (points, cells, displacement, torch.ones(1, 4, dtype=torch.bool), 0.5, 128, 1e-10)


CALLS = (Call(plane, doubtful=DOUBTFUL), Call(surface, doubtful=DOUBTFUL))

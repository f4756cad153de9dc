"""ocnn: what is known of its custom functions.

`OctreeConvFunction`, `OctreeDeconvFunction` and `OctreeDWConvFunction` are covered, on the octree of a dozen points;
`OctreeConvTritonFunction` needs a GPU. Truth: float64 central differences of first and second order. One argument
frozen, strided inputs and cotangents, two backwards, checkpoints, changes in place, other dtypes, autocast.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.afield import stand_in
from labels.fresh import raises, second_is_wrong

PACKAGE = Package("ocnn", "2.3.3", "point clouds", ("packaging",))


def _octree():
    stand_in("torchvision")
    stand_in("torchvision.models", resnet18=None)
    from ocnn.octree import Octree, Points

    torch.manual_seed(0)
    points = Points(torch.rand(12, 3) * 1.8 - 0.9)
    octree = Octree(depth=3, full_depth=2)
    octree.build_octree(points)
    octree.construct_all_neigh()
    return octree


def _convolution(name, rows, *options, shape):
    octree = _octree()
    from ocnn.nn import octree_conv, octree_dwconv

    function = getattr(octree_conv, name, None) or getattr(octree_dwconv, name)
    return function, (torch.randn(rows(octree), 2), torch.randn(shape), octree, 3, *options)


# Right, twice: differences.
def convolution():
    return _convolution(
        "OctreeConvFunction", lambda o: int(o.nnum_nempty[3]), 2, 3, [3, 3, 3], 1, True, shape=(27, 2, 3)
    )


# First order right: differences.
def blocks():
    return _convolution(
        "OctreeConvFunction", lambda o: int(o.nnum_nempty[3]), 2, 3, [3, 3, 3], 1, True, 270, shape=(27, 2, 3)
    )


# Right, twice: differences.
def strided():
    return _convolution(
        "OctreeConvFunction", lambda o: int(o.nnum_nempty[3]), 2, 3, [2, 2, 2], 2, True, shape=(8, 2, 3)
    )


# Right, twice: differences.
def transposed():
    octree = _octree()
    from ocnn.nn.octree_conv import OctreeDeconvFunction

    data = torch.randn(int(octree.nnum_nempty[2]), 2)
    return OctreeDeconvFunction, (data, torch.randn(8, 3, 2), octree, 2, 2, 3, [2, 2, 2], 2, True)


# Right, twice: differences.
def depthwise():
    return _convolution(
        "OctreeDWConvFunction", lambda o: int(o.nnum_nempty[3]), 2, [3, 3, 3], 1, True, shape=(27, 1, 2)
    )


# First order right: differences.
def depthwise_blocks():
    return _convolution(
        "OctreeDWConvFunction", lambda o: int(o.nnum_nempty[3]), 2, [3, 3, 3], 1, True, 270, shape=(27, 1, 2)
    )


def _refilled(make):
    return Bug(
        "the backward fills one buffer again for each block: double backward raises, with PyTorch's message on changes "
        "in place",
        ("PB403", "PB401", "PB119", "PB203"),
        lambda: raises(partial(second_is_wrong, make, 1), "modified by an inplace operation"),
    )


NARROW = {
    "PB105": "weights are cast to the dtype of the data, as under autocast, and PyTorch casts their gradient back"
}

CALLS = (
    Call(convolution, doubtful=NARROW),
    Call(blocks, bugs=(_refilled(blocks),), doubtful=NARROW),
    Call(strided, doubtful=NARROW),
    Call(
        transposed,
        doubtful={
            **NARROW,
            **dict.fromkeys(
                ("PB413", "PB119"), "under autocast it is the forward that raises: it adds to another dtype"
            ),
        },
    ),
    Call(depthwise, doubtful=NARROW),
    Call(depthwise_blocks, bugs=(_refilled(depthwise_blocks),), doubtful=NARROW),
)

"""fastai: what is known of its custom functions.

Both are covered, through the modules that apply them. Truth: float64 central differences. Double backward, strided
inputs and cotangents, two backwards, checkpoints, in place, dtypes.
"""

import torch

from labels import Call, Package

PACKAGE = Package(
    "fastai",
    "2.8.12",
    "neural networks",
    (
        "fastcore==2.2.41",
        "fastprogress==1.1.6",
        "fasttransform==0.0.5",
        "plum-dispatch==2.10.1",
        "beartype==0.23.1",
        "python-fasthtml==0.14.14",
        "python-multipart",
        "starlette",
        "itsdangerous",
        "anyio",
        "pandas",
        "pyyaml",
        "requests",
    ),
)

OLD = "ctx.saved_variables is an old name of ctx.saved_tensors, and does what that does"


def _module(name):
    from fastai import layers

    torch.manual_seed(0)
    return getattr(layers, name)(), (2 * torch.randn(3, 4),)


# Right, twice: differences.
def swish():
    return _module("SwishJit")


# Right, twice: differences.
def mish():
    return _module("MishJit")


CALLS = tuple(Call(make, doubtful={"PB802": OLD}) for make in (swish, mish))

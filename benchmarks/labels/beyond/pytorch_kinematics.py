"""pytorch_kinematics: what is known of its custom function.

`_FKAnalyticalBackward` is covered by the forward kinematics of three arms, which apply it by default. Truth: float64
central differences. Double backward, strided inputs and cotangents, two backwards, checkpoints, changes in place.
"""

from copy import deepcopy
from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import second_is_wrong

PACKAGE = Package(
    "pytorch-kinematics",
    "0.10.0",
    "robot kinematics",
    ("lxml", "absl-py", "arm-pytorch-utilities", "pytorch-seed", "pyyaml", "matplotlib"),
)

DOUBTFUL = {
    **dict.fromkeys(("PB405", "PB406", "PB407"), "torch.func does not take it: it has no setup_context"),
    "PB207": "the output is the input: changing it in place raises, with PyTorch's message on views",
    **dict.fromkeys(("PB413", "PB105"), "the forward does not take another dtype under autocast, and says so"),
}


def _arm(*kinds):
    from pytorch_kinematics import build_chain_from_urdf

    links = "".join(f'<link name="l{i}"/>' for i in range(len(kinds) + 1))
    joints = "".join(
        f'<joint name="j{i}" type="{kind}"><parent link="l{i}"/><child link="l{i + 1}"/>'
        f'<origin xyz="0.1 {0.2 + i * 0.1} 0.3" rpy="{0.3 * i} 0.2 0.1"/><axis xyz="{i % 2} 0 {1 - i % 2}"/>'
        '<limit effort="1" lower="-3" upper="3" velocity="1"/></joint>'
        for i, kind in enumerate(kinds)
    )
    return build_chain_from_urdf(f'<robot name="arm">{links}{joints}</robot>')


def _angles(*shape):
    torch.manual_seed(0)
    return (torch.randn(*shape, dtype=torch.float64),)


# First order right: differences.
def revolute():
    arm = _arm("revolute", "revolute", "revolute")
    return (lambda at: deepcopy(arm).to(dtype=at.dtype).forward_kinematics_tensor(at)), _angles(2, 3)


# First order right: differences.
def mixed():
    arm = _arm("revolute", "prismatic", "fixed", "revolute")
    return (lambda at: deepcopy(arm).to(dtype=at.dtype).forward_kinematics_tensor(at)), _angles(2, 3)


# First order right: differences.
def hand():
    arm = _arm("revolute", "prismatic")
    return (lambda at: deepcopy(arm).to(dtype=at.dtype).forward_kinematics(at)["l2"].get_matrix()), _angles(1, 2)


CALLS = tuple(
    Call(
        make,
        bugs=(
            Bug(
                "the backward reads transforms that have no graph: the second derivative is silently wrong, as documented",
                ("PB401", "PB402", "PB403", "PB404", "PB604"),
                partial(second_is_wrong, make),
            ),
        ),
        doubtful=DOUBTFUL,
    )
    for make in (revolute, mixed, hand)
)

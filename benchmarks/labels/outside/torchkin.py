"""torchkin: what is known of its custom function.

`ForwardKinematics`, made anew for each robot, is covered with several links, and with one whose ancestors are passed
through. Truth: float64 central differences. Double backward, also after another backward, strided and expanded inputs
and cotangents, some of the outputs, two backwards, checkpoints, changes in place, vectorised Jacobians, what is left
when the outputs are dropped.
"""

import gc
import tempfile
import weakref
from functools import partial
from pathlib import Path

import torch

from labels import Bug, Call, Package
from labels.fresh import linear, raises, second_is_wrong

PACKAGE = Package(
    "torchkin",
    "0.1.1",
    "robot kinematics",
    ("torchlie==0.1.0", "urdf-parser-py==0.0.4", "lxml==6.1.3", "PyYAML==6.0.4", "six==1.17.0"),
)

ONE_DTYPE = "a robot has one dtype: the forward takes no other"
DOUBTFUL = {
    **dict.fromkeys(("PB105", "PB413"), ONE_DTYPE),
    "PB118": "the robot's own origins and axes are constants",
    "PB407": "there is no jvp: forward mode raises, with PyTorch's message",
    "PB303": "the gradient at a link's own pose is projected to what a rigid body can do",
}

ORIGIN = '<origin xyz="0.2 0.3 0.1" rpy="0.4 0.1 0.5"/>'
LIMIT = '<limit lower="-3" upper="3" effort="1" velocity="1"/>'
JOINTS = (
    ("revolute", "base", "arm", "0 0 1"),
    ("prismatic", "arm", "slide", "0 1 0"),
    ("fixed", "slide", "tool", "0 0 1"),
    ("revolute", "arm", "hand", "1 0 0"),
)


def _kinematics(*links):
    from torchkin import Robot, get_forward_kinematics_fns

    parts = [f'<link name="{name}"/>' for name in ("base", "arm", "slide", "tool", "hand")]
    for kind, parent, child, axis in JOINTS:
        ends = f'<parent link="{parent}"/><child link="{child}"/>'
        parts.append(f'<joint name="{child}" type="{kind}">{ends}{ORIGIN}<axis xyz="{axis}"/>{LIMIT}</joint>')
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "robot.urdf"
        path.write_text(f'<robot name="robot">{"".join(parts)}</robot>')
        robot = Robot.from_urdf_file(str(path), torch.float64)
    torch.manual_seed(0)
    return get_forward_kinematics_fns(robot, list(links)), (torch.randn(2, robot.dof, dtype=torch.float64),)


# First order right, and second: differences.
def several():
    functions, arguments = _kinematics("slide", "tool", "hand")
    return functions[0], arguments


# First order right: differences.
def tool():
    functions, arguments = _kinematics("tool")
    return functions[0], arguments


def stays_alive(make):
    """Whether an argument is kept when neither it nor the outputs are held, until the garbage collector runs."""
    function, (angles,) = make()
    gc.collect()
    gc.disable()
    try:
        angles.requires_grad_()
        reference = weakref.ref(angles)
        outputs = function(angles)
        del angles, outputs
        return reference() is not None
    finally:
        gc.enable()
        gc.collect()


def second_changes_after_a_backward(make):
    """Whether the second derivative silently differs where a backward over the same graph came before."""
    found = []
    for with_another in (False, True):
        function, (angles,) = make()
        angles.requires_grad_()
        outputs = function(angles)
        value = linear([torch.tanh(y) for y in (outputs if isinstance(outputs, tuple) else (outputs,))])
        if with_another:
            torch.autograd.grad(value, angles, retain_graph=True)
        (first,) = torch.autograd.grad(value, angles, create_graph=True)
        found.append((first, *torch.autograd.grad(linear([first], 3), angles)))
    (first, second), (same, other) = found
    return torch.allclose(first, same) and not torch.allclose(second, other, rtol=0.01)


def _kept(make):
    return Bug(
        "the context keeps the outputs in a list: what a call holds is not freed with them",
        ("PB204", "PB201"),
        partial(stays_alive, make),
    )


def _remembered(make):
    return Bug(
        "the backward keeps its Jacobian, made without a graph, for the next one: then the second derivative is silently wrong",
        ("PB206", "PB401", "PB404", "PB201", "PB604", "PB120"),
        partial(second_changes_after_a_backward, make),
    )


CALLS = (
    Call(
        several,
        bugs=(
            _kept(several),
            _remembered(several),
            Bug(
                "a vectorised Jacobian of one of several poses raises: the cotangents of the others are not batched",
                ("PB408", "PB406", "PB405"),
                lambda: raises(
                    lambda: torch.func.jacrev(lambda x: several()[0](x)[0])(*several()[1]), "broadcast shape"
                ),
            ),
        ),
        doubtful=DOUBTFUL,
    ),
    Call(
        tool,
        bugs=(
            _kept(tool),
            Bug(
                "the poses between, which are no outputs, are kept without a graph: the second derivative is silently wrong",
                ("PB401", "PB404", "PB604", "PB201"),
                partial(second_is_wrong, tool),
            ),
        ),
        doubtful=DOUBTFUL,
        judged={"PB209": (True, "poses that are outputs are kept in a list on the context, and no version is checked")},
    ),
)

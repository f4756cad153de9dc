"""torchlie (of theseus-ai): what is known of its custom functions.

All 26 functions of SO3 and SE3 were compared with float64 differences, Exp also with autograd through the matrix
exponential, and Log with the series of its Jacobian. Left out: Hat, Vee, Lift, Project (linear, right), SO3's Adjoint
and Inverse (linear, right), Untransform, LeftAct, LeftProject and SO3's Log, Compose and TransformFrom, which are
right at first and second order but for what is said of their like below (checkpointing of Untransform and
TransformFrom, autocast).
"""

import torch

from labels import Bug, Call, Package

PACKAGE = Package("torchlie", "0.1.0", "robotics")

TWICE = "the backward reads ctx.saved_tensors twice, which activation checkpointing refuses"
CAYLEY = "below an angle of 5e-3 (float32: 1e-2) it is replaced by a rational approximation, off by a relative 5e-6"


def _checkpoint_raises(function, *inputs):
    from torch.utils.checkpoint import CheckpointError, checkpoint

    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    try:
        torch.autograd.grad(checkpoint(function, *inputs, use_reentrant=False).sum(), inputs)
    except CheckpointError as error:
        return "already unpacked" in str(error)
    return False


def _group(name, *size, dtype=torch.float32):
    import torchlie.functional as lie

    torch.manual_seed(0)
    return getattr(lie, name).rand(*size, dtype=dtype)


# First and second order right: differences (3e-10), autograd through torch.linalg.matrix_exp (1e-15 in float64).
def so3_exp():
    from torchlie.functional.so3_impl import Exp

    torch.manual_seed(0)
    return Exp, (torch.randn(4, 3),)


def so3_exp_fails_in_checkpoint():
    function, inputs = so3_exp()
    return _checkpoint_raises(function.apply, *inputs)


def so3_exp_fails_under_autocast():
    function, (x,) = so3_exp()
    x.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = function.apply(x)
    try:
        torch.autograd.grad(y.float().sum(), x)
    except RuntimeError as error:
        return "scalar type" in str(error)
    return False


# First and second order right: differences (3e-10), autograd through torch.linalg.matrix_exp (1e-15 in float64).
def se3_exp():
    from torchlie.functional.se3_impl import Exp

    torch.manual_seed(0)
    return Exp, (torch.randn(4, 6),)


def se3_exp_fails_in_checkpoint():
    function, inputs = se3_exp()
    return _checkpoint_raises(function.apply, *inputs)


# Right along the group: the series of the inverse right Jacobian (1e-9 in float64), second order by differences (4e-11).
def se3_log():
    from torchlie.functional.se3_impl import Log

    return Log, (_group("SE3", 4),)


# Right at first and second order: differences of all 12 entries (2e-10).
def se3_adjoint():
    from torchlie.functional.se3_impl import Adjoint

    return Adjoint, (_group("SE3", 4),)


# Right at first and second order: differences of all 12 entries (1e-10).
def se3_inverse():
    from torchlie.functional.se3_impl import Inverse

    return Inverse, (_group("SE3", 4),)


# First and second order right: differences of all entries (2e-10), also where the batch is broadcast.
def se3_compose():
    from torchlie.functional.se3_impl import Compose

    g = _group("SE3", 8)
    return Compose, (g[:4].clone(), g[4:].clone())


def se3_compose_fails_in_checkpoint():
    function, inputs = se3_compose()
    return _checkpoint_raises(function.apply, *inputs)


# First and second order right: differences of all entries (4e-10).
def se3_transform():
    from torchlie.functional.se3_impl import TransformFrom

    g = _group("SE3", 4)
    return TransformFrom, (g, torch.randn(4, 3))


def se3_transform_fails_in_checkpoint():
    function, inputs = se3_transform()
    return _checkpoint_raises(function.apply, *inputs)


# First and second order right: differences of all entries (1e-10), the quaternion being normalised in the forward.
def quaternion_to_rotation():
    from torchlie.functional.so3_impl import QuaternionToRotation

    torch.manual_seed(0)
    return QuaternionToRotation, (torch.nn.functional.normalize(torch.randn(4, 4), dim=-1),)


def quaternion_to_rotation_fails_in_checkpoint():
    function, inputs = quaternion_to_rotation()
    return _checkpoint_raises(function.apply, *inputs)


# First order right where the singular values are far apart (differences, 1e-10); wrong where they are near or equal.
def so3_normalize():
    import torchlie.functional as lie

    g = _group("SO3", 4)
    return lie.SO3.normalize, (g + 0.05 * torch.randn(4, 3, 3),)


def _nearest_rotation(a):
    u, _, vh = torch.linalg.svd(a)
    sign = torch.det(u @ vh)[..., None, None]
    return torch.cat([u[..., :2], u[..., 2:] * sign], -1) @ vh


def _normalize_error(a):
    import torchlie.functional as lie

    torch.manual_seed(1)
    a = a.detach().requires_grad_()
    weight = torch.randn_like(a)
    found = torch.autograd.grad(lie.SO3.normalize(a), a, weight)[0].double()
    b, expected, eps = a.detach().double(), torch.zeros_like(a, dtype=torch.float64), 1e-5
    for i in range(3):
        for j in range(3):
            step = torch.zeros(3, 3, dtype=torch.float64)
            step[i, j] = eps
            change = (_nearest_rotation(b + step) - _nearest_rotation(b - step)) / (2 * eps)
            expected[..., i, j] = (change * weight).sum((-2, -1))
    return float((found - expected).abs().max() / expected.abs().max()), found


def normalize_of_a_rotation_is_zero():
    error, found = _normalize_error(torch.eye(3, dtype=torch.float64)[None])
    return error > 0.9 and float(found.abs().max()) == 0


def normalize_near_a_rotation_is_inaccurate():
    torch.manual_seed(0)
    error, _ = _normalize_error(_group("SO3", 20) + 1e-6 * torch.randn(20, 3, 3))
    return error > 1e-2


def normalize_second_is_wrong():
    import torchlie.functional as lie

    torch.manual_seed(0)
    a = torch.randn(3, 3, dtype=torch.float64)
    weight, u = torch.randn(2, 3, 3, dtype=torch.float64)

    def first(a, create_graph=False):
        a = a.detach().requires_grad_()
        return a, torch.autograd.grad((lie.SO3.normalize(a) ** 2 * weight).sum(), a, create_graph=create_graph)[0]

    x, gradient = first(a, True)
    found = (torch.autograd.grad((gradient * u).sum(), x)[0] * u).sum()
    expected = ((first(a + 1e-5 * u)[1] - first(a - 1e-5 * u)[1]) * u).sum() / 2e-5
    return bool((found - expected).abs() > 1e-2 * expected.abs())


CALLS = (
    Call(
        so3_exp,
        bugs=(
            Bug(TWICE, ("PB411", "PB412"), so3_exp_fails_in_checkpoint),
            Bug("the backward raises after a forward under autocast", ("PB413",), so3_exp_fails_under_autocast),
        ),
        doubtful={"PB303": CAYLEY, "PB101": CAYLEY, "PB401": CAYLEY + ", its second derivative by 4e-4"},
    ),
    Call(
        se3_exp,
        bugs=(Bug(TWICE, ("PB411", "PB412"), se3_exp_fails_in_checkpoint),),
        doubtful={"PB303": CAYLEY, "PB101": CAYLEY, "PB401": CAYLEY + ", its second derivative by 8e-4"},
    ),
    Call(
        se3_log,
        "other",
        doubtful={"PB303": "in float32, value and gradient are off by 8e-4 at angles a little above 1e-2: b cancels"},
    ),
    Call(se3_adjoint),
    Call(se3_inverse),
    Call(se3_compose, bugs=(Bug(TWICE, ("PB411", "PB412"), se3_compose_fails_in_checkpoint),)),
    Call(se3_transform, bugs=(Bug(TWICE, ("PB411", "PB412"), se3_transform_fails_in_checkpoint),)),
    Call(
        quaternion_to_rotation,
        bugs=(Bug(TWICE, ("PB411", "PB412"), quaternion_to_rotation_fails_in_checkpoint),),
    ),
    Call(
        so3_normalize,
        bugs=(
            Bug(
                "the gradient is 0 at a rotation matrix: a quotient of equal singular values is set to 0",
                ("PB302", "PB101"),
                normalize_of_a_rotation_is_zero,
            ),
            Bug(
                "in float32 the gradient is off by a tenth near a rotation matrix, which is what the function is for",
                ("PB303", "PB101"),
                normalize_near_a_rotation_is_inaccurate,
            ),
            Bug(
                "the second derivative is wrong: the singular vectors are saved, without their graph",
                ("PB401", "PB404"),
                normalize_second_is_wrong,
            ),
        ),
        doubtful={"PB413": "the forward raises in bfloat16, for want of a determinant, and says so"},
    ),
)

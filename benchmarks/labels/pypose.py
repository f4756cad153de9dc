"""pypose: what is known of its custom functions.

The gradient with respect to an element of a Lie group is, as documented, that of a left perturbation in the tangent
space, padded with a zero; it was compared with float64 differences along left perturbations `Exp(t) X`, and the one
with respect to points and algebra elements with ordinary differences. All 36 functions were differentiated so. Left
out, being the same code on SO3, RxSO3 and Sim3 (SO3/SE3/RxSO3/Sim3 x Log, Exp, Act, Act4, AdjXa, Mul, Inv, AdjTXa):
right at first order, but Sim3_AdjTXa, wrong as SE3_AdjTXa is; sim3_Exp and Sim3_Log, whose Jacobian is a short series
(documented; off by 0.1 % at one radian and by 29 % at three).
"""

import torch

from labels import Bug, Call, Package

PACKAGE = Package("pypose", "0.9.5", "robotics")

VMAP = "declares generate_vmap_rule, but its forward indexes with a mask, so vmap over it raises, and says why"


def _differences(f, x, eps=1e-6):
    """The gradient of the number `f(x)`, by central differences in float64."""
    flat, out = x.detach().reshape(-1), []
    for i in range(flat.numel()):
        step = torch.zeros_like(flat)
        step[i] = eps
        out.append((f((flat + step).view_as(x)) - f((flat - step).view_as(x))) / (2 * eps))
    return torch.stack(out).view_as(x)


def _far(found, expected):
    return bool((found - expected).abs().max() > 1e-3 * expected.abs().max())


def _se3(*size, dtype=torch.float32, seed=0):
    import pypose as pp

    torch.manual_seed(seed)
    return pp.randn_SE3(*size, dtype=dtype).tensor()


def _se3_perturbed(t, X):
    from pypose.lietensor.operation import SE3_Mul, se3_Exp

    return SE3_Mul.apply(se3_Exp.apply(t), X)


def _second_of_se3(loss, which, by, *points):
    """How `<gradient with respect to point which, U>` depends on the point `by`: by autograd, and by differences."""

    def first(points, create_graph=False):
        leaves = [p.detach().requires_grad_() for p in points]
        return leaves, torch.autograd.grad(loss(*leaves), leaves, create_graph=create_graph)[which]

    torch.manual_seed(5)
    leaves, gradient = first(points, True)
    U = torch.randn_like(gradient)
    if gradient.shape[-1] == 7:
        U[..., 6] = 0
    found = torch.autograd.grad((gradient * U).sum(), leaves[by])[0]

    def moved(t):
        return (first([_se3_perturbed(t, p) if i == by else p for i, p in enumerate(points)])[1] * U).sum().detach()

    return found, _differences(moved, torch.zeros((*points[by].shape[:-1], 6), dtype=torch.float64))


# Right: differences of a left perturbation of the output (1e-10), float32 against float64 and against the series of the
# left Jacobian; the Hessian through Act was compared with differences.
def so3_exp():
    from pypose.lietensor.operation import so3_Exp

    torch.manual_seed(0)
    return so3_Exp, (torch.randn(4, 3),)


# Right at ordinary angles by the same comparison (1e-10); wrong at small ones.
def se3_exp():
    from pypose.lietensor.operation import se3_Exp

    torch.manual_seed(0)
    return se3_Exp, (torch.randn(4, 6),)


def se3_exp_is_inaccurate_at_small_rotations():
    from pypose.lietensor.operation import se3_Exp

    torch.manual_seed(3)
    x = torch.cat([torch.randn(50, 3), 1e-6 * torch.randn(50, 3)], -1)
    weight, gradients = torch.randn(50, 7), []
    for dtype in (torch.float32, torch.float64):
        y = x.to(dtype).requires_grad_()
        gradients.append(torch.autograd.grad(se3_Exp.apply(y), y, weight.to(dtype))[0].double())
    return bool(((gradients[0] - gradients[1]).abs().amax(-1) > 2e-2 * gradients[1].abs().amax(-1)).any())


def se3_exp_second_is_nan_at_zero():
    from pypose.lietensor.operation import SE3_Act, se3_Exp

    p = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)

    def first(x, create_graph=False):
        x = x.detach().requires_grad_()
        return x, torch.autograd.grad(SE3_Act.apply(se3_Exp.apply(x), p).sin().sum(), x, create_graph=create_graph)[0]

    x, gradient = first(torch.zeros(6, dtype=torch.float64), True)
    found = torch.autograd.grad(gradient.sum(), x)[0]
    expected = _differences(lambda v: first(v)[1].sum().detach(), x, 1e-3)
    return bool(found.isnan().any() and expected.isfinite().all())


# First order right (differences of a left perturbation, 3e-10), but for small rotations in float32.
def se3_log():
    from pypose.lietensor.operation import SE3_Log

    return SE3_Log, (_se3(4),)


def se3_log_is_inaccurate_at_small_rotations():
    from pypose.lietensor.operation import SE3_Log, se3_Exp

    torch.manual_seed(3)
    x = se3_Exp.apply(torch.cat([torch.randn(50, 3), 1e-6 * torch.randn(50, 3)], -1).double()).float()
    weight, gradients = torch.randn(50, 6), []
    for dtype in (torch.float32, torch.float64):
        y = x.to(dtype).requires_grad_()
        gradients.append(torch.autograd.grad(SE3_Log.apply(y), y, weight.to(dtype))[0].double())
    return bool(((gradients[0] - gradients[1]).abs().amax(-1) > 2e-2 * gradients[1].abs().amax(-1)).any())


def se3_log_second_is_nan_at_the_identity():
    from pypose.lietensor.operation import SE3_Log

    X = torch.tensor([[0.0, 0, 0, 0, 0, 0, 1]], dtype=torch.float64)
    weight = torch.arange(1.0, 7.0, dtype=torch.float64)
    found, expected = _second_of_se3(lambda x: (SE3_Log.apply(x) * weight).sin().sum(), 0, 0, X)
    return bool(found.isnan().any() and expected.isfinite().all())


# First order right (differences of a left perturbation, 2e-10).
def se3_mul():
    from pypose.lietensor.operation import SE3_Mul

    return SE3_Mul, (_se3(4), _se3(4, seed=1))


def se3_mul_second_is_wrong():
    from pypose.lietensor.operation import SE3_Log, SE3_Mul

    X, Y = _se3(2, dtype=torch.float64), _se3(2, dtype=torch.float64, seed=1)
    found, expected = _second_of_se3(lambda x, y: SE3_Log.apply(SE3_Mul.apply(x, y)).sin().sum(), 1, 0, X, Y)
    return _far(found[..., :6], expected) and bool(found[..., 6].abs().max() > 1e-3)


# First order right (differences of a left perturbation, 1e-10).
def se3_inv():
    from pypose.lietensor.operation import SE3_Inv

    return SE3_Inv, (_se3(4),)


def se3_inv_second_is_wrong():
    from pypose.lietensor.operation import SE3_Inv, SE3_Log, SE3_Mul

    X, Y = _se3(2, dtype=torch.float64), _se3(2, dtype=torch.float64, seed=1)
    loss = lambda x: SE3_Log.apply(SE3_Mul.apply(SE3_Inv.apply(x), Y)).sin().sum()  # noqa: E731
    found, expected = _second_of_se3(loss, 0, 0, X)
    return _far(found[..., :6], expected)


# First order right in both arguments (left perturbation and plain differences, 3e-10).
def se3_act():
    from pypose.lietensor.operation import SE3_Act

    X = _se3(4)
    return SE3_Act, (X, torch.randn(4, 3))


def se3_act_mixed_second_is_wrong():
    from pypose.lietensor.operation import SE3_Act

    X = _se3(2, dtype=torch.float64)
    p = torch.randn(2, 3, dtype=torch.float64)
    U = torch.randn(2, 3, dtype=torch.float64)

    def first(X, create_graph=False):
        x, q = X.detach().requires_grad_(), p.clone().requires_grad_()
        return x, torch.autograd.grad(SE3_Act.apply(x, q).sin().sum(), q, create_graph=create_graph)[0]

    x, gradient = first(X, True)
    found = torch.autograd.grad((gradient * U).sum(), x)[0]
    t = torch.zeros(2, 6, dtype=torch.float64)
    expected = _differences(lambda t: (first(_se3_perturbed(t, X))[1] * U).sum().detach(), t)
    return _far(found[..., :6], expected) and bool(found[..., 6].abs().max() > 1e-3)


# Right, first and second order in p: plain differences (2e-10), and R p by matrices; X is a constant here.
def so3_act_on_points():
    import pypose as pp
    from pypose.lietensor.operation import SO3_Act

    torch.manual_seed(0)
    return SO3_Act, (pp.randn_SO3(4).tensor(), torch.randn(4, 3, requires_grad=True))


# First order right in both arguments (left perturbation and plain differences, 2e-10).
def se3_adjoint():
    from pypose.lietensor.operation import SE3_AdjXa

    X = _se3(4)
    return SE3_AdjXa, (X, torch.randn(4, 6))


def se3_adjoint_second_is_wrong():
    from pypose.lietensor.operation import SE3_AdjXa

    X = _se3(2, dtype=torch.float64)
    a, U, weight = torch.randn(3, 2, 6, dtype=torch.float64)

    def first(X, create_graph=False):
        x, b = X.detach().requires_grad_(), a.clone().requires_grad_()
        loss = (SE3_AdjXa.apply(x, b) * weight).sin().sum()
        return x, torch.autograd.grad(loss, b, create_graph=create_graph)[0]

    x, gradient = first(X, True)
    found = torch.autograd.grad((gradient * U).sum(), x)[0]
    t = torch.zeros(2, 6, dtype=torch.float64)
    expected = _differences(lambda t: (first(_se3_perturbed(t, X))[1] * U).sum().detach(), t)
    return _far(found[..., :6], expected)


def _autocast_backward_raises(function, *inputs):
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = function(*inputs)
    try:
        torch.autograd.grad(output.float().sum(), inputs)
    except RuntimeError as error:
        return "scalar type" in str(error) or "same dtype" in str(error)
    return False


def se3_adjoint_fails_under_autocast():
    from pypose.lietensor.operation import SE3_AdjXa

    return _autocast_backward_raises(SE3_AdjXa.apply, _se3(4), torch.randn(4, 6))


# Wrong: plain differences in `a`, and autograd through `inverse(Ad(X)) a`.
def se3_adjoint_of_inverse():
    from pypose.lietensor.operation import SE3_AdjTXa

    X = _se3(4)
    return SE3_AdjTXa, (X, torch.randn(4, 6, requires_grad=True))


def se3_adjoint_of_inverse_is_wrong():
    from pypose.lietensor.operation import SE3_Adj, SE3_AdjTXa

    X = _se3(4, dtype=torch.float64)
    a = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 6, dtype=torch.float64)
    plain = (torch.linalg.inv(SE3_Adj(X)) @ a.unsqueeze(-1)).squeeze(-1)
    output = SE3_AdjTXa.apply(X, a)
    found, expected = (torch.autograd.grad(y, a, weight)[0] for y in (output, plain))
    return torch.allclose(output, plain) and _far(found, expected)


def se3_adjoint_of_inverse_fails_under_autocast():
    from pypose.lietensor.operation import SE3_AdjTXa

    return _autocast_backward_raises(SE3_AdjTXa.apply, _se3(4), torch.randn(4, 6))


MIXED = "the second derivative mixes tangent with ambient derivatives: the backward is differentiated by plain autograd"

CALLS = (
    Call(
        so3_exp,
        "other",
        doubtful={
            "PB406": VMAP,
            "PB303": "in float32 the gradient is off by up to 2e-4 at angles about 1e-4: (1 - cos) / angle^2 cancels",
            "PB401": "only the derivative of a function of the rotation has a meaning, not that of its raw numbers",
        },
    ),
    Call(
        se3_exp,
        "other",
        bugs=(
            Bug(
                "in float32 the gradient is off by 1 % at rotations about 1e-5, and by 10 % at 1e-6: it cancels",
                ("PB303", "PB101"),
                se3_exp_is_inaccurate_at_small_rotations,
            ),
            Bug(
                "the second derivative is NaN at zero rotation: 0/0 in a branch not taken",
                ("PB301", "PB304", "PB401"),
                se3_exp_second_is_nan_at_zero,
            ),
        ),
        doubtful={"PB406": VMAP},
    ),
    Call(
        se3_log,
        "other",
        bugs=(
            Bug(
                "in float32 the gradient is off by 1 % at rotations about 1e-5, and by 8 % at 1e-6: it cancels",
                ("PB303", "PB101"),
                se3_log_is_inaccurate_at_small_rotations,
            ),
            Bug(
                "the second derivative is NaN at the identity: 0/0 in a branch not taken",
                ("PB301", "PB304", "PB401"),
                se3_log_second_is_nan_at_the_identity,
            ),
        ),
    ),
    Call(se3_mul, "other", bugs=(Bug(MIXED, ("PB401",), se3_mul_second_is_wrong),)),
    Call(se3_inv, "other", bugs=(Bug(MIXED, ("PB401",), se3_inv_second_is_wrong),)),
    Call(se3_act, "other", bugs=(Bug(MIXED, ("PB401",), se3_act_mixed_second_is_wrong),)),
    Call(so3_act_on_points),
    Call(
        se3_adjoint,
        "other",
        bugs=(
            Bug(
                "the mixed second derivative is lost: the adjoint matrix is saved, without its graph",
                ("PB401", "PB404"),
                se3_adjoint_second_is_wrong,
            ),
            Bug("the backward raises after a forward under autocast", ("PB413",), se3_adjoint_fails_under_autocast),
        ),
    ),
    Call(
        se3_adjoint_of_inverse,
        "derivative",
        bugs=(
            Bug(
                "the gradient is Ad(X) g, where it should be the transposed Ad(X^-1) g",
                ("PB101", "PB401"),
                se3_adjoint_of_inverse_is_wrong,
            ),
            Bug(
                "the backward raises after a forward under autocast",
                ("PB413",),
                se3_adjoint_of_inverse_fails_under_autocast,
            ),
        ),
        doubtful={
            "PB408": "declares generate_vmap_rule, but the backward writes a batched tensor into zeros, which vmap refuses",
            "PB405": "the same",
        },
    ),
)

"""xitorch: what is known of its custom functions.

All 7 custom functions are here, called through the public functions (in float64, as its own tests do), with the
methods that they default to or that have the custom backward. Not made a call of, since their backward does not come
back with a gradient: `quad` with limits that are numbers (the backward returns gradients for them), `quad` of a
function without parameters (ValueError), or of one that leaves a parameter unused (RuntimeError), `solve` with M and
without E (documented as "M is ignored"; too few gradients). `solve` by "scipy_gmres" fails with this SciPy; by
"gmres" it did not converge.
"""

import gc
import math
import weakref

import torch

from labels import Bug, Call, Package

PACKAGE = Package("xitorch", "0.5.1", "differentiable solvers", needs=("scipy==1.17.1",))

TWICE = "the backward reads ctx.saved_tensors twice, which activation checkpointing refuses"
SAVED = ("PB411", "PB412")
KEPT = "the output is kept as an attribute of ctx, a reference cycle: it is not freed before the garbage collector runs"


def _differences(f, x, eps=1e-6):
    """The gradient of the number `f(x)`, by central differences in float64."""
    flat, out = x.detach().reshape(-1), []
    for i in range(flat.numel()):
        step = torch.zeros_like(flat)
        step[i] = eps
        out.append((f((flat + step).view_as(x)) - f((flat - step).view_as(x))).detach() / (2 * eps))
    return torch.stack(out).view_as(x)


def _far(found, expected, tolerance=1e-3):
    return bool((found - expected).abs().max() > tolerance * expected.abs().max())


def _checkpoint_raises(make):
    from torch.utils.checkpoint import CheckpointError, checkpoint

    function, inputs = make()
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    output = checkpoint(function, *inputs, use_reentrant=False)
    try:
        torch.autograd.grad(sum(y.sum() for y in (output if isinstance(output, tuple) else (output,))), inputs)
    except CheckpointError as error:
        return "already unpacked" in str(error)
    return False


def _autocast_backward_raises(make):
    function, inputs = make()
    inputs = [x.detach().float().requires_grad_() for x in inputs]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = function(*inputs)
    try:
        torch.autograd.grad(sum(y.float().sum() for y in (output if isinstance(output, tuple) else (output,))), inputs)
    except RuntimeError as error:
        return "scalar type" in str(error) or "same dtype" in str(error)
    return False


def _symmetric(a):
    from xitorch import LinearOperator

    return LinearOperator.m((a + a.transpose(-1, -2)) / 2, is_hermitian=True)


def _positive(m):
    from xitorch import LinearOperator

    eye = torch.eye(m.shape[-1], dtype=m.dtype)
    return LinearOperator.m(m @ m.transpose(-1, -2) + 4 * eye, is_hermitian=True)


# Right at first and second order: differences (1e-9), torch.linalg.eigh (also complex: 4e-16) and, where eigenvalues are
# equal, the formula of the derivative of the projector (1e-15).
def symeig_exact():
    from xitorch.linalg import symeig

    def eigenpairs(a):
        values, vectors = symeig(_symmetric(a))
        return values, vectors * torch.sign(vectors[..., :1, :])

    torch.manual_seed(0)
    return eigenpairs, (torch.randn(2, 4, 4, dtype=torch.float64),)


# First order right for most matrices: differences and torch.linalg.eigh (1e-9).
def symeig_davidson():
    from xitorch.linalg import lsymeig

    def eigenpairs(a):
        values, vectors = lsymeig(_symmetric(a), neig=2, method="davidson", min_eps=1e-9, v_init="eye")
        return values, vectors @ vectors.transpose(-1, -2)

    torch.manual_seed(0)
    return eigenpairs, (torch.randn(4, 4, dtype=torch.float64),)


def symeig_raises_for_a_diagonal_matrix():
    from xitorch.linalg import lsymeig

    a = torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)).requires_grad_()
    weight = torch.arange(9.0, dtype=torch.float64).view(3, 3)
    for method in ("davidson", "custom_exacteig"):
        _, v = lsymeig(_symmetric(a), neig=2, method=method)
        try:
            torch.autograd.grad((v @ v.T * weight).sum(), a)
        except RuntimeError as error:
            if "singular" not in str(error):
                return False
        else:
            return False
    _, v = torch.linalg.eigh(a)
    return bool(torch.autograd.grad((v[:, :2] @ v[:, :2].T * weight).sum(), a)[0].isfinite().all())


def symeig_raises_for_random_matrices():
    from xitorch.linalg import lsymeig

    raised = 0
    for seed in range(100):
        torch.manual_seed(seed)
        a = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
        _, v = lsymeig(_symmetric(a), neig=2, method="custom_exacteig")
        try:
            torch.autograd.grad((v[:, :1] ** 2).sum() + (v @ v.T).sum(), a)
        except RuntimeError:
            raised += 1
    return raised > 1


def symeig_is_wrong_where_eigenvalues_are_equal():
    from xitorch.linalg import lsymeig

    eigenvalues, wrong = [1.0, 1.0, 3.0, 4.0, 5.0], 0
    for seed in range(10):
        torch.manual_seed(seed)
        q, _ = torch.linalg.qr(torch.randn(5, 5, dtype=torch.float64))
        a = (q @ torch.diag(torch.tensor(eigenvalues, dtype=torch.float64)) @ q.T).requires_grad_()
        weight = torch.randn(5, 5, dtype=torch.float64)
        weight = weight + weight.T
        _, v = lsymeig(_symmetric(a), neig=2, method="davidson", min_eps=1e-9)
        try:  # of the projector onto both eigenvectors, which is smooth
            found = torch.autograd.grad((v @ v.T * weight).sum(), a)[0]
        except RuntimeError:
            continue
        inside, expected = q.T @ weight @ q, torch.zeros(5, 5, dtype=torch.float64)
        for i in range(2):
            for j in range(2, 5):
                expected[i, j] = expected[j, i] = inside[i, j] / (eigenvalues[i] - eigenvalues[j])
        wrong += _far(found, q @ expected @ q.T, 0.1)
    return wrong > 5


def symeig_fails_in_checkpoint():
    return _checkpoint_raises(symeig_davidson)


def symeig_fails_under_autocast():
    return _autocast_backward_raises(symeig_davidson)


# Right at first and second order: differences (1e-9) and torch.linalg.solve (also complex: 2e-16).
def solve_bicgstab():
    from xitorch import LinearOperator
    from xitorch.linalg import solve

    torch.manual_seed(0)
    a = torch.randn(4, 4, dtype=torch.float64) + 4 * torch.eye(4, dtype=torch.float64)
    b = torch.randn(4, 3, dtype=torch.float64)
    return lambda a, b: solve(LinearOperator.m(a, is_hermitian=False), b, method="bicgstab", rtol=1e-12), (a, b)


def solve_bicgstab_fails_in_checkpoint():
    return _checkpoint_raises(solve_bicgstab)


# Right at first and second order in all four: differences (1e-9).
def solve_with_shifts():
    from xitorch import LinearOperator
    from xitorch.linalg import solve

    def solution(a, b, e, m):
        operator = LinearOperator.m(a, is_hermitian=False)
        return solve(operator, b, E=e, M=_positive(m), method="custom_exactsolve")

    torch.manual_seed(0)
    a = torch.randn(4, 4, dtype=torch.float64) + 3 * torch.eye(4, dtype=torch.float64)
    b, e = torch.randn(4, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    return solution, (a, b, e, 0.3 * torch.randn(4, 4, dtype=torch.float64))


def solve_with_shifts_fails_in_checkpoint():
    return _checkpoint_raises(solve_with_shifts)


def solve_with_shifts_fails_under_autocast():
    return _autocast_backward_raises(solve_with_shifts)


# First order right: differences (1e-10) and the integral in closed form.
def quad_cosine():
    from xitorch.integrate import quad

    def integral(lower, upper, a, b):
        return quad(lambda x, a, b: torch.cos(a * x + b), lower, upper, params=(a, b), n=30)

    torch.manual_seed(0)
    lower, upper = torch.tensor([0.1], dtype=torch.float64), torch.tensor([0.9], dtype=torch.float64)
    return integral, (lower, upper, torch.randn(2, dtype=torch.float64), torch.randn(2, dtype=torch.float64))


def quad_second_is_wrong():
    function, (lower, upper, a, b) = quad_cosine()
    torch.manual_seed(1)
    u = torch.randn(2, dtype=torch.float64)

    def first(a, create_graph=False):
        a, c = a.detach().requires_grad_(), b.clone().requires_grad_()
        loss = (function(lower, upper, a, c) ** 2).sum()
        return a, torch.autograd.grad(loss, a, create_graph=create_graph)[0]

    x, gradient = first(a, True)
    found = torch.autograd.grad((gradient * u).sum(), x)[0]
    return _far(found, _differences(lambda v: (first(v)[1] * u).sum(), a), 0.1)


def quad_raises_where_parameters_are_frozen():
    function, (lower, upper, a, b) = quad_cosine()
    upper.requires_grad_()
    try:
        torch.autograd.grad(function(lower, upper, a, b).sum(), upper)
    except ValueError as error:
        return "total length of tensor and nontensor params" in str(error)
    return False


def quad_fails_in_checkpoint():
    return _checkpoint_raises(quad_cosine)


# Wrong: differences, and the integral in closed form.
def quad_of_many_points():
    from xitorch.integrate import quad

    def integral(a):
        lower, upper = torch.zeros(1, dtype=a.dtype), torch.full((1,), 10.0, dtype=a.dtype)
        return quad(lambda x, a: torch.cos(a * x), lower, upper, params=(a,), n=400)

    return integral, (torch.tensor([40.0], dtype=torch.float64),)


def quad_of_many_points_is_wrong():
    function, (a,) = quad_of_many_points()
    a.requires_grad_()
    y = function(a)
    (found,) = torch.autograd.grad(y.sum(), a)
    expected = 10 * math.cos(400) / 40 - math.sin(400) / 40**2
    return abs(y.item() - math.sin(400) / 40) < 1e-9 and abs(found.item() - expected) > 1


def quad_of_many_points_fails_in_checkpoint():
    return _checkpoint_raises(quad_of_many_points)


def _ode(t, y, a, b):
    return torch.sin(a * y * t) - b * y


# Right to the discretisation at first and second order: differences (4e-7, falling with the step), also with rk38.
def solve_ivp_rk4():
    from xitorch.integrate import solve_ivp

    def solution(y0, a, b):
        ts = torch.linspace(0, 0.4, 9, dtype=y0.dtype)
        return solve_ivp(_ode, ts, y0, params=(a, b), method="rk4")

    torch.manual_seed(0)
    return solution, tuple(torch.randn(3, 2, dtype=torch.float64))


def solve_ivp_output_changed():
    function, inputs = solve_ivp_rk4()
    gradients = []
    for change in (False, True):
        leaves = [x.clone().requires_grad_() for x in inputs]
        y = function(*leaves)
        y = y.mul_(2) if change else y * 2
        gradients.append(torch.autograd.grad(y.sum(), leaves)[1])
    return _far(gradients[1], gradients[0])


def _kept(make):
    function, inputs = make()
    gc.collect()
    gc.disable()
    try:
        y = function(*(x.clone().requires_grad_() for x in inputs))
        reference = weakref.ref(y)
        del y
        return reference() is not None
    finally:
        gc.enable()


def solve_ivp_rk4_is_kept():
    return _kept(solve_ivp_rk4)


# First order right in all four, the times included: differences (2e-9).
def solve_ivp_rk45():
    from xitorch.integrate import solve_ivp

    torch.manual_seed(0)
    y0, a, b = torch.randn(3, 2, dtype=torch.float64)
    ts = torch.linspace(0, 0.4, 5, dtype=torch.float64)
    return lambda ts, y0, a, b: solve_ivp(_ode, ts, y0, params=(a, b)), (ts, y0, a, b)


def solve_ivp_rk45_is_kept():
    return _kept(solve_ivp_rk45)


def solve_ivp_rk45_second_raises():
    function, inputs = solve_ivp_rk45()
    leaves = [x.clone().requires_grad_() for x in inputs]
    try:
        torch.autograd.grad((function(*leaves) ** 2).sum(), leaves, create_graph=True)
    except RuntimeError as error:
        return "is a view and is being modified inplace" in str(error)
    return False


def _gaussian(x, a):
    return torch.exp(-x * x / (2 * a * a))


def _log_gaussian(x, w):
    return -x * x / (2 * w * w)


# An estimate of the derivative of the expectation, from other samples than the value.
def mcquad_metropolis():
    from xitorch.integrate import mcquad

    def expectation(a, w):
        x0 = torch.zeros((), dtype=a.dtype)
        options = {"method": "mh", "step_size": 0.6, "nsamples": 100, "nburnout": 2}
        return mcquad(_gaussian, _log_gaussian, x0, fparams=(a,), pparams=(w,), **options)

    return expectation, (torch.tensor(0.3, dtype=torch.float64), torch.tensor(1.2, dtype=torch.float64))


def mcquad_draws_again():
    function, inputs = mcquad_metropolis()
    leaves = [x.clone().requires_grad_() for x in inputs]
    torch.manual_seed(0)
    y = function(*leaves)
    state = torch.get_rng_state()
    first = torch.autograd.grad(y, leaves, retain_graph=True)
    drawn = not torch.equal(state, torch.get_rng_state())
    second = torch.autograd.grad(y, leaves)
    return drawn and _far(second[0], first[0], 1e-2)


# First order right, with the deterministic sampler of the package's tests: differences (4e-10) and the closed form.
def mcquad_grid():
    from xitorch.integrate import mcquad

    def expectation(a, w):
        x0 = torch.zeros((), dtype=a.dtype)
        options = {"method": "_dummy1d", "nsamples": 100, "lb": -float("inf"), "ub": float("inf")}
        return mcquad(_gaussian, _log_gaussian, x0, fparams=(a,), pparams=(w,), **options)

    return expectation, (torch.tensor(0.3, dtype=torch.float64), torch.tensor(1.2, dtype=torch.float64))


def mcquad_second_is_wrong():
    function, (a, w) = mcquad_grid()
    exact = lambda a, w: (1 + w * w / (a * a)) ** -0.5  # noqa: E731
    found = []
    for f in (function, exact):
        b, v = a.clone().requires_grad_(), w.clone().requires_grad_()
        y = f(b, v)
        (gradient,) = torch.autograd.grad(y.sin() + y**2, b, create_graph=True)
        found += [torch.autograd.grad(y, b, retain_graph=True)[0], torch.autograd.grad(gradient, b)[0]]
    return not _far(found[0], found[2]) and _far(found[1], found[3], 1e-2)


def _equation(y, a):
    return torch.tanh(a @ y + 0.1) + y / 2.0


# Right at first and second order: differences (1e-7, the tolerance of the solver) and the implicit function theorem.
def rootfinder():
    from xitorch.optimize import rootfinder

    a = torch.tensor([[1.1, 0.4], [0.3, 0.8]], dtype=torch.float64)
    return lambda a: rootfinder(_equation, torch.zeros(2, 1, dtype=a.dtype), params=(a,), f_tol=1e-10), (a,)


def rootfinder_fails_in_checkpoint():
    return _checkpoint_raises(rootfinder)


# Right at first and second order: differences (3e-10).
def minimize():
    from xitorch.optimize import minimize

    def loss(y, a):
        return ((a @ y) ** 2 + y / 2.0 + y**4).sum()

    a = torch.tensor([[1.1, 0.4], [0.3, 0.8]], dtype=torch.float64)
    return lambda a: minimize(loss, torch.zeros(2, 1, dtype=a.dtype), params=(a,), f_tol=1e-10), (a,)


def minimize_fails_in_checkpoint():
    return _checkpoint_raises(minimize)


ITERATES = {
    "PB413": "the solver itself raises in bfloat16, in the forward",
    "PB503": "an empty system is refused by the solver",
    "PB303": "the solver stops at a tolerance, and in float32 it may not converge",
}
CONTINUOUS = {"PB101": "the adjoint equation is solved on the same grid: right to the error of the method (1e-6 here)"}

CALLS = (
    Call(
        symeig_exact,
        doubtful={
            "PB302": "eigenvalues nearer than eps^0.6 (float32: 7e-5) count as equal, whatever their size: documented",
            "PB101": "the same",
        },
    ),
    Call(
        symeig_davidson,
        bugs=(
            Bug(
                "the backward solves with the singular A - eI: it raises for a diagonal matrix",
                ("PB119", "PB301"),
                symeig_raises_for_a_diagonal_matrix,
            ),
            Bug(
                "by the same, the backward raises for some per cent of small random matrices",
                ("PB119", "PB301"),
                symeig_raises_for_random_matrices,
            ),
            Bug(
                "where eigenvalues are equal, which the function documents to handle, the gradient is noise",
                ("PB101", "PB303", "PB119"),
                symeig_is_wrong_where_eigenvalues_are_equal,
            ),
            Bug(TWICE, SAVED, symeig_fails_in_checkpoint),
            Bug("the backward raises after a forward under autocast", ("PB413",), symeig_fails_under_autocast),
        ),
        doubtful={
            "PB303": "in float32 the gradient is off by up to 7e-4 where the eigenvalues are near each other",
            "PB503": "the iteration takes no empty batch, and the forward raises",
        },
        judged={"PB603": (True, "the first guess is drawn after torch.manual_seed(12421), which stays set")},
    ),
    Call(
        solve_bicgstab,
        bugs=(Bug(TWICE, SAVED, solve_bicgstab_fails_in_checkpoint),),
        doubtful={"PB303": ITERATES["PB303"]},
    ),
    Call(
        solve_with_shifts,
        bugs=(
            Bug(TWICE, SAVED, solve_with_shifts_fails_in_checkpoint),
            Bug(
                "the backward raises after a forward under autocast",
                ("PB413",),
                solve_with_shifts_fails_under_autocast,
            ),
        ),
        doubtful={
            "PB103": "with M and without E, which warns that M is ignored, the backward returns too few gradients"
        },
    ),
    Call(
        quad_cosine,
        bugs=(
            Bug(
                "the second derivative of what is not linear in the integral counts a path twice",
                ("PB401",),
                quad_second_is_wrong,
            ),
            Bug(
                "the backward raises where only a limit requires a gradient, and no parameter",
                ("PB113", "PB119"),
                quad_raises_where_parameters_are_frozen,
            ),
            Bug(TWICE, SAVED, quad_fails_in_checkpoint),
        ),
        doubtful={"PB108": "limits that are numbers get gradients, so the backward raises"},
    ),
    Call(
        quad_of_many_points,
        bugs=(
            Bug(
                "the backward integrates with the default 100 points, whatever n is, and comes out wrong",
                ("PB101",),
                quad_of_many_points_is_wrong,
            ),
            Bug(TWICE, SAVED, quad_of_many_points_fails_in_checkpoint),
        ),
        doubtful={"PB401": "as of quad_cosine; drowned in the error of the first derivative"},
    ),
    Call(
        solve_ivp_rk4,
        bugs=(
            Bug(
                "the output is an attribute of ctx, so a change in place goes unnoticed, and the gradient is wrong",
                ("PB209", "PB201"),
                solve_ivp_output_changed,
            ),
            Bug(KEPT, ("PB204", "PB201"), solve_ivp_rk4_is_kept),
        ),
        doubtful=CONTINUOUS,
    ),
    Call(
        solve_ivp_rk45,
        bugs=(
            Bug(KEPT, ("PB204", "PB201"), solve_ivp_rk45_is_kept),
            Bug(
                "where the times require gradients, the backward raises under create_graph: it changes a view in place",
                ("PB403", "PB119"),
                solve_ivp_rk45_second_raises,
            ),
        ),
        doubtful=CONTINUOUS
        | {
            "PB209": "the output is a view, so that PyTorch refuses to change it in place",
            "PB503": "the adaptive step takes no empty state, and the forward raises",
        },
    ),
    Call(
        mcquad_metropolis,
        "other",
        bugs=(
            Bug(
                "the backward draws new samples, though it was given those of the forward",
                ("PB602", "PB206", "PB601"),
                mcquad_draws_again,
            ),
        ),
        doubtful={"PB401": "as of mcquad_grid; drowned in the noise"},
    ),
    Call(
        mcquad_grid,
        bugs=(
            Bug(
                "the second derivative of what is not linear in the expectation counts a path twice",
                ("PB401",),
                mcquad_second_is_wrong,
            ),
        ),
        judged={
            "PB301": (False, "of a density so narrow that the grid misses it, float64 gives 0, which is wrong, too")
        },
    ),
    Call(rootfinder, bugs=(Bug(TWICE, SAVED, rootfinder_fails_in_checkpoint),), doubtful=ITERATES),
    Call(minimize, bugs=(Bug(TWICE, SAVED, minimize_fails_in_checkpoint),), doubtful=ITERATES),
)

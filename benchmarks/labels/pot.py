"""POT: what is known of its custom functions.

The PyTorch backend has two: `ValFunction` (`set_gradients`: a value with gradients that the caller has computed) and
`MatrixSqrtFunction` (`sqrtm`). What matters of the first is what its callers give it, so the most used of them are
covered. Left out of its callers: semi-relaxed and partial fused Gromov-Wasserstein (they share the formulas of those
that are here; semi-relaxed was found right), unbalanced co-optimal transport (too slow, and whether its solver has
converged was not settled), sparse costs.
Weights were chosen non-uniform, so that the optimal plan is unique and no point is a kink.
"""

import torch

from labels import Bug, Call, Package

PACKAGE = Package("POT", "0.9.7.post1", "optimal transport", needs=("scipy",))

VALUE = {
    "PB201": "the gradients that the caller computed are kept as ctx.grads; there is no cycle",
    "PB207": "the value is handed through: adding to it in place (loss += ...) raises, with PyTorch's message on views",
    "PB305": "a linear programme has kinks, and its gradient there is one of the subgradients",
}
WEIGHTS = {
    "PB101": "weights sum to one: their gradient is given up to a constant (compared along directions that sum to 0)",
}
ZERO = {"PB302": "documented: potentials at weights that are 0 are only feasible, a coarse estimate"}
C_ORDER = "float64 weights that are not contiguous are refused: ndarray is not C-contiguous"


def _weights(n, seed):
    w = torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.2
    return w / w.sum()


def _points(n, d, seed):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _problem():
    return _weights(5, 0), _weights(6, 1), torch.cdist(_points(5, 2, 2), _points(6, 2, 3)) ** 2


def _structures():
    x, y = _points(5, 2, 2), _points(6, 2, 3)
    return torch.cdist(x, x), torch.cdist(y, y)


def _differentiable(*tensors):
    return tuple(t.requires_grad_() for t in tensors)


def emd2():
    """In the cost: first and second derivative equal differences (the plan is constant nearby)."""
    import ot

    def emd2(a, b, cost):
        return ot.emd2(a, b, cost)

    a, b, cost = _problem()
    return emd2, (a, b, cost.requires_grad_())


def emd2_weights():
    """In weights and cost: first derivatives equal differences, along directions that sum to 0; mixed second ones don't."""
    function, arguments = emd2()
    return function, _differentiable(*arguments)


def emd2_and_plan():
    """As for `emd2`; the plan in the log is the very tensor that the backward uses."""
    import ot

    def emd2_and_plan(a, b, cost):
        value, log = ot.emd2(a, b, cost, log=True, return_matrix=True)
        return value, log["G"]

    a, b, cost = _problem()
    return emd2_and_plan, (a, b, cost.requires_grad_())


def solve_sample_lazy():
    """In the weights right, in the points no gradient at all, where solve_sample(lazy=False) has one."""
    import ot

    def solve_sample_lazy(xa, xb, a, b):
        return ot.solve_sample(xa, xb, a, b, lazy=True).value

    return solve_sample_lazy, _differentiable(_points(5, 2, 2), _points(6, 2, 3), _weights(5, 0), _weights(6, 1))


def _solve(reg_type):
    import ot

    def solve(cost, a, b):
        return ot.solve(cost, a, b, reg=1.0, reg_type=reg_type, grad="envelope").value

    a, b, cost = _problem()
    return solve, _differentiable(cost, a, b)


def solve_envelope_kl():
    """In the cost right, in the weights wrong: by differences, and by grad="autodiff" of the package."""
    return _solve("KL")


def solve_envelope_entropy():
    """First derivatives equal differences, along directions that sum to 0, and grad="autodiff"; second ones don't."""
    return _solve("entropy")


def gromov_wasserstein2():
    """In the structures: first and second derivative equal differences, along symmetric directions."""
    import ot

    p, q = _weights(5, 0), _weights(6, 1)

    def gromov_wasserstein2(c1, c2):
        return ot.gromov.gromov_wasserstein2(c1, c2, p, q)

    return gromov_wasserstein2, _differentiable(*_structures())


def gromov_wasserstein2_weights():
    """In structures and weights: first derivatives equal differences; mixed second ones don't."""
    import ot

    def gromov_wasserstein2(c1, c2, p, q):
        return ot.gromov.gromov_wasserstein2(c1, c2, p, q)

    return gromov_wasserstein2, _differentiable(*_structures(), _weights(5, 0), _weights(6, 1))


def fused_gromov_wasserstein2():
    """In cost and structures: first and second derivative equal differences, along symmetric directions."""
    import ot

    p, q = _weights(5, 0), _weights(6, 1)

    def fused_gromov_wasserstein2(cost, c1, c2):
        return ot.gromov.fused_gromov_wasserstein2(cost, c1, c2, p, q, alpha=0.5)

    return fused_gromov_wasserstein2, _differentiable(_problem()[2], *_structures())


def partial_gromov_wasserstein2():
    """With a part of the mass, as it is for: the gradient differs from differences."""
    import ot

    p, q = _weights(5, 0), _weights(6, 1)

    def partial_gromov_wasserstein2(c1, c2):
        return ot.gromov.partial_gromov_wasserstein2(c1, c2, p, q, m=0.6)

    return partial_gromov_wasserstein2, _differentiable(*_structures())


def coot2():
    """Exact, uniform weights, in the data: first and second derivative equal differences."""
    from ot.coot import co_optimal_transport2

    def coot2(x, y):
        return co_optimal_transport2(x, y)

    return coot2, _differentiable(_points(5, 3, 4), _points(6, 4, 5))


def coot2_entropic():
    """Entropic: in the data right (both derivatives), in the weights wrong, by differences at tight tolerances."""
    from ot.coot import co_optimal_transport2

    def coot2_entropic(wx_samp, wx_feat, wy_samp, wy_feat, x, y):
        return co_optimal_transport2(x, y, wx_samp, wx_feat, wy_samp, wy_feat, epsilon=2.0)

    weights = (_weights(n, 6 + n) for n in (4, 2, 5, 3))
    return coot2_entropic, _differentiable(*weights, _points(4, 2, 4), _points(5, 3, 5))


def dmmot():
    """Its backward never works: the gradients are NumPy arrays, and one a histogram, where the inputs are one a bin."""
    import ot

    def dmmot_monge_1dgrid_loss(histograms):
        return ot.lp.dmmot_monge_1dgrid_loss(histograms)

    histograms = _points(4, 3, 7).abs() + 0.1
    return dmmot_monge_1dgrid_loss, _differentiable(histograms / histograms.sum(0))


def _covariance(seed):
    x = _points(12, 4, seed).float()
    return x.T @ x / 12 + 0.1 * torch.eye(4)


def sqrtm():
    """First derivative equals differences, also batched, with equal eigenvalues and for inputs that are not symmetric."""
    from ot.backend import get_backend

    backend = get_backend(torch.zeros(1))

    def sqrtm(a):
        return backend.sqrtm(a)

    return sqrtm, _differentiable(_covariance(8))


def bures_distance():
    """First derivatives equal differences; second ones don't."""
    import ot

    def bures_distance(a, b):
        return ot.gaussian.bures_distance(a, b)

    return bures_distance, _differentiable(_covariance(8), _covariance(9))


# Proofs


def _free(arguments):
    return [t.detach().clone().requires_grad_(t.requires_grad) for t in arguments]


def _zero_sum(direction):
    return direction - direction.mean()


def _symmetric(direction):
    return direction + direction.mT


def _direction(tensor, seed, project):
    generator = torch.Generator().manual_seed(seed)
    return project(torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype))


def _first_is_wrong(make, index, project, step=1e-6, function=None):
    """Whether the derivative in an argument differs from differences in each of three directions."""

    def proof():
        made, arguments = make()
        f = function or made
        arguments = _free(arguments)
        (gradient,) = torch.autograd.grad(f(*arguments), arguments[index])
        for seed in range(3):
            direction = _direction(arguments[index], seed, project)
            values = []
            for sign in (1, -1):
                moved = [t.detach() for t in arguments]
                moved[index] = moved[index] + sign * step * direction
                values.append(f(*moved).item())
            expected = (values[0] - values[1]) / (2 * step)
            found = (gradient * direction).sum().item()
            if abs(found - expected) <= 1e-2 * abs(expected):
                return False
        return True

    return proof


def _second_is_wrong(make, of, along, project=_zero_sum, step=1e-5, dtype=torch.float64):
    """Whether d/d(along) of the gradient of the squared value in `of` differs from differences, without an error."""

    def proof():
        function, arguments = make()
        arguments = [t.detach().to(dtype).requires_grad_(t.requires_grad) for t in arguments]
        u = _direction(arguments[of], 1, lambda d: d)
        v = _direction(arguments[along], 2, project)

        def slope(shift, create_graph=False):
            moved = list(arguments)
            moved[along] = (arguments[along].detach() + shift * v).requires_grad_()
            value = function(*moved) ** 2
            (gradient,) = torch.autograd.grad(value, moved[of], create_graph=create_graph)
            return (gradient * u).sum(), moved

        start, moved = slope(0.0, True)
        (hessian,) = torch.autograd.grad(start, moved[along])
        found = (hessian * v).sum().item()
        expected = ((slope(step)[0] - slope(-step)[0]) / (2 * step)).item()
        return abs(found - expected) > 1e-2 * abs(expected)

    return proof


def _refuses_strides(make, index):
    def proof():
        function, arguments = make()
        arguments = list(_free(arguments))
        function(*arguments)  # works
        arguments[index] = torch.stack([arguments[index].detach()] * 2, 1)[:, 0]
        try:
            function(*arguments)
        except ValueError as error:
            return "not C-contiguous" in str(error)
        return False

    return proof


def _strides(make, index):
    return Bug(C_ORDER, ("PB501",), _refuses_strides(make, index))


def plan_is_shared():
    function, arguments = emd2_and_plan()
    (expected,) = torch.autograd.grad(function(*arguments)[0], arguments[2])
    value, plan = function(*arguments)
    expected = expected.clone()
    plan.div_(plan.max())
    (found,) = torch.autograd.grad(value, arguments[2])
    return not torch.allclose(found, expected, atol=1e-2)


def lazy_has_no_gradient():
    import ot

    function, (xa, xb, a, b) = solve_sample_lazy()
    lazy = torch.autograd.grad(function(xa, xb, a, b), (xa, xb), allow_unused=True)
    eager = torch.autograd.grad(ot.solve_sample(xa, xb, a, b).value, (xa, xb))
    return lazy == (None, None) and all(g.abs().max() > 1e-2 for g in eager)


def kl_weights_differ_from_autodiff():
    import ot

    function, (cost, a, b) = solve_envelope_kl()
    found = torch.autograd.grad(function(cost, a, b), a)[0]
    expected = torch.autograd.grad(ot.solve(cost, a, b, reg=1.0, grad="autodiff").value, a)[0]
    return (
        not torch.allclose(_zero_sum(found), _zero_sum(expected), atol=1e-2)
        and _first_is_wrong(solve_envelope_kl, 1, _zero_sum, 1e-4)()
    )


def _coot2_tight(wx_samp, wx_feat, wy_samp, wy_feat, x, y):
    from ot.coot import co_optimal_transport2

    tight = {"nits_bcd": 300, "tol_bcd": 1e-12, "early_stopping_tol": 1e-14, "nits_ot": 1000, "tol_sinkhorn": 1e-12}
    return co_optimal_transport2(x, y, wx_samp, wx_feat, wy_samp, wy_feat, epsilon=2.0, **tight)


def dmmot_raises():
    function, arguments = dmmot()
    try:
        function(*arguments).backward()
    except (TypeError, RuntimeError) as error:
        return "ndarray" in str(error) or "incorrect number" in str(error)
    return False


def _raises_after_autocast(make):
    def proof():
        function, arguments = make()
        function(*arguments).sum().backward()  # works
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = function(*arguments).float().sum()
        try:
            value.backward()
        except RuntimeError as error:
            return "dtype" in str(error)
        return False

    return proof


def _autocast(make):
    return Bug(
        "under autocast the output is bfloat16 and the saved factors are float32: the backward raises",
        ("PB413", "PB119"),
        _raises_after_autocast(make),
    )


MIXED = (
    "mixed second derivatives are wrong without an error: plan and potentials count as constants of the other inputs"
)

EMPTY = {"PB002": (True, "in a Python of its own, ot.emd2 of empty weights ends with a segmentation fault")}
GRADS = {"PB209": "the list of gradients is made by the caller of ValFunction, who keeps no other reference to it"}

CALLS = (
    Call(emd2, bugs=(_strides(emd2, 0),), doubtful=VALUE | ZERO | GRADS, judged=EMPTY),
    Call(
        emd2_weights,
        bugs=(Bug(MIXED, ("PB401", "PB404"), _second_is_wrong(emd2_weights, 2, 0)), _strides(emd2_weights, 0)),
        doubtful=VALUE | WEIGHTS | ZERO | GRADS,
        judged=EMPTY,
    ),
    Call(
        emd2_and_plan,
        bugs=(
            Bug(
                "changing the returned plan in place silently changes the gradient: it is ctx.grads itself",
                ("PB209", "PB201"),
                plan_is_shared,
            ),
            _strides(emd2_and_plan, 0),
        ),
        doubtful={k: VALUE[k] for k in ("PB207", "PB305")}
        | {"PB208": "the plan is constant nearby, and not in the graph"},
        judged=EMPTY,
    ),
    Call(
        solve_sample_lazy,
        bugs=(
            Bug(
                "the points get no gradient, though the value depends on them", ("PB107", "PB604"), lazy_has_no_gradient
            ),
            _strides(solve_sample_lazy, 2),
        ),
        doubtful=VALUE | WEIGHTS | ZERO | GRADS,
        judged={"PB102": (True, "forward mode loses the points as reverse mode does")},
    ),
    Call(
        solve_envelope_kl,
        bugs=(
            Bug(
                "the gradient in the weights is that of the entropic value: the terms -reg * log(a) and log(b) are missing",
                ("PB101",),
                kl_weights_differ_from_autodiff,
            ),
            Bug(
                "second derivatives are wrong without an error: plan and potentials count as constants",
                ("PB401", "PB404"),
                _second_is_wrong(solve_envelope_kl, 0, 0, lambda d: d, 1e-4),
            ),
        ),
        doubtful=VALUE,
    ),
    Call(
        solve_envelope_entropy,
        bugs=(
            Bug(
                "second derivatives are wrong without an error: plan and potentials count as constants",
                ("PB401", "PB404"),
                _second_is_wrong(solve_envelope_entropy, 0, 0, lambda d: d, 1e-4),
            ),
        ),
        doubtful=VALUE | WEIGHTS,
    ),
    Call(
        gromov_wasserstein2,
        doubtful=VALUE
        | {
            "PB101": "the solver takes the structures for symmetric or not by their values, and stops at its tolerance",
            "PB401": "exact where the optimal plan is a vertex, as with distances; else up to the plan's dependence",
        },
    ),
    Call(
        gromov_wasserstein2_weights,
        bugs=(
            Bug(MIXED, ("PB401", "PB404"), _second_is_wrong(gromov_wasserstein2_weights, 0, 2)),
            _strides(gromov_wasserstein2_weights, 2),
        ),
        doubtful=VALUE | WEIGHTS,
    ),
    Call(
        fused_gromov_wasserstein2,
        doubtful=VALUE
        | {
            "PB101": "the solver takes the structures for symmetric or not by their values, and stops at its tolerance",
            "PB401": "exact where the optimal plan is a vertex; else up to the plan's dependence",
        },
    ),
    Call(
        partial_gromov_wasserstein2,
        bugs=(
            Bug(
                "the gradient takes p and q for the marginals of the plan, which carries only a part of the mass",
                ("PB101",),
                _first_is_wrong(partial_gromov_wasserstein2, 0, _symmetric),
            ),
        ),
        doubtful=VALUE | {"PB401": "follows from the wrong first derivative"},
    ),
    Call(
        coot2,
        doubtful=VALUE | {"PB413": "under autocast the forward raises: NumPy has no bfloat16"},
    ),
    Call(
        coot2_entropic,
        bugs=(
            Bug(
                "the gradient in the weights is log(u): not times epsilon, and without the derivative of the KL term",
                ("PB101",),
                _first_is_wrong(coot2_entropic, 0, _zero_sum, 1e-4, _coot2_tight),
            ),
        ),
        doubtful=VALUE
        | {"PB401": "follows from the wrong first derivative", "PB303": "as exact as the solver's tolerance"},
    ),
    Call(
        dmmot,
        bugs=(
            Bug(
                "the backward raises: it multiplies NumPy arrays with the cotangent (and they are as many as histograms, "
                "where the rows of the input were unpacked for inputs)",
                ("PB119", "PB103", "PB106"),
                dmmot_raises,
            ),
        ),
        doubtful=VALUE,
    ),
    Call(
        sqrtm,
        bugs=(_autocast(sqrtm),),
        doubtful={
            "PB101": "negative eigenvalues (no covariance has them) are clamped, with another gradient than the clamp's",
            "PB302": "at a singular matrix the derivative is infinite; for two zero eigenvalues 0 is given",
            "PB303": "next to a singular matrix the derivative grows without bound",
            "PB401": "once_differentiable: backward() raises, torch.autograd.grad may leave the term out",
            "PB402": "once_differentiable: backward() raises, torch.autograd.grad may leave the term out",
        },
    ),
    Call(
        bures_distance,
        bugs=(
            _autocast(bures_distance),
            Bug(
                "a second derivative by torch.autograd.grad silently lacks the terms of sqrtm (backward() raises)",
                ("PB402", "PB401"),
                _second_is_wrong(bures_distance, 0, 0, _symmetric),
            ),
        ),
        doubtful={"PB301": "at equal covariances the distance is 0, and its square root has no derivative"},
    ),
)

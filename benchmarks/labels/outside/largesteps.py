"""largesteps: what is known of its custom function.

`DifferentiableSolve` is covered with both solvers, as the parameterization applies it; the matrix of a mesh is made
here, for the package makes it on a GPU only. Truth: `torch.linalg.solve`, and central differences in float32, the
dtype of the solvers. Double backward, also several times, strided and expanded inputs and cotangents, two backwards,
checkpoints, changes in place, autocast.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import linear, raises

PACKAGE = Package("largesteps", "0.2.2", "inverse rendering", ("cholespy==2.2.0",))

SINGLE = "a solver has one dtype, that of Cholesky is single: the forward takes no other"
WARM = "by design: iterations start at the last solution, which the solver keeps, and end at a residual of 1e-5"
DOUBTFUL = {
    **dict.fromkeys(("PB405", "PB406", "PB407"), "torch.func does not take it: it has no setup_context"),
    **dict.fromkeys(("PB105", "PB413"), SINGLE),
    "PB408": "a vectorised backward raises: neither solver takes a batched tensor",
    **dict.fromkeys(("PB118", "PB107"), "no gradient by the matrix: it is a constant, as documented"),
    **dict.fromkeys(("PB409", "PB410", "PB415"), "cholespy is not traced: compiling it raises"),
    "PB002": "a right-hand side of other rows than the matrix makes cholespy read past its end",
}
ITERATED = {
    **DOUBTFUL,
    **dict.fromkeys(("PB601", "PB120", "PB206", "PB401", "PB404"), WARM),
    **dict.fromkeys(("PB201", "PB204", "PB301"), WARM),
}

FACES = ((0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 4), (1, 3, 4), (2, 3, 4))


def _matrix():
    neighbours = torch.zeros(5, 5)
    for face in FACES:
        for i in face:
            for j in face:
                neighbours[i, j] = float(i != j or neighbours[i, j])
    neighbours.fill_diagonal_(0)
    return torch.eye(5) + 3 * (torch.diag(neighbours.sum(1)) - neighbours)


def _solve(name):
    from largesteps import solvers

    torch.manual_seed(0)
    matrix = _matrix().to_sparse_coo().coalesce()
    return solvers.DifferentiableSolve, (getattr(solvers, name)(matrix), torch.randn(5, 3))


# First order right: torch.linalg.solve.
def cholesky():
    return _solve("CholeskySolver")


# First order right to a residual of 1e-5, and second: torch.linalg.solve.
def conjugate_gradients():
    return _solve("ConjugateGradientSolver")


def _right_hand_side(make):
    target, arguments = make()
    *before, b = arguments
    function = target.apply if isinstance(target, type) else target
    return (lambda x: function(*before, x)), b


def second_is_cut(make):
    """Whether the second derivative of a nonlinear function of a solution silently lacks what a dense solve has."""
    function, b = _right_hand_side(make)
    found = []
    for solve in (function, lambda x: torch.linalg.solve(_matrix(), x)):
        x = b.clone().requires_grad_()
        value = linear([torch.tanh(solve(x))]) + x.square().sum()
        (first,) = torch.autograd.grad(value, x, create_graph=True)
        found.append((first, *torch.autograd.grad(linear([first], 3), x)))
    (first, second), (same, other) = found
    return torch.allclose(first, same, atol=1e-4) and not torch.allclose(second, other, rtol=0.01, atol=1e-3)


def transposed_raises(make):
    """Whether a right-hand side that is not contiguous is refused."""
    function, b = _right_hand_side(make)
    return raises(lambda: function(b.t().contiguous().t()), "incompatible function arguments")


def small_cotangent_gets_zero():
    """Whether ones get the gradient that they should, and ones that are a million times smaller get 0."""
    found = []
    for size in (1.0, 1e-6):
        function, b = _right_hand_side(conjugate_gradients)
        b.requires_grad_()
        found.append(torch.autograd.grad(function(b), b, torch.full_like(b, size))[0])
    expected = torch.linalg.solve(_matrix(), torch.ones(5, 3))
    return torch.allclose(found[0], expected, atol=1e-4) and not bool(found[1].any())


def _bugs(make):
    return (
        Bug(
            "the solver takes its argument out of the graph, also in the backward: the second derivative is silently wrong",
            ("PB401", "PB402", "PB604"),
            partial(second_is_cut, make),
        ),
        Bug(
            "a right-hand side that is not contiguous raises in the forward; the backward makes its own contiguous",
            ("PB501",),
            partial(transposed_raises, make),
        ),
    )


CALLS = (
    Call(cholesky, bugs=_bugs(cholesky), doubtful=DOUBTFUL),
    Call(
        conjugate_gradients,
        bugs=(
            Bug(
                "the iteration ends at a residual of 1e-5, whatever the cotangent's size: a small one silently gets a gradient of 0",
                ("PB302", "PB109", "PB303", "PB101"),
                small_cotangent_gets_zero,
            ),
        ),
        doubtful=ITERATED,
    ),
)

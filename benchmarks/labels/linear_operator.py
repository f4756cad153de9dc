"""linear-operator: what is known of its custom functions.

All nine are covered. `InvQuadLogdet`, `RootDecomposition`, `Diagonalization` and the like run on matrices of any size,
though the package prefers Cholesky up to 800 rows: `max_cholesky_size(1)`, or the method "lanczos", takes the way of
large matrices. Matrices are made symmetric inside of the call, because the package takes them to be so.

Found beside the calls below: `DenseLinearOperator(batch x m x n).matmul(vector)` gives `batch x m`, and its backward
raises, since it takes that for a matrix; `diagonalization(method="lanczos")` of a sum, of a product with a constant or
of an operator with an added diagonal raises in the backward (one gradient for several arguments).
"""

from __future__ import annotations

import torch

from labels import Bug, Call, Package

PACKAGE = Package("linear-operator", "0.6.1", "linear algebra", needs=("scipy==1.17.1",))


def _spd(*shape):
    x = torch.randn(*shape, dtype=torch.float64)
    return x @ x.mT / shape[-1] + torch.eye(shape[-1], dtype=torch.float64)


def _second_differs(make):
    """Whether the second derivative of the sum of the sines of the outputs is not that of the first's differences."""
    f, args = make()
    args = [a.detach().double() for a in args]
    torch.manual_seed(2)
    along = [torch.randn_like(a) for a in args]

    def gradient(args, create_graph=False):
        torch.manual_seed(1)
        args = [a.detach().clone().requires_grad_() for a in args]
        outputs = f(*args)
        loss = sum(o.sin().sum() for o in (outputs if isinstance(outputs, tuple) else (outputs,)))
        grads = torch.autograd.grad(loss, args, create_graph=create_graph)
        return args, sum((g * v).sum() for g, v in zip(grads, along, strict=True))

    inputs, slope = gradient(args, create_graph=True)
    second = torch.autograd.grad(slope, inputs, allow_unused=True)
    found = sum((h * v).sum().item() for h, v in zip(second, along, strict=True) if h is not None)
    up, down = ([a + sign * 1e-5 * v for a, v in zip(args, along, strict=True)] for sign in (1, -1))
    expected = (gradient(up)[1] - gradient(down)[1]).item() / 2e-5
    return abs(found - expected) > 1e-3 * abs(expected)


def _inputs(args):
    return [a.detach().requires_grad_() if isinstance(a, torch.Tensor) and not a.is_sparse else a for a in args]


def _sum(outputs):
    return sum(o.float().sum() for o in (outputs if isinstance(outputs, tuple) else (outputs,)))


def _checkpoint_raises(make):
    from torch.utils.checkpoint import CheckpointError, checkpoint

    f, args = make()
    _sum(f(*_inputs(args))).backward()
    try:
        _sum(checkpoint(f, *_inputs(args), use_reentrant=False)).backward()
    except CheckpointError:
        return True
    return False


def _autocast_raises(make):
    f, args = make()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = _sum(f(*_inputs(args)))
    try:
        loss.backward()
    except RuntimeError as e:
        return "dtype" in str(e) or "scalar type" in str(e)
    return False


def matmul_dense():
    from linear_operator.operators import DenseLinearOperator

    torch.manual_seed(0)
    return (lambda a, b: DenseLinearOperator(a).matmul(b)), (torch.randn(2, 4, 3), torch.randn(2, 3, 2))


def matmul_low_rank():
    from linear_operator.operators import LowRankRootLinearOperator

    torch.manual_seed(0)
    return (lambda r, b: LowRankRootLinearOperator(r).matmul(b)), (torch.randn(5, 2), torch.randn(5, 3))


def matmul_toeplitz():
    from linear_operator.operators import ToeplitzLinearOperator

    torch.manual_seed(0)
    return (lambda c, b: ToeplitzLinearOperator(c).matmul(b)), (
        torch.tensor([4.0, 1.0, 0.5, 0.2, 0.1]),
        torch.randn(5, 3),
    )


def solve_matrix():
    from linear_operator import solve

    torch.manual_seed(0)
    return (lambda a, b: solve((a + a.mT) / 2, b)), (_spd(4, 4), torch.randn(4, 3, dtype=torch.float64))


def solve_vector():
    from linear_operator import solve

    torch.manual_seed(0)
    return (lambda a, b: solve((a + a.mT) / 2, b)), (_spd(4, 4), torch.randn(4, dtype=torch.float64))


def solve_left():
    from linear_operator import solve

    torch.manual_seed(0)
    args = (_spd(4, 4).float(), torch.randn(4, 3), torch.randn(2, 4))
    return (lambda a, b, c: solve((a + a.mT) / 2, b, c)), args


def inv_quad_matrix():
    from linear_operator import inv_quad

    torch.manual_seed(0)
    return (lambda a, b: inv_quad((a + a.mT) / 2, b, reduce_inv_quad=False)), (
        _spd(4, 4),
        torch.randn(4, 3, dtype=torch.float64),
    )


def inv_quad_logdet_cg():
    from linear_operator import inv_quad_logdet, settings

    def call(a, b):
        with settings.max_cholesky_size(1), settings.cg_tolerance(1e-8):
            return inv_quad_logdet((a + a.mT) / 2, b, logdet=True)

    torch.manual_seed(0)
    return call, (_spd(4, 4), torch.randn(4, 3, dtype=torch.float64))


def inv_quad_of_cg():
    from linear_operator import inv_quad_logdet, settings

    def call(a, b):
        with settings.max_cholesky_size(1), settings.cg_tolerance(1e-8):
            return inv_quad_logdet((a + a.mT) / 2, b, logdet=True)[0]

    torch.manual_seed(0)
    return call, (_spd(4, 4), torch.randn(4, 3, dtype=torch.float64))


def root_lanczos():
    from linear_operator import root_decomposition

    def call(a):
        return root_decomposition((a + a.mT) / 2, method="lanczos").to_dense()

    torch.manual_seed(0)
    return call, (_spd(4, 4),)


def root_inv_lanczos():
    from linear_operator import root_inv_decomposition

    def call(a):
        return root_inv_decomposition((a + a.mT) / 2, method="lanczos").to_dense()

    torch.manual_seed(0)
    return call, (_spd(4, 4),)


def sqrt_inv_matmul_right():
    from linear_operator import settings, sqrt_inv_matmul

    def call(x, b):
        with settings.minres_tolerance(1e-10):
            return sqrt_inv_matmul(x @ x.mT + torch.eye(4, dtype=x.dtype), b)

    torch.manual_seed(0)
    return call, (_spd(4, 4), torch.randn(4, 2, dtype=torch.float64))


def sqrt_inv_matmul_left():
    from linear_operator import settings, sqrt_inv_matmul

    def call(a, b, c):
        with settings.minres_tolerance(1e-10):
            return sqrt_inv_matmul((a + a.mT) / 2, b, c)

    torch.manual_seed(0)
    return call, (_spd(4, 4), torch.randn(4, 2, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64))


def pivoted_cholesky_rank():
    from linear_operator import pivoted_cholesky

    torch.manual_seed(0)
    return (lambda x: pivoted_cholesky(x @ x.mT + torch.eye(5, dtype=x.dtype), rank=3)), (_spd(5, 5),)


def diagonalization_lanczos():
    from linear_operator import diagonalization

    def call(a):
        evals, evecs = diagonalization((a + a.mT) / 2, method="lanczos")
        return evals, evecs.to_dense().abs()

    torch.manual_seed(0)
    return call, (_spd(4, 4),)


def diagonalization_of_root():
    from linear_operator import diagonalization
    from linear_operator.operators import RootLinearOperator

    torch.manual_seed(0)
    return (lambda r: diagonalization(RootLinearOperator(r), method="lanczos")[0]), (
        torch.randn(4, 4, dtype=torch.float64),
    )


def dsmm_batch():
    from linear_operator import dsmm

    torch.manual_seed(0)
    sparse = (torch.randn(4, 5) * (torch.rand(4, 5) > 0.5)).to_sparse()
    return dsmm, (sparse, torch.randn(2, 3, 5, 2, requires_grad=True))


def solve_vector_second_raises():
    f, args = solve_vector()
    a, b = _inputs(args)
    slope = torch.autograd.grad(f(a, b).sin().sum(), (a, b), create_graph=True)[0].sum()
    try:
        torch.autograd.grad(slope, (a, b))
    except RuntimeError as e:
        return "modified by an inplace operation" in str(e)
    return False


def solve_vector_second_differs():
    """The right-hand side is frozen: nothing raises."""

    def make():
        f, (a, b) = solve_vector()
        return (lambda a: f(a, b)), (a,)

    return _second_differs(make)


def diagonalization_of_root_is_wrong():
    f, (r,) = diagonalization_of_root()
    torch.manual_seed(1)
    (found,) = torch.autograd.grad(f(r.requires_grad_()).sum(), r)
    (expected,) = torch.autograd.grad((r @ r.mT).trace(), r)
    return (found - expected).norm().item() > 0.1 * expected.norm().item()


def dsmm_strided_input_raises():
    f, (sparse, x) = dsmm_batch()
    try:
        f(sparse, x.detach().transpose(0, 1).contiguous().transpose(0, 1))
    except RuntimeError as e:
        return "view size is not compatible" in str(e)
    return False


def dsmm_strided_cotangent_raises():
    f, (sparse, x) = dsmm_batch()
    try:
        f(sparse, x).transpose(0, 1).contiguous().pow(2).sum().backward()
    except RuntimeError as e:
        return "view size is not compatible" in str(e)
    return False


def dsmm_change_is_unnoticed():
    f, (sparse, x) = dsmm_batch()
    out = f(sparse, x).sum()
    (expected,) = torch.autograd.grad(out, x, retain_graph=True)
    sparse.mul_(2)
    (found,) = torch.autograd.grad(out, x)
    return (found - expected).norm().item() > 0.5 * expected.norm().item()


def _second(make, why):
    return Bug(f"the second derivative is silently wrong: {why}", ("PB401", "PB404"), lambda: _second_differs(make))


def _checkpoint(make):
    return Bug(
        "checkpointing without reentry makes the backward raise: it reads ctx.saved_tensors more than once",
        ("PB411",),
        lambda: _checkpoint_raises(make),
    )


def _autocast(make):
    return Bug(
        "the backward of what ran under autocast raises: its cotangent is bfloat16, what it saved is float32",
        ("PB413", "PB119"),
        lambda: _autocast_raises(make),
    )


_KEPT = "ctx keeps the operator, and with it the arguments, which are saved as well, so that a change is noticed"
_OLD = {
    "PB201": _KEPT,
    "PB205": "some arguments are saved only to build the operator again; that costs memory, and no gradient",
    "PB704": "some gradients are computed unasked; that costs time only",
}
_JITTER = "relative 1e-6: the package adds tridiagonal_jitter to the matrix, on purpose"

# How each was found to be right but for its bugs: the gradient is that of autograd through torch.linalg (inv, eigh) and
# of central differences in float64, with random cotangents, batches, broadcast, vectors, 1 x 1 matrices and frozen
# arguments; strides, in-place changes, a second backward, leaks, checkpoint, hooks, autocast were tried one by one.
CALLS = (
    # Against a plain matmul, for a dozen kinds of operators, 4 shapes of right-hand sides; the second is right.
    Call(matmul_dense, bugs=(_checkpoint(matmul_dense), _autocast(matmul_dense)), doubtful=_OLD),
    # As above. The generic _bilinear_derivative detaches the arguments and makes no graph.
    Call(
        matmul_low_rank,
        bugs=(
            _second(matmul_low_rank, "the gradient of the operator is taken of detached arguments, without a graph"),
            _checkpoint(matmul_low_rank),
            _autocast(matmul_low_rank),
        ),
        doubtful={**_OLD, "PB408": "a vectorised backward raises: the backward nests an autograd.grad"},
    ),
    # As above; its own _bilinear_derivative is differentiable, and its second derivative is right.
    Call(
        matmul_toeplitz,
        bugs=(_checkpoint(matmul_toeplitz),),
        doubtful={**_OLD, "PB408": "a vectorised backward raises: torch.equal has no batching rule"},
    ),
    # Against torch.linalg.inv; the second derivative, which goes through Solve again, is right.
    Call(solve_matrix, doubtful=_OLD),
    # As above; but the saved solves are no output here, and the backward squeezes an output of Solve in place.
    Call(
        solve_vector,
        bugs=(
            Bug(
                "double backward raises for a vector: the backward squeezes in place what Solve saved as its output",
                ("PB403", "PB401", "PB404"),
                solve_vector_second_raises,
            ),
            Bug(
                "the second derivative with a frozen vector is silently wrong: the solves saved are an intermediate",
                ("PB401", "PB404"),
                solve_vector_second_differs,
            ),
        ),
        doubtful={**_OLD, "PB408": "a vectorised backward raises, for the same squeeze_ in place"},
    ),
    Call(
        solve_left,
        bugs=(_second(solve_left, "the solves saved are an intermediate of the forward"), _autocast(solve_left)),
        doubtful=_OLD,
    ),
    Call(
        inv_quad_matrix,
        bugs=(_second(inv_quad_matrix, "the solves saved are an intermediate of the forward"),),
        doubtful=_OLD,
    ),
    # The gradient of the log-determinant is an estimate by random probes: its mean over 10000 probes, with and without
    # a preconditioner, is the inverse, to the error to be expected.
    Call(
        inv_quad_logdet_cg,
        "other",
        bugs=(
            _second(inv_quad_of_cg, "the solves saved are an intermediate of the forward"),
            _checkpoint(inv_quad_logdet_cg),
        ),
        doubtful={
            **_OLD,
            "PB101": "the gradient of the log-determinant is an unbiased estimate, not the derivative of that estimate",
            "PB201": "the random probes are kept on ctx",
            "PB503": "an empty batch of matrices is refused, by a max in the conjugate gradients",
        },
    ),
    Call(
        inv_quad_of_cg,
        bugs=(
            _second(inv_quad_of_cg, "the solves saved are an intermediate of the forward"),
            _checkpoint(inv_quad_of_cg),
        ),
        doubtful={**_OLD, "PB201": "the random probes are kept on ctx"},
    ),
    # R R^T is A itself, so that its gradient is the symmetric part of the cotangent.
    Call(
        root_lanczos,
        bugs=(
            _second(root_lanczos, "Q and the eigenvalues saved are intermediates of the forward"),
            _checkpoint(root_lanczos),
        ),
        doubtful={
            **_OLD,
            "PB101": _JITTER,
            "PB303": _JITTER,
            "PB208": "an empty tensor is the second output, which the package drops",
            "PB408": "a vectorised backward raises: it adds in place to zeros that have no batch",
        },
    ),
    # Against torch.linalg.inv. The inverse root that is saved is an output: the second derivative is right, too.
    Call(
        root_inv_lanczos,
        bugs=(_checkpoint(root_inv_lanczos),),
        doubtful={
            **_OLD,
            "PB101": _JITTER,
            "PB303": _JITTER,
            "PB401": _JITTER,
            "PB404": _JITTER,
            "PB408": "a vectorised backward raises: it adds in place to zeros that have no batch",
        },
    ),
    # Against torch.linalg.eigh.
    Call(
        sqrt_inv_matmul_right,
        bugs=(
            _second(
                sqrt_inv_matmul_right,
                "the solves of the backward run without a graph, and those saved are intermediate",
            ),
        ),
        doubtful={
            **_OLD,
            "PB208": "the second output is a constant zero, which the package drops",
            "PB408": "a vectorised backward raises: the iteration of the backward writes to out=",
        },
    ),
    Call(
        sqrt_inv_matmul_left,
        bugs=(_second(sqrt_inv_matmul_left, "the solves saved are intermediates of the forward"),),
        doubtful=_OLD,
    ),
    # Against central differences, for ranks below and up to the size, and batches. `backward` is no staticmethod.
    Call(
        pivoted_cholesky_rank,
        bugs=(
            _second(
                pivoted_cholesky_rank, "the backward runs a nested backward on detached arguments, without a graph"
            ),
        ),
        doubtful={
            **_OLD,
            "PB403": "on its own the gradient has no graph, so that a second one raises",
            "PB408": "a vectorised backward raises: the backward nests a backward",
            "PB801": "backward is a plain function of the class, which works as well",
        },
    ),
    # Against torch.linalg.eigh; the absolute value takes the sign, which is free, from the eigenvectors.
    Call(
        diagonalization_lanczos,
        bugs=(_checkpoint(diagonalization_lanczos),),
        doubtful={
            **_OLD,
            "PB101": _JITTER,
            "PB303": _JITTER,
            "PB403": "double backward raises, of a change in place, without saying that it is not supported",
            "PB413": "with float32 under autocast the backward raises; this is float64, which autocast leaves",
            "PB504": "a 1 x 1 matrix is refused, by an index error in the Lanczos iteration",
        },
    ),
    # The derivative of the trace of R R^T is 2 R.
    Call(
        diagonalization_of_root,
        bugs=(
            Bug(
                "the gradient of the matrix is returned as that of the root: backward takes every operator to be dense",
                ("PB101", "PB106"),
                diagonalization_of_root_is_wrong,
            ),
            _checkpoint(diagonalization_of_root),
        ),
        doubtful={
            **_OLD,
            "PB403": "double backward raises, of a change in place, without saying that it is not supported",
            "PB413": "with float32 under autocast the backward raises; this is float64, which autocast leaves",
        },
    ),
    # Against a plain dense matmul, for six combinations of batches; the second derivative is right, too.
    Call(
        dsmm_batch,
        bugs=(
            Bug(
                "a strided batch of matrices makes the forward raise: it is viewed",
                ("PB501",),
                dsmm_strided_input_raises,
            ),
            Bug(
                "a strided cotangent makes the backward raise: it is viewed",
                ("PB502", "PB119"),
                dsmm_strided_cotangent_raises,
            ),
            Bug(
                "a change in place of the sparse matrix before the backward silently changes the gradient",
                ("PB209", "PB201"),
                dsmm_change_is_unnoticed,
            ),
        ),
        doubtful={
            "PB107": "the sparse matrix gets no gradient; it is documented as a constant, more or less",
            "PB118": "the sparse matrix gets no gradient; it is documented as a constant, more or less",
            "PB413": "the forward raises under autocast, as a sparse matmul of PyTorch does",
            "PB408": "a vectorised backward raises: sparse tensors cannot be expanded",
        },
    ),
)

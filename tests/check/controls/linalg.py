"""Linear algebra. A function of a symmetric matrix takes any square one and uses its symmetric part."""

import torch
from torch.autograd import Function

from ._control import Control, normal, positive_definite, uniform, well_conditioned


def _symmetric(a):
    return (a + a.mT) / 2


class Solve(Function):
    """The solution of a @ out = b for matrices b."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, a, b):
        out = torch.linalg.solve(a, b)
        ctx.save_for_backward(a, out)
        return out

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        a, out = ctx.saved_tensors
        gb = torch.linalg.solve(a.mT, g)
        ga = -(gb[..., :, None, :] * out[..., None, :, :]).sum(-1) if ctx.needs_input_grad[0] else None
        return ga, gb


class Inverse(Function):
    """The inverse of a matrix, with the gradient -out.T @ g @ out.T."""

    @staticmethod
    def forward(a):
        return torch.linalg.inv(a)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        return -(out.mT @ g @ out.mT)


class LogDetCholesky(Function):
    """log det of a positive definite matrix, through its Cholesky factor."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, a):
        ctx.save_for_backward(a)
        factor = torch.linalg.cholesky(_symmetric(a))
        return 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        return g[..., None, None] * torch.linalg.inv(_symmetric(a))


class LogAbsDet(Function):
    """log |det a|, and the sign of the determinant, marked non-differentiable."""

    @staticmethod
    def forward(a):
        sign, logabsdet = torch.linalg.slogdet(a)
        return logabsdet, sign

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g, _):
        (a,) = ctx.saved_tensors
        return g[..., None, None] * torch.linalg.inv(a).mT


class MatrixExp(Function):
    """exp of a matrix; its gradient is a corner of the exponential of [[a.T, g], [0, a.T]]."""

    @staticmethod
    def exp(a):
        """In float32 at least: PyTorch's own is wrong in half precision."""
        return torch.linalg.matrix_exp(a.to(torch.promote_types(a.dtype, torch.float32))).to(a.dtype)

    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return MatrixExp.exp(a)

    @staticmethod
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        n = a.shape[-1]
        upper = torch.cat([a.mT, g], -1)
        lower = torch.cat([torch.zeros_like(a), a.mT], -1)
        return MatrixExp.exp(torch.cat([upper, lower], -2))[..., :n, n:]


class TriangularSolve(Function):
    """The solution of a @ out = b, reading one triangle of a."""

    @staticmethod
    def forward(ctx, a, b, upper):
        out = torch.linalg.solve_triangular(a, b, upper=upper)
        ctx.upper = upper
        ctx.save_for_backward(a, out)
        return out

    @staticmethod
    def backward(ctx, g):
        a, out = ctx.saved_tensors
        gb = torch.linalg.solve_triangular(a.mT, g, upper=not ctx.upper)
        ga = -(gb @ out.mT)
        return ga.triu() if ctx.upper else ga.tril(), gb, None


class Cholesky(Function):
    """The Cholesky factor of a positive definite matrix."""

    @staticmethod
    def forward(ctx, a):
        out = torch.linalg.cholesky(_symmetric(a))
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, g):
        (out,) = ctx.saved_tensors
        inner = (out.mT @ g).tril()
        inner = inner - torch.diag_embed(inner.diagonal(dim1=-2, dim2=-1)) / 2
        left = torch.linalg.solve_triangular(out.mT, inner, upper=True)
        return _symmetric(torch.linalg.solve_triangular(out, left, upper=False, left=False))


class SymmetricEigenvalues(Function):
    """The eigenvalues of a symmetric matrix."""

    @staticmethod
    def forward(a):
        return torch.linalg.eigvalsh(_symmetric(a))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        vectors = torch.linalg.eigh(_symmetric(a)).eigenvectors
        return (vectors * g[..., None, :]) @ vectors.mT


class SingularValues(Function):
    """The singular values of a matrix."""

    @staticmethod
    def forward(ctx, a):
        ctx.save_for_backward(a)
        return torch.linalg.svdvals(a)

    @staticmethod
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        u, _, vh = torch.linalg.svd(a, full_matrices=False)
        return (u * g[..., None, :]) @ vh


class Qr(Function):
    """The reduced QR decomposition of a tall matrix."""

    @staticmethod
    def forward(ctx, a):
        if a.shape[-2] < a.shape[-1]:
            raise ValueError(f"the matrix must be tall; got {a.shape[-2]} rows and {a.shape[-1]} columns")
        q, r = torch.linalg.qr(a)
        ctx.save_for_backward(q, r)
        return q, r

    @staticmethod
    def backward(ctx, gq, gr):
        q, r = ctx.saved_tensors
        inner = (r @ gr.mT - gq.mT @ q).tril()
        inner = inner + inner.tril(-1).mT
        return torch.linalg.solve_triangular(r.mT, gq + q @ inner, upper=False, left=False)


class MatrixSqrt(Function):
    """The square root of a positive definite matrix; its gradient solves out @ x + x @ out = g."""

    @staticmethod
    def forward(ctx, a):
        values, vectors = torch.linalg.eigh(_symmetric(a))
        ctx.save_for_backward(a)
        return (vectors * values.sqrt()[..., None, :]) @ vectors.mT

    @staticmethod
    def backward(ctx, g):
        (a,) = ctx.saved_tensors
        values, vectors = torch.linalg.eigh(_symmetric(a))
        roots = values.sqrt()
        inner = vectors.mT @ g.to(a.dtype) @ vectors / (roots[..., :, None] + roots[..., None, :])
        return _symmetric(vectors @ inner @ vectors.mT)


class Mahalanobis(Function):
    """x.T @ inverse(a) @ x for a symmetric part of a that is positive definite."""

    @staticmethod
    def forward(x, a):
        return (x * torch.linalg.solve(_symmetric(a), x)).sum(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, a = ctx.saved_tensors
        solved = torch.linalg.solve(_symmetric(a), x)
        return 2 * g * solved, -g * solved[:, None] * solved


CONTROLS = [
    Control("solve", Solve, lambda: (well_conditioned(2, 3, 3), normal(2, 3, 2, seed=1))),
    Control("inverse", Inverse, lambda: (well_conditioned(2, 3, 3),)),
    Control("log-det-cholesky", LogDetCholesky, lambda: (positive_definite(3, 3),)),
    Control("log-abs-det", LogAbsDet, lambda: (well_conditioned(2, 3, 3),)),
    Control("matrix-exp", MatrixExp, lambda: (uniform(3, 3, low=-1.0),)),
    Control("triangular-solve", TriangularSolve, lambda: (well_conditioned(3, 3), normal(3, 2, seed=1), False)),
    Control("triangular-solve-upper", TriangularSolve, lambda: (well_conditioned(3, 3), normal(3, 2), True)),
    Control("cholesky", Cholesky, lambda: (positive_definite(3, 3),)),
    Control("symmetric-eigenvalues", SymmetricEigenvalues, lambda: (positive_definite(3, 3),)),
    Control("singular-values", SingularValues, lambda: (normal(4, 3),)),
    Control("qr", Qr, lambda: (normal(4, 3),)),
    Control("matrix-sqrt", MatrixSqrt, lambda: (positive_definite(3, 3),)),
    Control("mahalanobis", Mahalanobis, lambda: (normal(3), positive_definite(3, 3, seed=1))),
]

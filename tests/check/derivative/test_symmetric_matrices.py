"""Gradients that are right for symmetric matrices only, at a symmetric example."""

import pytest
import torch
from torch.autograd import Function

from pullback.check.derivative.diagnosis import says_symmetric
from pullback.check.find.discover import subject_of
from pullback.check.run_audit import run_audit
from pullback.check.subject import Options

from ..making import Silent, function, normal

A = normal(3, 3)
SYMMETRIC = A @ A.mT + torch.eye(3, dtype=A.dtype)


def found(target, x):
    events = Silent()
    run_audit(subject_of(target), Options(select=("PB101",), budget=30), [((x,), {})], events)
    return [(f.severity, f.verdict, "symmetric matrices only" in f.message) for f in events.findings]


def inverse(gradient):
    return function(torch.linalg.inv, lambda g, x: -gradient(g, torch.linalg.inv(x).mT))


right = inverse(lambda g, y: y @ g @ y)
slip = inverse(lambda g, y: y @ g.mT @ y)


def test_missing_transpose_is_reported():
    assert found(slip, SYMMETRIC) == [("warning", "inconclusive", True)]


def test_right_gradient_and_other_matrices_are_unaffected():
    assert found(right, SYMMETRIC) == []
    assert [severity for severity, _, _ in found(slip, A)] == ["error"]


def test_error_along_symmetric_directions_is_an_error():
    assert [severity for severity, _, _ in found(inverse(lambda g, y: y @ g), SYMMETRIC)] == ["error"]


def test_accidentally_symmetric_matrix_is_checked():
    assert found(function(lambda x: x**3, lambda g, x: g.mT * 3 * x.mT**2), torch.ones(3, 3, dtype=A.dtype))


@pytest.mark.parametrize("upper", [False, True])
def test_functions_of_one_triangle_are_not_reported(upper):
    half = "U" if upper else "L"

    def eigenvalues_gradient(g, x):
        vectors = torch.linalg.eigh(x, UPLO=half).eigenvectors
        return vectors @ torch.diag(g) @ vectors.mT

    def logdet_gradient(g, x):
        return g * torch.linalg.inv((x + x.mT) / 2)

    assert found(function(lambda x: torch.linalg.eigvalsh(x, UPLO=half), eigenvalues_gradient), SYMMETRIC) == []
    logdet = function(lambda x: 2 * torch.linalg.cholesky(x, upper=upper).diagonal().log().sum(), logdet_gradient)
    assert found(logdet, SYMMETRIC) == []


class Inverse(Function):
    """The inverse of a Hermitian matrix."""

    @staticmethod
    def forward(ctx, x):
        y = torch.linalg.inv(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return -y @ g.mT @ y


def test_documented_symmetry_is_not_reported():
    assert found(Inverse, SYMMETRIC) == []


METHODS = {"forward": staticmethod(lambda ctx, x: x), "backward": staticmethod(lambda ctx, g: g)}


def named(name, docstring=None):
    return subject_of(type(name, (Function,), {"__doc__": docstring, **METHODS}))


def test_words_that_document_symmetry():
    assert says_symmetric(named("SymmetricLogdet"))
    assert says_symmetric(named("F", "Solves a positive-definite system."))
    assert not says_symmetric(named("AsymmetricQuantizer"))
    assert not says_symmetric(named("F", "Works for non-symmetric matrices."))

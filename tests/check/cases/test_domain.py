"""Variants keep the domain of the example, such as unit rows or symmetry; a variant outside of it is doubtful."""

from dataclasses import replace

import pytest
import torch
from torch.autograd import Function
from torch.nn.functional import normalize

import pullback
from pullback.check.cases.domain import Domain
from pullback.check.cases.values import ORDINARY

from ..making import case_of, normal


def definite(n):
    return normal(n, n) @ normal(n, n).mT + torch.eye(n)


def are_ones(t):
    return torch.allclose(t, torch.ones_like(t))


EXAMPLES = {
    "rows of length 1": (normalize(normal(5, 7), dim=-1), lambda t: are_ones(t.square().sum(-1))),
    "positive definite": (definite(5), lambda t: torch.equal(t, t.mT) and bool((torch.linalg.eigvalsh(t) > 0).all())),
    "symmetric": (normal(5, 5) + normal(5, 5).mT, lambda t: torch.allclose(t, t.mT)),
    "probabilities": (normal(5, 7).softmax(-1), lambda t: bool((t >= 0).all()) and are_ones(t.sum(-1))),
    "sorted": (normal(5, 7).sort(-1).values, lambda t: bool((t.diff(dim=-1) >= 0).all())),
    "falling": (-normal(5, 7).abs().cumsum(-1), lambda t: bool((t.diff(dim=-1) <= 0).all())),  # logarithms of decays
}  # fmt: skip
EXAMPLES["two equal halves"] = (
    torch.cat([normal(5, 4)] * 2, -1), lambda t: torch.equal(t[..., :4], t[..., 4:])
)  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_variants_keep_the_domain_of_the_example_or_are_doubtful(name):
    t, holds = EXAMPLES[name]
    base = case_of(torch.sin, t)
    domain = Domain(base, takes=None)
    kept = [c for label, change in ORDINARY.items() for c in domain.keep(base.map_inputs(change, label))]
    assert sum(not case.doubtful for case in kept) >= 4
    assert any(case.doubtful for case in kept) == (
        name not in ("symmetric", "positive definite", "labels")
    )  # PB101 checks these
    for case in kept:
        assert case.doubtful or holds(case.tensors[0]), case.label


def test_ordinary_tensors_have_no_domain():
    base = case_of(torch.sin, normal(5, 7))
    for label, change in ORDINARY.items():
        case = base.map_inputs(change, label)
        assert list(Domain(base, takes=None).keep(case)) == [case]


def test_labels_stay_zeros_and_ones():
    base = case_of(torch.sin, (normal(5, 7) > 0).double())
    (kept,) = Domain(base, takes=None).keep(base.map_inputs(lambda t: normal(5, 7, seed=1), "others"))
    assert not kept.doubtful
    assert set(kept.tensors[0].flatten().tolist()) == {0.0, 1.0}


def test_equal_numbers_are_sorted_one_way():
    base = case_of(torch.sin, torch.ones(3, 5, dtype=torch.float64))
    kept = list(Domain(base, takes=None).keep(base.map_inputs(lambda t: normal(3, 5), "others")))
    assert not kept[0].doubtful
    assert bool((kept[0].tensors[0].diff(dim=-1) >= 0).all())


def takes_any(case):
    return True


def takes_three(case):
    return case.tensors[0].shape[-1] == 3


@pytest.mark.parametrize("takes", [takes_three, takes_any, None])
def test_last_dimension_of_coordinates_is_kept_if_no_other_size_works(takes):
    base = case_of(torch.sin, normal(5, 3))
    (kept,) = Domain(base, takes).keep(base.map_inputs(lambda t: t[:, :1], "size 3 -> 1"))
    assert kept.doubtful == (takes is takes_three)
    assert kept.label.endswith("args[0] without a last dimension of size 3") == (takes is takes_three)
    other = base.map_inputs(lambda t: t[:1], "size 5 -> 1")
    assert list(Domain(base, takes).keep(other)) == [other]


def test_variant_that_cannot_be_projected_is_doubtful():
    base = case_of(torch.sin, normalize(normal(5, 7), dim=-1))
    domain = Domain(base, takes=None)
    zero = base.map_inputs(torch.zeros_like, "all zeros")
    for _ in range(2):
        (kept,) = domain.keep(zero)
        assert kept.doubtful
    assert kept == replace(zero, label=kept.label, doubtful=True)


class Angle(Function):
    """The angle to the first axis, of vectors of length 1 alone."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.atan2(x[..., 1:].norm(dim=-1), x[..., 0])

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        rest = x[..., 1:]
        sine = rest.norm(dim=-1, keepdim=True)
        return g.unsqueeze(-1) * torch.cat([-sine, x[..., :1] * rest / sine], -1)


def test_function_of_unit_vectors_is_not_accused_on_others():
    found = pullback.check(Angle, normalize(normal(6, 5), dim=-1), select="PB1").findings
    assert [f for f in found if f.severity == "error"] == []
    assert any("without rows of length 1" in f.message for f in found if f.rule == "PB101")


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_numbers_that_are_not_finite_have_no_definite_matrix(number):
    base = case_of(torch.sin, definite(5).double())
    case = base.map_inputs(lambda t: torch.full_like(t, number), "not finite")
    assert all(
        torch.equal(kept.tensors[0].isfinite(), torch.zeros(5, 5).bool()) for kept in Domain(base, None).keep(case)
    )


def parted(bound, offsets, *table):
    return case_of(torch.sin, normal(31, 6), torch.tensor(offsets), bound, *table)


def test_bound_on_the_parts_is_raised_for_other_offsets():
    domain = Domain(parted(18, [0, 5, 23, 31]), None)
    (kept,) = domain.keep(parted(18, [0, 2, 27, 31]))
    assert (kept.values[1].tolist(), kept.values[2]) == ([0, 2, 27, 31], 25)
    (shorter,) = domain.keep(parted(18, [0, 10, 20, 31]))
    assert shorter.values[2] == 18
    (restored,) = domain.keep(parted(18, [0, 2, 27, 30]))
    assert (restored.values[1].tolist(), restored.values[2]) == ([0, 10, 20, 31], 18)
    assert not domain.is_parted(parted(18, [0, 2, 27, 31]))
    assert domain.is_parted(parted(25, [0, 2, 27, 31]))


def test_parts_are_evened_out_where_their_bound_is_a_size():
    table = normal(18, 6)
    base = replace(parted(18, [0, 5, 23, 31], table), names=("x", "cu_seqlens", "max_seqlen", "table"))
    (kept,) = Domain(base, None).keep(base.with_values({1: torch.tensor([0, 2, 27, 31])}))
    assert (kept.values[1].tolist(), kept.values[2], kept.doubtful) == ([0, 10, 20, 31], 18, False)


def test_bound_on_lengths_is_raised():
    base = parted(18, [5, 18, 8])
    (kept,) = Domain(base, None).keep(base.with_values({1: torch.tensor([1, 29, 1])}))
    assert (kept.values[1].tolist(), kept.values[2]) == ([1, 29, 1], 29)

"""mrphy: what is known of its custom functions.

`BlochSim` is covered by the function that applies it: of one nucleus, of a batch of two, and with a ratio for each spin;
`FreePrec` by the one that applies that: relaxation, for all spins and for each, and precession. Truth: float64 central
differences. Double backward, strided inputs and cotangents, two backwards, frozen arguments, checkpoints, changes in
place.
"""

from functools import partial

import torch

from labels import Bug, Call, Package
from labels.fresh import first_is_wrong, gradients, raises, second_raises
from labels.last import derivative_of_backward_is_wrong, second_backward_raises

PACKAGE = Package("mrphy", "0.2.0", "MRI", ("scipy==1.17.1",))

SETUP = "torch.func does not take it: it has no setup_context"
SETTINGS = "documented: by what a simulation is set with it is not differentiable"
ANGLE = "where there is no field, the angle is replaced by 1e-12"
DOUBTFUL = {
    **dict.fromkeys(("PB405", "PB406", "PB407", "PB408"), SETUP),
    **dict.fromkeys(("PB301", "PB302", "PB303", "PB304", "PB305"), ANGLE),
    **dict.fromkeys(("PB107", "PB118"), SETTINGS),
    **dict.fromkeys(("PB703", "PB205"), "what is kept is not all used"),
}


def _bloch(ratio):
    from mrphy import sims

    torch.manual_seed(0)
    spins, field = torch.randn(2, 4, 3, dtype=torch.float64), torch.randn(2, 4, 5, 3, dtype=torch.float64)
    dwell = torch.tensor([4e-5], dtype=torch.float64)

    def call(m, b):
        return sims.blochsim(m, b, γ=ratio.to(m), dt=dwell.to(m))

    return call, (spins, field)


# First order right: differences.
def one_nucleus():
    return _bloch(torch.tensor([[4257.6]]))


# Wrong.
def two_nuclei():
    return _bloch(torch.tensor([[4257.6], [1000.0]]))


# Wrong.
def ratio_of_spins():
    return _bloch(torch.tensor([[4257.6, 4257.0, 4256.0, 4255.0]]))


def _free(**settings):
    from mrphy import sims

    torch.manual_seed(0)
    spins, duration = torch.randn(2, 4, 3, dtype=torch.float64), torch.tensor([0.02])

    def call(m):
        return sims.freeprec(m, duration.to(m), **{name: value.to(m) for name, value in settings.items()})

    return call, (spins,)


# Right, twice: differences.
def relaxation():
    return _free(T1=torch.tensor([[1.0]]), T2=torch.tensor([[0.05]]))


# Right, twice: differences.
def relaxation_of_spins():
    return _free(T1=torch.tensor([[1.0, 0.8, 0.6, 0.4]]), T2=torch.tensor([[0.05, 0.06, 0.07, 0.08]]))


# First order right: differences.
def precession():
    return _free(Δf=torch.tensor([[3.0, -5.0, 7.0, 11.0]]))


def _again(make):
    return Bug(
        "the backward writes to what was saved: a second one raises",
        ("PB206", "PB203"),
        partial(second_backward_raises, make, "inplace operation"),
    )


def _twice(make):
    return Bug(
        "the backward uses values of the forward: the second derivative, at a fixed cotangent, is silently wrong",
        ("PB401", "PB402", "PB403", "PB404", "PB604"),
        partial(derivative_of_backward_is_wrong, make),
    )


CALLS = (
    Call(one_nucleus, bugs=(_again(one_nucleus), _twice(one_nucleus)), doubtful=DOUBTFUL),
    Call(
        two_nuclei,
        bugs=(
            Bug(
                "all gradients of spins are divided by the ratio of the first of a batch",
                ("PB101",),
                partial(first_is_wrong, two_nuclei, 0),
            ),
            _again(two_nuclei),
            _twice(two_nuclei),
        ),
        doubtful=DOUBTFUL,
    ),
    Call(
        ratio_of_spins,
        bugs=(
            Bug(
                "gradients of spins are divided by ratios that have lost the dimension of the batch: it raises",
                ("PB119", "PB101"),
                lambda: raises(lambda: gradients(ratio_of_spins), "must match the size"),
            ),
        ),
        doubtful=DOUBTFUL,
    ),
    Call(relaxation, doubtful=DOUBTFUL),
    Call(relaxation_of_spins, doubtful=DOUBTFUL),
    Call(
        precession,
        bugs=(
            _again(precession),
            Bug(
                "the backward writes to tensors given as out=, which double backward refuses: it raises",
                ("PB403", "PB401", "PB404"),
                partial(second_raises, precession, "out=... arguments"),
            ),
        ),
        doubtful=DOUBTFUL,
    ),
)

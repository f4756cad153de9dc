"""Right functions are not reported."""

import pytest

from ..bulk import audit_all
from .controls import CONTROLS, FAMILIES

QUICK = {family.CONTROLS[0].name for family in FAMILIES} - {"newton-sqrt"} | {"kepler"}
"""One control of each family, for the short run; the audit of Newton's iteration takes more than 5 s."""


REASONS = {
    ("PB101", "the 1/N is that of one input, which is wrong if inputs of other sizes broadcast: it is not for these"): (
        "charbonnier circular-convolution focal focal-gamma-half gaussian-nll huber mse-mean pinball triplet-margin"
    ),
    ("PB101", "0 to the power 0 has the slope 0 · ∞: it is for positive numbers"): "pow-tensor",
    ("PB101", "a singular matrix: it has no derivative there"): "qr",
    ("PB101", "the squares of huge numbers overflow in float32, in the forward alone"): "rms-norm-in-single",
    ("PB109", "it looks at the sign of the cotangent, as it says"): "lower-bound upper-bound",
    ("PB119", "PyTorch refuses to index an empty dimension"): "index-add",
    ("PB303", "it cancels next to its branch point"): "lambert-w",
    ("PB303", "it computes in float32 inside, and says so"): "sigmoid-in-single",
    ("PB401", "equal eigenvalues or singular values: no second derivative"): "matrix-sqrt singular-values",
    ("PB409", "the compiler keeps a size that ctx holds, and fails loudly with another"): "expand-to upsample-nearest",
    ("PB416", "equal eigenvalues or singular values: no second derivative"): "matrix-sqrt singular-values",
    ("PB501", "view_as_real takes no lazy conjugate, and the forward does not resolve it"): "real-parts",
    ("PB503", "PyTorch's own FFT refuses an empty batch"): "circular-convolution fft fft-forward rfft-even rfft-odd",
    ("PB504", "the signal is shorter than the kernel"): "fixed-conv1d",
}
"""Rules that warn of controls, with the reason why that is so."""
TRUE = {("pow-tensor", "PB416")}
"""Errors that are true: the third derivative is wrong, since PyTorch's rule of a power is, at an exponent of 0."""
WARNED = {(name, rule) for (rule, _), names in REASONS.items() for name in names.split()}


def case(control):
    return pytest.param(control, id=control.name, marks=[] if control.name in QUICK else [pytest.mark.slow])


@pytest.mark.parametrize("control", [case(control) for control in CONTROLS])
@pytest.mark.few(6)
def test_control_has_no_error_and_no_unexplained_warning(control):
    (found,) = audit_all([(control.target, control.inputs)])
    found = [f for f in found if (control.name, f.rule) not in TRUE]
    bad = [f for f in found if f.severity == "error" or f.verdict == "unaudited"]
    bad += [f for f in found if f.severity == "warning" and (control.name, f.rule) not in WARNED]
    assert not bad, "\n".join(f"{control.name}: {f.rule} {f.name}: {f.message}\n{f.reproduce}" for f in bad)


def test_controls_are_many_and_have_unique_names():
    names = [control.name for control in CONTROLS]
    assert len(set(names)) == len(names) >= 250
    assert len(FAMILIES) >= 20
    assert sum(not control.exact for control in CONTROLS) >= 20
    assert {name for name, _ in WARNED} <= set(names)

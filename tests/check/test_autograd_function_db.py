"""PyTorch's own database of custom functions: every error reported on it is explained here."""

import pytest
import torch
from torch.testing._internal.autograd_function_db import autograd_function_db

from ..bulk import audit_all

pytestmark = pytest.mark.slow

# True faults; the first two are shown by hand below.
KNOWN = {
    "NumpyCubeNotComposable": {
        "PB209": "the array that it keeps on ctx has the memory of the input",
        "PB109": "returns 3 x**2 whatever the cotangent is",
        "PB111": "never reads its cotangent",
        "PB402": "once_differentiable, and autograd.grad gives 0 for the second derivative",
    },
    "CubeGenVmap": {
        "PB109": "adds 6 * dinput for its second output without its cotangent",
        "PB111": "never reads the cotangent of its second output",
        "PB401": "so the second derivative of that part is lost",
        "PB407": "and so is the gradient of its tangent",
    },
    "ZeroGradientsGenVmap": {
        "PB101": "its gradients are zero by construction, to test that transforms keep them",
        "PB104": "and of another shape than the input",
        "PB107": "and None for what does not require it",
    },
}


def functions():
    """Yield (class, arguments) of one sample of each entry, caught where the entry calls `apply`."""
    for entry in autograd_function_db:
        sample = next(iter(entry.sample_inputs("cpu", torch.float64, requires_grad=True)))
        seen = []
        original = torch.autograd.Function.apply.__func__

        def spy(cls, *args, seen=seen, original=original, **kwargs):
            seen.append((cls, args))
            return original(cls, *args, **kwargs)

        torch.autograd.Function.apply = classmethod(spy)
        try:
            call = entry.op if not isinstance(getattr(entry.op, "__self__", None), type) else entry.op.__self__.apply
            call(sample.input, *sample.args, **sample.kwargs)
        finally:
            torch.autograd.Function.apply = classmethod(original)
        yield from seen


@pytest.fixture(scope="module")
def findings():
    calls = {cls.__name__: (cls, args) for cls, args in functions()}

    def fresh(args):
        return tuple(
            a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a for a in args
        )

    found = audit_all([(cls, lambda args=args: fresh(args)) for cls, args in calls.values()])
    return dict(zip(calls, found, strict=True))


def test_most_entries_are_captured(findings):
    assert len(findings) >= 10
    assert set(KNOWN) <= set(findings)


def test_only_known_faults_are_accused(findings):
    accused = {
        (name, finding.rule) for name, found in findings.items() for finding in found if finding.severity == "error"
    }
    assert {(name, rule) for name, rule in accused if rule not in KNOWN.get(name, {})} == set()


def test_known_faults_are_found(findings):
    for name in ("NumpyCubeNotComposable", "CubeGenVmap"):
        assert "PB111" in {finding.rule for finding in findings[name]}


def test_numpy_cube_not_composable_ignores_its_cotangent(findings):
    from torch.testing._internal.autograd_function_db import NumpyCubeNotComposable

    x = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(NumpyCubeNotComposable.apply(x)[0], x, torch.tensor([5.0], dtype=torch.float64))
    assert gradient.item() == 12.0  # 3 x**2, where 5 * 3 x**2 = 60 is right


def test_cube_gen_vmap_ignores_its_second_cotangent(findings):
    from torch.testing._internal.autograd_function_db import CubeGenVmap

    x = torch.tensor([2.0], dtype=torch.float64, requires_grad=True)
    g = torch.tensor([1.0], dtype=torch.float64)
    once = torch.autograd.grad(CubeGenVmap.apply(x), x, (g, g))[0]
    thrice = torch.autograd.grad(CubeGenVmap.apply(x), x, (g, 3 * g))[0]
    assert torch.equal(once, thrice)

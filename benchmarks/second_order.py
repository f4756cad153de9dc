"""A training step with a second derivative: forces of a small MLP matched, with an op for its activation.

    python benchmarks/second_order.py [--json FILE] [--write docs/performance.md]

Energy of the positions, forces by its gradient with `create_graph=True`, a loss on both, backward: the step that
potentials of atoms are trained with; gradient penalties and physics-informed losses are like it. Beside the formula in
eager PyTorch, in turns; that the gradients agree is checked first. `torch.compile` of the energy, and of the whole
step, is tried and its error recorded.
"""

from __future__ import annotations

import argparse
import functools
import warnings
from collections.abc import Callable

import torch
from formulas import CASES, Case
from side_by_side import medians, parsed, publish, ratio, table, with_caches_of_its_own
from torch import Tensor

BATCH, COORDINATES = 256, 48
WIDTHS = (64, 512)
SHOWN = ("σ(x)·rsqrt(1+exp x)", "mish", "GELU", "sin² x")
FLOOR, GOAL = 0.9, 0.6
Activation = Callable[[Tensor], Tensor]


class Step:
    """One training step, with any activation."""

    def __init__(self, width: int, device: str) -> None:
        random = torch.Generator().manual_seed(0)
        sizes = [(COORDINATES, width), (width, width), (width, 1)]
        self.weights = [(torch.randn(a, b, generator=random) / a**0.5).to(device).requires_grad_() for a, b in sizes]
        self.x, self.forces = (torch.randn(BATCH, COORDINATES, generator=random).to(device) for _ in range(2))
        self.energies = torch.randn(BATCH, generator=random).to(device)

    def energy(self, activation: Activation) -> Callable[[Tensor], Tensor]:
        first, second, last = self.weights

        def energy(x: Tensor) -> Tensor:
            return (activation(activation(x @ first) @ second) @ last).squeeze(-1)

        return energy

    def gradients(self, energy: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
        """Return those of the loss by the weights."""
        x = self.x.detach().requires_grad_()
        energies = energy(x)
        (slopes,) = torch.autograd.grad(energies.sum(), x, create_graph=True)
        loss = (energies - self.energies).square().mean() + (slopes + self.forces).square().mean()
        return torch.autograd.grad(loss, self.weights)


def measured(case: Case, width: int, options: argparse.Namespace) -> dict[str, float]:
    """Return the seconds of a step with our ops and with the formula."""
    step = Step(width, options.device)
    functions = {"op": case.op(), "written": case.op(stable=False, backend="native"), "eager": case.eager}
    calls = {name: functools.partial(step.gradients, step.energy(f)) for name, f in functions.items()}
    right = calls["eager"]()
    for name, call in calls.items():
        for got, wanted in zip(call(), right, strict=True):
            if not bool((got - wanted).abs().max() <= 1e-3 * wanted.abs().max()):
                raise SystemExit(f"{case.name}: {name} has another gradient")
    return medians(calls, options)


def refusals(case: Case, device: str) -> dict[str, str]:
    """Return what `torch.compile` says to the energy, differentiated twice, and to the whole step."""
    step, found = Step(WIDTHS[0], device), {}
    energy = step.energy(case.eager)
    ways = {
        "of the energy": lambda: step.gradients(torch.compile(energy)),
        "of the step": lambda: torch.compile(step.gradients, fullgraph=True)(energy),
    }
    for what, way in ways.items():
        torch._dynamo.reset()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                way()
            found[what] = "none: it ran"
        except Exception as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            found[what] = f"{type(error).__name__}: {lines[0] if lines else ''}"[:160]
    return found


def main() -> None:
    options = parsed(__doc__)
    with with_caches_of_its_own():
        cases = [case for case in CASES if case.name in SHOWN][: 1 if options.quick else None]
        widths = WIDTHS[:1] if options.quick else WIDTHS
        found = {case.label: {str(w): measured(case, w, options) for w in widths} for case in cases}
        errors = {} if options.quick else refusals(cases[0], options.device)
    lines = [
        [f"{name}, width {w}", ratio(of["op"], of["eager"]), ratio(of["written"], of["eager"])]
        for name, widths in found.items()
        for w, of in widths.items()
    ]
    bars = f"(floor {FLOOR}; goal {GOAL})"
    shown = table([f"step with a second derivative {bars}", "op / eager", "written / eager"], lines)
    shown += "".join(f"\n\n`torch.compile` {what}: `{error}`" for what, error in errors.items())
    publish(__file__, options, shown, {"seconds": found, "torch.compile": errors})


if __name__ == "__main__":
    main()

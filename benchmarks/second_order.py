"""Training step with a second derivative: force matching of a small MLP, with an op as its activation.

    python benchmarks/second_order.py [--json FILE] [--write docs/performance.md]

The step computes an energy of positions, forces as its gradient with `create_graph=True`, a loss on both, and a
backward: interatomic potentials are trained like this, and gradient penalties and physics-informed losses are similar.
The op alternates with the formula in eager PyTorch, after a check that the gradients agree. The outcome of
`torch.compile` on the whole step with default options is recorded. If PyTorch has the option
`torch._dynamo.config.trace_autograd_ops`, which is off by default, the whole step compiled with it is a peer
(*compile*).
"""

from __future__ import annotations

import argparse
import functools
import warnings
from collections.abc import Callable, Sequence

import torch
from formulas import CASES, Case
from side_by_side import medians, parsed, publish, ratio, table, with_caches_of_its_own
from torch import Tensor

BATCH, COORDINATES = 256, 48
WIDTHS = (64, 512)
SHOWN = ("σ(x)·rsqrt(1+exp x)", "mish", "GELU", "sin² x")
FLOOR, GOAL = 0.9, 0.6
TOLERANCE = 1e-3
OPTION = "trace_autograd_ops"
SHOWN_RATIOS = (("op", "eager"), ("written", "eager"), ("op", "compile"), ("written", "compile"))
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
        """Return the gradients of the loss with respect to the weights."""
        x = self.x.detach().requires_grad_()
        energies = energy(x)
        (slopes,) = torch.autograd.grad(energies.sum(), x, create_graph=True)
        loss = (energies - self.energies).square().mean() + (slopes + self.forces).square().mean()
        return torch.autograd.grad(loss, self.weights)


def measured(case: Case, width: int, options: argparse.Namespace) -> dict[str, float]:
    """Return the seconds of a step with the ops and with the formula."""
    step = Step(width, options.device)
    functions = {"op": case.op(), "written": case.op(stable=False, backend="native"), "eager": case.eager}
    calls = {name: functools.partial(step.gradients, step.energy(f)) for name, f in functions.items()}
    if not options.quick and hasattr(torch._dynamo.config, OPTION):
        torch._dynamo.reset()
        compiled = torch.compile(step.gradients, fullgraph=True)
        calls["compile"] = functools.partial(with_option, compiled, step.energy(case.eager))
    for name, call in calls.items():
        if error(call(), calls["eager"]()) > TOLERANCE:
            raise SystemExit(f"{case.name}: {name} has another gradient")
    return medians(calls, options)


def with_option(step: Callable[..., tuple[Tensor, ...]], *args: object) -> tuple[Tensor, ...]:
    """Run a compiled step; the option is never reset, since Dynamo recompiles whenever an option changes."""
    if not torch._dynamo.config.trace_autograd_ops:
        torch._dynamo.config.trace_autograd_ops = True
    return step(*args)


def error(got: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """Return the largest difference, relative to the largest entry of a gradient."""
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(got, right, strict=True))


def compiled_by_default(case: Case, device: str) -> dict[str, str]:
    """Return the outcome of the step under `torch.compile` with default options."""
    step = Step(WIDTHS[0], device)
    energy = step.energy(case.eager)
    right, found = step.gradients(energy), {}
    ways = {"the step": lambda: torch.compile(step.gradients, fullgraph=True)(energy)}
    for what, way in ways.items():
        torch._dynamo.reset()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                off = error(way(), right)
            found[what] = "right" if off <= TOLERANCE else f"no error, and gradients that are off by {off:.0%}"
        except Exception as refusal:
            lines = [line.strip() for line in str(refusal).splitlines() if line.strip()]
            said = (lines[0] if lines else "").replace("`", "")
            found[what] = f"`{type(refusal).__name__}: {said}`"
    return found


def main() -> None:
    options = parsed(__doc__)
    with with_caches_of_its_own():
        cases = [case for case in CASES if case.name in SHOWN][: 1 if options.quick else None]
        widths = WIDTHS[:1] if options.quick else WIDTHS
        by_default = {} if options.quick else compiled_by_default(cases[0], options.device)
        found = {case.label: {str(w): measured(case, w, options) for w in widths} for case in cases}
    lines = [
        [f"{name}, width {w}", *(ratio(of[peer], of.get(over)) for peer, over in SHOWN_RATIOS)]
        for name, widths in found.items()
        for w, of in widths.items()
    ]
    head = [f"step with a second derivative (over eager: floor {FLOOR}; goal {GOAL})"]
    shown = table([*head, *(f"{peer} / {over}" for peer, over in SHOWN_RATIOS)], lines)
    shown += "".join(
        f"\n\n`torch.compile` of {what}, with default options: {fate}." for what, fate in by_default.items()
    )
    publish(__file__, options, shown, {"seconds": found, "torch.compile as it comes": by_default})


if __name__ == "__main__":
    main()

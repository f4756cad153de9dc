"""The functions of tutorial_functions.py again, each made from its forward alone: gradients, and a training run.

The forwards stay as they are. `pullback.AutogradFunction` derives the backward; nothing of the hand-written one
is used. The data are scikit-learn's digits, which ship inside that package.
"""

import sys

import torch
import tutorial_functions
from rich.console import Console
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor

import pullback

STEPS = 200
SAMPLES = 512


def derived(function: type) -> type:
    """Return the class with its forward alone, on Pullback's base."""
    return type(function.__name__, (pullback.AutogradFunction,), {"forward": staticmethod(function.forward)})


@pullback.function(derivative_of=lambda x: x)
def round_straight_through(x):
    """The one whose gradient is not meant to be its derivative: a relaxation says so."""
    return torch.round(x)


def examples() -> tuple[dict[str, tuple], tuple]:
    """Return example calls, away from kinks: of some functions, and of all others."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.rand(5, dtype=torch.float64, generator=generator) + 0.2 for _ in range(2))
    mask = torch.tensor([True, False, True, True, False])
    binary = dict.fromkeys(("SumOfSquaresAndProduct", "XExpMinusY"), (x, y))
    return {"MaskedSum": (x, mask), "PowerOf": (x, 3.0), **binary}, (x,)


def numeric_gradient(apply, args: tuple) -> list[Tensor]:
    """Return the gradient of the sum of all outputs, by central differences of fourth order."""
    gradients, h = [], 1e-3
    for i, x in enumerate(args):
        if not (isinstance(x, Tensor) and x.is_floating_point()):
            continue
        rows = torch.eye(x.numel(), dtype=x.dtype).reshape(-1, *x.shape) * h

        def at(shift, i=i, x=x):
            return total(apply(*args[:i], x + shift, *args[i + 1 :]))

        gradients.append(torch.stack([(8 * (at(r) - at(-r)) - (at(2 * r) - at(-2 * r))) / (12 * h) for r in rows]))
    return gradients


def total(out) -> Tensor:
    return sum(t.sum() for t in (out if isinstance(out, tuple) else (out,)))


def error(apply, args: tuple) -> str:
    """Return the largest error of a gradient, relative to the largest element, or why there is none."""
    leaves = [x.clone().requires_grad_() if isinstance(x, Tensor) and x.is_floating_point() else x for x in args]
    inputs = [x for x in leaves if isinstance(x, Tensor) and x.requires_grad]
    try:
        got = torch.autograd.grad(total(apply(*leaves)), inputs)
    except RuntimeError as refused:
        return type(refused).__name__
    expected = numeric_gradient(apply, args)
    worst = max(float((g - e).abs().max() / e.abs().max().clamp_min(1)) for g, e in zip(got, expected, strict=True))
    return f"{worst:.0e}"


def train(name: str, apply) -> tuple[float, float]:
    """Train a small classifier of digits whose hidden layer, or loss, goes through `apply`: first and last loss."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images[:SAMPLES] / 16, dtype=torch.float32)
    target = torch.tensor(labels[:SAMPLES])
    torch.manual_seed(0)
    hidden, gate, readout = torch.nn.Linear(64, 32), torch.nn.Linear(64, 32), torch.nn.Linear(32, 10)
    optimizer = torch.optim.Adam([*hidden.parameters(), *gate.parameters(), *readout.parameters()], lr=5e-3)
    losses = []
    for _ in range(STEPS):
        h = hidden(x)
        if name in {"XExpMinusY", "SumOfSquaresAndProduct"}:
            out = apply(h, gate(x))
            h = sum(out) if isinstance(out, tuple) else out
        elif name == "PowerOf":
            h = apply(h, 3.0)
        elif name == "RoundStraightThrough":
            h = apply(4 * h) / 4
        elif name != "MaskedSum":
            h = apply(h)
        each = torch.nn.functional.cross_entropy(readout(h), target, reduction="none")
        odd = target % 2 == 1
        loss = apply(each, odd) / odd.sum() if name == "MaskedSum" else each.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[0], losses[-1]


def main() -> int:
    torch.set_num_threads(1)  # the model is small
    particular, usual = examples()
    table = Table(
        "function", "its own\nbackward", "derived", f"loss over\n{STEPS} steps", title="Error of the gradient"
    )
    failed = []
    for name, function in vars(tutorial_functions).items():
        if not (isinstance(function, type) and issubclass(function, torch.autograd.Function)) or name == "Function":
            continue
        straight = name == "RoundStraightThrough"
        made = round_straight_through if straight else derived(function).apply
        args = particular.get(name, usual)
        first, last = train(name, made)
        if not last < first:
            failed.append(name)
        cells = ("(relaxed)", "(relaxed)") if straight else (error(function.apply, args), error(made, args))
        table.add_row(name, *cells, f"{first:.2f} → {last:.2f}")
    Console().print(table)
    print(
        "Each op is made from the forward alone. Errors are relative to the numeric derivative. The loss is that of a"
    )
    print("small classifier of scikit-learn's digits with the op inside, trained by Adam.")
    for name in failed:
        print(f"The loss did not fall with {name}.")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())

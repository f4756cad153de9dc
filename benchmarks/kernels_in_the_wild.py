"""Functions with Triton kernels of published packages, run without a GPU.

Installs each package, at the version given here, into a temporary folder, if it is not on the path, and makes each call
of `kernel_calls.py` in the interpreter, and compares its backward with differences of its forward along a random
direction of all inputs that require a gradient. Prints a table of each package: the number of Functions; of those with
a call; of those that ran forward and backward; of those that agree with the differences within 1e-9, within 1e-6, or
within 1e-6 when only the first output has a cotangent; of those whose backward is intentionally not the derivative; of
those with irregular accesses to memory; of those whose second derivative agrees with differences of the gradient, is
refused, is zero since no gradient of the backward requires one, or is otherwise wrong; and the median duration of a
forward and a backward. The rows by Function are in the JSON file. If a call fails, the exit status is 1.

    python benchmarks/kernels_in_the_wild.py [--only NAME,…] [--json FILE] [--write docs/kernels_in_the_wild.md]

Imports and runs code of the packages, as a test runner does. Needs a network, and Triton.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import pkgutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import kernel_calls
import torch
from in_the_wild import installed
from side_by_side import in_markdown, place, print_table
from torch import Tensor
from wild_packages import Package

from pullback import interpreter
from pullback.check.find.importing import import_all, import_root
from pullback.check.find.target import parse_target

_ZOO = tuple(
    f"unsloth_zoo.temporary_patches.{name}"
    for name in ("moe_router_triton", "moe_fused_swiglu", "moe_triton_kernels", "mhc_sinkhorn")
)
PACKAGES = (
    Package("liger-kernel", "0.8.5", "language models", ("liger_kernel.ops",)),
    Package(
        "flash-linear-attention", "0.6.0", "linear attention", ("fla.ops", "fla.modules"),
        ("fla-core==0.6.0", "einops"),
    ),
    Package(
        "unsloth", "2026.10.9", "fine-tuning", ("unsloth.kernels", *_ZOO), ("unsloth-zoo==2026.10.9", "packaging"),
    ),
    Package(
        "xformers", "0.0.35", "transformers",
        ("xformers.ops.indexing", "xformers.ops.swiglu_op", "xformers.ops.unbind"),
    ),
    Package("mamba-ssm", "2.3.2.post1", "state spaces", ("mamba_ssm.ops.triton",), ("einops",)),
    Package("attorch", "67c2772", "layers", ("attorch",)),
)  # fmt: skip
CALLS = {
    "liger-kernel": kernel_calls.LIGER, "flash-linear-attention": kernel_calls.FLA, "unsloth": kernel_calls.UNSLOTH,
    "xformers": kernel_calls.XFORMERS, "mamba-ssm": kernel_calls.MAMBA, "attorch": kernel_calls.ATTORCH,
}  # fmt: skip
_FROM_A_CHECKOUT = ("mamba-ssm", "attorch")
"""Packages that pip cannot install here: one is built with CUDA, the other is not published."""
_WITH_STAND_INS = ("unsloth", "xformers", "mamba-ssm", "attorch")
"""Packages that import much that is not installed here: they are imported as the command line imports them."""
_STEPS = (4e-3, 2e-3, 1e-3, 5e-4)
_NOT_IMPORTED = ("cutedsl", "cutile", "backends", ".cute", "test")
"""Parts of the names of modules for other compilers and devices."""


@dataclass(frozen=True)
class Row:
    """A Function, and what its example call showed.

    Attributes:
        function: module and class.
        status: "ran"; "no call" or "fails", and why.
        error: relative difference between the backward and the differences of the forward.
        bar: the differences' own error.
        first: the error where only the first output has a cotangent.
        meant: why the backward is not the derivative of the forward, on purpose; "" if it is meant to be.
        irregular: irregular accesses to memory.
        second: "right", "refused", "omitted" or "wrong": the derivative of the gradient, by `create_graph=True`.
        seconds: duration of a forward and a backward.
    """

    function: str
    status: str = "ran"
    error: float = 0.0
    bar: float = 0.0
    first: float = 0.0
    meant: str = ""
    irregular: list[str] = field(default_factory=list)
    second: str = ""
    seconds: float = 0.0


def main() -> int:
    options = _options()
    if options.within:
        print(json.dumps([asdict(row) for row in _rows(options.within)]))
        return 0
    found = {}
    for package in wanted(options.only):
        print(f"{package.requirement} ...", file=sys.stderr, flush=True)
        found[package.requirement] = _of_package(package)
    cells = [_cells(name, rows) for name, rows in found.items()]
    print_table(_HEADINGS, cells)
    if options.json:
        Path(options.json).write_text(
            json.dumps({name: [asdict(row) for row in rows] for name, rows in found.items()}, indent=1)
        )
    if options.write:
        place(
            Path(options.write), "kernels_in_the_wild.py", "\n".join(in_markdown(_HEADINGS, cells, words=("package",)))
        )
    failed = [row for rows in found.values() for row in rows if row.status.startswith("fails")]
    for row in failed:
        print(f"{row.function} {row.status}")
    return int(bool(failed))


def _of_package(package: Package) -> list[Row]:
    """Make the calls of a package in a process of its own."""
    with provided(package) as folder, tempfile.TemporaryDirectory() as here:  # a package may write where it runs
        command = [sys.executable, __file__, "--within", package.name]
        path = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False, cwd=here)
    if done.returncode:
        raise SystemExit(f"{package.requirement}: the calls could not be made")
    return [Row(**row) for row in json.loads(done.stdout.splitlines()[-1])]


def wanted(only: str | None) -> list[Package]:
    """Return the packages of these names, separated by commas, or all; without those that can be had from nowhere."""
    names = {p.name for p in PACKAGES}
    if unknown := set(only.split(",") if only else ()) - names:
        raise SystemExit(f"no package {', '.join(sorted(unknown))}; there are {', '.join(sorted(names))}")
    chosen = [p for p in PACKAGES if not only or p.name in only.split(",")]
    lacking = [p for p in chosen if p.name in _FROM_A_CHECKOUT and not _on_path(p)]
    for package in lacking:
        print(f"{package.requirement}: left out, since no checkout of it is on the path", file=sys.stderr)
    return [p for p in chosen if p not in lacking]


def _on_path(package: Package) -> str:
    """Return the folder of a package that is on the path; "" if none is."""
    spec = importlib.util.find_spec(package.targets[0].partition(".")[0])
    return str(Path(spec.origin).parents[1]) if spec is not None and spec.origin is not None else ""


@contextmanager
def provided(package: Package) -> Iterator[str]:
    """Yield the folder of a package: the one on the path, or else a temporary one, into which it is installed."""
    if folder := _on_path(package):
        yield folder
        return
    with installed(package) as folder:
        yield folder


# ---- within the process of a package --------------------------------------------------------------------------------


def _rows(name: str) -> Iterator[Row]:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    interpreter.enter()
    (package,) = (p for p in PACKAGES if p.name == name)
    calls = CALLS[name]
    for function, cls in sorted(functions(package).items()):
        if function in calls:
            yield _row(function, cls, calls[function])
        else:
            yield Row(function, f"no call: {kernel_calls.SKIPPED.get(function, 'unknown')}")


def functions(package: Package) -> dict[str, Any]:
    """Return the Functions of a package that can be imported."""
    tops = {target.partition(".")[0] for target in package.targets}
    if package.name in _WITH_STAND_INS:
        os.environ.setdefault("XFORMERS_ENABLE_TRITON", "1")
        for target in package.targets:
            import_all(import_root(parse_target(target)))
        return _functions_of(tops)
    for target in package.targets:
        module = importlib.import_module(target)
        for each in pkgutil.walk_packages(getattr(module, "__path__", []), target + ".", onerror=lambda _: None):
            if not any(part in each.name for part in _NOT_IMPORTED):
                try:
                    importlib.import_module(each.name)
                except (ImportError, AttributeError, RuntimeError) as error:
                    print(f"{each.name} cannot be imported: {error}", file=sys.stderr)
    return _functions_of(tops)


def _functions_of(tops: Collection[str]) -> dict[str, Any]:
    """Return the Functions of some top-level packages."""
    classes: set[Any] = set()
    todo: list[Any] = [torch.autograd.Function]
    while todo:
        new = set(todo.pop().__subclasses__()) - classes
        classes |= new
        todo += new
    return {f"{c.__module__}:{c.__name__}": c for c in classes if c.__module__.partition(".")[0] in tops}


def _row(function: str, cls: Any, make: kernel_calls.Make) -> Row:
    world = interpreter.World()
    # A Function without kernels, in a package of kernels, computes in float32: it is lifted by hand.
    compared = _compared if interpreter.is_useful(cls.__module__) else interpreter.hosting(_compared)
    try:
        with interpreter.inside(world):
            found = compared(cls.apply, kernel_calls.arguments(cls, make))
    except Exception as error:  # any error of a package is its row's
        return Row(function, f"fails: {type(error).__name__}: {str(error)[:200]}")
    irregular = [f"{i.kind} in {i.kernel}, line {i.line}: {i.what}" for i in world.irregularities]
    return Row(function, "ran", *found[:3], kernel_calls.MEANT.get(function, ""), irregular, *found[3:])


def _compared(call: Callable[..., Any], args: Sequence[Any]) -> tuple[float, float, float, str, float]:
    """Return the backward's error, its bar, the error for the first output, the second derivative, and seconds."""
    drawn = torch.Generator().manual_seed(1)
    start = time.perf_counter()
    inputs, outputs = _called(call, args)
    used = [i for i, out in enumerate(outputs) if out.requires_grad]
    cotangents = [torch.randn(outputs[i].shape, generator=drawn, dtype=torch.float64) for i in used]
    grads = _gradients(inputs, [outputs[i] for i in used], cotangents)
    seconds = time.perf_counter() - start
    directions = [torch.randn(x.shape, generator=drawn, dtype=torch.float64) * _size(x) for x in inputs]

    def difference(step: float) -> list[Tensor]:
        """Changes of the outputs along the direction, times the cotangents."""
        moved = [_called(call, args, [sign * step * d for d in directions])[1] for sign in (1, -1)]
        return [
            ((moved[0][i] - moved[1][i]) * c).sum().detach() / (2 * step) for i, c in zip(used, cotangents, strict=True)
        ]

    for scale in (1.0, 1e-1, 1e-2):
        each = torch.tensor([[float(x) for x in difference(scale * h)] for h in _STEPS], dtype=torch.float64)
        expected, bar = _extrapolated(each.sum(1))
        if bar < 1e-11 * abs(expected):
            break
    fresh, again = _called(call, args)
    of_first = _gradients(fresh, [again[used[0]]], cotangents[:1])
    first = _error(_along(of_first, directions), _extrapolated(each[:, 0])[0])
    error, bar = _error(_along(grads, directions), expected), bar / max(abs(expected), 1e-30)
    return error, bar, first, _second(call, args, cotangents, directions), seconds


def _second(call: Callable[..., Any], args: Sequence[Any], cotangents: Sequence[Tensor], directions: Any) -> str:
    """Compare the derivative of the gradient along the directions with differences of the gradient."""

    def slope(moves: Sequence[Tensor] | None, create_graph: bool) -> tuple[Sequence[Tensor], Tensor]:
        inputs, outputs = _called(call, args, moves)
        used = [out for out in outputs if out.requires_grad]
        copies = [c.clone() for c in cotangents]
        grads = torch.autograd.grad(used, inputs, copies, allow_unused=True, create_graph=create_graph)
        along = [(g * d).sum() for g, d in zip(grads, directions, strict=True) if g is not None]
        return inputs, torch.stack(along).sum() if along else torch.zeros(())

    got, silent = 0.0, True
    try:
        inputs, along = slope(None, create_graph=True)
        if along.requires_grad:
            silent = False
            got = _along(torch.autograd.grad(along, inputs, allow_unused=True), directions)
    except RuntimeError:
        return "refused"

    def difference(step: float) -> float:
        ahead, behind = (float(slope([sign * step * d for d in directions], create_graph=False)[1]) for sign in (1, -1))
        return (ahead - behind) / (2 * step)

    expected, bar = _extrapolated(torch.tensor([difference(step / 10) for step in _STEPS], dtype=torch.float64))
    if abs(got - expected) <= 1e-6 * max(abs(got), abs(expected), abs(float(along.detach()))) + 10 * bar:
        return "right"
    return "omitted" if silent else "wrong"


def _called(
    call: Callable[..., Any], args: Sequence[Any], moves: Sequence[Tensor] | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """Make a call on copies; return the inputs that require a gradient, and the outputs of floats."""
    inputs: list[Tensor] = []

    def fresh(x: Any) -> Any:
        if isinstance(x, tuple | list):
            return type(x)(map(fresh, x))
        if not isinstance(x, Tensor) or not x.requires_grad:
            return x.clone() if isinstance(x, Tensor) else x
        copy = x.detach().clone() if moves is None else x.detach() + moves[len(inputs)]
        inputs.append(copy.requires_grad_())
        return copy.view_as(copy)  # kernels write to their inputs

    torch.manual_seed(0)
    out = call(*map(fresh, args))
    return inputs, list(_tensors(out))


def _tensors(x: Any) -> Iterator[Tensor]:
    if isinstance(x, tuple | list):
        for each in x:
            yield from _tensors(each)
    elif isinstance(x, Tensor) and x.is_floating_point():
        yield x


def _gradients(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    copies = [c.clone() for c in cotangents]  # kernels write to these, too
    return torch.autograd.grad(outputs, inputs, copies, allow_unused=True)


def _size(x: Tensor) -> float:
    """Size of a step for an input: that of its values, if they are small."""
    return min(1.0, float(x.detach().square().mean().sqrt())) if x.numel() else 1.0


def _along(grads: Sequence[Tensor | None], directions: Sequence[Tensor]) -> float:
    return sum(float((g * d).sum()) for g, d in zip(grads, directions, strict=True) if g is not None)


def _extrapolated(slopes: Tensor) -> tuple[float, float]:
    """Richardson's extrapolation of central differences whose steps halve, and its error."""
    row = slopes.tolist()
    previous = row
    for k in range(1, len(slopes)):
        previous, row = row, [(4**k * b - a) / (4**k - 1) for a, b in pairwise(row)]
    return row[0], abs(row[0] - previous[-1])


def _error(got: float, expected: float) -> float:
    return abs(got - expected) / max(abs(got), abs(expected), 1e-30)


# ---- tables ---------------------------------------------------------------------------------------------------------

_HEADINGS = (
    "package", "Functions", "called", "ran", "1e-9", "1e-6", "1e-6, first output only", "worse", "intended",
    "irregular", "second derivative right", "refused", "omitted", "wrong", "seconds",
)  # fmt: skip


def _cells(name: str, rows: Sequence[Row]) -> list[str]:
    ran = [row for row in rows if row.status == "ran"]
    called = [row for row in rows if not row.status.startswith("no call")]
    judged = [row for row in ran if not row.meant]
    close, fair = (sum(row.error <= limit for row in judged) for limit in (1e-9, 1e-6))
    first = sum(min(row.error, row.first) <= 1e-6 for row in judged)
    shares = [close, fair - close, first - fair, len(judged) - first, len(ran) - len(judged)]
    counts = [len(rows), len(called), len(ran), *shares]
    irregular = sum(bool(row.irregular) for row in ran)
    second = [sum(row.second == kind for row in ran) for kind in ("right", "refused", "omitted", "wrong")]
    median = statistics.median(row.seconds for row in ran) if ran else 0.0
    return [name, *map(str, [*counts, irregular, *second]), f"{median:.2f}"]


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="only these packages, separated by commas")
    parser.add_argument("--json", help="write the figures of each Function to this file")
    parser.add_argument("--write", help="update the table of this page")
    parser.add_argument("--within", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""Second and third derivatives of PyTorch's own operators, by every nesting of forward and reverse mode.

Takes the entries of PyTorch's operator database that support gradients, in float64 and complex128 on the CPU, on their
samples, a few of ours, and these with zeros, ties, equal and constant rows, multiples of the identity, numbers that are
far apart, and zeros or ones in a single tensor. Every nesting of the modes gives the same
derivative along some directions; where two differ, the numeric derivative of a nesting one order below that was
confirmed itself settles which is right. Lists the nestings that silently give another number, and what they give.

    python benchmarks/audit_pytorch.py [--only TEXT] [--seconds S] [--json FILE] [--write docs/pytorch.md]
    python benchmarks/audit_pytorch.py --programs docs/pytorch.md

Takes an hour. The operators run in other processes: one that crashes is told, and the rest goes on. The second command
runs the programs of the page, and writes there what each prints with this PyTorch. The page has a table for each of two
versions, and a line below each program.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from side_by_side import in_markdown, place, print_table
from torch import Tensor
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils import _pytree

import pullback
from pullback.check.cases.branch_points import at_branch_points
from pullback.check.derivative.nesting import (
    Nested,
    Nesting,
    batched_nestings,
    compare_nestings,
    composite,
    nestings,
    sizes,
)
from pullback.check.trial import Raised, reseed

_MOST_SAMPLES, _MOST_ELEMENTS = 40, 200
_ORDERS = (1, 2, 3)
_CONDITIONED = 1e-4
"""Relative error that is put down to a sample's condition."""
_AS_GIVEN = "as given"
_DTYPES = (torch.float64, torch.complex128)
_BATCHED = 2
"""The order whose nestings are taken for batches of directions, too, as in `hessian`."""
VERSION = torch.__version__.partition("+")[0]
PROGRAM = re.compile(r"```python\n(import .*?)```\n\n```text\n(.*?)```\n", re.DOTALL)
"""A program of the page, and what it printed: a line for each version of PyTorch."""
_ORDINALS = {1: "1st", 2: "2nd", 3: "3rd"}


NOT_ACCUSED = {
    "bfloat16": "it rounds, and its derivative is that of the number before",
    "half": "it rounds, and its derivative is that of the number before",
    "masked.logaddexp": "NaN at a masked element, whose value is -inf",
    "nn.functional.max_unpool1d": "two elements of its samples have one place: which remains is not defined",
    "nn.functional.max_unpool2d": "two elements of its samples have one place: which remains is not defined",
    "nn.functional.max_unpool3d": "two elements of its samples have one place: which remains is not defined",
    "pca_lowrank": "a random algorithm, beside a degenerate matrix",
}
"""Operators whose nestings differ without a fault that is shown: why."""


@dataclass
class Wrong:
    """A derivative of one order on one sample that some nestings get silently wrong.

    Attributes:
        operator: entry of the database.
        dtype: of the sample.
        sample: number of the sample, its shapes and other arguments.
        point: the change of the sample's values; "as given" for none.
        order: of the derivative.
        expected, bar: the numeric derivative.
        got: what each wrong nesting gives.
        right: the nestings that give the numeric derivative.
    """

    operator: str
    dtype: str
    sample: str
    point: str
    order: int
    expected: float
    bar: float
    got: dict[str, float] = field(default_factory=dict)
    right: list[str] = field(default_factory=list)


NESTABLE = {True: "wrong", False: "right"}
"""What is said of an operator within `pullback.nestable`, by whether a nesting is silently wrong there, too."""


def main() -> int:
    options = _options()
    if options.programs:
        run_programs(options.programs)
        return 0
    if options.within:
        for line in _within(options):
            print(json.dumps(line), flush=True)
        return 0
    names = [name for name in entries() if options.only in name]
    kept = options.json is not None and options.json.exists()
    done: dict[str, dict[str, Any]] = json.loads(options.json.read_text()) if kept else {}
    while left := [name for name in names if name not in done]:
        before = len(done)
        for line in _lines(left, options.seconds):
            done[line["operator"]] = line
            if options.json:
                options.json.write_text(json.dumps(done, indent=1))
            print(f"\r{len(done)} of {len(names)} operators", end="", file=sys.stderr, flush=True)
        if len(done) < len(names):
            crashed = next(name for name in names if name not in done)
            done[crashed] = {"operator": crashed, "compared": 0, "wrong": [], "left": [], "error": "the process ended"}
        assert len(done) > before
    print(file=sys.stderr)
    found = [Wrong(**each) for line in done.values() for each in line["wrong"] if line["operator"] not in NOT_ACCUSED]
    left = {name: line["left"] for name, line in done.items()}
    rows = list(_rows(found, left))
    print_table(_HEADINGS, rows)
    compared = sum(line["compared"] > 0 for line in done.values())
    summary = (
        f"PyTorch {VERSION}: {len(done)} operators, {compared} compared, "
        f"{len({w.operator for w in found})} with a nesting that is silently wrong, "
        f"{len({w.operator for w in found if left[w.operator]})} within `pullback.nestable`."
    )
    print(summary)
    if options.write:
        table = in_markdown(_HEADINGS, rows, _HEADINGS)
        place(options.write, f"audit_pytorch.py with PyTorch {VERSION}", "\n".join([summary, "", *table]))
    return 0


def run_programs(page: Path) -> None:
    """Run the programs of a page, and write the line that each prints with this PyTorch below it."""

    def ran(match: re.Match[str]) -> str:
        printed = dict(line.split(": ", 1) for line in match[2].splitlines())
        printed[VERSION] = output_of(match[1])
        lines = "".join(f"{version}: {printed[version]}\n" for version in sorted(printed))
        return f"```python\n{match[1]}```\n\n```text\n{lines}```\n"

    page.write_text(PROGRAM.sub(ran, page.read_text(encoding="utf-8")), encoding="utf-8")


def output_of(program: str) -> str:
    """Return the line that a program prints, or its exception."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated operators
        try:
            exec(compile(program, "<program>", "exec"), {})
        except Exception as error:
            return f"raises {type(error).__name__}: {str(error).splitlines()[0]}"
    return said.getvalue().strip()


def entries() -> dict[str, Any]:
    """Return the entries of the database that can be differentiated in float64 on the CPU, by name."""
    from torch.testing._internal.common_methods_invocations import op_db

    named = {f"{e.name}.{e.variant_test_name}" if e.variant_test_name else e.name: e for e in op_db}
    return {
        n: e for n, e in named.items() if e.supports_autograd and torch.float64 in e.supported_backward_dtypes("cpu")
    }


def _lines(names: Sequence[str], seconds: float) -> Iterator[dict[str, Any]]:
    """Yield what another process finds of some operators, until it ends."""
    command = [sys.executable, __file__, "--within", ",".join(names), "--seconds", str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                yield json.loads(line)


# ---- within the process of some operators ---------------------------------------------------------------------------


def _within(options: Any) -> Iterator[dict[str, Any]]:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    known = entries()
    for name in options.within.split(","):
        found: list[Wrong] = []
        compared, error = 0, ""
        for dtype in _DTYPES:
            if dtype not in known[name].supported_backward_dtypes("cpu"):
                continue
            end = time.process_time() + options.seconds
            try:
                for wrong in _of_operator(name, known[name], dtype, lambda end=end: time.process_time() < end):
                    compared += 1
                    if wrong is not None:
                        found.append(wrong)
            except Exception as raised:  # a sample cannot be made
                error = f"{type(raised).__name__}: {raised}"[:200]
        left = sorted({wrong.order for wrong in found if _is_wrong_in_nestable(known[name], wrong)})
        line = {"compared": compared, "wrong": [asdict(w) for w in found], "left": left, "error": error}
        yield {"operator": name, **line}


def _is_wrong_in_nestable(entry: Any, wrong: Wrong) -> bool:
    """Whether a nesting is silently wrong on the same sample within `pullback.nestable`, too."""
    _, _, function, _, values = next(
        case
        for case in _cases(wrong.operator, entry, getattr(torch, wrong.dtype))
        if (case[1], case[3]) == (wrong.sample, wrong.point)
    )
    replaced = pullback.nestable(function)
    found = dict(_of_point(replaced, values, wrong.point == _AS_GIVEN)).get(wrong.order)
    return found is not None and any(_is_no_rounding(found, found.values[n]) for n in found.wrong)


Case = tuple[int, str, Callable[..., list[Tensor]], str, list[Tensor]]
"""Its place in the order of cases, the label of a sample, a function of its tensors, a change of these, and they."""


def _cases(name: str, entry: Any, dtype: torch.dtype) -> list[Case]:
    """Return the samples of an operator at each of their points."""
    torch.manual_seed(0)
    drawn = entry.sample_inputs("cpu", dtype, requires_grad=True)
    samples = itertools.chain(_OURS.get(name, list)(), itertools.islice(drawn, _MOST_SAMPLES))
    seen: set[str] = set()
    cases: list[Case] = []
    for number, sample in enumerate(samples):
        inputs, function = as_function(entry, sample)
        label = _label(number, sample)
        if 0 < sum(x.numel() for x in inputs) <= _MOST_ELEMENTS and label.partition(":")[2] not in seen:
            seen.add(label.partition(":")[2])
            place = len(seen)
            cases += [(place + k, label, function, *point) for k, point in enumerate(_points(inputs))]
    return cases


def _of_operator(name: str, entry: Any, dtype: torch.dtype, has_time: Callable[[], bool]) -> Iterator[Wrong | None]:
    """Yield, for each derivative that is compared, what is wrong, or `None`."""
    # The points of the first sample and the first points of all samples, before the rest.
    for _, label, function, point, values in sorted(_cases(name, entry, dtype), key=lambda case: case[0]):
        if not has_time():
            return
        for order, nested in _of_point(function, values, point == _AS_GIVEN):
            got = {str(n): nested.values[n] for n in nested.wrong if _is_no_rounding(nested, nested.values[n])}
            right = [str(n) for n in nested.right]
            known = (nested.expected, nested.bar, got, right)
            yield Wrong(name, str(dtype).removeprefix("torch."), label, point, order, *known) if got else None


def _points(inputs: list[Tensor]) -> Iterator[tuple[str, list[Tensor]]]:
    """Yield the tensors of a sample as given and changed."""
    yield _AS_GIVEN, inputs
    yield from at_branch_points(inputs)
    yield "far apart", [100 * x for x in inputs]
    if len(inputs) > 1:
        for label, change in (("zeros", torch.zeros_like), ("ones", torch.ones_like)):
            for i, x in enumerate(inputs):
                yield f"{label} in one tensor", [*inputs[:i], change(x), *inputs[i + 1 :]]


def _broadcast_cholesky() -> Iterator[SampleInput]:
    factor = torch.randn(2, 2, 2, dtype=torch.float64).tril() + 3 * torch.eye(2)
    yield SampleInput(torch.randn(2, 2, dtype=torch.float64).requires_grad_(), args=(factor.requires_grad_(),))


def _integer_exponents() -> Iterator[SampleInput]:
    yield SampleInput(torch.randn(3, dtype=torch.float64).requires_grad_(), args=(torch.tensor([2, -3, 0]),))


_OURS: dict[str, Callable[[], Iterable[SampleInput]]] = {
    "cholesky_solve": _broadcast_cholesky,
    "ldexp": _integer_exponents,
}
"""Samples that the database lacks."""


def _is_no_rounding(nested: Nested, value: float) -> bool:
    """Whether a wrong value is further off than by the rounding of an ill-conditioned sample."""
    return not abs(value - nested.expected) <= _CONDITIONED * abs(nested.expected)


def as_function(entry: Any, sample: Any) -> tuple[list[Tensor], Callable[..., list[Tensor]]]:
    """Return the tensors of a sample that are differentiated, and its floating results as a function of them."""
    leaves, spec = _pytree.tree_flatten(((sample.input, *sample.args), sample.kwargs))
    moved = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.requires_grad]

    def function(*tensors: Tensor) -> list[Tensor]:
        values = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        for i, tensor in zip(moved, tensors, strict=True):
            values[i] = tensor.clone()
        args, kwargs = _pytree.tree_unflatten(values, spec)
        reseed()
        out = entry.gradcheck_wrapper(entry.op, *args, **kwargs)  # of triangular or symmetric matrices: in these alone
        if sample.output_process_fn_grad is not None:  # of decompositions: what does not depend on the gauge
            out = sample.output_process_fn_grad(out)
        tensors_out = [leaf for leaf in _pytree.tree_leaves(out) if isinstance(leaf, Tensor)]
        return [t for t in tensors_out if t.is_floating_point() or t.is_complex()]

    return [leaves[i].detach() for i in moved], function


def _weights(outs: Sequence[Tensor]) -> list[Tensor]:
    numbers = [torch.linspace(0.5, 1.5, max(o.numel(), 1), dtype=torch.float64)[: o.numel()] for o in outs]
    return [(w.view(o.shape) * (1 + 0.5j if o.is_complex() else 1)) for w, o in zip(numbers, outs, strict=True)]


def _of_point(
    function: Callable[..., list[Tensor]], inputs: Sequence[Tensor], is_ordinary: bool
) -> Iterator[tuple[int, Nested]]:
    """Yield the derivatives of each order, as long as those of the order below are known."""
    try:
        function = _of_differentiable_results(function, inputs)
        outs = [out.detach() for out in function(*inputs)]
        phi = composite(function, inputs, _weights(outs), sizes(outs))
        if not bool(phi(*inputs).isfinite()):
            return
    except Exception:  # the operator does not take these values
        return
    generator = torch.Generator().manual_seed(3)
    directions = [[0.5 * torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in inputs] for _ in _ORDERS]
    below: Nesting = nestings(0)[0]
    for order in _ORDERS:
        try:
            tried = [*nestings(order), *(batched_nestings(order) if order == _BATCHED else [])]
            nested = compare_nestings(phi, inputs, directions[:order], below, tried, few_samples=True)
        except Raised:
            return
        if order == 1 and not nested.right and not is_ordinary:
            return  # both modes follow a convention, as for copysign(0, 0), which is linear along each line through 0
        yield order, nested
        if not nested.right:
            return
        below = nested.right[0]


def _of_differentiable_results(
    function: Callable[..., list[Tensor]], inputs: Sequence[Tensor]
) -> Callable[..., list[Tensor]]:
    """Return a function without the results that PyTorch marks as having no derivative."""
    marked = [out.requires_grad for out in function(*(x.detach().requires_grad_() for x in inputs))]
    return lambda *xs: [out for out, is_kept in zip(function(*xs), marked, strict=True) if is_kept]


def _label(number: int, sample: Any) -> str:
    leaves = _pytree.tree_leaves(((sample.input, *sample.args), sample.kwargs))
    shown = [f"{tuple(v.shape)}" if isinstance(v, Tensor) else repr(v)[:40] for v in leaves]
    return f"{number}: {', '.join(shown)}"


# ---- tables ---------------------------------------------------------------------------------------------------------

_HEADINGS = ("operator", "order", "where", "silently wrong", "right", "got", "expected", "nestable")


def _rows(found: Sequence[Wrong], left: Mapping[str, Sequence[int]]) -> Iterator[list[str]]:
    """Yield a row for each operator and order, of its first sample."""
    for (operator, order), group in itertools.groupby(
        sorted(found, key=lambda w: (w.operator, w.order)), key=lambda w: (w.operator, w.order)
    ):
        either = list(group)
        real = [w for w in either if w.dtype == "float64"]
        each = real or either
        first = next((w for w in each if w.point == _AS_GIVEN), each[0])
        points = list(dict.fromkeys(w.point for w in each))
        where = "everywhere" if _AS_GIVEN in points else ", ".join(points)
        where += "" if real else "; complex128"
        worst = max(first.got, key=lambda n: abs(first.got[n] - first.expected))
        wrong, right = (", ".join(_short(names)) for names in (first.got, first.right))
        got, expected = f"{first.got[worst]:.6g}", f"{first.expected:.6g} ± {first.bar:.0e}"
        nestable = NESTABLE[order in left[operator]]
        yield [f"`{operator}`", _ORDINALS[order], where, wrong, right or "–", got, expected, nestable]


def _short(names: Sequence[str]) -> list[str]:
    """Return nestings in letters, once each: fr is forward over reverse."""
    letters = ["".join(word[0] for word in name.partition(" (")[0].split(" over ")) for name in names]
    return list(dict.fromkeys(letters))


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="TEXT", help="operators with this in their name")
    parser.add_argument("--seconds", type=float, default=6.0, help="processor time of each operator (6)")
    parser.add_argument("--json", type=Path, help="keep what is found here, and resume from it")
    parser.add_argument("--write", type=Path, help="update the table of this page")
    parser.add_argument("--programs", type=Path, metavar="PAGE", help="run the programs of this page")
    parser.add_argument("--within", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

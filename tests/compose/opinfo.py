"""Derived ops of PyTorch's operators compared with the operators, on samples of the operator database.

`python -m tests.compose.opinfo` prints how many entries run as compiled graphs, and why the others do not.
"""

import collections
import itertools
import warnings
from dataclasses import dataclass, field

import torch
from torch.utils import _pytree

import pullback
from pullback.nesting import Replacing
from pullback.plan import InlinePlan

SAMPLES = 3
TOLERANCE, FLOOR = 1e-12, 1e-2
"""Relative to the largest magnitude in a result. Graphs run the same kernels, but may sum in another order. Inputs and
cotangents are of magnitude 1, so that results below the floor come from cancellation."""


@dataclass
class Ran:
    """Results of a call and its derivatives: lists of tensors, with None where there is no dependence."""

    parts: dict = field(default_factory=dict)
    error: str = ""


@dataclass
class Outcome:
    """Result of an entry: its difference from the operator, and how its samples were executed."""

    name: str
    differences: list = field(default_factory=list)
    inline: list = field(default_factory=list)
    graphs: int = 0


def entries():
    """Return the entries of the database that can be differentiated on the CPU in double precision, by name."""
    from torch.testing._internal.common_methods_invocations import op_db

    named = {f"{e.name}.{e.variant_test_name}" if e.variant_test_name else e.name: e for e in op_db}
    return {name: e for name, e in named.items() if e.supports_autograd and dtype_of(e)}


def dtype_of(entry):
    """Return the dtype for an entry: double precision, complex if it has no other."""
    known = entry.supported_backward_dtypes("cpu")
    return next((d for d in (torch.float64, torch.complex128) if d in known), None)


def outcome_of(name, entry, count=SAMPLES):
    """Compare the first `count` samples of an entry."""
    outcome = Outcome(name)
    function = entry.op

    @pullback.function
    def formula(x, args, kwargs):
        return function(x, *args, **kwargs)

    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the operators: deprecations, what is in beta state
        samples = entry.sample_inputs("cpu", dtype_of(entry), requires_grad=True)
        for i, sample in enumerate(itertools.islice(samples, count)):
            native = run(lambda x, args, kwargs: function(x, *args, **kwargs), sample, i, entry.supports_gradgrad)
            ours = run(formula, sample, i, entry.supports_gradgrad)
            if found := difference(ours, native):
                with Replacing(order=2):  # by the formulas of tests/test_nesting.py, where PyTorch is wrong itself
                    mended = run(
                        lambda x, args, kwargs: function(x, *args, **kwargs), sample, i, entry.supports_gradgrad
                    )
                if difference(ours, mended):
                    outcome.differences.append(found)
    plans = formula._plans.plans.values()
    outcome.inline = [plan.why for plan in plans if isinstance(plan, InlinePlan)]
    outcome.graphs = len(plans) - len(outcome.inline)
    return outcome


def run(function, sample, seed, twice):
    """Call `function(input, args, kwargs)`; differentiate along random directions, up to the order that it supports."""
    call = _pytree.tree_map_only(
        torch.Tensor, lambda t: t.detach().requires_grad_(t.requires_grad), (sample.input, sample.args, sample.kwargs)
    )
    ran = Ran()
    torch.manual_seed(seed)
    try:
        _fill(ran.parts, function, call, sample.output_process_fn_grad, seed, twice)
    except Exception as error:
        ran.error = f"{type(error).__name__}: {error}".splitlines()[0]
    return ran


def _fill(parts, function, call, process, seed, twice):
    result = function(*call)
    parts["value"] = _tensors(result)
    leaves = [t for t in _tensors(call) if t.requires_grad]
    shown = result if process is None else process(result)
    outputs = [out for out in _tensors(shown) if out.requires_grad]
    if not outputs or not leaves:
        return
    generator = torch.Generator().manual_seed(seed)
    gs = [_like(out, generator).requires_grad_() for out in outputs]
    parts["gradient"] = torch.autograd.grad(outputs, leaves, gs, retain_graph=True, allow_unused=True)
    if not twice:
        return
    again = torch.autograd.grad(outputs, leaves, gs, create_graph=True, allow_unused=True)
    parts["recorded gradient"] = again
    again = [g for g in again if g is not None and g.requires_grad]
    if again:
        directions = [_like(g, generator) for g in again]
        parts["second derivative"] = torch.autograd.grad(again, [*leaves, *gs], directions, allow_unused=True)


def _tensors(tree):
    return [leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _like(t, generator):
    return torch.randn(t.shape, dtype=t.dtype, generator=generator)


def difference(ours, native):
    """Describe the first difference of two runs; empty if they agree."""
    for part, theirs in native.parts.items():
        mine = ours.parts.get(part)
        if mine is None:
            break
        if len(mine) != len(theirs):
            return f"{part}: {len(mine)} tensors instead of {len(theirs)}"
        for i, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            if found := _unlike(a, b):
                return f"{part} {i}: {found}"
    if ours.error == native.error and ours.parts.keys() == native.parts.keys():
        return ""
    return ours.error or f"{', '.join(ours.parts)} where PyTorch raises {native.error}"


def _unlike(a, b):
    if a is None or b is None:
        return "" if a is b else f"{'no' if a is None else 'a'} tensor"
    if (a.shape, a.dtype, a.layout) != (b.shape, b.dtype, b.layout):
        return f"{a.dtype} {tuple(a.shape)} {a.layout}, not {b.dtype} {tuple(b.shape)} {b.layout}"
    a, b = _plain(a.detach()), _plain(b.detach())
    if a.numel() == 0 or torch.equal(a, b):
        return ""
    if not (a.is_floating_point() or a.is_complex()):
        return "other integers"
    scale = float(torch.nan_to_num(b.abs(), 0.0, 0.0, 0.0).max())
    if torch.allclose(a, b, rtol=0.0, atol=TOLERANCE * max(scale, FLOOR), equal_nan=True):
        return ""
    return f"off by {float((a - b).abs().max()):.2g} of {scale:.2g}"


def _plain(t):
    dense = t if t.layout is torch.strided else t.to_dense()
    return dense.to(torch.complex64) if t.dtype is torch.complex32 else dense  # which has few kernels


def _summary():
    torch.set_num_threads(1)
    outcomes = [outcome_of(name, entry) for name, entry in entries().items()]
    mixed = sum(bool(o.graphs and o.inline) for o in outcomes)
    print(f"{len(outcomes)} entries: {sum(bool(o.graphs) for o in outcomes)} by graphs, of which {mixed} not always")
    reasons = collections.Counter(reason.split(" (")[0] for o in outcomes for reason in set(o.inline))
    for reason, n in reasons.most_common():
        print(f"{n:4} entries inline: {reason}")
    for o in outcomes:
        if o.differences:
            print(f"{o.name}: {o.differences}")


if __name__ == "__main__":
    _summary()

"""Introspection of an op: its graphs, its residuals, and a one-page summary."""

from __future__ import annotations

import inspect
import textwrap
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from markupsafe import Markup
from torch import Tensor, fx

from pullback import _torch
from pullback.call import Call
from pullback.dtypes import has_derivative
from pullback.graph.kinks import domain_of, kinks_of
from pullback.graph.trace import lines_of, simplify
from pullback.kernel_function import packed_masks
from pullback.settings import Backend
from pullback.stable.certificate import label
from pullback.stable.forms import Forms
from pullback.stable.formula import as_written


@dataclass(frozen=True, slots=True)
class Saved:
    """A tensor that is kept between forward and backward.

    Attributes:
        name: name of the input, "output", "computed", or "truth values, one bit each", which are bytes of eight.
        shape: its sizes.
        dtype: its element type.
        bytes: its size in memory.
        alive: whether it is an input or an output, which the caller often holds anyway.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int
    alive: bool

    def __str__(self) -> str:
        held = ", kept by the caller" if self.alive else ""
        return f"{self.name}: {str(self.dtype).removeprefix('torch.')} {list(self.shape)}, {self.bytes} bytes{held}"


def trace(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], order: int) -> fx.GraphModule:
    """Return the graph of a function's value (order 0), of its vjp (1), of the vjp of that (2), and so on.

    Order n takes the tensors of order n − 1 and a cotangent for each of its results.
    """
    call = Call(args, kwargs, grad=True)
    flat: Callable[..., list[Any]] = call.flat(function)
    inputs = [x.detach() for x in call.tensors]
    if not order:
        with torch.no_grad():
            flat(*inputs)  # values that the formula caches at its first call, such as a table, must be real
    for _ in range(order):
        with torch.no_grad():
            results = [out for out in flat(*inputs) if isinstance(out, Tensor)]
        flat, n = _vjp(flat, len(inputs)), len(inputs)
        inputs = [
            *inputs[:n],
            *(torch.zeros_like(out) for out in results if has_derivative(out)),
        ]
    with torch.no_grad(), as_written():
        module = _torch.trace_ops(flat, *inputs)
    simplify(module.graph)
    module.recompile()
    return module


def _vjp(flat: Callable[..., list[Any]], n: int) -> Callable[..., list[Any]]:
    """Return the vjp of a function of n tensors with respect to all of them, itself differentiable."""

    def pulled(*given: Tensor) -> list[Any]:
        with torch.enable_grad():
            primals = [_leaf(x) if has_derivative(x) else x for x in given[:n]]
            outputs = [out for out in flat(*primals) if isinstance(out, Tensor) and has_derivative(out)]
            pairs = [(out, g) for out, g in zip(outputs, given[n:], strict=True) if out.requires_grad]
            leaves = [x for x in primals if has_derivative(x)]
            roots, cotangents = [out for out, _ in pairs], [g for _, g in pairs]
            return [
                torch.zeros_like(x) if g is None else g
                for x, g in zip(
                    leaves,
                    torch.autograd.grad(roots, leaves, cotangents, create_graph=True, allow_unused=True),
                    strict=True,
                )
            ]

    return pulled


def _leaf(x: Tensor) -> Tensor:
    """Return an alias to differentiate by: the history of `x` must not count."""
    return x.view_as(x) if x.requires_grad else x.detach().requires_grad_()


def saved_by(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Saved]:
    """Call `op` as in training, and return its saved tensors, each once."""
    call = Call(args, kwargs, grad=True).requiring_grad()
    inputs = call.tensors
    kept: dict[int, Tensor] = {}

    def pack(t: Tensor) -> Tensor:
        kept.setdefault(t.untyped_storage().data_ptr(), t.detach())
        return t

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        outputs = [out for out in call.flat(op)(*inputs) if isinstance(out, Tensor)]
    from pullback.chunked.loop import held_gradients

    gradients = [t for out in outputs for t in held_gradients(out.grad_fn)]
    for t in gradients:
        pack(t)
    names = input_names(op._signature, args, kwargs)
    known = {t.untyped_storage().data_ptr(): name for name, t in tensors_around(op, args, kwargs).items()}
    known |= {x.untyped_storage().data_ptr(): name for x, name in zip(inputs, names, strict=False)}
    known |= {out.untyped_storage().data_ptr(): "output" for out in outputs}
    bits = {t.untyped_storage().data_ptr() for out in outputs for t in packed_masks(out.grad_fn)}
    return [
        Saved(
            known.get(pointer, "truth values, one bit each" if pointer in bits else "computed"),
            tuple(t.shape),
            t.dtype,
            min(t.nbytes, t.untyped_storage().nbytes()),  # an expanded tensor occupies less than its nbytes
            pointer in known,
        )
        for pointer, t in kept.items()
    ]


def input_names(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
    """Return a name for each tensor of a call, in order."""
    parameters = iter(signature.parameters.values())
    named: list[tuple[str, Any]] = []
    parameter = None
    for a in args:
        if parameter is None or parameter.kind is not inspect.Parameter.VAR_POSITIONAL:
            parameter = next(parameters)
        named.append((parameter.name, a))
    names = []
    for name, value in [*named, *kwargs.items()]:
        leaves, _, paths = _torch.tree_flatten(value)
        pairs = zip(leaves, paths, strict=True)
        names += [name + "".join(f"[{step!r}]" for step in path) for x, path in pairs if isinstance(x, Tensor)]
    return names


def tensors_around(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Tensor]:
    """Return the tensors that a formula closes over, by name, modules and closures included."""
    holders = dict(op._signature.bind(*args, **kwargs).arguments)
    for function in (op._formula, op._relaxation):
        if isinstance(function, types.FunctionType):
            around = inspect.getclosurevars(function)
            holders |= {**around.globals, **around.nonlocals}
    found: dict[str, Tensor] = {}
    for name, value in holders.items():
        if isinstance(value, torch.nn.Module):
            found |= {f"{name}.{path}": t for path, t in (*value.named_parameters(), *value.named_buffers())}
        elif isinstance(value, Tensor):
            found[name] = value
    return found


def page(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], how: str, forms: Forms | None = None) -> str:
    """Return one page on an op called like this: formula, derivative, what is saved, kinks, domain, accuracy."""
    names = input_names(op._signature, args, kwargs)
    shown = op._formula if op._relaxation is None else op._relaxation
    sections = [repr(op), _source(op._formula)]
    if op.kind == "ruled":
        sections.append("Derivative: given by a rule.")
        sections += [_source(rule) for rule in (op._rule.vjp, op._rule.jvp) if rule is not None]
    else:
        of = "relaxation" if op._relaxation is not None else "formula" if forms is None else "formula as written"
        title = f"Derivative (vjp), of the {of}"
        derivative = _traced(shown, args, kwargs, 1)
        if derivative is None:
            sections.append(f"{title}: PyTorch's, of which no graph can be made.")
        else:
            around = tensors_around(op, args, kwargs)
            sections += [f"{title}:", *(f"    {line}" for line in lines_of(derivative, names, around))]
            others = [name for name, t in around.items() if t.requires_grad and name not in names]
            sections += [f"    Beside these, PyTorch's gradients of {', '.join(others)}."] * bool(others)
    saved = saved_by(op, args, kwargs)
    beside = sum(s.bytes for s in saved if not s.alive)
    sections.append(f"Saved for backward: {beside} extra bytes.")
    sections += [f"    {s}" for s in saved]
    sections += _kinks_and_domain(shown, args, kwargs, op.kind)
    sections.append(f"Runs {how}.")
    return "\n".join([*sections, *stable_notes(forms)]) + "\n"


def stable_notes(forms: Forms | None) -> list[str]:
    """Say where an op's stable forms come from, and their accuracy; empty without stable forms."""
    if forms is None:
        return []
    if forms.rules:
        return ["Uses stable forms by these rules:", *(f"    {rule}" for rule in forms.rules)]
    lines = []
    for certificate in forms.certificates:
        of = f" of {certificate.name.partition(', ')[2]}" if ", " in certificate.name else ""
        lines.append(f"Uses stable forms{of} for {certificate.dtype}, with the largest errors measured:")
        lines += [f"    {label(by)}: {form.measured}" for by, form in certificate.forms.items()]
    return lines


def _kinks_and_domain(shown: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], kind: str) -> list[str]:
    """Return the kinks and the domain of a formula; those of foreign code are unknown."""
    of = " of the formula" if kind == "ruled" else ""
    graph = _traced(shown, args, kwargs, 0)
    if graph is None:
        return [f"Kinks and domain{of}: not known, since it cannot be traced."]
    return _list(f"Kinks{of}", kinks_of(graph), "none") + _list(
        f"Domain{of}", domain_of(graph), "everywhere", ", of each op alone"
    )


def _traced(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], order: int) -> fx.Graph | None:
    """Return the graph of `trace`; `None` for a formula that cannot be traced."""
    try:
        return trace(function, args, kwargs, order).graph
    except Exception:  # any error of foreign code on tensors without data
        return None


def _source(function: Callable[..., Any]) -> str:
    try:
        return textwrap.indent(textwrap.dedent(inspect.getsource(function)).rstrip(), "    ")
    except (OSError, TypeError):
        return f"    {function!r}"


def _list(title: str, notes: Sequence[str], nothing: str, of_some: str = "") -> list[str]:
    return [f"{title}: {nothing}."] if not notes else [f"{title}{of_some}:", *(f"    {note}" for note in notes)]


_ROW = Markup('<tr><th style="text-align: left">{}</th><td style="text-align: left">{}</td></tr>')
_TABLE = Markup("<table><caption><code>{}</code></caption><tbody>{}</tbody></table>")


def card(
    title: str, kind: str, backend: Backend, rules: Sequence[str], relaxation: str, dtypes: Sequence[str] | None
) -> str:
    """Return an op's notebook repr, a small HTML table, made without running or compiling anything.

    Args:
        title: the op's name and signature.
        kind: "derived", "relaxed" or "ruled".
        backend: backend of its kernels.
        rules: which of "vjp" and "jvp" were given.
        relaxation: name of a relaxed op's relaxation.
        dtypes: those with stable forms; `None` for an op that uses none.
    """
    rows = Markup("").join(_ROW.format(*row) for row in _facts(kind, backend, rules, relaxation, dtypes))
    return str(_TABLE.format(title, rows))


def _facts(
    kind: str, backend: Backend, rules: Sequence[str], relaxation: str, dtypes: Sequence[str] | None
) -> Iterator[tuple[str, str]]:
    if kind == "ruled":
        yield "derivative", f"given by its {' and '.join(rules)}" if rules else "not given yet: a rule is needed (.vjp)"
        yield "higher orders", "through the ops of the rule"
        yield "runs", "as written, in PyTorch's kernels"
        return
    yield "derivative", "of the formula" if kind == "derived" else f"of {relaxation}"
    yield "higher orders", "all"
    if kind == "derived":
        known = "none: stable=False" if dtypes is None else ", ".join(dtypes)
        yield "stable forms", known or "none known yet; the first call of a dtype looks for some"
    yield "kernels", backend

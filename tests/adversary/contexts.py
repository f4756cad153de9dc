"""Contexts: ways to run and differentiate a program, which return named observations of an op or of PyTorch."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import checkpoint

from pullback.errors import FormulaError
from tests.adversary.program import Program, widened

Observed = dict[str, Any]
WIDER = {
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
    torch.float32: torch.float64,
    torch.complex64: torch.complex128,
}

IS_INFINITE = " is infinite"
"""After the name of an input: where it is, in a context that changes its inputs."""


@dataclass(frozen=True)
class Side:
    """One side of a comparison: the op, PyTorch, or PyTorch in float64."""

    program: Program
    function: Callable[..., Any]
    is_ours: bool = False
    is_wide: bool = False
    is_transposed: bool = False
    """Whether its tangents are those of the transposed gradient, as an op with a rule has them: it rounds otherwise."""

    def inputs(self, sizes: dict[str, int] | None = None) -> dict[str, Any]:
        """Return new inputs, and seed the generator that the formula draws from."""
        made = self.program.make(sizes)
        torch.manual_seed(self.program.seed)
        return {name: widened(x) for name, x in made.items()} if self.is_wide else made

    def call(self, inputs: dict[str, Any]) -> list[Tensor]:
        """Return the tensors that the formula returns."""
        return tree_leaves(self.program.call(self.function, inputs))


def leaves_of(inputs: dict[str, Any]) -> dict[str, Tensor]:
    return {name: x for name, x in inputs.items() if isinstance(x, Tensor) and x.requires_grad}


def cotangent(out: Tensor, layout: str = "dense", seed: int = 1) -> Tensor:
    """Return a cotangent of numbers that are exact in every dtype, in some layout."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> Tensor:
        if out.is_complex():
            parts = torch.randn(*shape, 2, generator=generator, dtype=torch.float32).bfloat16()
            return torch.view_as_complex(parts.to(torch.empty(0, dtype=out.dtype).real.dtype))
        return torch.randn(shape, generator=generator, dtype=torch.float32).bfloat16().to(out.dtype)

    shape = out.shape
    if layout == "transposed" and shape:
        return numbers(*reversed(shape)).permute(*reversed(range(len(shape))))
    if layout == "expanded":
        return numbers(*[1 if i % 2 == 0 else n for i, n in enumerate(shape)]).expand(shape)
    if layout == "one":
        return numbers().expand(shape)
    if layout == "sliced":
        return numbers(*shape, 2)[..., 1]
    if layout == "negated" and not out.is_complex():
        return torch._neg_view(numbers(*shape))  # what `.conj().imag` of a complex tensor is, and dense
    if layout == "conjugated" and out.is_complex():
        return numbers(*shape).conj()
    if layout == "zero":
        return torch._efficientzerotensor(shape, dtype=out.dtype)
    return torch.empty_like(out).copy_(numbers(*shape))  # in the layout of the output


def _with_cotangents(outs: list[Tensor], layout: str = "dense") -> tuple[list[Tensor], list[Tensor]]:
    """Return the outputs that require grad, and their cotangents, which depend on their positions among all outputs.

    An op with a rule has more differentiable outputs than its formula.
    """
    live = {i: out for i, out in enumerate(outs) if out.requires_grad}
    return list(live.values()), [cotangent(out, layout, i) for i, out in live.items()]


def _gradients(outs: list[Tensor], leaves: dict[str, Tensor], layout: str = "dense", **kwargs: Any) -> Observed:
    live, gs = _with_cotangents(outs, layout)
    if not live or not leaves:
        return {}
    found = torch.autograd.grad(live, list(leaves.values()), gs, allow_unused=True, **kwargs)
    return {f"gradient of {name}": g for name, g in zip(leaves, found, strict=True)}


def _outputs(outs: list[Tensor]) -> Observed:
    return {f"output {i}": out.detach() if out.requires_grad else out for i, out in enumerate(outs)} | {
        f"output {i} requires grad": out.requires_grad for i, out in enumerate(outs) if isinstance(out, Tensor)
    }


def backward(side: Side, g: str = "dense") -> Observed:
    """`autograd.grad` with cotangents of some layout; the versions of the inputs must not change."""
    inputs = side.inputs()
    tensors = {name: x for name, x in inputs.items() if isinstance(x, Tensor)}
    versions = {name: x._version for name, x in tensors.items()}
    outs = side.call(inputs)
    seen = _outputs(outs)
    seen |= _gradients(outs, leaves_of(inputs), g)
    return seen | {f"writes to {name}": x._version - versions[name] for name, x in tensors.items()}


def sizes(side: Side, *others: dict[str, int]) -> Observed:
    """Calls of one op with other sizes, until a plan with symbolic sizes is made; then with other layouts."""
    seen: Observed = {}
    for i, other in enumerate(others):
        at = ", ".join(f"{k}={v}" for k, v in other.items())
        seen |= _labelled(_called(side, side.inputs(other)), f"{at}, call {i}")
    for change in (_turned, _gapped, _fixed):
        seen |= _labelled(_called(side, _changed(side.inputs(others[0]), change)), change.__name__)
    return seen


def numbers(side: Side, *others: complex) -> Observed:
    """Calls of one op with other plain arguments, some of which are equal but not identical."""
    seen: Observed = {}
    for i, other in enumerate(others):
        inputs = {name: x if isinstance(x, Tensor) else other for name, x in side.inputs().items()}
        seen |= _labelled(_called(side, inputs), f"{other!r}, call {i}")
    return seen


def points(side: Side, *edges: float, order: int = 1) -> Observed:
    """Calls of one op at other points: kinks and ends of pieces, non-finite numbers, ties, large and small numbers.

    Each call is differentiated this number of times.

    A plan is made once and its kernels are compiled. An error of theirs at a point of measure zero shows at no random
    one.
    """
    seen: Observed = {}
    draws: dict[str, tuple[float, ...]] = {
        "edges": edges,
        "not finite": (*edges, *edges, torch.inf, -torch.inf, torch.nan, 0.0, -0.0),
        "ties": (edges[0], edges[-1], 1.0),
        "magnitudes": (1e-30, -1e-8, 3e-4, -0.02, 0.3, -2.7, 9.0, -21.0, 60.0, -90.0, 300.0),
    }
    for i, (which, numbers) in enumerate(draws.items()):
        inputs = side.inputs()
        for j, x in enumerate(x for x in inputs.values() if isinstance(x, Tensor) and x.is_floating_point()):
            memory = torch.as_strided(x.detach(), (x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
            drawn = torch.randint(len(numbers), memory.shape, generator=torch.Generator().manual_seed(100 * i + j))
            memory.copy_(torch.tensor(numbers, dtype=torch.float32)[drawn])
        seen |= _labelled(_called(side, inputs, order), which)
    return seen


def layouts(side: Side) -> Observed:
    """Calls of one op with other strides, other subsets of leaves, and then the first ones again."""
    seen: Observed = {}
    for i, change in enumerate((_fixed, _dense, _turned, _gapped, _fixed, _dense)):
        seen |= _labelled(_called(side, _changed(side.inputs(), change)), f"{change.__name__}, call {i}")
    return seen


def _infinite(leaves: dict[str, Tensor]) -> Observed:
    return {f"{name}{IS_INFINITE}": x.detach().isinf() for name, x in leaves.items()}


def _called(side: Side, inputs: dict[str, Any], order: int = 1) -> Observed:
    """Return the results of a call and its derivatives, or the error that PyTorch or the op raises for such inputs."""
    leaves = leaves_of(inputs)
    infinite = _infinite(leaves)
    try:
        outs = side.call(inputs)
        return infinite | _outputs(outs) | _derivatives(outs, leaves, order)
    except (RuntimeError, IndexError, ValueError, TypeError, FormulaError) as error:
        return {"error": error}


def _labelled(seen: Observed, call: str) -> Observed:
    return {f"{label} ({call})": x for label, x in seen.items()}


def _changed(inputs: dict[str, Any], change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """Return inputs with every tensor changed; only the first one if not all leaves are kept."""
    some = list(inputs)[: 1 if change is _fixed else None]
    return {name: change(x) if name in some and isinstance(x, Tensor) else x for name, x in inputs.items()}


def _turned(x: Tensor) -> Tensor:
    if x.dim() < 2:
        return x
    turned = x.detach().transpose(0, -1).clone(memory_format=torch.contiguous_format).transpose(0, -1)
    return turned.requires_grad_(x.requires_grad)


def _gapped(x: Tensor) -> Tensor:
    return torch.stack([x.detach()] * 2, -1)[..., 0].requires_grad_(x.requires_grad) if x.dim() else x


def _dense(x: Tensor) -> Tensor:
    return x.detach().clone(memory_format=torch.contiguous_format).requires_grad_(x.requires_grad)


def _fixed(x: Tensor) -> Tensor:
    return x.detach()


def subset(side: Side, *names: str) -> Observed:
    """`autograd.grad` with respect to some of the leaves."""
    inputs = side.inputs()
    outs = side.call(inputs)
    return _gradients(outs, {name: x for name, x in leaves_of(inputs).items() if name in names})


def single(side: Side, output: int = 0) -> Observed:
    """The gradient of one output of several."""
    inputs = side.inputs()
    outs = side.call(inputs)
    return _gradients(outs[output : output + 1], leaves_of(inputs))


def twice(side: Side, g: str = "dense") -> Observed:
    """Two backward passes through one graph, the second with another cotangent; then access to the saved tensors."""
    inputs = side.inputs()
    outs = side.call(inputs)
    leaves = leaves_of(inputs)
    first = _gradients(outs, leaves, "dense", retain_graph=True)
    again = _gradients(outs, leaves, g, retain_graph=True)
    last = _gradients(outs, leaves, "dense")
    return (
        {f"first {k}": x for k, x in first.items()}
        | {f"second {k}": x for k, x in again.items()}
        | {f"third {k}": x for k, x in last.items()}
        | _outputs(outs)
    )


def accumulated(side: Side) -> Observed:
    """`backward()` of two calls, which adds to `.grad`."""
    inputs = side.inputs()
    for _ in range(2):
        torch.autograd.backward(*_with_cotangents(side.call(inputs)))
    return {f"grad of {name}": x.grad for name, x in leaves_of(inputs).items()}


def second(side: Side, g: str = "dense") -> Observed:
    """Second derivatives with respect to the leaves."""
    inputs = side.inputs()
    outs = side.call(inputs)
    leaves = leaves_of(inputs)
    first = _gradients(outs, leaves, g, create_graph=True)
    live = {k: x for k, x in first.items() if x is not None}
    again = _gradients(list(live.values()), leaves, g)
    return {k: x if x is None else x.detach() for k, x in first.items()} | {f"second {k}": x for k, x in again.items()}


def third(side: Side) -> Observed:
    """Third derivatives."""
    inputs = side.inputs()
    return _derivatives(side.call(inputs), leaves_of(inputs), 3)


def _derivatives(results: list[Tensor], leaves: dict[str, Tensor], order: int) -> Observed:
    """Return the derivatives of each order up to this one."""
    seen: Observed = {}
    for i in range(1, order + 1):
        found = _gradients(results, leaves, create_graph=i < order)
        which = f", order {i}" if order > 1 else ""
        seen |= {k + which: x if x is None else x.detach() for k, x in found.items()}
        results = [x for x in found.values() if x is not None]
    return seen


def _function_of_leaves(side: Side) -> tuple[Callable[..., list[Tensor]], dict[str, Tensor]]:
    inputs = side.inputs()
    leaves = {k: x.detach() for k, x in leaves_of(inputs).items()}

    fixed = {k: x.detach() if isinstance(x, Tensor) else x for k, x in inputs.items()}

    def function(*values: Tensor) -> list[Tensor]:
        given = dict(zip(leaves, values, strict=True))
        outs = side.call({k: given.get(k, x) for k, x in fixed.items()})
        return [out for out in outs if isinstance(out, Tensor)]

    return function, leaves


def _is_live(out: Tensor) -> bool:
    return out.is_floating_point() or out.is_complex()


def _tangents(leaves: dict[str, Tensor]) -> tuple[Tensor, ...]:
    return tuple(cotangent(x, seed=7 + i) for i, x in enumerate(leaves.values()))


def jvp(side: Side) -> Observed:
    """`torch.func.jvp`."""
    function, leaves = _function_of_leaves(side)
    if side.is_transposed:
        return _transposed(function, leaves)
    outs, tangents = torch.func.jvp(function, tuple(leaves.values()), _tangents(leaves))
    return _outputs(outs) | {f"tangent {i}": t for i, t in enumerate(tangents) if _is_live(outs[i])}


def dual(side: Side) -> Observed:
    """Dual tensors."""
    function, leaves = _function_of_leaves(side)
    if side.is_transposed:
        return _transposed(function, leaves)
    with forward_ad.dual_level():
        outs = function(*[forward_ad.make_dual(x, t) for x, t in zip(leaves.values(), _tangents(leaves), strict=True)])
        parts = [forward_ad.unpack_dual(out) for out in outs]
        return _outputs([p.primal for p in parts]) | {f"tangent {i}": p.tangent for i, p in enumerate(parts)}


def _transposed(function: Callable[..., list[Tensor]], leaves: dict[str, Tensor]) -> Observed:
    """Tangents by transposition: the derivative of the gradient with respect to the cotangent."""
    with forward_ad.dual_level():  # where the numbers of an input overlap in memory, PyTorch changes its tangent
        duals = [forward_ad.make_dual(x, t) for x, t in zip(leaves.values(), _tangents(leaves), strict=True)]
        tangents = [forward_ad.unpack_dual(dual).tangent for dual in duals]
    xs = [x.clone().requires_grad_() for x in leaves.values()]
    outs = function(*xs)
    live = {i: out for i, out in enumerate(outs) if out.requires_grad}
    gs = [torch.zeros_like(out, requires_grad=True) for out in live.values()]
    pulled = torch.autograd.grad(list(live.values()), xs, gs, create_graph=True, allow_unused=True)
    pairs = [(v, t) for v, t in zip(pulled, tangents, strict=True) if v is not None and v.requires_grad]
    pushed = torch.autograd.grad([v for v, _ in pairs], gs, [t for _, t in pairs], materialize_grads=True)
    return _outputs([out.detach() for out in outs]) | {f"tangent {i}": t for i, t in zip(live, pushed, strict=True)}


def loss_of(function: Callable[..., list[Tensor]], gs: Sequence[Tensor] = ()) -> Callable[..., Tensor]:
    """Return a scalar function with the gradients of all outputs; missing cotangents are drawn."""

    def loss(*values: Tensor) -> Tensor:
        outs = function(*values)
        given = gs or [cotangent(out, seed=i) for i, out in enumerate(outs)]
        terms = [(out * g).sum() for out, g in zip(outs, given, strict=True) if _is_live(out)]
        return sum((t.real if t.is_complex() else t for t in terms), torch.zeros(()))  # type: ignore[return-value]

    return loss


def func_grad(side: Side) -> Observed:
    """`torch.func.grad`."""
    function, leaves = _function_of_leaves(side)
    found = torch.func.grad(loss_of(function), tuple(range(len(leaves))))(*leaves.values())
    return {f"gradient of {name}": g for name, g in zip(leaves, found, strict=True)}


def jvp_of_grad(side: Side) -> Observed:
    """Forward over reverse, in `torch.func`."""
    function, leaves = _function_of_leaves(side)
    grad = torch.func.grad(loss_of(function), tuple(range(len(leaves))))
    found, moved = torch.func.jvp(grad, tuple(leaves.values()), _tangents(leaves))
    return {f"gradient of {name}": g for name, g in zip(leaves, found, strict=True)} | {
        f"tangent of the gradient of {name}": g for name, g in zip(leaves, moved, strict=True)
    }


def grad_of_grad(side: Side) -> Observed:
    """Reverse over reverse, in `torch.func`."""
    function, leaves = _function_of_leaves(side)
    at = tuple(range(len(leaves)))
    grad = torch.func.grad(loss_of(function), at)
    again = torch.func.grad(loss_of(lambda *values: list(grad(*values))), at)(*leaves.values())
    return {f"second gradient of {name}": g for name, g in zip(leaves, again, strict=True)}


def _batched(leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.stack([x, x + cotangent(x, seed=11), x - cotangent(x, seed=12)]) for name, x in leaves.items()}


def vmap(side: Side) -> Observed:
    """`torch.func.vmap` over a new first dimension of the leaves."""
    function, leaves = _function_of_leaves(side)
    batched = _batched(leaves)
    outs = torch.func.vmap(function, randomness="same")(*batched.values())
    return _infinite(batched) | _outputs(list(outs))


def vmap_backward(side: Side) -> Observed:
    """The backward of `torch.func.vmap`."""
    function, leaves = _function_of_leaves(side)
    batched = {name: x.detach().requires_grad_() for name, x in _batched(leaves).items()}
    outs = list(torch.func.vmap(function, randomness="same")(*batched.values()))
    return _infinite(batched) | _outputs(outs) | _gradients(outs, batched)


def vmap_of_grad(side: Side) -> Observed:
    """Per-sample gradients."""
    function, leaves = _function_of_leaves(side)
    grad = torch.func.grad(loss_of(function), tuple(range(len(leaves))))
    batched = _batched(leaves)
    found = torch.func.vmap(grad, randomness="same")(*batched.values())
    return _infinite(batched) | {f"gradient of {name}": g for name, g in zip(leaves, found, strict=True)}


def batched_grad(side: Side) -> Observed:
    """`is_grads_batched`."""
    inputs = side.inputs()
    outs, gs = _with_cotangents(side.call(inputs))
    gs = [torch.stack([g, -2 * g]) for g in gs]
    leaves = leaves_of(inputs)
    found = torch.autograd.grad(outs, list(leaves.values()), gs, is_grads_batched=True, allow_unused=True)
    return {f"gradient of {name}": g for name, g in zip(leaves, found, strict=True)}


def compiled(side: Side, backend: str = "aot_eager", dynamic: bool | None = None) -> Observed:
    """`torch.compile` of a function that calls the op; PyTorch's side in the dtype of the program is compiled, too."""
    inputs = side.inputs()
    call = side.call
    if not side.is_wide:
        torch._dynamo.reset()
        program, function = side.program, side.function
        whole = torch.compile(lambda values: program.call(function, values), backend=backend, dynamic=dynamic)

        def call(values: dict[str, Any]) -> list[Tensor]:
            return tree_leaves(whole(values))

    outs = call(inputs)
    seen = _outputs(outs) | _gradients(outs, leaves_of(inputs))
    return {k: x for k, x in seen.items() if not k.endswith("requires grad")}


def checkpointed(side: Side, reentrant: bool = False) -> Observed:
    """The op within `checkpoint`, between two other ops."""
    inputs = side.inputs()
    names = list(inputs)

    def inner(*values: Any) -> tuple[Tensor, ...]:
        return tuple(side.call(dict(zip(names, values, strict=True))))

    outs = list(checkpoint(inner, *inputs.values(), use_reentrant=reentrant))
    seen = _outputs(outs)
    torch.autograd.backward(*_with_cotangents(outs))
    return seen | {f"gradient of {name}": x.grad for name, x in leaves_of(inputs).items()}


def packed(side: Side, how: str = "same") -> Observed:
    """Saved-tensor hooks that convert to float64 and back, to float64 for good, or to a copy with other strides."""

    def pack(x: Tensor) -> Any:
        return x.dtype, x.detach().to(WIDER.get(x.dtype, x.dtype), copy=True)

    def unpack(kept: Any) -> Tensor:
        dtype, x = kept
        if how == "strided" and x.dim():
            return torch.stack([x.to(dtype)] * 2, -1)[..., 0]
        return x if how == "wider" and not side.is_wide else x.to(dtype)

    inputs = side.inputs()
    with saved_tensors_hooks(pack, unpack):
        outs = side.call(inputs)
    return _outputs(outs) | _gradients(outs, leaves_of(inputs))


def autocast(side: Side) -> Observed:
    """Autocast to bfloat16 on the CPU."""
    inputs = side.inputs()
    with torch.autocast("cpu", torch.bfloat16, enabled=not side.is_wide):
        outs = side.call(inputs)
    return _outputs(outs) | _gradients(outs, leaves_of(inputs))


def threads(side: Side, n: int = 4) -> Observed:
    """Concurrent calls and derivatives in threads; sequential in float64, since modes are local to a thread."""
    results: list[Any] = [None] * n
    given = [side.inputs() for _ in range(n)]

    def work(i: int) -> None:
        try:
            outs = side.call(given[i])
            results[i] = _outputs(outs) | _gradients(outs, leaves_of(given[i]))
        except Exception as error:
            results[i] = error

    workers = [threading.Thread(target=work, args=(i,)) for i in range(n)]
    for step in (threading.Thread.run,) if side.is_wide else (threading.Thread.start, threading.Thread.join):
        for worker in workers:
            step(worker)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return {f"{label} (thread {i})": x for i, result in enumerate(results) for label, x in result.items()}


def no_grad(side: Side) -> Observed:
    """The value under `no_grad`, then with a gradient, then under `no_grad` again."""
    inputs = side.inputs()
    with torch.no_grad():
        first = {f"{k} (no_grad)": x for k, x in _outputs(side.call(inputs)).items()}
    inputs = side.inputs()
    outs = side.call(inputs)
    first |= _outputs(outs) | _gradients(outs, leaves_of(inputs))
    with torch.inference_mode():
        inputs = side.inputs()
        return first | {
            f"{k} (inference)": x.clone() if isinstance(x, Tensor) else x
            for k, x in _outputs(side.call(inputs)).items()
        }


def into(side: Side) -> Observed:
    """In-place writes to the outputs before the backward, for non-leaf inputs."""
    inputs = side.inputs()
    moved = tree_map_only(Tensor, lambda x: x * 1 if x.requires_grad else x, inputs)
    outs = [out.mul_(2) if out.requires_grad else out for out in side.call(moved)]
    return _outputs(outs) | _gradients(outs, leaves_of(inputs))


def written(side: Side, name: str, how: str = "add") -> Observed:
    """A write to an input between forward and backward: in place, or by replacing its data."""
    inputs = side.inputs()
    x = inputs[name]
    outs = side.call(inputs)
    with torch.no_grad():
        if how == "add":
            x.add_(1)
        elif how == "smaller":
            x.data = x.data.flatten()[: max(x.numel() // 2, 1)].clone()
        elif how == "recast":  # to a dtype that holds the same numbers
            x.data = x.data.to(WIDER.get(x.dtype, torch.float32))
        elif how == "strided":
            x.data = torch.stack([x.data] * 2, -1)[..., 0]
    return _gradients(outs, leaves_of(inputs))

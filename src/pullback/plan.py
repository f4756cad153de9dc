"""Plans: how one kind of call runs in plain eager mode. There are four, and `make_plan` chooses.

A call that is differentiated runs in kernels (`KernelPlan`); one that is not, in kernels of its value (`ValuePlan`); a
loss with `chunk=`, by chunks of rows (`ChunkPlan`); any other, op by op as the formula stands (`InlinePlan`).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, fx

from pullback import _torch, dispatch
from pullback._torch import trace_ops
from pullback.call import Call, Tree
from pullback.errors import DerivativeError, FormulaError, report
from pullback.graph.captures import Captures
from pullback.graph.facts import Flat, facts_of
from pullback.graph.identity import ATOMS
from pullback.graph.partition import Joint, Trace, UntracedError, cotangent_stride, joint_of
from pullback.graph.restricted import restricted
from pullback.kernels import eager
from pullback.kernels.backend import Backend, is_compiled, lower, packs_bits
from pullback.kernels.memory import is_fresh, reusing
from pullback.kernels.native import SingleKernel, SingleOp, is_kernel, single_kernel, single_op
from pullback.nesting import Noting, replaced_in_reverse

Save = Literal["min", "fast"]

Outputs = tuple[int, ...]
"""Positions of the outputs that have a cotangent."""
Gradients = Callable[[Sequence[Tensor]], Sequence[Tensor | None] | None]
"""Gradients from inputs and cotangents; `None` where PyTorch's ops have to compute them."""


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """Compiled forward and backward of one kind of call.

    Attributes:
        joint: the graphs.
        composite: the derivative's formula on the tensors of a call, for orders beyond the first.
        forward: tensors to outputs and computed residuals: Python that `kernels/eager.py` prints from the graph, with a
            call of a `kernels/native.py:Kernel` for each compiled region.
        backward: residuals and cotangents to gradients.
        in_ops: the backward in PyTorch's ops alone, for modes and tracers that have to see them.
        n_inputs, n_outputs: number of tensors.
        operands: operands of the backward, as positions in (inputs, computed residuals).
        layouts: position of each cotangent that the backward reads, the strides with which PyTorch's kernels were
            recorded, and whether our own kernels read it, which take any strides.
        dead: positions of the outputs without a derivative.
        result: the structure of the result.
        name: name of the op.
        in_place: a backward that overwrites its residuals, for their last use; `None` if that saves nothing.
        next_order: the gradient as an op itself, for a backward that autograd records, by the outputs with a
            cotangent; `None` for PyTorch's kernels, where the composite form computes it.
        restricted: the plans for calls with some cotangents absent.
        kernel_pair: the two kernels if forward and backward are one each; the forward may be one op.
        rows: of the operators that the formula calls, in the table of those that PyTorch differentiates wrongly.
    """

    joint: Joint
    composite: Flat
    forward: Callable[..., Any]
    backward: Callable[..., Any]
    in_ops: Callable[..., Any]
    n_inputs: int
    n_outputs: int
    operands: tuple[int, ...]
    layouts: tuple[tuple[int, tuple[int, ...], bool], ...]
    dead: tuple[int, ...]
    result: Tree
    name: str
    in_place: Callable[..., Any] | None = None
    next_order: Callable[[Outputs], Gradients] | None = None
    restricted: RestrictedPlans | None = None
    kernel_pair: tuple[SingleKernel | SingleOp, SingleKernel] | None = None
    rows: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ValuePlan:
    """Compiled value of one kind of call that is not differentiated.

    Attributes:
        compute: the compiled graph.
        result: the structure of its result.
        n_inputs: number of tensors.
    """

    compute: Callable[..., Any]
    result: Tree
    n_inputs: int

    def run(self, tensors: Sequence[Tensor]) -> Any:
        """Compute the value."""
        return self.result.filled(tuple(self.compute(*tensors)))


@dataclass(frozen=True, slots=True)
class ChunkPlan:
    """A loss by chunks of rows, differentiated or not.

    Attributes:
        run: tensors to the loss.
        n_inputs: number of tensors.
        rows: number of rows of the call.
        size: number of rows of a chunk.
    """

    run: Callable[[Sequence[Tensor]], Any]
    n_inputs: int
    rows: int
    size: int


@dataclass(frozen=True, slots=True)
class InlinePlan:
    """The formula op by op, in PyTorch's kernels; `why` says for what reason.

    It takes the arguments as they are, so no number of tensors fits: `n_inputs` equals none.
    """

    why: str
    n_inputs: ClassVar[int] = -1


Plan = KernelPlan | ValuePlan | ChunkPlan | InlinePlan


@dataclass(frozen=True, slots=True)
class Functions:
    """The functions of an op for one kind of call.

    Attributes:
        value: returns the value.
        derivative: returns the same value; its first derivative is the op's.
        composite: returns the same value; its higher derivatives are the op's.
        exact: whether the value, and whether the derivative, must be bit-identical to PyTorch's kernels.
        gradients: where known, functions of the tensors and a cotangent that return the gradient of each: as values,
            and with first derivatives that are the op's second.
        save: see `pullback.function`.
    """

    value: Callable[..., Any]
    derivative: Callable[..., Any]
    composite: Callable[..., Any]
    exact: tuple[bool, bool] = (False, False)
    gradients: tuple[Callable[..., Any], Callable[..., Any]] | None = None
    save: Save | None = None


def make_plan(
    call: Call,
    name: str,
    functions: Functions,
    captures: Captures,
    grad: bool,
    backend: Backend,
    trace: Trace = trace_ops,
) -> Plan:
    """Trace a call and plan calls like it; `captures` are those of the formulas.

    Raises:
        FormulaError: if the formula has no derivative, or returns no tensor.
    """
    # anomaly detection asks for values; tensors made in inference mode have no version counter
    with _torch.without_saved_tensors_hooks(), torch.autograd.set_detect_anomaly(False), torch.inference_mode(False):
        return _make_plan(call, name, functions, captures, grad, backend, trace)


def _make_plan(
    call: Call, name: str, functions: Functions, captures: Captures, grad: bool, backend: Backend, trace: Trace
) -> Plan:
    if any(type(t) not in (Tensor, torch.nn.Parameter) or t.is_nested for t in call.tensors):
        return InlinePlan(call.obstacle)  # not all have a fake
    if known := call.obstacle or captures.obstacle:
        return InlinePlan(known)  # run without values, it might keep tensors that have none
    structure: list[Any] = []
    flat_value = call.flat(functions.value, structure)
    noted = Noting()
    with noted:
        facts = facts_of(flat_value, call.tensors, name)
    if facts.outputs and not any(isinstance(out, Tensor) for out in facts.outputs):
        given = ", ".join(dict.fromkeys(type(leaf).__name__ for leaf in call.leaves)) or "nothing"
        unlike = "" if call.tensors else f"is called with {given}, where a tensor is wanted, and "
        forgotten = "" if facts.outputs[0] is not None or unlike else " A forgotten `return`?"
        raise FormulaError(
            f"{name} {unlike}returns {type(facts.outputs[0]).__name__}: a formula returns tensors.{forgotten}"
        )
    flat = flat_value
    if functions.derivative is not functions.value and not facts.obstacle:
        flat = call.flat(functions.derivative)
        with noted:
            facts = facts_of(flat, call.tensors, name)
    flat = replaced_in_reverse(flat, noted.rows, 1)
    wanted = [i for i, t in enumerate(call.tensors) if grad and t.requires_grad]
    strange = [type(out).__name__ for out in facts.outputs if type(out) not in ATOMS and not isinstance(out, Tensor)]
    holding = f"it returns an object of type {strange[0]}" if strange else ""
    asks = (
        "it asks for `requires_grad` of a tensor, or sets the grad mode, where autograd is off"
        if (facts.asks_grad or facts.sets_grad) and not wanted  # with that key, tensors may require grad
        else ""
    )
    obstacle = facts.obstacle or holding or asks
    if obstacle or not (wanted or is_compiled(backend)):
        return InlinePlan(obstacle or _NOT_ASKED)
    recompute = is_compiled(backend) if functions.save is None else functions.save == "min"
    try:
        joint = joint_of(flat_value, flat, call.tensors, facts.outputs, wanted, recompute, trace, packs_bits(backend))
    except (UntracedError, FormulaError) as error:
        return InlinePlan(f"its derivative cannot be traced ({error})".splitlines()[0])
    except Exception as error:
        report(error, name)
        return InlinePlan(f"Pullback failed to divide its graph ({type(error).__name__}: {error})".splitlines()[0])
    if not wanted:
        ((_, compute),) = lower([joint.forward], functions.exact[:1], backend)
        return ValuePlan(compute, Tree.of_leaves(facts.outputs, structure[0]), len(call.tensors))
    if not joint.connected:
        return InlinePlan("no output depends on an input that requires grad")
    composite = flat if functions.composite is functions.derivative else call.flat(functions.composite)
    current = while_current(composite, captures, name)
    plan = _kernel_plan(name, joint, current, facts.outputs, structure[0], functions.exact, backend)
    return replace(plan, rows=frozenset(noted.rows))


_NOT_ASKED = "no gradient is asked for"


def while_current(formula: Callable[..., Any], captures: Captures, name: str) -> Callable[..., Any]:
    """Return a formula that raises, in place of recomputing an earlier call, after one of its captures has changed."""

    def composite(*tensors: Tensor) -> Any:
        if not captures.unchanged():
            raise DerivativeError(
                f"what {name} reads from around it (a global, a closed-over variable, a function) has changed between "
                "the call and its derivative of higher order, which computes the formula again: pass it as an argument."
            )
        return formula(*tensors)

    return composite


def _kernel_plan(
    name: str,
    joint: Joint,
    composite: Flat,
    outputs: Sequence[Any],
    spec: Any,
    exact: tuple[bool, bool],
    backend: Backend,
) -> KernelPlan:
    results = [out for out in outputs if isinstance(out, Tensor)]
    n_inputs = len(joint.forward.graph.find_nodes(op="placeholder"))
    later = iter(range(n_inputs, n_inputs + len(joint.saved)))
    (forward_graph, forward), (backward_graph, backward) = lower([joint.forward, joint.backward], exact, backend)
    cotangents = backward_graph.graph.find_nodes(op="placeholder")[len(joint.saved) :]
    one, other = single_kernel(forward_graph) or single_op(forward_graph), single_kernel(backward_graph)
    ours = [all(is_kernel(user.target) for user in g.users) for g in cotangents]
    return KernelPlan(
        joint,
        composite,
        forward,
        backward,
        joint.backward.forward,
        n_inputs=n_inputs,
        n_outputs=len(results),
        operands=tuple(next(later) if i is None else i for i in joint.saved),
        layouts=tuple((i, cotangent_stride(results[i]), own) for i, own in zip(joint.connected, ours, strict=True)),
        dead=tuple(i for i in range(len(results)) if i not in joint.connected),
        result=Tree.of_leaves(outputs, spec),
        name=name,
        in_place=_in_place(joint, forward_graph, backward_graph),
        kernel_pair=(one, other) if one and other else None,
    )


def _in_place(joint: Joint, forward: fx.GraphModule, backward: fx.GraphModule) -> Callable[..., Any] | None:
    """Return a backward that overwrites residuals that the forward computed for it alone."""
    results: Any = forward.graph.output_node().args[0]
    computed = iter(results[joint.n_outputs :])
    operands = backward.graph.find_nodes(op="placeholder")
    given = []
    for operand, i in zip(operands, joint.saved, strict=False):
        made = next(computed) if i is None else None
        if made is not None and results.count(made) == 1 and is_fresh(made) and not _is_viewed(made):
            given.append(operand.name)
    module = reusing(backward, given) if given else None
    return None if module is None else eager.lower(module)


def _is_viewed(node: fx.Node) -> bool:
    """Whether a result may share memory with another value, which no kernel overwrites because it is a result too."""
    others = [user for user in node.users if user.op != "output" and not is_kernel(user.target)]
    return any(_torch.is_view(user.target) for user in others)


class RestrictedPlans:
    """The plans of a call, restricted to the outputs that have a cotangent.

    Attributes:
        make: makes one, once, whichever thread asks. Dynamo, which traces a backward, runs it.
        made: those that have been made. Dynamo looks here.
    """

    def __init__(self, make: Callable[[Outputs], KernelPlan]) -> None:
        made: dict[Outputs, KernelPlan] = {}
        lock = threading.Lock()

        @_torch.assume_constant_result
        def make_missing(outputs: Outputs) -> None:
            with lock:
                if outputs not in made:
                    made[outputs] = make(outputs)

        self.make, self.made = make_missing, made

    def to(self, outputs: Outputs) -> KernelPlan:
        """Return the plan for some outputs."""
        self.make(outputs)  # first: Dynamo looks at the dictionary once
        return self.made[outputs]


def restrictions_of(plan: KernelPlan, exact: bool, backend: Backend) -> RestrictedPlans:
    """Return the restrictions of a plan, each made when it is first used; `exact` as `lower` takes it."""

    def make(outputs: Outputs) -> KernelPlan:
        with _torch.without_saved_tensors_hooks(), torch.inference_mode(False):
            return _restricted(plan, outputs, exact, backend)

    return RestrictedPlans(make)


def _restricted(plan: KernelPlan, outputs: Outputs, exact: bool, backend: Backend) -> KernelPlan:
    layouts = tuple(layout for layout in plan.layouts if layout[0] in outputs)
    joint = restricted(plan.joint, outputs)
    if joint is None:
        return _by_autograd(plan, outputs, layouts)
    ((graph, backward),) = lower([joint.backward], [exact], backend)
    cotangents = graph.graph.find_nodes(op="placeholder")[len(joint.saved) :]
    ours = [all(is_kernel(user.target) for user in g.users) for g in cotangents]
    return replace(
        plan,
        joint=joint,
        backward=backward,
        in_ops=joint.backward.forward,
        layouts=tuple((i, stride, own) for (i, stride, _), own in zip(layouts, ours, strict=True)),
        in_place=None,
        next_order=None if all(joint.unused) else plan.next_order,
        kernel_pair=None,
    )


def _by_autograd(plan: KernelPlan, outputs: Outputs, layouts: tuple[Any, ...]) -> KernelPlan:
    """Return a plan whose backward is autograd's, from the inputs alone; which gradients it finds shows as it runs."""
    wanted = plan.joint.wanted
    backward = functools.partial(vjp_by_autograd(plan.composite, wanted, outputs, plan.n_inputs))
    return replace(
        plan,
        joint=replace(plan.joint, unused=(True,) * len(wanted), connected=outputs),
        backward=backward,
        in_ops=backward,
        operands=tuple(range(plan.n_inputs)),
        layouts=tuple((i, stride, False) for i, stride, _ in layouts),
        in_place=None,
        next_order=None,
        kernel_pair=None,
    )


def vjp_by_autograd(
    composite: Flat, wanted: Sequence[int], connected: Sequence[int], n_inputs: int
) -> Callable[..., tuple[Tensor | None, ...]]:
    """Return the vjp of a formula: its tensors and the cotangents of its connected outputs to the wanted gradients.

    Each input enters as a separate alias: if one input was computed from another, the gradient of the first must
    exclude the path through the second, which the engine adds. The vjp is a formula itself, so every order exists.
    """

    def vjp(*given: Tensor) -> tuple[Tensor | None, ...]:
        inputs, cotangents = given[:n_inputs], given[n_inputs:]
        record = torch.is_grad_enabled()
        with torch.enable_grad():
            aliases = [_alias(x, i in wanted) for i, x in enumerate(inputs)]
            outputs = [out for out in composite(*aliases) if isinstance(out, Tensor)]
            return tuple(
                torch.autograd.grad(
                    [outputs[i] for i in connected],
                    [aliases[i] for i in wanted],
                    cotangents,
                    create_graph=record,
                    allow_unused=True,
                )
            )

    return vjp


def _alias(x: Tensor, wanted: bool) -> Tensor:
    if x.requires_grad:
        return x[...]
    return x.detach().requires_grad_() if wanted else x


def in_layout(g: Tensor, stride: tuple[int, ...], is_any: bool = False) -> Tensor:
    """Return a cotangent in the layout for which the backward was compiled, or unchanged if any layout will do."""
    if g.layout is not torch.strided:  # of a sparse embedding, for example
        g = g.to_dense()
    if not dispatch.in_dynamo():
        if g.is_neg() or (g.is_complex() and g.is_conj()):
            g = g.resolve_conj().resolve_neg()
        if _torch.is_zero_tensor(g):  # it has no memory
            g = torch.zeros(g.shape, dtype=g.dtype, device=g.device)
    if is_any or g.stride() == stride or not g.numel():
        return g
    return g.new_empty_strided(g.shape, stride).copy_(g)  # a batch stays a batch under is_grads_batched

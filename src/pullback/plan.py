"""Plan of one kind of call: a forward and a backward of kernels, or the formula as written."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, fx

from pullback import _torch
from pullback.bind.again import Run
from pullback.bind.tree import Tree
from pullback.call import Call
from pullback.errors import DerivativeError, FormulaError, tell
from pullback.graph.facts import Flat, facts_of
from pullback.graph.identity import ATOMS
from pullback.graph.joint import Joint, Trace, UntracedError, cotangent_stride, joint_of
from pullback.graph.reads import Reads
from pullback.graph.record import trace_ops
from pullback.kernels import eager
from pullback.kernels.backend import Backend, is_compiled, lower, packs_bits
from pullback.kernels.native import is_kernel
from pullback.kernels.reuse import is_fresh, reusing
from pullback.kernels.single import LoneOp, Single, lone_op, single

if TYPE_CHECKING:
    from pullback.bind.used import Parts
    from pullback.chunked.loop import Chunks


Save = Literal["min", "fast"]


@dataclass(frozen=True, slots=True)
class Kernels:
    """Compiled forward and backward of one kind of call.

    Attributes:
        joint: the graphs.
        native: the derivative's formula on the tensors of a call, for orders beyond the first.
        forward: tensors to outputs and computed residuals.
        backward: residuals and cotangents to gradients.
        in_ops: the backward in PyTorch's ops alone, for modes and tracers that have to see them.
        n_inputs, n_outputs: number of tensors.
        operands: of the backward, as positions in (inputs, computed residuals).
        layouts: position of each cotangent that the backward reads, the strides with which PyTorch's kernels were
            recorded, and whether our own kernels read it, which take any strides.
        dead: positions of the outputs without a derivative.
        result: the structure of the result.
        name: of the op.
        spending: a backward that overwrites its residuals, for the last use of these; `None` if that saves nothing.
        again: computes the gradient where autograd records the backward too, for the outputs with a cotangent, as an op
            itself; `None` for PyTorch's kernels, where native ops do.
        parts: the backwards for calls with some cotangents absent.
        singles: the two kernels if forward and backward are one each; the forward may be one op.
    """

    joint: Joint
    native: Flat
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
    spending: Callable[..., Any] | None = None
    again: Callable[[tuple[int, ...]], Run] | None = None
    parts: Parts | None = None
    singles: tuple[Single | LoneOp, Single] | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """Compiled value of one kind of call without a derivative: a compiled graph, and the structure of its result."""

    run: Callable[..., Any]
    result: Tree

    def __call__(self, tensors: Sequence[Tensor]) -> Any:
        """Compute it."""
        return self.result.filled(tuple(self.run(*tensors)))


@dataclass(frozen=True, slots=True)
class Plan:
    """How to carry out one kind of call: by kernels, or, where there are none, inline, for the reason given.

    Attributes:
        kernels: of a call that is differentiated.
        why_inline: the reason.
        value: computes it from its tensors where nothing is differentiated, if kernels do that.
        n_tensors: how many these are.
        chunks: carries it out by chunks of rows, whether it is differentiated or not.
    """

    kernels: Kernels | None
    why_inline: str = ""
    value: Value | None = None
    n_tensors: int = -1
    chunks: Chunks | None = None


@dataclass(frozen=True, slots=True)
class Functions:
    """The functions of an op for one kind of call.

    Attributes:
        value: returns the value.
        derivative: returns the same value; its first derivative is the op's.
        native: returns the same value; its higher derivatives are the op's.
        exact: whether the value, and whether the derivative, must be bit-identical to PyTorch's kernels.
        gradients: where known, functions of the tensors and a cotangent that return the gradient of each: as values,
            and with first derivatives that are the op's second.
        save: see `pullback.function`.
    """

    value: Callable[..., Any]
    derivative: Callable[..., Any]
    native: Callable[..., Any]
    exact: tuple[bool, bool] = (False, False)
    gradients: tuple[Callable[..., Any], Callable[..., Any]] | None = None
    save: Save | None = None


def make_plan(
    call: Call,
    name: str,
    functions: Functions,
    reads: Reads,
    grad: bool,
    backend: Backend,
    trace: Trace = trace_ops,
) -> Plan:
    """Trace a call and plan calls like it; `reads` are those of the formulas.

    Raises:
        FormulaError: if the formula has no derivative, or returns no tensor.
    """
    # anomaly detection asks for values; tensors made in inference mode have no version counter
    with _torch.without_saved_tensors_hooks(), torch.autograd.set_detect_anomaly(False), torch.inference_mode(False):
        return _make_plan(call, name, functions, reads, grad, backend, trace)


def _make_plan(
    call: Call, name: str, functions: Functions, reads: Reads, grad: bool, backend: Backend, trace: Trace
) -> Plan:
    if any(type(t) not in (Tensor, torch.nn.Parameter) or t.is_nested for t in call.tensors):
        return Plan(None, call.obstacle)  # not all have a fake
    if known := call.obstacle or reads.obstacle:
        return Plan(None, known)  # run without values, it might keep tensors that have none
    structure: list[Any] = []
    flat_value = call.flat(functions.value, structure)
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
        facts = facts_of(flat, call.tensors, name)
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
        return Plan(None, obstacle or _NOT_ASKED)
    recompute = is_compiled(backend) if functions.save is None else functions.save == "min"
    try:
        joint = joint_of(flat_value, flat, call.tensors, facts.outputs, wanted, recompute, trace, packs_bits(backend))
    except (UntracedError, FormulaError) as error:
        return Plan(None, f"its derivative cannot be traced ({error})".splitlines()[0])
    except Exception as error:
        tell(error, name)
        return Plan(None, f"Pullback failed to divide its graph ({type(error).__name__}: {error})".splitlines()[0])
    if not wanted:
        value = _value(joint, facts.outputs, structure[0], functions.exact, backend)
        return Plan(None, _NOT_ASKED, value, len(call.tensors))
    if not joint.connected:
        return Plan(None, "no output depends on an input that requires grad")
    native = flat if functions.native is functions.derivative else call.flat(functions.native)
    current = while_current(native, reads, name)
    kernels = _kernels(name, joint, current, facts.outputs, structure[0], functions.exact, backend)
    return Plan(kernels, n_tensors=kernels.n_inputs)


_NOT_ASKED = "no gradient is asked for"


def _value(joint: Joint, outputs: Sequence[Any], spec: Any, exact: tuple[bool, bool], backend: Backend) -> Value:
    """Lower the value for calls that differentiate nothing."""
    ((_, run),) = lower([joint.forward], exact[:1], backend)
    return Value(run, Tree.of_leaves(outputs, spec))


def while_current(formula: Callable[..., Any], reads: Reads, name: str) -> Callable[..., Any]:
    """Return a formula that raises, in place of recomputing an earlier call, once one of its reads has changed."""

    def native(*tensors: Tensor) -> Any:
        if not reads.unchanged():
            raise DerivativeError(
                f"what {name} reads from around it (a global, a closed-over variable, a function) has changed between "
                "the call and its derivative of higher order, which computes the formula again: pass it as an argument."
            )
        return formula(*tensors)

    return native


def _kernels(
    name: str, joint: Joint, native: Flat, outputs: Sequence[Any], spec: Any, exact: tuple[bool, bool], backend: Backend
) -> Kernels:
    results = [out for out in outputs if isinstance(out, Tensor)]
    n_inputs = len(joint.forward.graph.find_nodes(op="placeholder"))
    later = iter(range(n_inputs, n_inputs + len(joint.saved)))
    (forward_graph, forward), (backward_graph, backward) = lower([joint.forward, joint.backward], exact, backend)
    cotangents = backward_graph.graph.find_nodes(op="placeholder")[len(joint.saved) :]
    one, other = single(forward_graph) or lone_op(forward_graph), single(backward_graph)
    ours = [all(is_kernel(user.target) for user in g.users) for g in cotangents]
    return Kernels(
        joint,
        native,
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
        spending=_spending(joint, forward_graph, backward_graph),
        singles=(one, other) if one and other else None,
    )


def _spending(joint: Joint, forward: fx.GraphModule, backward: fx.GraphModule) -> Callable[..., Any] | None:
    """Return a backward that overwrites residuals that the forward computed for it alone."""
    results: Any = forward.graph.output_node().args[0]
    computed = iter(results[joint.n_outputs :])
    places = backward.graph.find_nodes(op="placeholder")
    given = []
    for place, i in zip(places, joint.saved, strict=False):
        made = next(computed) if i is None else None
        if made is not None and results.count(made) == 1 and is_fresh(made) and not _is_viewed(made):
            given.append(place.name)
    module = reusing(backward, given) if given else None
    return None if module is None else eager.lower(module)


def _is_viewed(node: fx.Node) -> bool:
    """Whether a result may share memory with another value, which no kernel overwrites because it is a result too."""
    others = [user for user in node.users if user.op != "output" and not is_kernel(user.target)]
    return any(_torch.is_view(user.target) for user in others)


def in_layout(g: Tensor, stride: tuple[int, ...], is_any: bool = False) -> Tensor:
    """Return a cotangent in the layout for which the backward was compiled, or unchanged if any layout will do."""
    if g.layout is not torch.strided:  # of a sparse embedding, for example
        g = g.to_dense()
    if not torch.compiler.is_dynamo_compiling():  # it cannot ask
        if g.is_neg() or (g.is_complex() and g.is_conj()):
            g = g.resolve_conj().resolve_neg()
        if _torch.is_zero_tensor(g):  # it has no memory
            g = torch.zeros(g.shape, dtype=g.dtype, device=g.device)
    if is_any or g.stride() == stride or not g.numel():
        return g
    return g.new_empty_strided(g.shape, stride).copy_(g)  # a batch stays a batch under is_grads_batched

"""Running a subject once: a forward on fresh copies, then products with its derivative.

Every forward, and every backward, starts from the same random state, so that a function that draws random numbers is a
function of its inputs. Every exception of the audited code is reraised as `Raised`, whatever its class.
"""

from __future__ import annotations

import random
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from pullback._torch import tree_leaves
from pullback.check.case import Case, copy_tensor, is_differentiable
from pullback.check.subject import Subject

SEED = 20_241
"""Seed of the random state from which every forward and every backward starts."""
_TORCH = Path(torch.__file__).parent


class Raised(Exception):  # noqa: N818 - it is a report about another error
    """The audited code raised; `__cause__` is its exception."""

    def __init__(self, stage: str, error: BaseException) -> None:
        super().__init__(f"{stage} raised {describe_error(error)}")
        self.stage = stage
        self.error = error
        self.__cause__ = error

    @property
    def is_deliberate(self) -> bool:
        """Whether a `raise` or an `assert` in the audited code raised it, rather than an operation."""
        frames = traceback.extract_tb(self.error.__traceback__)
        if not frames or Path(frames[-1].filename).is_relative_to(_TORCH):
            return False
        return (frames[-1].line or "").startswith(("raise", "assert"))


def describe_error(error: BaseException) -> str:
    """Return class and message of an error, or the assertion without one that failed, on a line of bounded length."""
    text = " ".join(str(error).split()) or _assertion(error)
    return f"{type(error).__name__}: {text[:300]}{'…' if len(text) > 300 else ''}" if text else type(error).__name__


def _assertion(error: BaseException) -> str:
    """Return the line of an assertion that failed, if it can be read."""
    frames = traceback.extract_tb(error.__traceback__) if isinstance(error, AssertionError) else ()
    line = (frames[-1].line or "") if frames else ""
    return line if line.startswith("assert") else ""


@dataclass
class ForwardRun:
    """Result of one forward: the inputs as passed, and every output tensor.

    Attributes:
        inputs: the differentiated leaves.
        outputs: every tensor output, in order.
        differentiable: positions in `outputs` of those in the graph.
        result: the return value of the call.
        arguments: the positional arguments as passed.
    """

    inputs: list[Tensor]
    outputs: list[Tensor]
    differentiable: list[int]
    result: Any
    arguments: tuple[Any, ...] = ()

    @property
    def roots(self) -> list[Tensor]:
        """The outputs that are part of the graph."""
        return [self.outputs[position] for position in self.differentiable]


def forward(
    subject: Subject,
    case: Case,
    mask: Sequence[bool] | None = None,
    moved: Sequence[Tensor] | None = None,
    call: Callable[..., Any] | None = None,
    seed: int = 0,
) -> ForwardRun:
    """Call the subject on fresh copies of the case's arguments.

    Args:
        subject: the function.
        case: the arguments.
        mask: which of the differentiated inputs require grad.
        moved: values for the differentiated inputs; then nothing is differentiated.
        call: called in place of the subject (a transform of it).
        seed: random state at its start.

    Raises:
        Raised: if the subject raises anything, including `SystemExit`.
    """
    args, kwargs, inputs = case.arguments(mask, moved)
    reseed(seed)
    _on_call[0](subject, case)
    # Inputs of wrong sizes must raise, and not crash: a variant may be an invalid input.
    checked = torch.sparse.check_sparse_tensor_invariants() if case.is_variant else nullcontext()
    with guarded("forward"), torch.set_grad_enabled(moved is None), checked:
        result = (call or subject.call)(*args, **kwargs)
    outputs = [leaf for leaf in tree_leaves(result)[0] if isinstance(leaf, Tensor)]
    in_graph = [p for p, out in enumerate(outputs) if is_differentiable(out) and out.requires_grad]
    return ForwardRun(inputs, outputs, in_graph, result, args)


def is_freed(t: Tensor) -> bool:
    """Whether the storage of a tensor was freed: reading it may end the process."""
    return t.layout is torch.strided and t.numel() > 0 and t.untyped_storage().nbytes() == 0


@contextmanager
def kept_from_being_freed(tensors: Sequence[Tensor]) -> Iterator[None]:
    """Restore the storage of tensors that a backward frees, such as the output of a reversible layer."""
    plain = [t for t in tensors if t.layout is torch.strided and type(t) is Tensor and not t.is_conj()]
    copies = [(t, copy_tensor(t)) for t in plain if 0 < t.untyped_storage().nbytes() <= _SMALL]
    try:
        yield
    finally:
        for t, copy in copies:
            if is_freed(t):
                t.untyped_storage().resize_(copy.untyped_storage().nbytes())
                t.untyped_storage().copy_(copy.untyped_storage())


_SMALL = 1 << 20
"""Bytes of an output that is copied before a backward."""


def vjp(
    run: ForwardRun,
    cotangents: Sequence[Tensor | None],
    wrt: Sequence[Tensor] | None = None,
    create_graph: bool = False,
    retain_graph: bool | None = None,
    seed: int = 0,
) -> list[Tensor | None]:
    """Return the gradient of each input, `None` where the graph gives none.

    Args:
        run: the forward.
        cotangents: one per differentiable output; an output whose cotangent is `None` is left unused.
        wrt: tensors to differentiate with respect to; by default the inputs that require grad.
        create_graph: build the graph of the gradient itself.
        retain_graph: keep the graph for another call.
        seed: which random state the backward starts from.

    Raises:
        Raised: if the backward raises anything.
    """
    used = [(out, g) for out, g in zip(run.roots, cotangents, strict=True) if g is not None]
    asked = [x for x in run.inputs if x.requires_grad] if wrt is None else list(wrt)
    if not used or not asked:
        return [None] * len(asked)
    outs, given = [out for out, _ in used], [copy_tensor(g) for _, g in used]
    reseed(seed)
    if _refusals:
        return _by_accumulation(outs, asked, given, retain_graph, create_graph)
    try:
        with guarded("backward"), kept_from_being_freed(run.outputs):
            return list(torch.autograd.grad(outs, asked, given, retain_graph, create_graph, allow_unused=True))
    except Raised as error:
        if not _REFUSES_GRAD.search(str(error.error)):
            raise
        found = _by_accumulation(outs, asked, given, retain_graph, create_graph)
        _refusals.append(str(error))
        return found


_REFUSES_GRAD = re.compile(r"(not |in)compatible with (torch\.autograd)?\.grad\b", re.IGNORECASE)
_refusals: list[str] = []


def refusal_of_grad() -> str:
    """Return the error by which a backward refused `torch.autograd.grad`, as reentrant checkpoints do; else nothing.

    From then on gradients are those that `.backward()` adds up.
    """
    return _refusals[0] if _refusals else ""


def _by_accumulation(
    outs: Sequence[Tensor],
    asked: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    retain_graph: bool | None,
    create_graph: bool,
) -> list[Tensor | None]:
    for x in asked:
        x.retain_grad()
        x.grad = None
    with guarded("backward"):
        torch.autograd.backward(outs, cotangents, retain_graph, create_graph)
    found = [x.grad for x in asked]
    for x in asked:
        x.grad = None
    return found


class guarded:  # noqa: N801 - used like a function, as contextlib.suppress is
    """Reraise every exception of the audited code as `Raised`, except `KeyboardInterrupt`."""

    def __init__(self, stage: str) -> None:
        self.stage = stage

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, KeyboardInterrupt | Raised):
            return
        if isinstance(error, SystemExit):
            _incidents.append(("exit", f"the {self.stage} called sys.exit({error.code!r})"))
        elif isinstance(error, MemoryError) or "can't allocate memory" in str(error):
            _incidents.append(("memory", f"the {self.stage} asked for more memory than there is: {error}"[:300]))
        raise Raised(self.stage, error) from None


Incident = Literal["crash", "hang", "exit", "memory"]
"""An end of the audited code other than by an ordinary exception: a signal, an endless call, an exit, memory gone."""

_incidents: list[tuple[Incident, str]] = []


def incidents() -> list[Incident]:
    """The exits and the exhausted memory met since `take_incidents`."""
    return [incident for incident, _ in _incidents]


def forgive_memory() -> None:
    """Forget that memory ran out: a request for too much, made with arguments that do not fit, is not a fault."""
    _incidents[:] = [(incident, message) for incident, message in _incidents if incident != "memory"]


def take_incidents() -> list[tuple[Incident, str]]:
    """The exits and the exhausted memory met since the last call, each with a message."""
    taken = list(dict.fromkeys(_incidents))
    _incidents.clear()
    return taken


_on_call: list[Callable[[Subject, Case], None]] = [lambda subject, case: None]


def set_on_call(tell: Callable[[Subject, Case], None]) -> None:
    """Call `tell` before every forward, so that a slow function does not count as a hanging one."""
    _on_call[0] = tell


def reseed(seed: int = 0) -> None:
    """Start every forward, and every backward, from the same random state; from another one for another `seed`."""
    torch.default_generator.manual_seed(SEED + seed)
    random.seed(SEED + seed)


def as_real(t: Tensor) -> Tensor:
    """Return a tensor as a flat float64 vector, complex numbers as pairs of reals."""
    t = t.detach()
    if t.is_complex():
        return torch.view_as_real(t.resolve_conj().to(torch.complex128)).flatten()
    return t.to(torch.float64).flatten()


def standard_cotangents(roots: Sequence[Tensor], positions: Sequence[int] | None = None) -> list[Tensor]:
    """Return the same non-uniform cotangents for the same shapes, contiguous, exact in every dtype.

    `positions` are those of the roots among all outputs, which determine the values; by default they are consecutive.
    """
    made = []
    for position, root in zip(positions or range(len(roots)), roots, strict=True):
        generator = torch.Generator().manual_seed(position + 1)
        magnitude = torch.randint(4, 13, root.shape, generator=generator) / 8
        signs = torch.randint(0, 2, root.shape, generator=generator) * 2 - 1
        made.append((magnitude * signs).to(root.dtype))
    return made

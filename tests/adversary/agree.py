"""Comparison of an op with PyTorch on a random program: the one assertion of the adversary."""

import functools
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

import pullback
from pullback.errors import DerivativeError, FormulaError
from tests.adversary import contexts, graphs
from tests.adversary.contexts import IS_INFINITE, Observed, Side
from tests.adversary.judge import Wrong, sampled_run, wrong_metadata, wrong_values
from tests.adversary.program import Program, default_dtype

_BY_PRECISION = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
_NAMES = {k: x for k, x in (vars(contexts) | vars(graphs)).items() if not k.startswith("_")}
_WITH_FORMS = ("derived", "fast", "min", "chunked", "forward alone")
"""Makings that use stable forms, which have limits at infinite inputs (docs/make.md, "Accuracy")."""
CLASSES = ("class", "old class")
GUARDED = ("ruled", "ruled, of a module", *CLASSES)
"""Makings whose derivative is given: some contexts are refused."""


@dataclass(frozen=True)
class Trial:
    """A program and a way to run it.

    Attributes:
        context: calls of functions of `contexts`, run one after another on one op; separated by `; `, without the side.
        backend: of the op.
        making: the kind of op that is made of the formula, one of `MAKINGS`.
    """

    program: Program
    context: str = "backward()"
    backend: str = "native"
    making: str = "derived"

    def __str__(self) -> str:
        """Return the trial as a runnable program."""
        p = self.program
        sizes = f"sizes={p.sizes!r}"
        given = [f"context={self.context!r}", f"backend={self.backend!r}", f"making={self.making!r}"]
        given += [f"packing={p.packing!r}", f"seed={p.seed}", sizes]
        lines = ["from tests.adversary.agree import agree", "", "agree(", '    """']
        lines += [f"    {line}" for line in p.inputs.splitlines()] + ['    """,', '    """']
        lines += [f"    {line}" for line in p.formula.splitlines()] + ['    """,']
        return "\n".join([*lines, f"    {', '.join(given)},", ")"])


def agree(
    inputs: str,
    formula: str,
    context: str = "backward()",
    backend: str = "native",
    making: str = "derived",
    packing: str = "arguments",
    seed: int = 0,
    sizes: dict[str, int] | None = None,
) -> None:
    """Raise AssertionError, with all differences, if an op does not agree with PyTorch, or if PyTorch itself raises."""
    program = Program(_lines(inputs), _lines(formula), sizes or {}, packing, seed)
    trial = Trial(program, context, backend, making)
    wrong = wrongs(trial)
    if wrong is None:
        raise AssertionError(f"nothing is compared: PyTorch itself raises.\n\n{trial}")
    if wrong:
        raise AssertionError("\n".join([*map(str, wrong), "", str(trial)]))


def in_pytorch(inputs: str, formula: str, context: str = "backward()", making: str = "derived", **given: Any) -> None:
    """Run the PyTorch side of `agree` alone, to see whether it crashes the process."""
    kept = {name: given[name] for name in ("packing", "seed", "sizes") if name in given}
    program = Program(_lines(inputs), _lines(formula), **{"sizes": {}, "packing": "arguments", "seed": 0, **kept})
    natively = MAKINGS[making][1]
    for each in context.split("; "):
        observe(Side(program, natively(program.function()), is_transposed=making in GUARDED), each)


def _lines(text: str) -> str:
    return textwrap.dedent(text).strip()


def _hard(x: Tensor) -> Tensor:
    if x.is_floating_point():
        return torch.round(x * 2) / 2
    return x * 2 if x.is_complex() else x


def _relaxed(formula: Callable[..., Any]) -> Any:
    @functools.wraps(formula)
    def hard(*args: Any, **kwargs: Any) -> Any:
        return tree_map_only(Tensor, _hard, formula(*args, **kwargs))

    return pullback.function(derivative_of=formula)(hard)


def _relaxed_natively(formula: Callable[..., Any]) -> Callable[..., Any]:
    def straight_through(x: Tensor) -> Tensor:
        if not _is_live(x):
            return _hard(x)
        parts = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
        step = parts - parts.detach()  # zero, with the derivative of x; where x is not finite it has none
        step = torch.where(step.isnan(), 0, step)
        return _hard(x.detach()) + (torch.view_as_complex(step) if x.is_complex() else step)

    return lambda *args, **kwargs: tree_map_only(Tensor, straight_through, formula(*args, **kwargs))


def _doubled(formula: Callable[..., Any], g: Any, out: Any, inputs: Sequence[Any], needs: Sequence[bool]) -> Any:
    """Return a rule with twice the gradients of a formula: a context that loses the rule returns half of them."""
    live = [i for i, needed in enumerate(needs) if needed]

    def of_live(*values: Tensor) -> list[Tensor]:
        given = list(inputs)
        for i, x in zip(live, values, strict=True):
            given[i] = x
        return [out for out in tree_leaves(formula(*given)) if _is_live(out)]

    pull = torch.func.vjp(of_live, *[inputs[i] for i in live])[1]
    gs = [2 * g for g, o in zip(tree_leaves(g), tree_leaves(out), strict=True) if _is_live(o)]
    found = dict(zip(live, pull(gs), strict=True))
    return tuple(found.get(i) for i in range(len(inputs)))


def _ruled(formula: Callable[..., Any]) -> Any:
    op = pullback.function(formula)

    @op.vjp(linear=True)
    def _(g: Any, out: Any, *inputs: Any, needs: tuple[bool, ...]) -> Any:
        return _doubled(formula, g, out, inputs, needs)

    return op


class _Module(torch.nn.Module):
    """A formula as a module with an unused parameter."""

    def __init__(self, formula: Callable[..., Any]) -> None:
        super().__init__()
        self.formula, self.unread = formula, torch.nn.Parameter(torch.ones(()))

    def forward(self, *args: Any) -> Any:
        return self.formula(*args)


def _ruled_of_a_module(formula: Callable[..., Any]) -> Any:
    module = _Module(formula)
    return _ruled(lambda *args: module(*args))


def _class(formula: Callable[..., Any], base: Any = pullback.AutogradFunction, old: bool = False) -> Any:
    class OfTheFormula(base):  # type: ignore[misc]
        @staticmethod
        def forward(*inputs: Any) -> Any:
            outs = [out.clone() if any(out is x for x in inputs) else out for out in tree_leaves(formula(*inputs))]
            return outs[0] if len(outs) == 1 else tuple(outs)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            outs = tree_leaves(output)
            ctx.numbers = {i: x for i, x in enumerate(inputs) if not isinstance(x, Tensor)}
            ctx.count = len(inputs)
            ctx.save_for_backward(*[x for x in inputs if isinstance(x, Tensor)], *outs)
            ctx.mark_non_differentiable(*[out for out in outs if not _is_live(out)])

        @staticmethod
        def backward(ctx: Any, *gs: Any) -> Any:
            kept = iter(ctx.saved_tensors)
            inputs = [ctx.numbers[i] if i in ctx.numbers else next(kept) for i in range(ctx.count)]
            return _doubled(formula, gs, list(kept), inputs, ctx.needs_input_grad)

    class OfOldStyle(base):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            output = OfTheFormula.forward(*inputs)
            OfTheFormula.setup_context(ctx, inputs, output)
            return output

        backward = OfTheFormula.backward

    return (OfOldStyle if old else OfTheFormula).apply


def _forward_alone(formula: Callable[..., Any]) -> Any:
    class OfTheForward(pullback.AutogradFunction):
        @staticmethod
        def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
            return formula(*args, **kwargs)

    return OfTheForward.apply


class _TwiceInReverse(torch.autograd.Function):
    """The identity with doubled gradients, in reverse mode alone: Dynamo supports no Function that has a jvp."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g


class _Twice(_TwiceInReverse):
    """The identity with doubled gradients in both modes."""

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        return 2 * t


def _doubled_natively(formula: Callable[..., Any]) -> Callable[..., Any]:
    def twice(x: Tensor) -> Tensor:
        if not _is_live(x):
            return x
        return _TwiceInReverse.apply(x) if torch.compiler.is_compiling() else _Twice.apply(x)

    return lambda *args, **kwargs: tree_map_only(Tensor, twice, formula(*args, **kwargs))


def _is_live(x: Any) -> bool:
    return isinstance(x, Tensor) and (x.is_floating_point() or x.is_complex())


MAKINGS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "derived": (pullback.function, lambda f: f),
    "written": (lambda f: pullback.function(stable=False)(f), lambda f: f),
    "fast": (lambda f: pullback.function(save="fast")(f), lambda f: f),
    "min": (lambda f: pullback.function(save="min")(f), lambda f: f),
    "relaxed": (_relaxed, _relaxed_natively),
    "chunked": (lambda f: pullback.function(chunk=5)(f), lambda f: f),
    "ruled": (_ruled, _doubled_natively),
    "ruled, of a module": (_ruled_of_a_module, _doubled_natively),
    "class": (_class, _doubled_natively),
    "old class": (functools.partial(_class, old=True), _doubled_natively),
    "forward alone": (_forward_alone, lambda f: f),
}
"""How an op is made of a formula, and what PyTorch computes the same with."""


def wrongs(trial: Trial) -> list[Wrong] | None:
    """Run a program on all sides; return the differences of the op, `None` where PyTorch itself raises."""
    program, (make, natively) = trial.program, MAKINGS[trial.making]
    transposed = trial.making in GUARDED
    native = Side(program, natively(program.function()), is_transposed=transposed)
    wide = Side(program, natively(program.function(wide=True)), is_wide=True, is_transposed=transposed)
    ours = Side(program, make(program.function()), is_ours=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [_wrongs(trial, context, ours, native, wide) for context in trial.context.split("; ")]
    known = [wrong for wrong in found if wrong is not None]
    return [wrong for each in known for wrong in each] if known else None


def _wrongs(trial: Trial, context: str, ours: Side, native: Side, wide: Side) -> list[Wrong] | None:
    right = observe(native, context)
    writes = context.startswith("written")
    if isinstance(right, Exception) and not writes:
        return None
    with pullback.backend(trial.backend):  # type: ignore[arg-type]
        got = observe(ours, context)
    if writes:
        return _after_a_write(got, right, observe(native, "backward()"), wide, context)
    if isinstance(got, Exception):
        return [] if _is_documented(got, trial, context) else [Wrong(context, f"{type(got).__name__}: {got}")]
    errors = {label: x for label, x in got.items() if isinstance(x, Exception) and label not in right}
    if errors:  # in one of several calls
        loud = [Wrong(label, f"{type(x).__name__}: {x}") for label, x in errors.items()]
        return [w for w, x in zip(loud, errors.values(), strict=True) if not _is_documented(x, trial, context)]
    if trial.making in GUARDED:  # their rules give all outputs a derivative
        right = {label: x for label, x in right.items() if "requires grad" not in label}
    strict = context == "backward()" and trial.making not in (*GUARDED, "chunked")
    found = list(_differences(got, right, wide, context, strides=strict, limits=trial.making in _WITH_FORMS))
    if found and trial.making in CLASSES and _IN_EAGER_MODE.match(context):
        usual = observe(_usual(trial), context)
        return [wrong for wrong in found if isinstance(usual, Exception) or not _is_same(got, usual, wrong.label)]
    return found


_IN_EAGER_MODE = re.compile(
    "backward|second|third|points|layouts|sizes|numbers|subset|twice|accumulated|packed|threads"
)
"""Where an `autograd.Function` loses no rule, so that one of the same code is right."""


def _usual(trial: Trial) -> Side:
    """Return an `autograd.Function` with the code of a class."""
    return Side(trial.program, _class(trial.program.function(), torch.autograd.Function, trial.making == "old class"))


def _is_same(got: Observed, usual: Observed, label: str) -> bool:
    ours, theirs = got.get(label), usual.get(label)
    both = isinstance(ours, Tensor) and isinstance(theirs, Tensor)
    return both and ours.shape == theirs.shape and torch.equal(ours.nan_to_num(9), theirs.nan_to_num(9))


def observe(side: Side, context: str, mode: Any = None) -> Observed | Exception:
    """Run a context; return its observations, or its error."""
    name, _, rest = context.partition("(")
    space = {name: functools.partial(_NAMES[name], side)}
    try:
        with default_dtype(torch.float64 if side.is_wide else torch.float32), mode or nullcontext():
            seen: Observed = eval(f"{name}({rest}", space)
            return seen
    except Exception as error:
        return error


def _is_documented(error: Exception, trial: Trial, context: str) -> bool:
    """Whether an error is documented in docs/make.md or docs/composition.md, or of the class of PyTorch's own."""
    if trial.making in GUARDED and "the derivative given for " in str(error) and "would be lost" in str(error):
        return True  # perhaps in the words of Dynamo
    if context == "into()" and re.search("has been modified by an inplace operation|_Kernels is a view", str(error)):
        return True  # an output may be kept, or what it is a view of
    if trial.making == "old class" and "must override the setup_context" in str(error):
        return True  # PyTorch's refusal under torch.func
    if trial.making in CLASSES:
        return isinstance(error, DerivativeError) or type(observe(_usual(trial), context)) is type(error)
    if trial.making in GUARDED:
        of_pytorch = (
            "is a view and is being modified inplace",
            "has been modified by an inplace operation",
            "returned an invalid gradient",  # of what the context does not ask for, and the rule does
            "is not implemented",  # likewise
        )
        return isinstance(error, DerivativeError) or any(text in str(error) for text in of_pytorch)
    if trial.making == "chunked":  # the gradient is computed in the call
        return isinstance(error, FormulaError) or bool(re.match("derivative for .* is not implemented", str(error)))
    if trial.making == "relaxed" and re.match("compiled|exported|traced|branch", context):
        return "both draw random numbers" in str(error)
    return isinstance(error, FormulaError) and "FormulaError" in trial.program.formula


def _differences(
    got: Observed, right: Observed, wide: Side, context: str, strides: bool = False, limits: bool = False
) -> Iterator[Wrong]:
    """Yield the differences between the results of an op and those of PyTorch.

    Args:
        got: observations of the op.
        right: those of PyTorch.
        wide: those of PyTorch in float64.
        context: the context.
        strides: whether gradients must have the strides of PyTorch's.
        limits: whether a derivative at an infinite input may be a limit, where the formula as written has NaN.
    """
    true = observe(wide, context)
    if isinstance(true, Exception):
        return
    precision = _precision(wide.program, right)
    runs: list[Observed] = []

    def samples(n: int, label: str) -> Iterator[Tensor]:
        while len(runs) < n:
            run = observe(wide, context, sampled_run(precision, len(runs)))
            if isinstance(run, Exception):
                raise run
            runs.append(run)
        return (run[label] for run in runs[:n] if isinstance(run.get(label), Tensor))

    for label in right:
        mine, theirs, truth = got.get(label), right[label], true.get(label)
        if isinstance(theirs, Exception):
            continue
        if isinstance(mine, Exception) or not isinstance(theirs, Tensor) or not isinstance(mine, Tensor):
            if isinstance(mine, Tensor) and theirs is None and not mine.any():
                continue
            if mine is None and isinstance(theirs, Tensor) and not theirs.any():
                continue
            if type(mine) is not type(theirs) or mine != theirs:
                yield Wrong(label, f"{mine!r}, PyTorch's is {theirs!r}")
            continue
        lies = strides or label.startswith("output")
        differing = wrong_metadata(label, metadata(mine, lies), metadata(theirs, lies))
        if differing is not None:
            yield differing
        if mine.shape != theirs.shape or mine.is_complex() != theirs.is_complex() or not mine.numel():
            continue
        if isinstance(truth, Tensor) and truth.shape == theirs.shape and truth.is_complex() == theirs.is_complex():
            sampled = functools.partial(samples, label=label)
            infinite = _of_infinite(label, wide, right, truth.shape) if limits else None
            found = wrong_values(label, mine, theirs, truth, sampled, infinite, limits and "magnitudes" in label)
            if found is not None:
                yield found


_OF_A_CALL = re.compile(r"(?:grad(?:ient)? of (\w+)|output \d+)[^(]*(.*)")


def _of_infinite(label: str, wide: Side, seen: Observed, shape: torch.Size) -> Tensor | None:
    """Return a mask: the input of a derivative is infinite, or any input that a value of this shape may depend on.

    A derivative is a sum over the broadcast dimensions, so one infinite element of another input may affect all.
    """
    of = _OF_A_CALL.search(label)
    if of is None:
        return None
    by, call = of.groups()
    found = None
    for name, x in wide.inputs().items():
        if not isinstance(x, Tensor):
            continue
        where = seen.get(f"{name}{IS_INFINITE}{' ' * bool(call)}{call}")
        where = x.detach().isinf() if where is None else where
        if by not in (None, name):
            where = where.any().expand(shape)
        elif by is None:
            try:
                where = where.expand(shape)
            except RuntimeError:  # the value is of other sizes
                continue
        found = where if found is None else found | where
    return found


def _after_a_write(got: Observed | Exception, right: Any, before: Any, wide: Side, context: str) -> list[Wrong]:
    """Yield the differences after a write: an op must raise, or return the gradient of before or after it."""
    if isinstance(got, Exception):
        return []
    if isinstance(before, Exception):
        return []
    found = list(_differences(got, {k: before[k] for k in got if k in before}, wide, "backward()"))
    if found and not isinstance(right, Exception):
        labels = {wrong.label for wrong in found}
        found = [wrong for wrong in _differences(got, right, wide, context) if wrong.label in labels]
    return found


def metadata(x: Tensor, strides: bool) -> dict[str, Any]:
    """Return the metadata of a tensor; strides only where they matter for the layout.

    The gradient that PyTorch returns for an empty tensor may be the tensor itself, which requires grad.
    """
    steps = [s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1] if strides and x.numel() else []
    return {
        "shape": tuple(x.shape),
        "stride": steps,
        "dtype": x.dtype,
        "requires_grad": x.requires_grad and x.numel() > 0,
        "is_leaf": x.is_leaf or not x.numel(),
    }


def _precision(program: Program, right: Observed) -> torch.dtype:
    """Return the lowest precision in which a program computes."""
    found = [x.dtype for x in (*program.make().values(), *right.values()) if isinstance(x, Tensor)]
    found += [getattr(torch, name) for name in ("bfloat16", "float16", "float32") if f"torch.{name}" in program.formula]
    found = [torch.float32 if d == torch.complex64 else torch.float64 if d == torch.complex128 else d for d in found]
    return min((d for d in found if d in _BY_PRECISION), key=_BY_PRECISION.index, default=torch.float64)

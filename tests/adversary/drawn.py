"""Random trials, drawn by Hypothesis: inputs of all shapes and layouts, a formula that PyTorch accepts, a context."""

import math
import re
import string
import warnings
from collections.abc import Collection, Sequence
from typing import Any, TypeVar

import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.adversary.agree import GUARDED, MAKINGS, Trial
from tests.adversary.grammar import COMMON, FAMILIES, NUMBERS, POINTWISE
from tests.adversary.program import PACKINGS, Program

SIZES = (4, 5, 3, 2, 1, 7, 16, 8, 33, 17, 64, 15, 31, 9, 0, 13, 65, 127, 128, 129, 257, 300, 1023, 4097, 65537)
ROWS = (64, 65, 127, 100, 257, 67, 1023)
COLUMNS = (17, 16, 31, 33, 32, 18, 65, 15, 129, 300)
"""Many rows of a few vectors and a remainder each: sizes for which row kernels and row sums are written."""
LINES = 8
FEW_LINES = (2, 3, 1, 4)
"""Lengths of small programs: the rounding of later lines could hide an error of an earlier one."""
MOST = 1 << 17
"""Largest size of a tensor."""
_MOST_TENSORS = 1 << 10
"""Most tensors that an op returns: Inductor takes minutes to unbind 2¹⁶."""
_ROWS_IN_CHUNKS = 300
"""Most rows where a sum runs in chunks: with more, its error is larger than that of PyTorch's sums."""
_MOST_AT_POINTS = 1 << 12
"""Largest size for higher derivatives where some numbers are 0: for `prod` PyTorch needs the square of it."""
_LARGEST = 1e4
_TRIES = 3

T = TypeVar("T")


class _Largest(TorchDispatchMode):
    """Mode that records the size of the largest result of an op, and its number of tensors."""

    size = tensors = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        leaves = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        self.size = max([self.size, *(x.numel() for x in leaves)])
        self.tensors = max(self.tensors, len(leaves))
        return result

    def is_over(self) -> bool:
        return self.size > MOST or self.tensors > _MOST_TENSORS


class Draw:
    """Source of choices from bytes: 0 takes the first, which is the simplest.

    Hypothesis draws all choices of a trial as one string of bytes. Its mutations would mix up separate draws, and most
    programs would resemble one another.
    """

    def __init__(self, data: bytes) -> None:
        self._data = iter(data)

    def number(self, n: int) -> int:
        """Return one of `range(n)`."""
        return next(self._data, 0) % n

    def of(self, choices: Sequence[T]) -> T:
        """Return one of them."""
        return choices[self.number(len(choices))]

    def rarely(self, one_in: int) -> bool:
        """Return true one time in n."""
        return self.number(one_in) == one_in - 1

    def part(self, n: int) -> "Draw":
        """Split off the next bytes as a source of their own, so that one part's choices do not shift another's."""
        return Draw(bytes(next(self._data, 0) for _ in range(n)))


def _tensor(draw: Draw, shape: list[str], dtype: str, kind: str, is_small: bool) -> str:
    """Return an expression for a tensor of a shape, in some layout."""
    layouts = ["dense"] * (16 if is_small else 4)
    if shape:
        layouts += ["sliced", "offset", "expanded"]
    if len(shape) > 1:
        layouts += ["transposed", "transposed", "permuted"]
    if len(shape) == 2:
        layouts += ["overlapping"]
    if len(shape) == 4:
        layouts += ["channels last"] * 3
    layout = draw.of(layouts)
    if layout == "sliced":
        return _numbers([*shape[:-1], f"2 * {shape[-1]}"], dtype, kind) + "[..., ::2]"
    if layout == "offset":
        return _numbers([f"{shape[0]} + 1", *shape[1:]], dtype, kind) + "[1:]"
    if layout == "expanded":
        at = draw.number(len(shape))
        return _numbers([*shape[:at], "1", *shape[at + 1 :]], dtype, kind) + f".expand({_listed(shape)})"
    if layout == "transposed":
        return _numbers([*shape[:-2], shape[-1], shape[-2]], dtype, kind) + ".mT"
    if layout == "permuted":
        return _numbers([shape[-1], *shape[:-1]], dtype, kind) + ".movedim(0, -1)"
    if layout == "overlapping":
        return _numbers([f"{shape[0]} + {shape[1]}"], dtype, kind) + f".unfold(0, {shape[1]}, 1)[:{shape[0]}]"
    if layout == "channels last":
        return _numbers(shape, dtype, kind) + ".to(memory_format=torch.channels_last)"
    return _numbers(shape, dtype, kind)


def _listed(shape: list[str]) -> str:
    return f"({', '.join(shape)}{',' if len(shape) == 1 else ''})"


def _numbers(shape: list[str], dtype: str, kind: str) -> str:
    s = _listed(shape)
    if dtype == "bool":
        return f"(torch.rand({s}) > {kind})"
    if dtype.startswith(("int", "uint")):
        return f"torch.randint(0, 4, {s}, dtype=torch.{dtype})"
    made = {
        "normal": f"torch.randn({s})",
        "halves": f"(torch.randint(-4, 5, {s}) / 2)",
        "positive": f"(torch.rand({s}) + 0.5)",
        "negative": f"(-torch.rand({s}) - 0.5)",
        "large": f"(torch.randn({s}) * 30)",
        "small": f"(torch.randn({s}) * 1e-3)",
        "special": f"(torch.randint(-2, 3, {s}) / torch.randint(0, 4, {s}))",  # infinities, NaN and zeros among them
    }[kind]
    if dtype.startswith("complex"):
        return f"torch.complex({made}, {made}){'' if dtype == 'complex64' else '.to(torch.complex128)'}"
    return made if dtype == "float32" else f"{made}.to(torch.{dtype})"


def _shapes(draw: Draw, is_small: bool) -> tuple[dict[str, int], list[str]]:
    """Draw sizes, and the shape of the largest input in terms of them."""
    rank = draw.of((2, 3, 2, 2, 3, 1) if is_small else (2, 2, 1, 3, 2, 1, 4, 0))
    names = list("nmkl"[:rank])
    choices = [SIZES] * rank
    if rank > 1 and draw.number(4 if is_small else 2):
        choices = [ROWS, *[SIZES[:8]] * (rank - 2), COLUMNS]
    sizes: dict[str, int] = {}
    room = MOST
    for name, some in zip(names, choices, strict=True):
        sizes[name] = draw.of([size for size in some if size <= room] or [1])
        room //= max(sizes[name], 1)
    return sizes, names


def _inputs(draw: Draw, names: list[str], is_small: bool) -> dict[str, str]:
    """Draw inputs that broadcast against one another; the first is the largest."""
    mains = ["float32", "float32", "bfloat16", "float64", "float16", "bfloat16", "float64"]
    main = draw.of(mains if is_small else ["float32", *mains, "complex64"])
    inputs: dict[str, str] = {}
    whole = draw
    for i in range(1 + whole.number(4)):
        draw = whole.part(12)
        shape = _broadcast(draw, names) if i else list(names)
        dtype = main
        if i:
            others = ("float32", "bfloat16", "float64", "float16", "int32", "uint8")
            dtype = draw.of((main, main, main, "bool", "int64", draw.of(others)))
        kind = draw.of(("normal", "normal", "halves", "positive", "halves", "negative", "large", "small"))
        kind = "special" if draw.rarely(12) else kind
        if dtype == "bool":
            kind = draw.of(("0.5", "1", "0"))
        made = _tensor(draw, shape, dtype, kind, is_small)
        if dtype.startswith(("float", "bfloat", "complex")) and (not i or not draw.rarely(3)):
            made += ".requires_grad_()"
        inputs["abcd"[i]] = made
    if whole.rarely(4):
        inputs["s"] = whole.of(NUMBERS)
    return inputs


def _broadcast(draw: Draw, names: list[str]) -> list[str]:
    """Return a shape that broadcasts to another."""
    how = draw.of(("whole", "of rows", "of columns", "any"))
    if how == "of rows":
        return [*names[:-1], "1"] if names else []
    if how == "of columns":
        return names[-1:] if draw.number(2) else [*["1"] * (len(names) - 1), *names[-1:]]
    shape = [name if draw.number(2) else "1" for name in names] if how == "any" else list(names)
    return shape[draw.number(len(shape) + 1) :] if draw.rarely(4) else shape


class _Formula:
    """The lines of a formula, and the values that they have for the inputs of the program."""

    draw: Draw

    def __init__(self, inputs: dict[str, Any], is_random: bool, is_small: bool, is_pointwise: bool = False) -> None:
        self.space: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, **inputs}
        self.names = [name for name, x in inputs.items() if isinstance(x, Tensor)]
        self.owned: list[str] = []
        self.used: set[str] = set()
        self.lines: list[str] = []
        others = [name for name in FAMILIES if is_random or name != "random"]
        self.families = list(COMMON) if is_small else [*COMMON, *COMMON, *others]
        if is_pointwise:
            self.families = list(POINTWISE)
        self.skips = 0 if is_small else 3
        self.is_stable = False  # whether an op computes some of it by another formula

    @property
    def made(self) -> list[str]:
        """Names of the values that the lines define, the last one first."""
        return [line.split(" ")[0] for line in reversed(self.lines) if line.split(" ")[0] in self.names]

    def add(self, draw: Draw) -> None:
        """Draw a line; keep it if PyTorch accepts it."""
        self.draw = draw
        if draw.number(8) < self.skips:
            return
        for _ in range(_TRIES):
            family = self.draw.of(self.families)
            line = self._filled(self.draw.of(FAMILIES[family]))
            if line is not None and (self._write(line) if family == "in place" else self._assign(line)):
                self.is_stable |= family == "stable"
                return

    def _assign(self, expression: str) -> bool:
        name = f"{string.ascii_lowercase[len(self.lines) % 20 + 4]}"
        if self._is_large(expression):
            return False
        try:
            value = eval(expression, self.space)
        except Exception:  # whatever PyTorch raises: the line is drawn again
            return False
        if not isinstance(value, Tensor) or not _is_tame(value):
            return False
        self.space[name] = value
        if name in self.names:
            self.names.remove(name)
        self.names.append(name)
        if value.grad_fn is not None and not value._is_view():
            self.owned.append(name)
        self.lines.append(f"{name} = {expression}")
        return True

    def _is_large(self, expression: str) -> bool:
        """Whether a value or an intermediate one would be too large, by its shape; it is then not computed."""
        shapes = {name: x.detach().to("meta") if isinstance(x, Tensor) else x for name, x in self.space.items()}
        with _Largest() as largest:
            try:
                eval(expression, shapes)
            except Exception:  # it depends on values, or has another device, or is none that PyTorch accepts
                return largest.is_over()
        return largest.is_over()

    def _write(self, statement: str) -> bool:
        try:
            exec(statement, self.space)
        except Exception:  # whatever PyTorch raises: the line is drawn again
            return False
        self.lines.append(statement)
        return True

    def _filled(self, template: str) -> str | None:
        """Return a template with its fields filled; `None` if there is no value of the kind."""
        given: dict[str, str] = {}
        first: Tensor | None = None
        for name in dict.fromkeys(re.findall(r"{(\w+)}", template)):
            if name[0] in "frximo":
                chosen = self._value(name[0], given.values())
                if chosen is None:
                    return None
                given[name] = chosen
                first = self.space[chosen] if first is None and chosen in self.space else first
            elif name == "s":
                number = self.draw.of(NUMBERS)
                given[name] = "s" if "s" in self.space and self.draw.number(2) else number
            elif name == "K":
                given[name] = self.draw.of(("False", "True"))
            else:
                rank = 1 if first is None else max(first.dim(), 1)
                dims = [d for d in range(rank) if self.draw.number(2)] or [self.draw.number(rank)]
                if name == "d":
                    anywhere = self.draw.number(rank) - (rank if self.draw.number(2) else 0)
                    given[name] = str(self.draw.of((-1, anywhere, -1, 0)))
                else:
                    given[name] = str(tuple(dims))
        return template.format(**given)

    def _value(self, kind: str, taken: Collection[str] = ()) -> str | None:
        """Draw a value of a kind, preferably an unused one."""
        names = [name for name in reversed(self.names) if _is(self.space[name], kind)]
        names = [name for name in names if name not in taken] or names
        if kind == "o":
            names = [name for name in names if name in self.owned]
        if kind == "m" and (not names or self.draw.rarely(4)):
            other = self._value("r")
            return None if other is None else f"({other} > {self.draw.of(('0', '0.3'))})"
        if kind == "i" and not names:
            other = self._value("r")
            return None if other is None else f"{other}.to(torch.int64)"
        if not names:
            return None
        fresh = [name for name in names if name not in self.used]
        chosen = names[0] if self.draw.number(2) else self.draw.of(fresh if fresh and self.draw.number(3) else names)
        self.used.add(chosen)
        return chosen


def _is(x: Tensor, kind: str) -> bool:
    if kind == "f":
        return x.is_floating_point() or x.is_complex()
    if kind == "i":
        return not x.is_floating_point() and not x.is_complex() and x.dtype != torch.bool
    return {"r": x.is_floating_point(), "m": x.dtype == torch.bool}.get(kind, True)


def _is_tame(x: Tensor) -> bool:
    """Whether a value has few and moderate numbers, so that later lines do not overflow everywhere."""
    if x.numel() > MOST or x.layout is not torch.strided:
        return False
    if not (x.is_floating_point() or x.is_complex()) or not x.numel():
        return True
    return bool(x.detach().abs().nan_to_num(0, 0).max() < _LARGEST) and bool(x.isfinite().float().mean() > 0.5)


def _returned(draw: Draw, formula: _Formula, is_loss: bool) -> str:
    live = [name for name in reversed(formula.names) if formula.space[name].requires_grad]
    live = [name for name in live if name not in formula.used] or live
    assume(live)
    if is_loss:
        return draw.of(("return {0}.sum()", "return {0}.mean()", "return ({0} * {0}).mean().sqrt()")).format(live[0])
    others = [draw.of(list(reversed(formula.names))) for _ in range(draw.of((0, 0, 1, 2)))]
    outputs = list(dict.fromkeys([live[0], *(formula.made if draw.rarely(3) else others)]))
    if len(outputs) == 1:
        return draw.of(("return {0}", "return {0}", "return [{0}]", "return {{'p': {0}}}")).format(*outputs)
    listed = ", ".join(outputs)
    rest = ", ".join(outputs[1:])
    return draw.of((f"return {listed}", f"return [{listed}]", f"return {{'p': {outputs[0]}, 'q': [{rest}]}}"))


def _other_sizes(draw: Draw, sizes: dict[str, int]) -> list[dict[str, int]]:
    """Draw other sizes: enough of one kind for a plan with symbolic sizes, and two that differ in any respect."""
    varying = [name for name in sizes if draw.number(2)] or list(sizes)
    alike = draw.of(((4, 5, 3, 2, 7, 9, 13, 6, 10, 12, 11), (33, 17, 64, 16, 31, 65, 18, 67, 20, 40, 50)))
    every = [size for size in SIZES if size < 70]
    fixed = {name: min(size, 33) for name, size in sizes.items()}
    firsts = {name: draw.number(len(alike)) for name in varying}
    drawn = [fixed | {name: alike[(first + i) % len(alike)] for name, first in firsts.items()} for i in range(9)]
    drawn += [{name: draw.of(every) for name in sizes} for _ in range(2)]
    return [other for other in drawn if math.prod(other.values()) <= MOST] or [dict.fromkeys(sizes, 3)]


COTANGENTS = ("transposed", "expanded", "one", "sliced", "negated", "conjugated", "zero")
GRAPHS = [
    "exported()",
    "exported(True)",
    "traced()",
    "traced_gradient()",
    "compiled_gradient()",
    "compiled_gradient(2)",
    "branch()",
    "symbolic()",
]
"""Contexts that make a graph of a program, where rules can be lost."""
NATIVE_FORMS = [
    "grad_of_grad()",
    "jvp_of_grad()",
    "vmap_of_grad()",
    "traced()",
    "exported()",
    "compiled()",
    "second()",
    "third()",
]
"""Contexts in which an op with stable forms uses its jet of PyTorch's ops, or is differentiated beyond it."""
PLAIN = (
    ["backward()"] * 8
    + ["layouts()"] * 3
    + [
        "second()",
        "jvp()",
        "dual()",
        "func_grad()",
        "jvp_of_grad()",
        "grad_of_grad()",
        "vmap()",
        "vmap_backward()",
        "vmap_of_grad()",
    ]
    + [
        "batched_grad()",
        "compiled()",
        "checkpointed()",
        "checkpointed(True)",
        "accumulated()",
        "autocast()",
        "threads()",
    ]
    + ["no_grad()", "into()", "third()", "single(0)", "single(1)", "packed('same')", "packed('wider')"]
    + ["packed('strided')", "twice()"]
    + GRAPHS
)


def _edges(draw: Draw, formula: str) -> list[float]:
    """Return numbers where pieces of a formula may end: its constants and those of its activations, of both signs."""
    text = [float(number) for number in re.findall(r"(?<![\w.])\d+(?:\.\d*)?(?:e-?\d+)?", formula)]
    ends = {0.0, 1.0, *text, *(end for name, some in _ENDS.items() if name in formula for end in some)}
    scaled = [end / by for by in (1, 3, 4) for end in ends]
    chosen = [draw.of(scaled) * draw.of((1, -1)) for _ in range(4)]
    return sorted({0.0, 1.0, -1.0, *chosen, draw.of(sorted(ends))})


_ENDS = {"relu6": (3.0, 6.0), "hardsw": (3.0,), "hardsi": (3.0,), "shrink": (0.5,)}
"""Where pieces of activations end, by parts of their names."""


def _context(
    draw: Draw, sizes: dict[str, int], inputs: dict[str, Any], is_small: bool, formula: str, others: list[str]
) -> str:
    """Draw a context; mostly a plain one, or one of `others`, in which alone such an op can fail."""
    leaves = [name for name, x in inputs.items() if isinstance(x, Tensor) and x.requires_grad]
    kind = draw.number(12)
    is_large = math.prod(sizes.values()) > _MOST_AT_POINTS
    if is_large and "prod(" in formula:
        return "backward()"
    if others and kind < 9:
        return draw.of(PLAIN + 3 * others)
    if kind < (2 if is_small else 5):
        return draw.of(PLAIN)
    if kind < 3:
        return "backward()"
    if kind > 9:
        order = draw.of(("", "", ", order=2", ", order=3"))
        return f"points({', '.join(map(str, _edges(draw, formula)))}{'' if is_large else order})"
    if kind < 6:
        context = draw.of(("backward({!r})", "second({!r})", "twice({!r})"))
        return context.format(draw.of(COTANGENTS))
    if kind == 6 and sizes and not _OUTER.search(formula):
        return f"sizes({', '.join(map(str, _other_sizes(draw, sizes)))})"
    if kind == 7:
        name, how = draw.of(leaves), draw.of(("add", "smaller", "recast", "strided"))
        # a column times numbers in a row, as many as half of an input: PyTorch's backward would take all memory
        return f"written({name!r}, {('add' if is_large and how == 'smaller' else how)!r})"
    if kind == 8:
        return f"subset({draw.of(leaves)!r})"
    if "s" in inputs:
        return f"numbers({', '.join(draw.of(NUMBERS) for _ in range(4))})"
    return "backward()"


_OUTER = re.compile("outer|kron|einsum|diag_embed|cdist")
"""Ops whose results have the squared size of an input: too many numbers for some of the other sizes."""
BYTES = 8 + 4 * 12 + LINES * 24 + 24 + 3 * 64


def trials(backend: str = "native") -> st.SearchStrategy[Trial]:
    """Strategy of random trials: programs that PyTorch runs, each with a context."""
    return st.binary(min_size=BYTES, max_size=BYTES).map(lambda data: _trial(Draw(data), backend))


def _trial(draw: Draw, backend: str) -> Trial:
    is_small = draw.number(3) > 0
    sizes, names = _shapes(draw.part(8), is_small)
    inputs = _inputs(draw, names, is_small)
    text = "\n".join(f"{name} = {made}" for name, made in inputs.items())
    program = Program(text, "", sizes, seed=draw.number(100))
    making = draw.of(["derived"] * 6 + list(MAKINGS) + ["written"] * 3)
    if making == "chunked" and max(sizes.values(), default=0) > _ROWS_IN_CHUNKS:
        making = "derived"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            given = program.make()
        except RuntimeError:
            assume(False)
        torch.manual_seed(program.seed)
        is_pointwise = is_small and draw.rarely(5)
        formula = _Formula(given, draw.rarely(8), is_small, is_pointwise)
        for _ in range(1 + draw.number(2) if is_pointwise else draw.of(FEW_LINES) if is_small else LINES):
            formula.add(draw.part(24))
        text = "\n".join([*formula.lines, _returned(draw, formula, is_loss=making == "chunked")])
    if not draw.rarely(4):  # stable forms are for formulas that use all of their inputs
        inputs = {name: made for name, made in inputs.items() if re.search(rf"\b{name}\b", text)}
        given = {name: given[name] for name in inputs}
    packing = draw.of(["arguments"] * 6 + list(PACKINGS))
    if making in GUARDED:
        packing = "arguments"
        if _RANDOM.search(text):
            making = "derived"  # the rule of `MAKINGS` computes the formula again, with a draw of its own
    lines = "\n".join(f"{name} = {made}" for name, made in inputs.items())
    program = Program(lines, text, sizes, packing, program.seed)
    others = GRAPHS if making in GUARDED else NATIVE_FORMS if formula.is_stable else []
    contexts = [_context(draw.part(64), sizes, given, is_small, text, others) for _ in range(1 + draw.number(3))]
    contexts = [context for context in dict.fromkeys(contexts) if has_one_answer(context, program)]
    if making in GUARDED:  # what is not asked for has a cotangent of zeros there: times ∞ it is NaN
        contexts = [context for context in contexts if not context.startswith("single")]
    return Trial(program, "; ".join(contexts or ["backward()"]), backend, making)


_RANDOM = re.compile("rand|dropout|bernoulli|rrelu")


def has_one_answer(context: str, program: Program) -> bool:
    """Whether the result of PyTorch is deterministic.

    Threads share a generator, Inductor has random numbers of its own, `torch.cond` draws a second time in its backward,
    and `rrelu` saves its noise before it is computed: hooks would pack uninitialised memory.
    """
    if context.startswith(("packed", "checkpointed")) and "rrelu" in program.formula:
        return False
    may_draw_otherwise = context.startswith(("threads", "branch")) or "inductor" in context
    return not (may_draw_otherwise and _RANDOM.search(program.formula))

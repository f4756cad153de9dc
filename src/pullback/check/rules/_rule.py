"""Definition of a rule: its page, how it looks for a fault, and the facts about it that its consumers need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, get_args

from pullback.check.find.source import FunctionSource
from pullback.check.pages import Alias, Page, page_of
from pullback.check.subject import Kind
from pullback.check.trial import Incident
from pullback.report.model import Finding, Severity

Runtime = Callable[[Any], Iterator[Finding]]
"""Examines a subject that runs, given its `Audit` (which knows the catalogue, and so is not imported here)."""


@dataclass(frozen=True, slots=True)
class SourceMatch:
    """A match of a static rule: the line, the fault and the remedy."""

    line: int
    message: str
    hint: str
    severity: Severity = "error"


Static = Callable[[FunctionSource], Iterator[SourceMatch]]
"""Examines the source alone. Nothing is run: the page says what a match can and cannot prove."""

Column = Literal[
    "eager",
    "double backward",
    "func.grad",
    "func.vmap",
    "func.jvp",
    "func.jacrev",
    "compile",
    "compile of func",
    "export",
    "checkpoint",
    "saved hooks",
    "autocast",
    "copies",
]
"""A context of differentiation: a column of the context row."""

COLUMNS: tuple[Column, ...] = get_args(Column)
"""All contexts, in the order of the row."""

_PRIORITY_OF_FAMILY = {"PB1": 0, "PB2": 3, "PB5": 3}
_LOWEST_PRIORITY = 4


@dataclass(frozen=True)
class Rule:
    """One property of a custom function.

    Attributes:
        docstring: docstring of its file; the first line is `name (PBnnn): summary`.
        runtime: examines a subject that runs; `None` for a rule of the runner or of the source alone.
        static: examines the source; `None` if the source cannot show the fault. If the page names an alias, it stands
            in for `runtime` where the function cannot be run, and is skipped where it can: a run proves more.
        kinds: the subjects that `runtime` applies to.
        blames: the method of a Function at fault, whose line a finding gets; empty for the whole Function.

        shrinks: whether the audit may look for a smaller example by running the rule repeatedly; not if that is slow,
            or if the rule does it itself.
        varies: it runs on the example first, and later on the variants of the example, too.
        late: it takes a hundred runs, or a compiler: it runs after all others, and after the variants.
        early: its priority among the rules that are not late, 1 or 2, if it tells more for its time than its family.
        needs_repeatable: it compares two runs, and so means nothing of a function whose values are random.
        needs_cpu: it inspects the memory of the given tensors, which copies to an accelerator do not share, or sets the
            CPU's autocast.
        of_weights: when it runs on the subject as a function of its weights: "never", "alone" (only where nothing else
            is differentiated; other rules would put tensors of other kinds in their place) or "always".
        of_optional: it runs on the example with tensors for its optional arguments, too.
        of_kernels: it runs on interpreted kernels whatever the budget is: it only reads the record of their runs, or
            keeps to a share of the budget of its own.
        of_arguments: it looks at the weights of a callable, and at the arguments of the Functions inside it.
        settled_by: names of the rules whose errors make it pointless to run on weights.

        column: the context that its findings are about; "eager" for the contract rules.
        compared: whether it had something to compare on an audited subject, so that silence means "ok". By default,
            whether eager autograd gives a steady gradient.
        transforms: it runs the function under a transform of `torch.func`, with tensors that wrap others.
        compiles: it compiles or exports the function.
        proves: order of the derivative (1 or 2) that it compares with a numeric one; 0 for none.

        incident: the end of the process, or the error, that it reports.
        explains: the cause, of a wrong gradient or of values that differ, that it reports in place of other rules.
        context: the use of a function that it is about, in words, for a summary of refusals.
        of_pytorch: its findings are effects of PyTorch on every custom function, which the author of one cannot fix.
        fix: what `--fix` rewrites on its findings: the "backward", the "style" of the class, or nothing but "calls".
    """

    docstring: str | None
    _: KW_ONLY
    runtime: Runtime | None = None
    static: Static | None = None
    kinds: tuple[Kind, ...] = ("function", "op", "callable")
    blames: str = ""

    shrinks: bool = True
    varies: bool = False
    late: bool = False
    early: int = 0
    needs_repeatable: bool = True
    needs_cpu: bool = False
    of_weights: Literal["never", "alone", "always"] = "never"
    of_optional: bool = False
    of_kernels: bool = False
    of_arguments: bool = False
    settled_by: tuple[str, ...] = ()

    column: Column | None = None
    compared: Callable[[Any], bool] | None = None
    transforms: bool = False
    compiles: bool = False
    proves: int = 0

    incident: Incident | None = None
    explains: str = ""
    context: str = ""
    of_pytorch: bool = False
    fix: Literal["backward", "style", "calls"] = "backward"

    about: Page = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Read the page."""
        object.__setattr__(self, "about", page_of(self.docstring))

    @property
    def id(self) -> str:
        """Permanent, e.g. "PB101"."""
        return self.about.id

    @property
    def name(self) -> str:
        """Reads as "allow NAME"."""
        return self.about.name

    @property
    def summary(self) -> str:
        """The first line of the page."""
        return self.about.summary

    @property
    def page(self) -> str:
        """The page: the fault, its harm, the limits of the rule, a bad and a good example."""
        return self.about.text

    @property
    def alias(self) -> Alias | None:
        """Id and name of its static half, which was a rule of its own."""
        return self.about.alias

    @property
    def family(self) -> str:
        """The id's first digit, e.g. "PB1"."""
        return self.about.family

    @property
    def priority(self) -> int:
        """Its rank in information per time among the rules that are not late; 0 runs first."""
        return self.early or _PRIORITY_OF_FAMILY.get(self.family, _LOWEST_PRIORITY)

    @property
    def is_of_contract(self) -> bool:
        """Whether it is about what every backward must do: it runs on the example whatever the budget is."""
        return self.family == "PB1"

    @property
    def is_of_range(self) -> bool:
        """Whether it runs the function on numbers of every magnitude, not on the example alone."""
        return self.family == "PB3"

    @property
    def runs_inside(self) -> bool:
        """Whether it also runs on the Functions inside a callable: a rule about faults, for Functions alone."""
        is_of_functions = self.kinds == ("function",) or self.of_arguments
        return self.runtime is not None and is_of_functions and self.family in ("PB1", "PB2", "PB4")

"""`pytest --pullback=TARGET`: one test for each custom autograd function of a package, module or file.

Only pytest is imported until the option is used. The audited code is never imported in the process of the tests.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pullback.check.runner.outcome import Outcome
    from pullback.check.runner.targets import Listed
    from pullback.check.subject import Given, Options


_FOUND = "pullback"
"""Attribute of a test's report: the outcome of its function, as plain data."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options: the targets, and the audit options of the command line."""
    group = parser.getgroup("pullback")
    group.addoption(
        "--pullback-budget",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="Aim at this time per function (default: 10).",
    )
    group.addoption("--pullback-inputs", metavar="FILE:FUNCTION", help="Take example calls from this function.")
    for name, text in (("select", "Run only these rules (ids, prefixes or names)."), ("ignore", "Skip these rules.")):
        group.addoption(
            f"--pullback-{name}",
            action="append",
            default=[],
            metavar="PB1,…",
            help=text,
        )
    group.addoption(
        "--pullback",
        action="append",
        default=[],
        metavar="TARGET",
        help="Audit each custom autograd function of a package, module or file as a test (repeatable).",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the summary, if there are targets."""
    if config.getoption("--pullback"):
        config.pluginmanager.register(_Summary(), "pullback-summary")


class _Summary:
    """Outcomes of this process and of the workers of pytest-xdist, for one report."""

    def __init__(self) -> None:
        self._found: list[dict[str, Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Store the outcome of a test."""
        found = getattr(report, _FOUND, None)
        if found is not None:
            self._found.append(found)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table and the totals; the failed tests print the findings."""
        if not self._found:
            return
        from pullback.check.runner.outcome import outcome_from_dict, report_of
        from pullback.report.terminal import render_overview

        terminalreporter.section("pullback")
        outcomes = sorted(map(outcome_from_dict, self._found), key=_place)
        terminalreporter.write(render_overview(report_of(outcomes)))


def _place(outcome: Outcome) -> tuple[str, int]:
    location = outcome.result.location
    return location.file or "", location.line or 0


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Add the audits, before `-k` and `--deselect` choose among the items."""
    for target in dict.fromkeys(session.config.getoption("--pullback")):
        collector = AuditedTarget.from_parent(
            session, name=f"pullback:{target}", nodeid=f"pullback:{target}", target=target
        )
        report = session.ihook.pytest_make_collect_report(collector=collector)
        session.ihook.pytest_collectreport(report=report)
        items.extend(report.result)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the findings, and remove the log of PyTorch's compiler from the output of a failed `assert_sound`."""
    report = yield
    if isinstance(item, AuditItem) and call.when == "call":
        vars(report)[_FOUND] = item.found  # plain data, which pytest-xdist hands on
    errors = sys.modules.get("pullback.errors")  # where it is not loaded, no such assertion was made
    if errors is not None and call.excinfo is not None and call.excinfo.errisinstance(errors.NotSoundError):
        kept = ((name, _without_trace(text) if " log " in name else text) for name, text in report.sections)
        report.sections = [(name, text) for name, text in kept if text]
    return report


def _without_trace(log: str) -> str:
    return "".join(line for line in log.splitlines(keepends=True) if "torch.__trace:" not in line)


class AuditedTarget(pytest.Collector):
    """A target. Its chosen subjects are audited together, when the first of them is run."""

    def __init__(self, *, target: str, **node: Any) -> None:
        super().__init__(**node)
        self.target = target
        self._outcomes: dict[int, Outcome] = {}

    def collect(self) -> Iterator[pytest.Item]:
        """Yield one item for each subject."""
        from pullback.check.runner.targets import list_subjects
        from pullback.errors import PullbackError

        try:
            _how(self.config)
            listed = list_subjects(self.target)
        except PullbackError as error:
            raise self.CollectError(str(error)) from None
        for position, subject in enumerate(listed):
            yield AuditItem.from_parent(self, name=subject.name, subject=subject, position=position)

    def outcome(self, position: int) -> Outcome:
        """Return the outcome of a subject.

        Raises:
            PullbackError: if the audit could not be run.
        """
        if position not in self._outcomes:
            is_worker = hasattr(self.config, "workerinput")  # of pytest-xdist, which distributes the items
            self._audit([position] if is_worker else self._chosen(), alone=is_worker)
        return self._outcomes[position]

    def _chosen(self) -> list[int]:
        return [item.position for item in self.session.items if isinstance(item, AuditItem) and item.parent is self]

    def _audit(self, chosen: list[int], alone: bool) -> None:
        from pullback.check.runner.subjects import preload
        from pullback.check.runner.targets import audit_targets

        options, load = _how(self.config)
        if alone:
            preload(options)  # once per process, rather than once per function
        found = audit_targets([self.target], options, load, only=chosen)
        self._outcomes |= zip(sorted(chosen), found, strict=True)


def _how(config: pytest.Config) -> tuple[Options, Callable[[], Given]]:
    """Return the options of the audit.

    Raises:
        OptionError: if the value of an option is invalid.
    """
    from pullback.check.cases.given import loader
    from pullback.check.options import make_options

    select, ignore, budget, inputs = (
        config.getoption(f"--pullback-{name}") for name in ("select", "ignore", "budget", "inputs")
    )
    return make_options(select, ignore, budget=budget), loader(inputs)


class AuditItem(pytest.Item):
    """The audit of one subject."""

    def __init__(self, *, subject: Listed, position: int, **node: Any) -> None:
        super().__init__(**node)
        self.position = position
        self.found: dict[str, Any] | None = None
        self._location = subject.location

    def runtest(self) -> None:
        """Audit the subject, and fail if it is unsound.

        Raises:
            NotSoundError: with the findings.
        """
        from pullback.check.runner.outcome import outcome_to_dict, report_of
        from pullback.errors import NotSoundError
        from pullback.report.terminal import render_failure

        assert isinstance(self.parent, AuditedTarget)
        outcome = self.parent.outcome(self.position)
        self.found = outcome_to_dict(outcome)
        report = report_of([outcome])
        if not report.ok:
            raise NotSoundError(render_failure(report))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any, **options: Any) -> Any:
        """Return the findings, without the traceback, which shows only the plugin."""
        from pullback.errors import NotSoundError, PullbackError

        if isinstance(excinfo.value, NotSoundError | PullbackError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, *args, **options)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Return the location of the subject's definition."""
        line = self._location.line
        return Path(self._location.file or self.path), None if line is None else line - 1, self.name

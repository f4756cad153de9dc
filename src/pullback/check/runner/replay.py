"""The replay of an error: its reproduction must show it in a process that has run nothing else of the function."""

from __future__ import annotations

import contextlib
import io
import math
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from pullback.check.cases.repro import NO_LITERAL
from pullback.check.clock import processor_time_of, spent
from pullback.check.find.modules import IN_PROGRAM
from pullback.report.evidence import ALTERED
from pullback.report.model import Finding

_RUNS_A_FILE = re.compile(r"run_path|spec_from_file_location|read_text")
_LOADS_NOTHING = re.compile(rf"^# fn = |{re.escape(IN_PROGRAM)}", re.MULTILINE)
_BY_THE_ENGINE = ("invalid gradient", "incorrect number", "different than None", "no backward")
"""Words of the engine's messages, for findings in other words."""
_NUMBER = re.compile(r"-?\d+\.?\d*(?:e[+-]?\d+)?")


def can_replay(finding: Finding, may_run_files: bool) -> bool:
    """Whether the reproduction of an error is self-contained.

    It is not if an argument has no literal, or too long a one, or if no code loads the function.

    Args:
        finding: an error.
        may_run_files: whether a file may be run a second time: not that of the program which runs the audit.
    """
    code = finding.reproduce
    if not code or finding.severity != "error" or ALTERED in code or NO_LITERAL in code or _LOADS_NOTHING.search(code):
        return False
    return may_run_files or not _RUNS_A_FILE.search(code)


def complaint(finding: Finding) -> str:
    """Run the reproduction of a finding here; return how its result contradicts the finding; empty if it does not."""
    printed, raised = _executed(finding.reproduce)
    if raised is not None:
        words = " ".join(str(raised).split())
        is_expected = (
            finding.verdict == "unsupported"
            or words[:40] in finding.message
            or any(known in words for known in _BY_THE_ENGINE)
        )
        return "" if is_expected else f"it raised {type(raised).__name__}: {words[:200]}"
    if re.search(r"\b(raised|it raises)\b", finding.message):
        return "it did not raise"
    evidence = finding.evidence
    if evidence is None or not isinstance(evidence.got, float) or not isinstance(evidence.expected, float):
        return ""
    numbers = [float(text) for text in _NUMBER.findall(printed)]
    numbers += [number for number in (math.nan, math.inf, -math.inf) if str(number) in printed]
    if math.isnan(evidence.got) and any(math.isfinite(n) for n in numbers):  # any number differs from NaN
        stated = [evidence.got]
    else:
        stated = [evidence.expected, evidence.got]
    # A number by differences has noise: it shows what it is to show as long as the two stay apart.
    apart = abs(evidence.expected - evidence.got)
    noise = 0.1 * apart if math.isfinite(apart) else 0.0
    missing = [value for value in stated if not any(_is_near(n, value, noise) for n in numbers)]
    return f"it printed no {missing[0]:.6g}" if missing else ""


_BACKWARD = """
outs = [o for o in torch.utils._pytree.tree_leaves(out) if isinstance(o, torch.Tensor) and o.requires_grad]
torch.autograd.backward(outs, [torch.ones_like(o) for o in outs])
"""
_POLL = 0.1


def hangs(code: str, seconds: float, beat: Callable[[], None]) -> bool:
    """Whether the call of a reproduction, and its backward, do not return in a Python that was not forked.

    A forked process lacks the threads of its parent: code that waits for one (TorchScript, a pool) hangs.

    Args:
        code: code of the reproduction.
        seconds: its limit, of seconds that count.
        beat: called in the meantime.
    """
    command = [sys.executable, "-c", f"import torch\n{code}{_BACKWARD}"]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet) as process:
        started = time.monotonic()
        while process.poll() is None and spent(time.monotonic() - started, processor_time_of(process.pid)) < seconds:
            beat()
            time.sleep(_POLL)
        process.kill()
        return process.returncode is None


def unshown(finding: Finding, why: str) -> Finding:
    """Return the warning that replaces an error without a valid reproduction."""
    return replace(
        finding, severity="warning", verdict="inconclusive", message=f"{finding.message.removesuffix('.')}; {why}"
    )


def _executed(code: str) -> tuple[str, Exception | None]:
    """Run code as a script without arguments; return its output and its exception."""
    printed, arguments = io.StringIO(), sys.argv
    torch.set_printoptions(precision=9)
    sys.argv = ["<reproduction>"]
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "<reproduction>", "exec"), {})  # Dynamo would import a module of any name
    except Exception as error:
        return printed.getvalue(), error
    finally:
        sys.argv = arguments
        torch.set_printoptions(profile="default")
    return printed.getvalue(), None


def _is_near(a: float, b: float, noise: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=1e-3, abs_tol=max(1e-5, noise))

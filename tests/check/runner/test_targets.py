"""Targets whose process crashes, hangs or exits."""

import os
from functools import partial

import pytest

from pullback.check.cases.given import loader
from pullback.check.find import discover
from pullback.check.runner import targets
from pullback.check.runner.process import Death
from pullback.check.runner.targets import TargetPlan, TargetTask, audit_targets, list_subjects
from pullback.check.subject import Options
from pullback.errors import RunnerError, TargetError
from pullback.report.model import Location

FUNCTION = """
from torch.autograd import Function


class Shift(Function):
    @staticmethod
    def forward(ctx, x):
        return x + 1

    @staticmethod
    def backward(ctx, g):
        return g.clone()
"""


@pytest.fixture
def target(tmp_path, monkeypatch):
    def write(more="", name="ops.py"):
        (tmp_path / name).write_text(FUNCTION + more)
        monkeypatch.chdir(tmp_path)
        return name

    return write


def why(target):
    (outcome,) = audit_targets([target], Options(select=("PB1",)), loader(None))
    assert outcome.result.status == "unaudited"
    return next(finding.message for finding in outcome.findings if finding.rule == "PB001")


def test_subjects_are_listed_without_an_audit(target):
    (listed,) = list_subjects(target())
    assert (listed.name, listed.kind, listed.location) == ("Shift", "function", Location("ops.py", 5))


def test_import_that_exits_falls_back_to_the_source(target):
    assert "exit status 3: bye" in why(target("import os\nprint('bye', flush=True)\nos._exit(3)"))


def test_import_that_hangs_is_stopped(target, monkeypatch):
    monkeypatch.setattr(TargetTask, "silence", 0.5)
    monkeypatch.setattr(targets, "_IMPORT_SILENCE", 0.5)
    assert "importing it did not get on for 0.5 s" in why(target("while True: pass"))
    assert "importing it did not get on for 1.5 s" in why(target("import time\ntime.sleep(100)"))


def test_import_that_exits_without_functions_is_refused(tmp_path, monkeypatch):
    (tmp_path / "dies.py").write_text("import os\nos._exit(3)")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TargetError, match="exit status 3"):
        audit_targets(["dies.py"], Options(), loader(None))


def test_functions_left_when_the_process_ended_are_unaudited(target):
    file = target()
    plan = TargetPlan(file, partial(discover.discover, file), loader(None), Options())
    task = TargetTask(plan, partial(discover.static_subjects, file))
    task.message({"event": "subjects", "subjects": [
        {"name": "Shift", "kind": "function", "location": {"file": "ops.py", "line": 5}}
    ]})  # fmt: skip
    assert task.over(Death("signal", 9, "", 1.0, 1.0)) is False
    (finding,) = task.outcomes[0].findings
    assert "auditing it ended with SIGKILL (Killed)" in finding.message


def test_internal_error_is_one_line(target, monkeypatch):
    def discover(target):
        raise KeyError("oops")

    monkeypatch.setattr(targets.discover, "discover", discover)
    with pytest.raises(RunnerError, match=r"ops.py: .* a bug of Pullback: KeyError: 'oops' \(test_targets.py"):
        audit_targets([target()], Options(), loader(None))


def test_only_selected_subjects_are_audited_with_progress(target):
    name = target(FUNCTION.replace("Shift", "Other"))
    seen = []
    outcomes = audit_targets(
        [name],
        Options(select=("PB102",)),
        loader(None),
        only=[1],
        on_progress=lambda *news: seen.append(news),
    )
    assert [outcome.result.name for outcome in outcomes] == ["Other"]
    assert seen[-1] == (1, 1, "")
    assert (0, 1, "PB102 of Other") in seen


def test_user_code_never_runs_in_this_process(target):
    name = target(f"import os\nassert os.getpid() != {os.getpid()}")
    (outcome,) = audit_targets([name], Options(select=("PB102",)), loader(None))
    assert outcome.result.status == "ok"


@pytest.mark.parametrize(("jobs", "at_once"), [(1, 1), (3, 3)])
def test_number_of_jobs_is_that_of_the_option(jobs, at_once, target, monkeypatch):
    plans = []
    monkeypatch.setattr(targets, "_carried_out", lambda given, *rest: plans.extend(given) or [])
    audit_targets([target()], Options(jobs=jobs), loader(None))
    ((plan, _),) = plans
    assert plan.jobs == at_once

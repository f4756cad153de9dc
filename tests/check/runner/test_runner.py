"""The runner on audits that crash, hang, exit or fail; the audits are stubs."""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import pytest
import torch

from pullback.check.events import AuditEnd
from pullback.check.runner import subjects, task
from pullback.check.runner.outcome import AuditStep, process_finding
from pullback.check.runner.process import Death, Process
from pullback.check.runner.subjects import run_subjects
from pullback.check.runner.task import Limits
from pullback.check.subject import Options, Subject
from pullback.errors import OptionError, RunnerError
from pullback.report.model import Finding, Location

_MARK = Path(tempfile.mkdtemp()) / "looped"
LIMITS = Limits(silence=1.0, total=20.0, memory=2**30, attempts=3)


def segfaults(events, skip):
    for rule in ("PB101", "PB102"):
        if rule not in skip:
            events.step(rule, f"case of {rule}", f"fn({rule})")
            print("last words")
            ctypes.string_at(0)
    events.finding(found("PB103"))


def loops(events, skip):
    if "PB101" not in skip:
        events.step("PB101", "an endless case", "")
        while True:
            pass


def is_alive_but_late(events, skip):
    events.step("PB101", "a slow case", "")
    while True:
        events.beat()


def exits(events, skip):
    if "PB101" not in skip:
        events.step("PB101", "a case", "")
        os._exit(3)


def calls_sys_exit(events, skip):
    sys.exit("no GPU, bye")


def is_killed(events, skip):
    events.step("PB101", "a case", "")
    os.kill(os.getpid(), signal.SIGKILL)


def throws_bad_alloc(events, skip):
    events.step("", "the probe", "")
    os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
    os.abort()


def allocates(events, skip):
    with pytest.raises(RuntimeError, match="allocate"):
        torch.empty(100 * 2**30, dtype=torch.uint8)


def prints(events, skip):
    print("x" * 200_000)
    os.write(1, b"y" * 200_000)
    os.system("echo z")


def breaks(events, skip):
    raise KeyError("our own mistake")


def always_dies_in_new_places(events, skip):
    rule = f"PB10{len(skip)}"
    events.step(rule, rule, "")
    os.kill(os.getpid(), signal.SIGBUS)


def dies_in_what_is_skipped(events, skip):
    events.step("PB101", "a case", "")
    events.finding(found("PB101"))
    os.kill(os.getpid(), signal.SIGFPE)


def reads_settings(events, skip):
    import resource

    settings = {
        "threads": torch.get_num_threads(),
        "core": resource.getrlimit(resource.RLIMIT_CORE)[0],
        "stdin": os.read(0, 1),
        "leader": os.getsid(0) == os.getpid(),
        "grad": torch.is_grad_enabled(),
    }
    events.finding(found("PB101", repr(settings)))


def forks_in_passing(events, skip):
    if os.fork() == 0:
        events.finding(found("PB101", "from a process that has no say"))
        os._exit(0)
    os.wait()


def leaves_a_process(events, skip):
    subprocess.Popen(["sleep", f"1000.{os.getppid()}"])


def runs_on_threads(events, skip):
    torch.set_num_threads(2)
    torch.ones(2**20).sin()


def hangs_on_a_guess(events, skip):
    events.step("", "a guessed call, x: float64(3,)", "")
    while True:
        pass


def waits(events, skip):
    if "PB101" not in skip:
        events.step("PB101", "a case", "")
        time.sleep(1000)


def loops_once(events, skip):
    events.step("PB101", "a case", "fn()")
    if not _MARK.exists():
        _MARK.touch()
        while True:
            pass


def loops_on_a_variant(events, skip):
    if "PB1" not in skip:
        events.step("PB1", "x: float64(3,) [exact zeros]", "fn()")
        while True:
            pass


def is_sound(events, skip):
    events.step("PB101", "a case", "")


def found(rule, message="found"):
    return Finding("f", rule, "name", "error", "wrong", message)


AUDITS = (
    segfaults, loops, exits, calls_sys_exit, is_killed, throws_bad_alloc, allocates, prints,
    breaks, always_dies_in_new_places, dies_in_what_is_skipped, reads_settings, forks_in_passing,
    leaves_a_process, hangs_on_a_guess, waits, loops_once, loops_on_a_variant, is_sound,
)  # fmt: skip


def subject(target):
    name = getattr(target, "__name__", "nameless")
    return Subject(name, "callable", target, Location("ops.py", 7), why_unaudited="" if target else "why not")


@pytest.fixture(autouse=True)
def audit_is_calling(request):
    """Replace the audit of a subject by a call of its target."""
    patch = pytest.MonkeyPatch()

    def run_audit(subject, options, inputs, events, skip):
        subject.target(events, skip)
        return AuditEnd(cases=1, allowed=0)

    patch.setattr(task, "run_audit", run_audit)
    yield
    patch.undo()


_outcomes = {}


def _cannot_travel(*_):
    raise RunnerError("it cannot travel")


@pytest.fixture
def outcome(audit_is_calling):
    if not _outcomes:
        subjects = [subject(target) for target in (*AUDITS, None)]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(task, "packed", _cannot_travel)  # a new interpreter would run the real audit, not the stub
            results = run_subjects(subjects, Options(), lambda _: None, limits=LIMITS, jobs=4)
        assert [r.result.name for r in results] == [s.name for s in subjects]
        _outcomes.update({result.result.name: result for result in results})
    return lambda target: _outcomes[getattr(target, "__name__", "nameless")]


def rules(outcome):
    return [finding.rule for finding in outcome.findings]


def test_crash_is_reported_and_other_rules_still_run(outcome):
    crashed = outcome(segfaults)
    assert rules(crashed) == ["PB002", "PB002", "PB103"]
    first = crashed.findings[0]
    assert (first.name, first.severity, first.verdict) == ("crashes-the-process", "error", "wrong")
    assert "SIGSEGV" in first.message
    assert "case of PB101" in first.message
    assert first.reproduce == "fn(PB101)"
    assert first.location == Location("ops.py", 7)
    assert "last words" in first.evidence.got
    assert "string_at" in first.evidence.got, "the Python traceback of the crash"


def test_endless_loop_is_stopped(outcome):
    looped = outcome(loops)
    assert rules(looped) == ["PB003"]
    assert "1 s on an endless case" in looped.findings[0].message
    assert looped.result.cases == 1, "the second process got to the end"


def test_exit_is_reported(outcome):
    exited = outcome(exits)
    assert rules(exited) == ["PB004"]
    assert "exit status 3 on a case" in exited.findings[0].message


def test_sys_exit_before_the_first_rule_is_not_retried(outcome):
    exited = outcome(calls_sys_exit)
    assert rules(exited) == ["PB004"]
    assert "exit status 1 while getting example inputs" in exited.findings[0].message
    assert exited.result.cases == 0


def test_external_kill_counts_as_out_of_memory(outcome):
    assert rules(outcome(is_killed)) == ["PB005"]
    assert rules(outcome(throws_bad_alloc)) == ["PB005"]


def test_memory_is_limited(outcome):
    assert outcome(allocates).findings == ()


def test_output_of_the_function_is_discarded(outcome, capfd):
    assert outcome(prints).result.status == "ok"
    assert capfd.readouterr() == ("", "")


def test_internal_error_is_reported_as_a_bug_of_pullback(outcome):
    broken = outcome(breaks)
    assert rules(broken) == ["PB001"]
    assert "KeyError: 'our own mistake' (test_runner.py:" in broken.findings[0].message
    assert "Traceback" in broken.findings[0].evidence.got
    assert broken.result.status == "unaudited"


def test_attempts_are_limited(outcome):
    assert len(outcome(always_dies_in_new_places).findings) == LIMITS.attempts


def test_repeated_crash_is_one_finding(outcome):
    assert sorted(rules(outcome(dies_in_what_is_skipped))) == ["PB002", "PB101"]


def test_child_process_is_isolated_from_its_parent(outcome):
    (finding,) = outcome(reads_settings).findings
    assert finding.message == repr({"threads": 1, "core": 0, "stdin": b"", "leader": True, "grad": True})


def test_forked_grandchild_cannot_report(outcome):
    assert outcome(forks_in_passing).findings == ()


def test_processes_started_by_the_function_are_ended(outcome):
    assert outcome(leaves_a_process).result.status == "ok"
    assert not running(f"sleep 1000.{os.getpid()}")


def test_function_may_set_threads_after_the_parent_used_several():
    runs_on_threads(None, ())
    torch.set_num_threads(1)
    (outcome,) = run_subjects([subject(runs_on_threads)], Options(), lambda _: None, limits=LIMITS)
    assert rules(outcome) == []


def test_sound_function_is_ok(outcome):
    assert outcome(is_sound).result.status == "ok"
    assert outcome(is_sound).result.cases == 1


def test_subject_without_target_is_unaudited(outcome):
    (finding,) = outcome(None).findings
    assert finding.rule == "PB001"
    assert "why not" in finding.message


def test_total_time_limit_stops_the_audit():
    limits = Limits(silence=5.0, total=0.5)
    (late,) = run_subjects([subject(is_alive_but_late)], Options(), lambda _: None, limits=limits)
    assert rules(late) == ["PB003"]
    assert late.findings[0].verdict == late.result.status == "unaudited"
    assert "stopped after 0.5 s on a slow case" in late.findings[0].message


def test_ignored_crash_is_not_reported():
    (died,) = run_subjects([subject(segfaults)], Options(ignore=("PB002",)), lambda _: None, limits=LIMITS)
    assert rules(died) == ["PB103"]


def test_refused_inputs_end_the_run():
    def given(_):
        raise OptionError("no good")

    with pytest.raises(OptionError, match="no good"):
        run_subjects([subject(is_sound)], Options(), given, limits=LIMITS)


def children():
    """Return the children of this process, which may include compilers started by other tests."""
    shown = Path(f"/proc/self/task/{os.getpid()}/children")
    return set(shown.read_text().split()) if shown.exists() else set()


def test_ctrl_c_ends_the_children_and_propagates():
    started = []

    def interrupt():
        if time.monotonic() > started[0] + 0.3:
            raise KeyboardInterrupt

    def audit_loops(_):
        subprocess.Popen(["sleep", f"2000.{os.getppid()}"])
        time.sleep(100)

    before = children()
    started.append(time.monotonic())
    with pytest.raises(KeyboardInterrupt):
        run_subjects([subject(loops)] * 2, Options(), audit_loops, limits=LIMITS, tick=interrupt)
    assert not running(f"sleep 2000.{os.getpid()}")
    assert children() <= before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent has died")
def test_children_end_with_a_killed_parent(tmp_path: Path):
    script = tmp_path / "parent.py"
    script.write_text(
        "import time\n"
        "from pullback.check.runner.process import Process\n"
        "child = Process(lambda channel: time.sleep(1000))\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(1000)\n"
    )
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert eventually(
        lambda: not Path(f"/proc/{child}/stat").exists() or " Z " in Path(f"/proc/{child}/stat").read_text()
    )


def test_fork_warning_is_no_error(monkeypatch):
    fork = os.fork

    def warns():
        warnings.warn("This process is multi-threaded", DeprecationWarning, stacklevel=2)
        return fork()

    monkeypatch.setattr(os, "fork", warns)
    (outcome,) = run_subjects([subject(is_sound)], Options(), lambda _: None, limits=LIMITS)
    assert outcome.result.status == "ok"


def test_missing_fork_is_an_error(monkeypatch):
    monkeypatch.delattr(os, "fork")
    with pytest.raises(RunnerError, match="lacks"):
        run_subjects([], Options(), lambda _: None)


def test_failing_fork_is_an_error(monkeypatch):
    def fork():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fork)
    with pytest.raises(RunnerError, match="Resource temporarily unavailable"):
        Process(lambda channel: None)


def running(command):
    return eventually(lambda: command not in subprocess.check_output(["ps", "-eo", "args"], text=True)) is False


def eventually(condition):
    deadline = time.monotonic() + 5
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def test_guess_that_hangs_is_inconclusive(outcome):
    (finding,) = outcome(hangs_on_a_guess).findings
    assert (finding.rule, finding.severity, finding.verdict) == ("PB003", "warning", "inconclusive")
    assert "while a guessed call, x: float64(3,)" in finding.message


def test_function_that_waits_for_a_thread_is_inconclusive(outcome):
    (finding,) = outcome(waits).findings
    assert (finding.rule, finding.severity, finding.verdict) == ("PB003", "warning", "inconclusive")
    assert "Nothing came back for 3 s" in finding.message, "three times what is allowed to one that works"
    assert "as for a thread, which a forked process has not" in finding.message


def test_variant_that_hangs_is_a_warning(outcome):
    (finding,) = outcome(loops_on_a_variant).findings
    assert (finding.rule, finding.severity, finding.verdict) == ("PB003", "warning", "inconclusive")


def test_example_that_hangs_is_an_error(outcome):
    assert outcome(loops).findings[0].severity == "error"


def test_hang_that_does_not_repeat_is_a_warning(outcome):
    looped = outcome(loops_once)
    (finding,) = looped.findings
    assert (finding.rule, finding.severity, finding.verdict) == ("PB003", "warning", "inconclusive")
    assert finding.message.endswith("; called once more, it came back")
    assert looped.result.cases == 1


@pytest.mark.parametrize(
    ("cause", "rule", "what", "severity"),
    [
        ("silent", "PB101", "x: float64(3,) [given]", "error"),
        ("silent", "PB303", "x: float32(3,) [inputs times 100]", "warning"),
        ("signal", "PB303", "x: float32(3,) [inputs times 100]", "warning"),
        ("signal", "PB1", "x: float64(1,) [size 3 -> 1]", "error"),
        ("signal", "PB1", "x: float64(1,) [size 3 -> 1, if that fits]", "warning"),
        ("silent", "PB503", "x: float64(0,) [size 3 -> 0]", "warning"),
    ],
)
def test_severity_of_a_process_that_ended(cause, rule, what, severity):
    death = Death(cause, signal.SIGSEGV if cause == "signal" else 0, "", 1.0, 1.0)
    assert process_finding(subject(is_sound), death, AuditStep(rule, what), 10.0).severity == severity


@pytest.mark.parametrize(("interpreted", "warms"), [((True, True), False), ((True, False), True), ((), True)])
def test_the_compiler_is_warmed_up_unless_all_kernels_are_interpreted(interpreted, warms, monkeypatch):
    warmed = []
    monkeypatch.setattr(subjects, "_warm", lambda: warmed.append("compiler"))
    monkeypatch.setattr(subjects, "_warm_tracing", lambda: warmed.append("tracing"))
    location = Location("swish.py", 1)
    subjects.preload(Options(), [Subject("Swish", "function", None, location, is_interpreted=i) for i in interpreted])
    assert warmed == (["tracing", "compiler"] if warms else [])

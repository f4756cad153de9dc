"""Many audits at once, on every core: what the corpora of mutants and controls need to be quick."""

from pullback.check.find.discover import subject_of
from pullback.check.runner.subjects import preload, run_subjects
from pullback.check.subject import Options

OPTIONS = Options(budget=60)  # what is tested is what is found, not how fast: the machine may be busy


def audit_all(calls, options=OPTIONS):
    """Audit `(target, inputs)` pairs, `inputs` a function that returns the arguments; return the findings of each."""
    subjects = [subject_of(target) for target, _ in calls]
    inputs = {id(subject): make for subject, (_, make) in zip(subjects, calls, strict=True)}
    preload(options)
    outcomes = run_subjects(subjects, options, lambda subject: [(inputs[id(subject)](), {})])
    return [outcome.findings for outcome in outcomes]


def chosen(request, parameter):
    """Return the values of a test parameter that this run has selected."""
    calls = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    return [params[parameter] for params in calls if parameter in params]

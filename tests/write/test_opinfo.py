"""Classes written for operators of PyTorch's database equal the operators and pass the audit.

`python -m tests.write.test_opinfo` tries the whole database. It prints how many are written, and why others are not.
"""

import itertools
import sys
import warnings

import pytest
import torch

from pullback.check.find.discover import subject_of
from pullback.check.subject import Options
from pullback.errors import FormulaError, PullbackError
from pullback.write.api import written
from tests.bulk import of, outcomes_of
from tests.check.modules import import_source
from tests.compose.opinfo import dtype_of, entries

EVERY, SHARDS = 3, 4
"""The slow tests try every third entry of the database, in this number of parts."""
SHARES = [pytest.param(slice(1, None, 120), 3, id="few")] + [
    pytest.param(slice(shard * EVERY, None, EVERY * SHARDS), 25, id=str(shard), marks=pytest.mark.slow)
    for shard in range(SHARDS)
]
"""Entries of a test, and a lower bound on the number that can be written."""
OPTIONS = Options(select=("PB1",), budget=2)

OF_THE_OPERATOR = {
    "angle": "its gradient at real numbers is 0, whatever the cotangent",
    "linalg.cholesky": "its gradient is for symmetric matrices, which the audit's are not",
    "linalg.cholesky_ex": "the same as linalg.cholesky",
    "scatter": "where an index repeats, every value written there gets the gradient",
    "scatter_reduce.amin": "where values are equal, PyTorch shares the gradient among them",
}
"""Findings that PyTorch's operator shares, and the reason."""


def write_entry(name, entry):
    """Write the first sample of an entry that can be written; raise if there is none."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the operators: deprecations, beta state
        samples = list(itertools.islice(entry.sample_inputs("cpu", dtype_of(entry), requires_grad=True), 2))
        function = entry.op

        def formula(x, args, kwargs):
            return function(x, *args, **kwargs)

        formula.__name__ = name.replace(".", "_")
        refusal = FormulaError("there are no samples")
        for sample in samples:
            try:
                return written(formula, (sample.input, sample.args, sample.kwargs), {})
            except PullbackError as error:
                refusal = error
    raise refusal


@pytest.mark.parametrize(("share", "least"), SHARES)
def test_class_written_for_an_operator_passes_the_audit(share, least, tmp_path):
    chosen = dict(list(entries().items())[share])
    made = {}
    for name, entry in chosen.items():
        try:
            found = write_entry(name, entry)
        except PullbackError:
            continue
        module = import_source(found.source, tmp_path, f"operator_{len(made)}")
        made[name] = (getattr(module, found.spec.class_name), found.tensors)
    assert len(made) >= least
    subjects = {name: subject_of(function) for name, (function, _) in made.items()}
    inputs = [(subjects[name], [(tuple(x.detach() for x in tensors), {})]) for name, (_, tensors) in made.items()]
    outcomes = outcomes_of(list(subjects.values()), OPTIONS, lambda subject: of(subject, inputs))
    errors = {
        name: [f.message for f in outcome.findings if f.severity == "error"]
        for name, outcome in zip(subjects, outcomes, strict=True)
    }
    assert {name: found for name, found in errors.items() if found and name not in OF_THE_OPERATOR} == {}


def _summary():
    torch.set_num_threads(1)
    refused = {}
    for name, entry in entries().items():
        try:
            write_entry(name, entry)
        except PullbackError as error:
            refused[name] = str(error)
    print(f"{len(entries()) - len(refused)} of {len(entries())} are written")
    for name, why in refused.items():
        print(f"{name}: {why}")


if __name__ == "__main__":
    sys.exit(_summary())

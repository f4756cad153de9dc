"""Derived ops match PyTorch's operator database in value, gradient and second derivative."""

import pytest

from .opinfo import SAMPLES, entries, outcome_of

SHARDS = 13

EXCEPTIONS = {
    "nn.functional.instance_norm": (
        "FormulaError",
        "writes to the running statistics, which are inputs of the formula: refused",
    ),
    "linalg.eig": (
        "RuntimeError: linalg_eig_backward: The eigenvectors in the complex case are specified up to",
        "the second derivative goes through the formula again; PyTorch wants every function of its eigenvectors to "
        "be the same for any phase, and finds two that are so only together: refused by PyTorch",
    ),
}
"""For each entry that differs: its error, and the reason."""


SHORT = [(shard, "PyTorch's", 1) for shard in range(0, SHARDS, 3)]
LONG = [(shard, kernels, SAMPLES) for kernels in ("PyTorch's", "native") for shard in range(SHARDS)]


@pytest.mark.parametrize(
    ("shard", "kernels", "samples"), [*SHORT, *(pytest.param(*run, marks=pytest.mark.slow) for run in LONG)]
)
@pytest.mark.few(2)
def test_value_and_derivatives_match_the_operator(shard, kernels, samples, request):
    if kernels == "native":
        request.getfixturevalue("native")
    chosen = dict(list(entries().items())[shard::SHARDS])
    outcomes = [outcome_of(name, entry, samples) for name, entry in chosen.items()]
    differing = {outcome.name: outcome.differences for outcome in outcomes if outcome.differences}
    assert {name: found for name, found in differing.items() if name not in EXCEPTIONS} == {}
    for name in EXCEPTIONS.keys() & chosen.keys():
        error, _ = EXCEPTIONS[name]
        assert all(found.startswith(error) for found in differing[name])
    assert sum(outcome.graphs > 0 for outcome in outcomes) >= 0.7 * len(outcomes)  # most do not run inline


def test_at_most_3_percent_of_the_database_are_exceptions():
    assert len(entries()) >= 500
    assert len(EXCEPTIONS) <= 0.03 * len(entries())

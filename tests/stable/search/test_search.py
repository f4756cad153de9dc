"""Searches end to end: programs are measured at fresh points."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from pullback.stable.evaluate import evaluate
from pullback.stable.measure import errors, summary_of
from pullback.stable.oracle.values import exact
from pullback.stable.piecewise import Piecewise
from pullback.stable.search.egraph import EGraph
from pullback.stable.search.search import FormSearch, _witnesses, decided_branches
from pullback.stable.term import parse, variables


def fresh(names, domain, count=6000, seed=99):
    """Return points from a sampler other than the search's."""
    random = np.random.default_rng(seed)
    columns = {}
    for name in names:
        low, high = domain.get(name, (-np.inf, np.inf))
        patterns = random.integers(0, 2**32, 4 * count, dtype=np.uint64).astype(np.uint32).view(np.float32)
        real = random.uniform(max(low, -100), min(high, 100), 4 * count).astype(np.float32)
        x = np.where(random.random(4 * count) < 0.4, patterns, real)
        x = x[np.isfinite(x)].astype(float)
        columns[name] = x[(x >= low) & (x <= high)][:count]
    size = min(map(len, columns.values()))
    return {name: x[:size] for name, x in columns.items()}


def measured(target, program, domain, dtype=torch.float32):
    """Return the errors of a program, or of a term as written, at fresh points."""
    at = fresh(variables(target) or ["x"], domain)
    truth = exact([target], at)[0]
    inputs = {name: torch.from_numpy(x).to(dtype) for name, x in at.items()}
    value = program.run(inputs) if isinstance(program, Piecewise) else evaluate(program, inputs)
    return summary_of(errors(value, truth), at, value, truth)


@pytest.fixture(scope="module")
def softplus():
    return FormSearch(parse("log(1+exp(x))"), wide="never")


@pytest.mark.parametrize("by", [(), ("x",)])
def test_softplus_and_its_gradient_are_accurate_everywhere(softplus, by):
    found = softplus.find(*by)
    errors_ = measured(found.target, found.program, {})
    assert errors_.max_ulp <= 4
    assert errors_.clean
    assert not any(wide for _, wide in found.program.terms())
    assert not measured(found.target, found.target, {}).clean


@pytest.mark.parametrize("ends", [(-0.1, 10.0), (-10.0, 0.1), (-0.001, np.inf), (-np.inf, np.inf)])
def test_witnesses_of_an_interval_around_zero_tell_signs_apart(ends):
    at = _witnesses(*ends, 0)
    assert all(ends[0] <= x <= ends[1] for x in at)
    assert len(set(at)) == len(at)
    graph = EGraph({"x": at})
    size, x, mirrored = (graph.add_term(parse(text)) for text in ("abs(x)", "x", "-x"))
    assert len({graph.find(a) for a in (size, x, mirrored)}) == 3


def test_search_results_are_cached(softplus):
    assert softplus.find("x") is softplus.find("x")


@pytest.mark.parametrize("text", ["x*x + 1", "sin(x)", "exp(-x)", "x/(1 + x*x)", "erf(x)"])
def test_program_is_never_worse_than_as_written(text):
    found = FormSearch(parse(text), wide="never").find()
    ours, written = measured(found.target, found.program, {}), measured(found.target, found.target, {})
    assert ours.max_ulp <= max(written.max_ulp, 1.81)
    assert (ours.nan.count, ours.inf.count, ours.zero.count) <= (
        written.nan.count,
        written.inf.count,
        written.zero.count,
    )


@pytest.mark.parametrize("text", ["erf(x)", "lgamma(x)"])
def test_term_without_better_form_stays_as_written(text):
    domain = {"x": (2.5, 50.0)}
    found = FormSearch(parse(text), domain, wide="never").find()
    assert [t for t, _ in found.program.terms()] == [parse(text)]


def test_float64_program_is_within_one_ulp():
    found = FormSearch(parse("x - tanh(x)")).find()
    errors_ = measured(found.target, found.program, {})
    assert errors_.max_ulp <= 1
    assert errors_.clean


POSITIVE = {"x": (1e-30, np.inf), "y": (1e-30, np.inf)}


@pytest.mark.parametrize(
    ("text", "by", "domain"),
    [("exp(x)/(exp(x)+exp(y))", (), {}), ("x/(x+y)", ("x",), POSITIVE), ("x/(x+y)", ("y",), POSITIVE)],
)
@pytest.mark.few(1)
def test_programs_of_two_variables_are_accurate(text, by, domain):
    found = FormSearch(parse(text), domain).find(*by)
    errors_ = measured(found.target, found.program, domain)
    assert errors_.max_ulp <= 1.2
    assert errors_.clean


def test_search_optimises_the_given_domain():
    domain = {"x": (0.25, 0.75)}
    found = FormSearch(parse("log(x/(1-x))"), domain, wide="never").find()
    assert measured(found.target, found.program, domain).max_ulp <= 4


def test_formula_without_defined_points_stays():
    found = FormSearch(parse("log(x)"), {"x": (-2.0, -1.0)}).find()
    assert found.program == Piecewise.of(parse("log(x)"))


@pytest.mark.parametrize("text", ["x - floor(x)", "where(x > 0.1, exp(x) - 1, x)", "maximum(x, 0)*0.5 + floor(x*0.25)"])
def test_programs_with_jumps_and_kinks_are_accurate(text):
    found = FormSearch(parse(text)).find()
    errors_ = measured(found.target, found.program, {})
    assert errors_.max_ulp <= 1
    assert errors_.clean


def test_decimal_constants_are_exact():
    found = FormSearch(parse("0.1*x + 0.2*x")).find()
    assert measured(found.target, found.program, {}).max_ulp <= 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_program_is_accurate_at_every_input(dtype):
    found = FormSearch(parse("x*sigmoid(x)"), dtype=dtype).find()
    x = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    x = x[x.isfinite()]
    at = {"x": x.double().numpy()}
    truth = exact([found.target], at)[0]
    value = found.program.run({"x": x})
    errors_ = summary_of(errors(value, truth), at, value, truth)
    assert errors_.max_ulp <= 0.51
    assert errors_.clean


@pytest.mark.slow
def test_search_is_deterministic_across_processes():
    text = "1/(1 + exp(-x))"
    script = f"""
from pullback.stable.search.search import FormSearch
from pullback.stable.term import parse
print(*FormSearch(parse({text!r}), wide="never").find().program.lines(), sep="\\n")
"""
    other = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.splitlines() == FormSearch(parse(text), wide="never").find().program.lines()


RIGHT = {"x": np.array([0.5, 1.0, 7.0, 1e30])}
LEFT = {"x": -RIGHT["x"]}
BOTH = {"x": np.array([-2.0, 0.0, 3.0])}


@pytest.mark.parametrize(
    ("text", "right", "left"),
    [
        ("abs(x + 0.25)", "x + 0.25", "-(x + 0.25)"),
        ("sgn(2*x)", "1", "-1"),
        ("relu(x)", "x", "0"),
        ("maximum(x, 0)", "x", "0"),
        ("minimum(x, 0)", "0", "x"),
        ("where(x > 0, log(x), exp(x))", "log(x)", "exp(x)"),
        ("abs(where(x < 0, x, sqrt(x)))", "sqrt(x)", "-x"),
        ("exp(x)", "exp(x)", "exp(x)"),
    ],
)
def test_decided_branch_is_removed(text, right, left):
    assert decided_branches(parse(text), RIGHT) is parse(right)
    assert decided_branches(parse(text), LEFT) is parse(left)


@pytest.mark.parametrize("text", ["abs(x)", "sgn(x)", "relu(x)", "maximum(x, 0)", "where(x > 0, x, 1)", "abs(log(x))"])
def test_undecided_branch_stays(text):
    assert decided_branches(parse(text), BOTH) is parse(text)


def test_sign_at_zero_is_undecided():
    assert decided_branches(parse("sgn(x)"), {"x": np.array([0.0, 1.0])}) is parse("sgn(x)")

"""Exhaustive measurements: chunks against the oracle; distribution, interruption and resumption."""

import functools
import json
import math
import multiprocessing
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import pullback
from pullback import OptionError
from pullback.stable import sweep as sweep_module
from pullback.stable.accuracy import accuracy
from pullback.stable.formula import Formula, Quantity
from pullback.stable.intervals import enclose
from pullback.stable.measure import measure
from pullback.stable.sweep import Basis, ChunkResult, SweepTask, chunks_of, key_of, measure_chunk, sweep
from pullback.stable.term import parse

EVERYTHING = (-math.inf, math.inf)
ONE = 0x3F8
"""The chunk that begins at 1."""


def itself(function):
    return function


def task(function, domain=EVERYTHING, order=1, references=None):
    terms = Formula(function).terms(torch.float32, order)
    return SweepTask(functools.partial(itself, function), {}, terms, references or {}, domain)


def test_chunks_cover_the_finite_numbers():
    assert len(chunks_of(EVERYTHING)) == 4080
    assert chunks_of((1.0, 1.5)) == [ONE, ONE + 1, ONE + 2, ONE + 3, ONE + 4]
    assert chunks_of((-1.0, -1.0)) == [0x800 + ONE]
    assert chunks_of((0.0, 0.0)) == [0, 0x800]


@pytest.mark.parametrize("function", [torch.sigmoid, F.gelu, torch.tanh])
def test_chunk_agrees_with_the_oracle(function):
    domain = (1.0, 1.0 + 2**-9)
    of = task(function, domain)
    part = measure_chunk(of, ONE)
    x = np.arange(2**14 + 1) * 2.0**-23 + 1
    for ours, theirs in zip(part.summaries, measure(Formula(function), of.terms, torch.float32, {"x": x}), strict=True):
        assert (ours.points, ours.above_4, ours.clean) == (theirs.points, theirs.above_4, theirs.clean)
        assert ours.max_ulp == pytest.approx(theirs.max_ulp, abs=2**-7)
        assert ours.mean_ulp == pytest.approx(theirs.mean_ulp, abs=2**-7)
    assert part.basis.refuted == part.basis.undecided == 0
    assert part.basis.tested >= 2


def test_points_that_bounds_leave_open_go_to_the_oracle():
    part = measure_chunk(task(lambda x: x.exp() - 1 - x, (2.0**-20, 2.0**-20 + 2**-36)), 0x358)
    assert part.basis.asked == 2 * 129
    assert part.basis.undecided == 0
    assert part.summaries[0].max_ulp > 1e5


def test_points_beyond_the_oracles_budget_are_undecided():
    part = measure_chunk(task(lambda x: x.exp() - 1 - x, (2.0**-20, 2.0**-19), order=0), 0x358)
    assert part.basis.undecided > 1e6
    assert part.summaries[0].undecided == part.basis.undecided
    assert part.summaries[0].points == part.basis.asked + part.basis.bounded
    assert "of neither" in str(part.basis)


VALUE = Quantity(0, ())


def test_better_reference_decides_open_points():
    better = {
        VALUE: (parse("expm1(x) - x"), parse("x*x*(0.5 + x/6) + x*x*x*x/24"))
    }  # the second disagrees, and is ignored
    function = lambda x: x.exp() - 1 - x  # noqa: E731
    alone, helped = (measure_chunk(task(function, (2.0**-9, 2.0**-8), 0, r), 0x3B0) for r in (None, better))
    assert (helped.basis.undecided, helped.basis.refuted) == (0, 0)
    assert alone.basis.undecided > 1e5
    assert helped.summaries[0].points == 2**20
    assert helped.summaries[0].max_ulp >= alone.summaries[0].max_ulp


def test_refuted_reference_is_not_used():
    wrong = {VALUE: (parse("x*x*0.5001"),)}
    function = lambda x: x.exp() - 1 - x  # noqa: E731
    alone, misled = (measure_chunk(task(function, (2.0**-20, 2.0**-19), 0, r), 0x358) for r in (None, wrong))
    assert misled == alone


def test_refuted_bounds_are_not_used(monkeypatch):
    of = task(torch.exp, (1.0, 1.001), 0)
    wrong = [parse("exp(x)*1.0000001")]
    monkeypatch.setattr(sweep_module, "enclose", lambda terms, points: enclose(wrong, points))
    part = measure_chunk(of, ONE)
    assert part.basis.refuted > 0
    assert part.basis.bounded == 0
    assert part.summaries[0].max_ulp < 1
    assert "refuted" in str(part.basis)


def test_bounds_decide_undefined_values_and_overflow():
    part = measure_chunk(task(torch.log, (-2.0, -1.0), 0), 0x800 + ONE)
    assert (part.basis.asked, part.basis.undecided) == (0, 0)
    assert part.summaries[0].undefined == 2**20
    beyond = measure_chunk(task(torch.exp, (1000.0, 1001.0), 0), 0x447)
    assert (beyond.basis.asked, beyond.summaries[0].max_ulp, beyond.summaries[0].clean) == (0, 0.0, True)


def test_chunk_results_add_up():
    whole = task(torch.sigmoid, (1.0, 1.0 + 2**-9))
    halves = [replace(whole, domain=d) for d in ((1.0, 1.0 + 2**-10), (math.nextafter(1 + 2**-10, 2), 1 + 2**-9))]
    first, second = (measure_chunk(half, ONE) for half in halves)
    total, together = measure_chunk(whole, ONE), first + second
    assert [s.points for s in together.summaries] == [s.points for s in total.summaries]
    assert [s.max_ulp for s in together.summaries] == [s.max_ulp for s in total.summaries]


NARROW = (1.0, 1.0 + 2**-12)
CHUNKS = [ONE, ONE + 1, ONE + 2]  # the last two are empty there


def test_interrupted_sweep_resumes(tmp_path, monkeypatch):
    done, of, file = [], task(torch.sigmoid, NARROW), tmp_path / "done.jsonl"

    def interrupt(finished, total):
        done.append((finished, total))
        if finished == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(of, resume=file, chunks=CHUNKS, on_progress=interrupt)
    assert done == [(0, 3), (1, 3), (2, 3)]
    with file.open("a") as torn:
        torn.write('{"chunk": 1018, "summ')
    measured = []
    monkeypatch.setattr(sweep_module, "measure_chunk", lambda t, i: measured.append(i) or measure_chunk(t, i))
    resumed = sweep(of, resume=file, chunks=CHUNKS)
    assert measured == [ONE + 2]
    assert resumed == sweep(of, resume=tmp_path / "other.jsonl", chunks=CHUNKS)
    assert len(file.read_text().splitlines()) == 4


def test_file_of_another_sweep_raises(tmp_path):
    file = tmp_path / "done.jsonl"
    sweep(task(torch.sigmoid, NARROW), resume=file, chunks=[ONE])
    with pytest.raises(OptionError, match="another measurement"):
        sweep(task(torch.tanh, NARROW), resume=file, chunks=[ONE])
    file.write_text("something else\n")
    with pytest.raises(OptionError, match="not a file of finished chunks"):
        sweep(task(torch.tanh, NARROW), resume=file, chunks=[ONE])
    with pytest.raises(OptionError, match="No such file"):
        sweep(task(torch.tanh, NARROW), resume=tmp_path / "no" / "folder.jsonl", chunks=[ONE])


def test_progress_file_is_in_the_cache_and_removed_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    seen = []

    def look(done, total):
        seen.extend(tmp_path.glob("pullback/sweeps/*.jsonl"))

    sweep(task(torch.sigmoid, NARROW), chunks=[ONE], on_progress=look)
    assert seen
    assert (tmp_path / "pullback" / "sweeps").stat().st_mode & 0o077 == 0
    assert not list(tmp_path.glob("pullback/sweeps/*"))


def test_key_distinguishes_functions_and_domains():
    def derived(x):
        return x * torch.sigmoid(x)

    @pullback.function
    def ruled(x):
        return x * torch.sigmoid(x)

    ruled.vjp(lambda g, out, x: g)
    keys = {key_of(task(f, domain)) for f in (derived, ruled) for domain in (NARROW, EVERYTHING)}
    assert len(keys) == 4


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    return sweep(task(torch.sigmoid, NARROW), resume=tmp_path_factory.mktemp("sweep") / "here.jsonl", chunks=CHUNKS)


def test_sweep_in_a_process_pool(tmp_path, expected):
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as executor:
        spread = sweep(task(torch.sigmoid, NARROW), executor=executor, resume=tmp_path / "f", chunks=CHUNKS)
        assert spread == expected
        with pytest.raises(OptionError, match="top level of a module"):
            sweep(task(lambda x: x.exp(), NARROW), executor=executor, resume=tmp_path / "g", chunks=CHUNKS)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of Dask's own
def test_sweep_on_two_dask_workers(tmp_path, expected):
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, local_directory=str(tmp_path)
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        executor = client.get_executor()
        assert sweep(task(torch.sigmoid, NARROW), executor=executor, resume=tmp_path / "f", chunks=CHUNKS) == expected
        by_value = task(lambda x: torch.sigmoid(x), NARROW)  # Dask pickles by value
        assert sweep(by_value, executor=executor, resume=tmp_path / "g", chunks=CHUNKS) == expected


def test_chunk_result_round_trips_through_pickle():
    part = measure_chunk(task(torch.sigmoid, NARROW), ONE)
    assert pickle.loads(pickle.dumps(part)) == part


@pytest.mark.slow
def test_killed_command_resumes(tmp_path):
    file = tmp_path / "done.jsonl"
    (tmp_path / "ops.py").write_text("import torch\n\ndef swish(x):\n    return x * torch.sigmoid(x)\n")
    command = [sys.executable, "-m", "pullback", "accuracy", "ops.py:swish", "--dtype", "float32", "--exhaustive"]
    command += ["--domain", "x=1:1.5", "--jobs", "1", "--resume", str(file), "--format", "json"]
    first = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL)
    try:
        while not (file.exists() and len(file.read_text().splitlines()) > 1):
            assert first.poll() is None
            time.sleep(0.02)
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    kept = file.read_text().splitlines()
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert file.read_text().splitlines()[: len(kept) - 1] == kept[:-1]
    rows = json.loads(again.stdout)["rows"]
    assert [row["summary"]["points"] for row in rows] == [2**22 + 1] * 2
    assert rows[0]["coverage"] == "every input"
    assert "bounds in float64" in rows[0]["exact_by"]
    assert all("measuring" in line for line in again.stderr.splitlines())  # progress, on a busy machine


def test_accuracy_with_exhaustive_measures_every_float32(tmp_path):
    measured = accuracy(
        torch.sigmoid,
        dtype=[torch.float32, torch.bfloat16],
        exhaustive=True,
        domain={"x": NARROW},
        resume=tmp_path / "done.jsonl",
    )
    row = measured.row("float32")
    assert (row.coverage, row.summary.points) == ("every input", 2**11 + 1)
    assert "the oracle confirmed the bounds" in repr(measured)


def test_basis_in_words():
    assert str(Basis(10, 2, 0, 4, 0)) == (
        "bounds in float64 (10) and the oracle (2); the oracle confirmed the bounds at 4 of 4 points"
    )
    assert ChunkResult(()) + ChunkResult(()) == ChunkResult(())


def test_forms_of_the_quick_rules_serve_as_references(tmp_path):
    measured = accuracy(
        lambda x: 1 - torch.tanh(x) ** 2,
        dtype=torch.float32,
        exhaustive=True,
        domain={"x": (8.0, 8.03125)},
        resume=tmp_path / "done.jsonl",
    )
    for row in measured.rows:  # bounds of 1 − tanh² in float64 are too wide there
        assert (row.summary.points, row.summary.undecided) == (2**15 + 1, 0)
        assert row.summary.max_ulp > 1e5

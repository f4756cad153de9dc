"""The stopwatch of budgets: seconds of work, but at least a third of the elapsed time."""

import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from pullback.check import clock
from pullback.check.clock import PATIENCE, Stopwatch, processor_time_of, spent

pytestmark = pytest.mark.usefixtures("budgets_as_given")


@pytest.mark.parametrize(
    ("elapsed", "worked", "counted"),
    [(10, 10, 10), (20, 10, 10), (30, 0, 10), (31, 10, 31 / 3), (5, 40, 5), (7, None, 7)],
    ids=["alone", "half a processor", "asleep", "less than a third", "on many threads", "not known"],
)
def test_spent_is_work_or_a_third_of_the_elapsed_time(elapsed, worked, counted):
    assert spent(elapsed, worked) == pytest.approx(counted)


def test_stopwatch_counts_work(monkeypatch):
    now = SimpleNamespace(clock=100.0, worked=7.0)
    fake = SimpleNamespace(monotonic=lambda: now.clock, process_time=lambda: now.worked)
    monkeypatch.setattr(clock, "time", fake)
    watch = Stopwatch()
    now.clock, now.worked = 102.0, 8.0
    assert watch.seconds() == pytest.approx(1.0)
    now.clock = 100.0 + 2 * PATIENCE
    assert watch.seconds() == pytest.approx(2.0)


_WORK = "import time\nwhile time.process_time() < 0.3: pass"


def test_stopwatch_counts_child_processes():
    before = time.process_time()
    watch = Stopwatch()
    subprocess.run([sys.executable, "-c", _WORK], check=True)
    assert time.process_time() - before < 0.2
    assert watch.seconds() >= 0.25


@pytest.mark.skipif(processor_time_of(os.getpid()) is None, reason="this system does not tell of other processes")
def test_processor_time_of_another_process():
    with subprocess.Popen([sys.executable, "-c", f"{_WORK}\ninput()"], stdin=subprocess.PIPE) as process:
        end = time.monotonic() + 20
        while processor_time_of(process.pid) < 0.25 and time.monotonic() < end:
            time.sleep(0.01)
        worked = processor_time_of(process.pid)
        process.communicate(b"\n")
    assert 0.25 <= worked < 1
    assert processor_time_of(process.pid) is None

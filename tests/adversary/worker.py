"""Worker process for a batch of random trials: `python -m tests.adversary.worker BACKEND SEED TRIALS FOLDER`.

`FOLDER/last` holds the running trial, to identify a crash or a hang; `FOLDER/found` the first failure, shrunk;
`FOLDER/counts` the number of trials, and of those that PyTorch itself refused.
"""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch
from hypothesis import HealthCheck, Phase, assume, given, seed, settings

from tests.adversary.agree import Trial, wrongs
from tests.adversary.drawn import has_one_answer, trials
from tests.adversary.fuzz import CONTEXT
from tests.adversary.judge import Wrong
from tests.adversary.known import is_known

SHRINKING = 60
"""Seconds."""


def batch(backend: str, number: int, n: int, folder: Path, shrink: bool = True) -> bool:
    """Run trials until one fails; return whether all passed."""
    torch.set_num_threads(1)
    counts = {"ran": 0, "refused by PyTorch": 0}
    seen: dict[str, list[Wrong] | None] = {}
    failed: list[float] = []
    worst: list[Trial] = []

    def run(trial: Trial) -> None:
        trial = replace(trial, context=os.environ.get(CONTEXT) or trial.context)
        assume(has_one_answer(trial.context, trial.program))
        (folder / "last").write_text(str(trial))
        if str(trial) not in seen:
            if failed and time.monotonic() - failed[0] > SHRINKING:
                return  # the failing trial is small enough
            seen[str(trial)] = wrongs(trial)
        wrong = seen[str(trial)]
        if not failed:  # later trials shrink the failure
            counts["ran"] += 1
            counts["refused by PyTorch"] += wrong is None
        (folder / "counts").write_text(f"{counts['ran']} {counts['refused by PyTorch']}")
        assume(not (wrong and is_known(trial, wrong)))
        if wrong:
            failed.append(time.monotonic())
            worst.append(trial)
            raise AssertionError("\n".join([*map(str, wrong), "", str(trial)]))

    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]
    options = settings(
        max_examples=n,
        database=None,
        deadline=None,
        phases=phases,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    try:
        options(seed(number)(given(trials(backend))(run)))()
    except AssertionError as error:
        least = shortened(worst[-1], folder) if shrink else worst[-1]
        (folder / "found").write_text("\n".join([*map(str, wrongs(least) or [error]), "", str(least)]))
        return False
    return True


def shortened(trial: Trial, folder: Path) -> Trial:
    """Return a failing trial without the lines and contexts that do not matter."""
    end = time.monotonic() + SHRINKING

    def fails(other: Trial) -> bool:
        (folder / "last").write_text(str(other))
        return time.monotonic() < end and bool(wrongs(other))

    for part in ("formula", "inputs"):
        for line in reversed(getattr(trial.program, part).splitlines()):
            rest = "\n".join(other for other in getattr(trial.program, part).splitlines() if other != line)
            shorter = replace(trial, program=replace(trial.program, **{part: rest}))
            trial = shorter if rest and not line.startswith("return") and fails(shorter) else trial
    for context in trial.context.split("; "):
        alone = replace(trial, context=context)
        if fails(alone):
            return alone
    return trial


if __name__ == "__main__":
    backend, number, n, folder, *rest = sys.argv[1:]
    sys.exit(not batch(backend, int(number), int(n), Path(folder), shrink="--no-shrink" not in rest))

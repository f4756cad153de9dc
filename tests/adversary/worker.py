"""One batch of random trials in a process of its own: `python -m tests.adversary.worker BACKEND SEED TRIALS FOLDER`.

`FOLDER/last` is the trial that runs, so that a crash or a hang can be told; `FOLDER/found` is the first that failed,
shrunk; `FOLDER/counts` is how many ran, and how many of these PyTorch itself refused.
"""

import sys
from pathlib import Path

import torch
from hypothesis import HealthCheck, Phase, assume, given, seed, settings

from tests.adversary.agree import Trial, wrongs
from tests.adversary.drawn import trials
from tests.adversary.judge import Wrong
from tests.adversary.known import is_known


def batch(backend: str, number: int, n: int, folder: Path, shrink: bool = True) -> bool:
    """Run trials until one fails; return whether none did."""
    torch.set_num_threads(1)
    counts = {"ran": 0, "refused by PyTorch": 0}
    seen: dict[str, list[Wrong] | None] = {}

    def run(trial: Trial) -> None:
        (folder / "last").write_text(str(trial))
        if str(trial) not in seen:
            seen[str(trial)] = wrongs(trial)
        wrong = seen[str(trial)]
        counts["ran"] += 1
        counts["refused by PyTorch"] += wrong is None
        assume(not (wrong and is_known(trial, wrong)))
        if wrong:
            raise AssertionError("\n".join([*map(str, wrong), "", str(trial)]))

    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]
    options = settings(
        max_examples=n, database=None, deadline=None, phases=phases, suppress_health_check=list(HealthCheck)
    )
    try:
        options(seed(number)(given(trials(backend))(run)))()
    except AssertionError as error:
        (folder / "found").write_text(str(error))
        return False
    finally:
        (folder / "counts").write_text(f"{counts['ran']} {counts['refused by PyTorch']}")
    return True


if __name__ == "__main__":
    backend, number, n, folder, *rest = sys.argv[1:]
    sys.exit(not batch(backend, int(number), int(n), Path(folder), shrink="--no-shrink" not in rest))

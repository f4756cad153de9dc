"""Fuzzing of Pullback: `python -m tests.adversary.fuzz --minutes 30`, or `make fuzz MINUTES=30`.

Batches of random trials run in separate processes on every core, for every backend in turn: kernels compiled by g++ and
clang++, for AVX-512 and AVX2, calls in C++, PyTorch's kernels, Inductor. A crash or a hang counts as a finding. The
seed is printed; `--seed` repeats the trials.
"""

import argparse
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

HANG = 240
"""Time limit of a trial in seconds, without shrinking."""
TRIALS = 150
"""Of a batch."""

CONTEXT = "PULLBACK_ADVERSARY_CONTEXT"
"""Environment variable of a batch that fixes the context of all its trials."""

VARIANTS: dict[str, tuple[str, dict[str, str]]] = {
    "native, g++": ("native", {"CXX": "g++"}),
    "eager": ("eager", {}),
    "native, AVX2": ("native", {"ATEN_CPU_CAPABILITY": "avx2"}),
    "native, in C++": ("native", {"PULLBACK_NODE": "wait"}),
    "native, clang++": ("native", {"CXX": "clang++"}),
    "native, Inductor": ("native", {CONTEXT: "compiled('inductor')"}),
}
"""Backends of the op, and their environment. The last one runs every trial under Inductor; others draw the context."""


@dataclass
class Batch:
    """A process that runs trials, and its output folder."""

    variant: str
    number: int
    process: subprocess.Popen[bytes]
    folder: Path
    began: float = field(default_factory=time.monotonic)

    @property
    def idle(self) -> float:
        """Seconds since a trial began."""
        last = self.folder / "last"
        return time.time() - last.stat().st_mtime if last.exists() else time.monotonic() - self.began - HANG

    def found(self) -> str:
        """Return the finding; empty if there is none."""
        if (self.folder / "found").exists():
            return (self.folder / "found").read_text()
        if self.process.returncode == 0:
            return ""
        last = (self.folder / "last").read_text() if (self.folder / "last").exists() else ""
        how = "hangs" if self.process.returncode == -signal.SIGKILL else f"ends with {self.process.returncode}"
        said = (self.folder / "said").read_text(errors="replace")[-3000:]
        return f"the process {how}\n{said}\n{last}"

    @property
    def is_of_pytorch(self) -> bool:
        """Whether the crash is one of PyTorch alone, which the trial repeats in a separate process."""
        last = self.folder / "last"
        if self.process.returncode >= 0 or not last.exists():
            return False
        command = [sys.executable, "-c", last.read_text().replace("import agree", "import in_pytorch as agree", 1)]
        environment = {**os.environ, **VARIANTS[self.variant][1]}
        alone = subprocess.run(command, env=environment, capture_output=True, timeout=HANG, check=False)
        return alone.returncode == self.process.returncode

    def counts(self) -> tuple[int, int]:
        """Return the number of trials, and of those that PyTorch refused."""
        at = self.folder / "counts"
        ran, refused = at.read_text().split() if at.exists() else (0, 0)
        return int(ran), int(refused)


def start(variant: str, number: int, trials: int, root: Path, sanitize: bool, shrink: bool = True) -> Batch:
    """Start a batch."""
    backend, environment = VARIANTS[variant]
    cache = root / "cache" / (variant.replace(" ", "-") + ("-sanitized" if sanitize else ""))
    cache.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder = root / f"batch-{number}"
    folder.mkdir()
    own = {"PULLBACK_NODE": "off", "PULLBACK_STRICT": "1", "OMP_NUM_THREADS": "1"}
    own |= {"PULLBACK_CACHE_DIR": str(cache), "TORCHINDUCTOR_CACHE_DIR": str(root / "cache" / "inductor")}
    sanitizing = sanitized(root, environment.get("CXX", "g++")) if sanitize else {}
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.adversary.worker", backend, str(number), str(trials)]
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            [*command, str(folder), *([] if shrink else ["--no-shrink"])],
            env={**os.environ, **own, **environment, **sanitizing},
            stdout=said,
            stderr=said,
            start_new_session=True,  # Ctrl-C is for us
        )
    return Batch(variant, number, process, folder)


def sanitized(root: Path, compiler: str) -> dict[str, str]:
    """Return an environment in which kernels are compiled with AddressSanitizer and UBSan."""
    wrapper = root / f"{compiler}-sanitized"
    flags = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -g"
    wrapper.write_text(f'#!/bin/sh\nunset LD_PRELOAD\nexec {compiler} {flags} "$@"\n')
    wrapper.chmod(0o700)
    libraries = [
        subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    return {"CXX": str(wrapper), "LD_PRELOAD": " ".join(libraries), "ASAN_OPTIONS": "detect_leaks=0"}


def run(
    minutes: float,
    seed: int,
    jobs: int,
    variants: list[str],
    sanitize: bool = False,
    shrink: bool = True,
) -> Generator[str, None, None]:
    """Run batches; yield their findings, and lines of progress."""
    root = Path(tempfile.mkdtemp(prefix="adversary-"))
    end = time.monotonic() + 60 * minutes
    turns = itertools.count()
    ran = refused = 0
    running: list[Batch] = []
    try:
        while time.monotonic() < end or running:
            while len(running) < jobs and time.monotonic() < end:
                turn = next(turns)
                variant = variants[turn % len(variants)]
                running.append(start(variant, seed + turn, TRIALS, root, sanitize, shrink))
            time.sleep(0.5)
            for batch in list(running):
                if batch.process.poll() is None:
                    late = time.monotonic() > end + 300 * shrink
                    if batch.idle > HANG or late:
                        os.killpg(batch.process.pid, signal.SIGKILL)
                        batch.process.wait()
                        if late:
                            yield f"stopped, not counted: a batch takes too long ({batch.variant}, seed {batch.number})"
                        else:
                            yield f"FOUND ({batch.variant}, seed {batch.number}): {batch.found()}"
                        running.remove(batch)
                    continue
                running.remove(batch)
                ran, refused = ran + batch.counts()[0], refused + batch.counts()[1]
                found = batch.found()
                if found and batch.is_of_pytorch:
                    yield f"PyTorch itself crashes ({batch.variant}, seed {batch.number}): {found}"
                elif found:
                    yield f"FOUND ({batch.variant}, seed {batch.number}): {found}"
                left = max(0.0, (end - time.monotonic()) / 60)
                yield f"{ran} trials, {refused} of them refused by PyTorch; {left:.1f} minutes left ({batch.variant})"
                shutil.rmtree(batch.folder)
    finally:
        for batch in running:
            if batch.process.poll() is None:
                os.killpg(batch.process.pid, signal.SIGKILL)
                batch.process.wait()
        shutil.rmtree(root, ignore_errors=True)


def main() -> None:
    """Run the command; exit with 1 if anything was found."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**8))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    names = "; ".join(VARIANTS)
    parser.add_argument("--variant", action="append", choices=list(VARIANTS), metavar="NAME", help=f"one of: {names}")
    parser.add_argument("--sanitize", action="store_true")
    options = parser.parse_args()
    if options.jobs < 1:
        parser.error("--jobs is 1 or more")
    variants = options.variant or [name for name in VARIANTS if _has_compiler(name)]
    left_out = ", ".join(name for name in VARIANTS if not _has_compiler(name))
    print(f"seed {options.seed}: a line comes after each batch of {TRIALS} trials", flush=True)
    print(f"left out, for want of a compiler: {left_out}\n" * bool(left_out), end="", flush=True)
    found, last = [], ""
    try:
        for line in run(options.minutes, options.seed, options.jobs, variants, options.sanitize):
            print(line, flush=True)
            found += [line] * line.startswith("FOUND")
            last = line.split(";")[0] if " trials, " in line else last
    except KeyboardInterrupt:
        print("interrupted: batches that were running are not counted")
    print(f"seed {options.seed}: " + (f"{len(found)} found in {last}" if last else "no batch ended"), flush=True)
    if found:
        print("`--seed N --variant V` begins with the batch of the finding (V, seed N)", flush=True)
    sys.exit(bool(found) or not last)


def _has_compiler(variant: str) -> bool:
    backend, environment = VARIANTS[variant]
    return backend == "eager" or shutil.which(environment.get("CXX", "g++")) is not None


if __name__ == "__main__":
    main()

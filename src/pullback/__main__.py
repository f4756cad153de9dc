"""`pullback`, and `python -m pullback`."""

from __future__ import annotations

import os
import signal
from types import FrameType

_IMPORTED = {"click", "numpy", "pullback", "torch"}
_INTERRUPTED = 130


def main() -> None:
    """Run the program; also while it is imported, Ctrl-C ends it with one line."""
    signal.signal(signal.SIGINT, _interrupt)
    from pullback.cli import main as run

    run()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """End the process within an import of ours, where NumPy swallows an exception; else raise, as Python does."""
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if frame.f_code.co_name == "<module>" and name.partition(".")[0] in _IMPORTED:
            os.write(2, b"interrupted\n")
            os._exit(_INTERRUPTED)
        frame = frame.f_back
    signal.default_int_handler(number, frame)


if __name__ == "__main__":
    main()

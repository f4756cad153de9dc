"""Where Pullback keeps what it made for later: the user's cache."""

from __future__ import annotations

import os
from pathlib import Path


def root() -> Path:
    """Return the folder of all that is kept: `PULLBACK_CACHE_DIR`, or one in the user's cache directory.

    Raises:
        RuntimeError: if the user has no home.
    """
    given = os.environ.get("PULLBACK_CACHE_DIR")
    return Path(given) if given else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pullback"

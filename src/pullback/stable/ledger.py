"""A file of finished chunks, so that an exhaustive measurement resumes where it was interrupted.

It has one line of JSON per chunk, after a line that identifies the measurement. Lines are appended; an incomplete last
line is dropped.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from pullback.errors import OptionError
from pullback.stable.chunk import Basis, Part
from pullback.stable.summary import Summary


class Ledger:
    """Progress of a measurement.

    Attributes:
        done: the finished chunks.
    """

    def __init__(self, path: Path, key: str) -> None:
        """Read a file, or begin it.

        Args:
            path: of the file.
            key: identity of the measurement, on one line.

        Raises:
            OptionError: if the file is of another measurement, or cannot be read or written.
        """
        self.done: dict[int, Part] = {}
        self._path = path
        try:
            self._read(key)
        except OSError as error:
            raise OptionError(f"{path}: {error.strerror}") from error

    def _read(self, key: str) -> None:
        whole = self._path.read_bytes() if self._path.exists() else b""
        complete = whole[: whole.rfind(b"\n") + 1]
        if not complete:
            self._path.write_text(json.dumps({"measurement": key}) + "\n", encoding="utf-8")
            return
        if len(complete) < len(whole):
            os.truncate(self._path, len(complete))
        try:
            first, *lines = map(json.loads, complete.splitlines())
            if first["measurement"] != key:
                raise OptionError(f"{self._path} is of another measurement: give another file, or remove it")
            self.done = {line["chunk"]: _part(line) for line in lines}
        except (ValueError, KeyError, TypeError) as error:
            raise OptionError(f"{self._path} is not a file of finished chunks") from error

    def add(self, chunk: int, part: Part) -> None:
        """Write down a finished chunk."""
        self.done[chunk] = part
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"chunk": chunk, **asdict(part)}) + "\n")

    def remove(self) -> None:
        """Delete the file."""
        self._path.unlink(missing_ok=True)


def _part(line: dict[str, object]) -> Part:
    summaries, basis = line["summaries"], line["basis"]
    assert isinstance(summaries, list)
    assert isinstance(basis, dict)
    return Part(tuple(map(Summary.from_dict, summaries)), Basis(**basis))

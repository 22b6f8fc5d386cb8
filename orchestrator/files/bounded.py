"""Files that a user names, read up to a maximum: `/dev/zero` and an endless pipe are files too."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

LARGEST = 256 * 1024 * 1024
"""Maximum bytes of a file, and of a line of a file that is read line by line."""


class FileTooLarge(OSError):
    """A file has more bytes than are read."""

    def __init__(self, file: Path | str, what: str = "it") -> None:
        super().__init__(errno.EFBIG, f"{what} has more than {LARGEST:,} bytes", str(file))


def read_stream(stream: BinaryIO, file: Path | str) -> bytes:
    """Return the content of an open file. Raises FileTooLarge."""
    data = stream.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise FileTooLarge(file)
    return data


def read_file(file: Path) -> bytes:
    """Return the content of a file.

    Args:
        file: The file.

    Raises:
        FileTooLarge: The file has more bytes.
        OSError: The file cannot be read.
    """
    with file.open("rb") as stream:
        return read_stream(stream, file)


def read_lines(file: Path) -> Iterator[bytes]:
    """Yield the lines of a file. Raises FileTooLarge, OSError."""
    with file.open("rb") as stream:
        while line := stream.readline(LARGEST + 1):
            if len(line) > LARGEST:
                raise FileTooLarge(file, "a line of it")
            yield line

"""Read the write-ahead log as bytes, to tell whether SQLite ignored a torn tail or damage, and extend its file.

SQLite ends the log at the first wrong frame and does not report the frames after it.

A frame's checksum covers the checksum of the frame before it. A transaction is written behind another one only after
that one was synced. So a power loss can tear only the last transaction. If two transactions after a wrong frame
follow each other without a gap, the first of them was durable once, with the wrong frame before it or in it: that is
damage. (Format: https://sqlite.org/fileformat2.html#walformat)

Other processes may write meanwhile. A wrong frame counts if a second read finds the same bytes in the same log.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import NamedTuple, Self

_HEADER, _FRAME = 32, 24
_MAGIC = 0x377F0682
_PAGES = range(512, 65537)
"""Allowed page sizes."""

_INNER = bytes(4)
"""Size field of a frame that is not the last one of its transaction; the last one has the size of the database."""

Sum = tuple[int, int]


class _Log(NamedTuple):
    """An open log with a valid header."""

    file: int
    header: bytes
    size: int
    page: int
    order: str
    """Byte order of the checksums: `<` or `>`."""

    @classmethod
    def opened(cls, file: int) -> Self | None:
        """Return the log in an open file, or None if its header is invalid."""
        header = os.pread(file, _HEADER, 0)
        if len(header) < _HEADER:
            return None
        magic, _, page = struct.unpack_from(">III", header)
        if magic & ~1 != _MAGIC or page not in _PAGES:
            return None
        order = ">" if magic & 1 else "<"
        if checksum(header[:24], (0, 0), order) != struct.unpack_from(">II", header, 24):
            return None
        return cls(file, header, os.fstat(file).st_size, page, order)

    @property
    def frames(self) -> int:
        """Number of complete frames, right or wrong."""
        return (self.size - _HEADER) // (_FRAME + self.page)

    def at(self, number: int) -> int:
        """Return the offset of a frame, counted from 1."""
        return _HEADER + (number - 1) * (_FRAME + self.page)

    def head(self, number: int) -> bytes:
        """Return the header of a frame, padded if it was cut off meanwhile."""
        return os.pread(self.file, _FRAME, self.at(number)).ljust(_FRAME, b"\0")

    def frame(self, number: int) -> bytes:
        """Return a whole frame."""
        return os.pread(self.file, _FRAME + self.page, self.at(number))

    def ours(self, head: bytes) -> bool:
        """Return whether a frame was written since the last restart of the log."""
        return head[8:16] == self.header[16:24]

    def sum_of(self, number: int) -> Sum:
        """Return the checksum stored in a frame, or in the log's header for 0."""
        first, second = struct.unpack(">II", self.head(number)[16:] if number else self.header[24:])
        return first, second

    def follows(self, number: int, *, size: bytes | None = None) -> bool:
        """Return whether a frame correctly follows the one before it, with `size` as its size field if given."""
        frame = self.frame(number)
        if len(frame) < _FRAME + self.page or not self.ours(frame):
            return False
        head = frame[:8] if size is None else frame[:4] + size
        before = checksum(head, self.sum_of(number - 1), self.order)
        return checksum(frame[_FRAME:], before, self.order) == struct.unpack(">II", frame[16:_FRAME])


def checksum(content: bytes, start: Sum, order: str) -> Sum:
    """Return SQLite's checksum of a multiple of eight bytes, continued from `start`."""
    first, second = start
    words = iter(struct.unpack(f"{order}{len(content) // 4}I", content))
    for one, two in zip(words, words, strict=True):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + two + first) & 0xFFFFFFFF
    return first, second


def damaged_frame(path: Path, committed: int) -> int | None:
    """Return the number of a damaged frame in the log at `path`, or None. Raises OSError.

    `committed` is the number of frames that SQLite accepted.
    """
    found = _look(path, committed)
    return found[0] if found is not None and _look(path, committed) == found else None


def _look(path: Path, committed: int) -> tuple[int, bytes, bytes] | None:
    """Return the number of the wrong frame, the log's header and the frame's bytes, or None."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        log = _Log.opened(file)
        if log is None:
            return None
        wrong = committed + 1
        while wrong <= log.frames and log.follows(wrong):
            wrong += 1
        proved = _two_transactions_behind(log, wrong)
        return (wrong, log.header, log.frame(wrong)) if proved else None
    finally:
        os.close(file)


def _two_transactions_behind(log: _Log, wrong: int) -> bool:
    """Return whether two adjacent transactions end at or after the wrong frame."""
    ended = False
    """Whether a transaction has ended and every later frame follows the one before it."""
    for number in range(wrong, log.frames + 1):
        head = log.head(number)
        if not log.ours(head):
            ended = False
            continue
        ended = ended and log.follows(number)
        if head[4:8] == _INNER or (number == wrong and log.follows(number, size=_INNER)):
            continue  # a wrong frame whose size field alone is wrong ends no transaction
        if ended:
            return True
        ended = True
    return False


EXTENT = 64
"""Frames by which the file of a log is extended at once: 260 KiB, the commits of about 15 turns."""


def extend(path: Path) -> int:
    """Append empty frames to the file of a log; return the frames that it has room for, 0 if it has no header yet.

    A commit that makes the file longer also waits for the journal of the file system: its sync blocks four times, not
    twice. SQLite reads the log up to its first wrong frame, so the zeros mean nothing to it. Only for the holder of the
    write lock, because the other writers write at the end of the file. Raises OSError.
    """
    file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        log = _Log.opened(file)
        if log is None:
            return 0
        os.pwrite(file, bytes(EXTENT * (_FRAME + log.page)), log.at(log.frames + 1))
        return log.frames + EXTENT
    finally:
        os.close(file)


def sync(path: Path) -> None:
    """Make the content of the log durable, including writes of other processes. Raises OSError."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(file)
    finally:
        os.close(file)

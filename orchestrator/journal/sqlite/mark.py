"""The file `journal.db-mark`: a slot for each process that writes, and how it is read. See `high_water`.

- The header has 512 bytes: magic, identity, checksum. It is written once, and synced.
- A slot is two copies of 512 bytes, which are written in turn.
- A copy has the token of the slot's process, the number of its writes, and the position of a run.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

SECTOR = 512
SLOT = 2 * SECTOR
_MAGIC = b"FSMmark1"
_HEADER = struct.Struct("<8s16sI")
_COPY = struct.Struct("<8sQqqqq32s")
_SUM = struct.Struct("<I")
COPY = _COPY.size + _SUM.size

REMOVED = -1
"""In place of a record's number: the run was removed."""


class HighWater(NamedTuple):
    """The position of a run after a commit."""

    run: int = 0
    """Number of its row, 0 for none."""
    epoch: int = 0
    seq: int = 0
    """Number of the last record, or REMOVED."""
    requests: int = 0
    head: bytes = bytes(32)
    """Hash of the last record."""


class SlotCopy(NamedTuple):
    """The content of a slot."""

    token: str
    """Token of the process that has the slot, "" for none."""
    number: int
    """Number of the write: the higher one of the two copies is newer."""
    high_water: HighWater


class Mark(NamedTuple):
    """The content of a mark. `slots` has None if neither copy can be read."""

    identity: bytes
    slots: tuple[SlotCopy | None, ...]


def mark_of(path: Path) -> Path:
    """Return the path of the mark of a journal file."""
    return path.with_name(f"{path.name}-mark")


def read(path: Path) -> Mark | None:
    """Return the mark beside a journal file; None if it is missing or unreadable. Raises OSError."""
    try:
        content = mark_of(path).read_bytes()
    except FileNotFoundError:
        return None
    header = content[: _HEADER.size]
    if len(header) < _HEADER.size:
        return None
    magic, identity, total = _HEADER.unpack(header)
    if magic != _MAGIC or total != zlib.crc32(header[: -_SUM.size]):
        return None
    return Mark(identity, tuple(_slots(content)))


def _slots(content: bytes) -> Iterator[SlotCopy | None]:
    for start in range(SECTOR, len(content) - SLOT + 1, SLOT):
        copies = [_copy(content, start + at) for at in (0, SECTOR)]
        yield max((copy for copy in copies if copy is not None), key=lambda copy: copy.number, default=None)


def _copy(content: bytes, start: int) -> SlotCopy | None:
    packed = content[start : start + _COPY.size]
    if _SUM.unpack_from(content, start + _COPY.size)[0] != zlib.crc32(packed):
        return None
    token, number, *rest = _COPY.unpack(packed)
    return SlotCopy(token.hex() if any(token) else "", number, HighWater(*rest))


def packed_header(identity: bytes) -> bytes:
    """Return the first sector of a mark."""
    header = _HEADER.pack(_MAGIC, identity, 0)[: -_SUM.size]
    return (header + _SUM.pack(zlib.crc32(header))).ljust(SECTOR, b"\0")


def packed_copy(token: bytes, number: int, high_water: HighWater) -> bytes:
    """Return the COPY bytes of one copy; `token` has 8 bytes."""
    packed = _COPY.pack(token, number, *high_water)
    return packed + _SUM.pack(zlib.crc32(packed))


def packed_slot(token: bytes, number: int, high_water: HighWater) -> bytes:
    """Return a whole slot with two equal copies."""
    return packed_copy(token, number, high_water).ljust(SECTOR, b"\0") * 2

"""Code that all stores share: bodies as bytes, the hash chain, blobs by digest, a run's status from its last record."""

from __future__ import annotations

import functools
import hashlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from orchestrator.errors import Corrupt, JournalError, TooNew
from orchestrator.kernel.journal import (
    ENDING_KINDS,
    NO_HASH,
    PARKING_KINDS,
    RECORD_SCHEMA,
    Draft,
    Record,
    RunHead,
)

CLAIM_KINDS = frozenset(("claimed", "resumed"))
"""Records that only state the owner of the run; they are not progress (`RunHead.stuck_claims`)."""

OPEN: Final = "open"
PARKED: Final = "parked"
ENDED: Final = "ended"


def chained(before: str, run_id: str, seq: int, epoch: int, kind: str, body: bytes) -> str:  # noqa: PLR0917
    """Return the hash (hex) of a record: SHA-256 over the hash before it and each of its parts, with their lengths."""
    number = b"%d" % seq
    parts = (_counted(run_id), len(number), number, _counted(epoch), _counted(kind), len(body), body)
    return hashlib.sha256(b"%s%s%d:%s%s%s%d:%s" % (before.encode(), *parts)).hexdigest()


@functools.lru_cache(maxsize=1_000)
def _counted(part: str | int) -> bytes:
    """Return what is the same in many records with its length before it."""
    text = str(part).encode()
    return b"%d:%s" % (len(text), text)


def encoded(kind: str, body: Mapping[str, Any]) -> bytes:
    """Return a body as JSON. Raises JournalError if it is not plain data.

    The body is encoded when it is appended, so that a later change of it does not change the record, and so that the
    store in memory refuses the same bodies as the others.
    """
    try:
        return orjson.dumps(body, default=plain)
    except TypeError as error:
        raise JournalError(f"a record of kind {kind!r} is not plain data: {error}") from error


def plain(value: object) -> object:
    """Return the JSON form of a value that orjson does not know. Raises TypeError if there is none."""
    if isinstance(value, _SEQUENCES):
        return list(value)
    if isinstance(value, _SETS):
        return sorted(value, key=repr)  # the order of a set differs between processes
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__name__} is not a JSON type")


_SEQUENCES = (tuple, deque)
"""Concrete classes are asked first: an ABC is ten times as slow, and a union is made anew at each call."""
_SETS = (frozenset, set)


def lines(drafts: Sequence[Draft]) -> list[tuple[str, bytes]]:
    """Return (kind, encoded body) of each draft. Raises JournalError for a body that is not plain data."""
    try:
        return [(kind, orjson.dumps(body, plain)) for kind, body in drafts]
    except TypeError:
        return [(kind, encoded(kind, body)) for kind, body in drafts]  # raises the error that names the kind


def block(drafts: Sequence[Draft]) -> tuple[tuple[str, ...], bytes]:
    """Return the kinds of drafts and all their bodies as one JSON array. Raises JournalError as `lines` does."""
    kinds, bodies = zip(*drafts, strict=True)
    try:
        array = orjson.dumps(bodies, plain)
    except TypeError:
        array = b"[%s]" % b",".join([body for _, body in lines(drafts)])
    # A copy of the needed size: orjson shortens a bigger buffer and keeps the rest allocated.
    return kinds, bytes(memoryview(array))


def apart(array: bytes) -> list[bytes]:
    """Return the encoded bodies of a block, equal to those of `lines`."""
    return [orjson.dumps(body) for body in orjson.loads(array)]


def status_after(kind: str, body: Mapping[str, Any]) -> tuple[str, str]:
    """Return the status and reason of a run whose last record is this one."""
    if kind in ENDING_KINDS:
        return ENDED, str(body.get("reason") or "")
    if kind in PARKING_KINDS:
        return PARKED, str(body.get("reason") or "")
    return OPEN, ""


def only_claims(kinds: Sequence[str]) -> bool:
    """Return whether records of these kinds count as no progress."""
    return kinds[0] in CLAIM_KINDS and CLAIM_KINDS.issuperset(kinds)


def check_blob(digest: str, content: bytes) -> None:
    """Raise JournalError for a blob whose name is not the SHA-256 of its content."""
    if hashlib.sha256(content).hexdigest() != digest:
        raise JournalError(f"blob {digest!r} is not named by the SHA-256 of its content")


def verified_blob(digest: str, content: bytes | None) -> bytes:
    """Return the content stored under a digest. Raises Corrupt if it is missing or has another digest."""
    if content is None:
        raise Corrupt(f"blob {digest!r} is not in the journal")
    if hashlib.sha256(content).hexdigest() != digest:
        raise Corrupt(f"blob {digest!r} is damaged: its content has another digest")
    return content


Stored = tuple[int, int, str, bytes, str]
"""A stored record: seq, epoch, kind, encoded body, hash."""


def verified(run_id: str, stored: Iterable[Stored], head: RunHead, last_hash: str) -> list[Record]:
    """Return all records of a run, verified by the chain and the head row. Raises Corrupt or TooNew."""
    found: list[Record] = []
    before = NO_HASH
    epoch = 0
    for number, (seq, writer, kind, body, stored_hash) in enumerate(stored):
        before = chained(before, run_id, seq, writer, kind, body)
        if seq != number or before != stored_hash or writer < epoch:
            raise Corrupt(f"run {run_id!r}: record {number} is damaged; nothing of the run is used")
        epoch = writer
        found.append(Record(seq, writer, kind, orjson.loads(body), before))
    if len(found) != head.seq + 1 or before != last_hash or epoch > head.epoch:
        raise Corrupt(
            f"run {run_id!r}: {len(found)} records, {head.seq + 1} were written; nothing of the run is used"
        )
    _check_status(run_id, found, head)
    return found


def _check_status(run_id: str, records: list[Record], head: RunHead) -> None:
    schema = records[0].body.get("schema", RECORD_SCHEMA)
    if schema > RECORD_SCHEMA:
        raise TooNew(
            f"run {run_id!r} has records of version {schema}; this version reads up to {RECORD_SCHEMA}"
        )
    if status_after(records[-1].kind, records[-1].body) != (head.status, head.reason):
        raise Corrupt(f"run {run_id!r}: its records and its status do not agree; nothing of the run is used")

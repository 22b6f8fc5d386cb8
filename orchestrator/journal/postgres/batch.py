"""Send several appends to the server: one statement, checked for each run, in one commit.

If the connection is lost while the statement is in flight, its outcome is looked up. If a record with the right
number and hash exists, the append landed. If the run has not moved, the append is sent again. Otherwise another owner
holds the run. The hash chain makes this exact, even if the owner has changed since, or the lost statement landed
late.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import psycopg

from orchestrator.errors import Fenced, JournalError
from orchestrator.journal.codec import Row, chained, check_blob, encoded_append, only_claims
from orchestrator.journal.head_change import UNCHANGED, HeadChange, Identity, head_change
from orchestrator.journal.postgres.statement import APPEND, APPEND_BLOBS, STANDS
from orchestrator.kernel.journal import Draft, Lease

Db: TypeAlias = psycopg.Connection[Any]

_APPEND: Final = APPEND.encode()
_APPEND_BLOBS: Final = APPEND_BLOBS.encode()
_STANDS: Final = STANDS.encode()


class PostgresAppend:
    """Records for a run, with the blobs they name."""

    __slots__ = ("blobs", "body", "change", "count", "kinds", "lease")

    def __init__(self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None) -> None:
        self.lease = lease
        self.kinds, self.body = encoded_append(drafts)
        self.count = len(drafts)
        self.change = head_change(drafts)
        self.blobs = dict(blobs) if blobs else None

    def __call__(self, _: object) -> None:
        """Do nothing: the batch writes appends."""

    def check(self) -> None:
        """Raise JournalError for a blob whose name is not its digest."""
        for digest, content in (self.blobs or {}).items():
            check_blob(digest, content)


@dataclass(slots=True)
class Part:
    """The part of one run: the queued appends of one lease, combined."""

    lease: Lease
    was_seq: int
    was_head: str
    seq: int
    head: str
    rows: list[Row] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    change: HeadChange = UNCHANGED
    progress: bool = False
    landed: bool | None = None
    """None: not known yet. False: fenced."""

    @classmethod
    def of(cls, lease: Lease) -> Part:
        """Start at the position of a lease."""
        return cls(lease, lease.seq, lease.head, lease.seq, lease.head)

    def add(self, append: PostgresAppend) -> None:
        """Add one more append."""
        lease, kinds, body = self.lease, append.kinds, append.body
        self.seq += append.count
        self.head = chained(self.head, lease.run_id, self.seq, lease.epoch, kinds, body)
        self.rows.append(Row(self.seq, lease.epoch, kinds, body, self.head))
        self.change = self.change.then(append.change)
        self.progress |= not only_claims(kinds)
        self.blobs.update(append.blobs or {})

    def judge(self, epoch: int, seq: int, head: bytes, there: bytes | None) -> None:
        """Set the outcome from the position of the run and the hash of the row at this part's last number."""
        if there is not None and there.hex() == self.head:
            self.landed = True
        elif (epoch, seq, head.hex()) != (self.lease.epoch, self.was_seq, self.was_head):
            self.landed = False


class AppendBatch:
    """Several appends, those of each run by one lease. It is called until the outcome of each is known."""

    def __init__(self) -> None:
        self.parts: dict[str, Part] = {}
        self._sent = False

    def add(self, append: PostgresAppend) -> JournalError | None:
        """Add an append, or return the error that refuses it."""
        try:
            append.check()
        except JournalError as error:
            return error
        lease = append.lease
        self.parts.setdefault(lease.run_id, Part.of(lease)).add(append)
        return None

    def outcome(self, append: PostgresAppend) -> Fenced | None:
        """Return the error of an append, or None if it landed."""
        lease = append.lease
        return None if self.parts[lease.run_id].landed else Fenced(lease.run_id, lease.epoch)

    def settle(self) -> None:
        """Advance the leases."""
        for part in self.parts.values():
            if part.landed:
                part.lease.seq, part.lease.head = part.seq, part.head

    def __call__(self, db: Db) -> None:
        """Write the parts whose outcome is not known."""
        resent, self._sent = self._sent, True
        if resent:
            self._look(db, self._unknown())
        waiting = self._unknown()
        if not waiting:
            return
        moved = _write(db, waiting)
        refused = [part for number, part in enumerate(waiting, 1) if number not in moved]
        for number in moved:
            waiting[number - 1].landed = True
        if (
            refused and resent
        ):  # the lost statement may still have been in flight at the check, and may have landed since
            self._look(db, refused)
        for part in refused:
            part.landed = bool(part.landed)

    def _unknown(self) -> list[Part]:
        return [part for part in self.parts.values() if part.landed is None]

    @staticmethod
    def _look(db: Db, parts: list[Part]) -> None:
        asked = ([part.lease.run_id for part in parts], _numbers([part.seq for part in parts]))
        found = {row[0]: row[1:] for row in db.execute(_STANDS, asked, binary=True)}
        for number, part in enumerate(parts, 1):
            if number in found:
                part.judge(*found[number])
            else:
                part.landed = False  # the run was removed


def _write(db: Db, parts: list[Part]) -> set[int]:
    """Send the statement; return the numbers of the parts that it wrote, from 1."""
    rows = [(number, row) for number, part in enumerate(parts, 1) for row in part.rows]
    values: list[Any] = [
        [part.lease.run_id for part in parts],
        _numbers([part.lease.epoch for part in parts]),
        _numbers([part.was_seq for part in parts]),
        [bytes.fromhex(part.was_head) for part in parts],
        _numbers([part.seq for part in parts]),
        [bytes.fromhex(part.head) for part in parts],
        *map(list, zip(*[part.change.status for part in parts], strict=True)),
        *map(list, zip(*[part.change.state or (None, None) for part in parts], strict=True)),
        *map(_numbers, zip(*[part.change.usage or (None, None) for part in parts], strict=True)),
        *map(_numbers, zip(*[part.change.children or (None, None) for part in parts], strict=True)),
        *map(list, zip(*[part.change.identity or Identity() for part in parts], strict=True)),
        _numbers([part.progress for part in parts]),
        _numbers([number for number, _ in rows]),
        _numbers([row.seq for _, row in rows]),
        _numbers([row.epoch for _, row in rows]),
        [row.kinds for _, row in rows],
        [row.body for _, row in rows],
        [bytes.fromhex(row.hash) for _, row in rows],
    ]
    blobs = [(number, *blob) for number, part in enumerate(parts, 1) for blob in part.blobs.items()]
    if blobs:
        values += [
            _numbers([blob[0] for blob in blobs]),
            [bytes.fromhex(blob[1]) for blob in blobs],
            [blob[2] for blob in blobs],
        ]
    found = db.execute(_APPEND_BLOBS if blobs else _APPEND, values, prepare=True)
    return {row[0] for row in found}


def _numbers(values: Sequence[int | None]) -> str:
    """Return an array as text: for a list, the driver would choose a type by its biggest number, and prepare again."""
    return f"{{{','.join(['NULL' if value is None else str(value) for value in values])}}}"

"""A run's row, read and verified by its checksums."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import apsw

from orchestrator.errors import Corrupt, RunUnknown
from orchestrator.journal.sqlite.owner import HolderState
from orchestrator.journal.sqlite.schema import checksum
from orchestrator.kernel.journal import RunHead

COLUMNS = """id, run_id, graph, fingerprint, created_at, parent_run_id, conversation_id, fixed_sum,
    epoch, seq, last_hash, progress, status, reason, updated_at, sum, requests, requests_sum,
    owner, holder"""


class Values(NamedTuple):
    """The values that `sum` covers, in its order."""

    run_id: str
    epoch: int
    seq: int
    last_hash: str
    progress: int
    status: str
    reason: str
    updated_at: float


class RunRow(NamedTuple):
    """One row of `run`."""

    id: int
    run_id: str
    graph: str
    fingerprint: str
    created_at: float
    parent_run_id: str | None
    conversation_id: str | None
    fixed_sum: int
    epoch: int
    seq: int
    last_hash: str
    progress: int
    status: str
    reason: str
    updated_at: float
    sum: int
    requests: int
    requests_sum: int
    owner: str | None
    holder: str | None

    def values(self) -> Values:
        """Return the values that `sum` covers."""
        return Values(
            self.run_id,
            self.epoch,
            self.seq,
            self.last_hash,
            self.progress,
            self.status,
            self.reason,
            self.updated_at,
        )

    def summary(self, state_of: Callable[[str | None], HolderState]) -> RunHead:
        """Return the head of the run."""
        state = state_of(self.holder)
        return RunHead(
            run_id=self.run_id,
            graph=self.graph,
            fingerprint=self.fingerprint,
            status=self.status,
            seq=self.seq,
            epoch=self.epoch,
            owner=self.owner if state.alive else None,
            created_at=self.created_at,
            updated_at=self.updated_at,
            reason=self.reason,
            parent_run_id=self.parent_run_id,
            conversation_id=self.conversation_id,
            stuck_claims=self.epoch - self.progress,
            lease_expires_in=state.expires_in if state.alive and state.overdue else None,
        )


@contextmanager
def decoding(what: str) -> Iterator[None]:
    """Report a value of another type, or text that cannot be decoded, as damage."""
    try:
        yield
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Corrupt(f"{what} is damaged: {error}") from error


def proved(row: tuple[object, ...]) -> RunRow:
    """Return a row of the columns above as a value. Raises Corrupt."""
    with decoding(f"run {row[1]!r}: its row"):
        found = RunRow._make((*row[:10], bytes(row[10]).hex(), *row[11:]))  # type: ignore[call-overload]
        right = (
            checksum(*found[1:7]) == found.fixed_sum
            and checksum(*found.values()) == found.sum
            and checksum(found.run_id, found.requests) == found.requests_sum
        )
    if not right:
        raise Corrupt(f"run {found.run_id!r}: its row is damaged; nothing of the run is used")
    return found


def row_of(cursor: apsw.Cursor, run_id: str) -> RunRow | None:
    """Return the row of a run, or None. Raises Corrupt."""
    with decoding(f"run {run_id!r}: its row"):
        row = cursor.execute(f"SELECT {COLUMNS} FROM run WHERE run_id=?", (run_id,)).fetchone()  # noqa: S608
    if row is None:
        return None
    found = proved(row)
    if found.run_id != run_id:
        raise Corrupt(f"run {run_id!r}: the index leads to another run")
    return found


def known(cursor: apsw.Cursor, run_id: str) -> RunRow:
    """Return the row of a run. Raises RunUnknown, or Corrupt, also if only the index has lost it."""
    row = row_of(cursor, run_id)
    if row is not None:
        return row
    if cursor.execute("SELECT 1 FROM run NOT INDEXED WHERE run_id=?", (run_id,)).fetchone():
        raise Corrupt(f"run {run_id!r}: the index has lost it")
    raise RunUnknown(run_id)


def rows_after(
    cursor: apsw.Cursor, number: int, most: int, among: Mapping[str, str]
) -> Iterator[tuple[object, ...]]:
    """Yield up to `most` unverified rows of runs after run `number`; `among` maps columns to required values."""
    conditions = "".join([f" AND {column}=?" for column in among])
    yield from cursor.execute(
        f"SELECT {COLUMNS} FROM run WHERE id>?{conditions} ORDER BY id LIMIT ?",  # noqa: S608
        (number, *among.values(), most),
    )


def newest_row(cursor: apsw.Cursor, conversation_id: str) -> RunRow | None:
    """Return the row of the newest run of a conversation, or None. Raises Corrupt."""
    row = cursor.execute(
        f"SELECT {COLUMNS} FROM run WHERE conversation_id=? ORDER BY id DESC LIMIT 1",  # noqa: S608
        (conversation_id,),
    ).fetchone()
    return None if row is None else proved(row)

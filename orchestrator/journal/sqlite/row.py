"""What is stored: a run's row, verified by its checksums, and blobs by their SHA-256.

A file is complete and durable (temporary file, sync, rename, sync of the folder) before the row that names it is
committed. `sweep` removes a file whose row was never committed or was deleted.

A group of columns that has only its defaults adds nothing to a checksum: so the row of an earlier version, which lacks
these columns, is a valid row of the present version.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import apsw
import orjson

from orchestrator.errors import Corrupt, RunUnknown
from orchestrator.journal.codec import NOTHING, Fixed, HeadChange, total, verified_blob
from orchestrator.journal.run_query import ORDERS, RunQuery
from orchestrator.journal.sqlite.owner import HolderState
from orchestrator.journal.sqlite.place import sync_folder
from orchestrator.journal.sqlite.schema import checksum
from orchestrator.kernel.journal import RunHead

BIG = 1 << 20
"""Minimum bytes of a blob that becomes a file: a row of that length would lengthen the write-ahead log twice."""


class Blobs:
    """The blobs of one journal. The first big blob creates `folder`."""

    def __init__(self, folder: Path, token: Callable[[], str]) -> None:
        self.folder = folder
        self._token = token

    @staticmethod
    def is_big(content: bytes) -> bool:
        """Return whether the content is stored as a file."""
        return len(content) >= BIG

    def write(self, digest: str, content: bytes) -> None:
        """Write a file, durable when this returns. Raises OSError."""
        if not self.folder.is_dir():
            self.folder.mkdir(mode=0o700, exist_ok=True)
            sync_folder(self.folder.parent)
        temporary = self.folder / f"{digest}.{self._token()}.tmp"
        try:
            descriptor = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                written = 0
                while written < len(content):
                    written += os.write(descriptor, memoryview(content)[written:])
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            temporary.replace(self.folder / digest)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        sync_folder(self.folder)

    def insert(self, cursor: apsw.Cursor, run: int, blobs: Mapping[str, bytes]) -> None:
        """Add the rows of the blobs that a run names, within its append."""
        for digest, content in blobs.items():
            name, big = bytes.fromhex(digest), self.is_big(content)
            if big and not (self.folder / digest).exists():
                self.write(digest, content)  # swept meanwhile, because it had no row yet
            row = (name, len(content), None if big else content)
            cursor.execute("INSERT INTO blob VALUES (?,?,?) ON CONFLICT DO NOTHING", row)
            cursor.execute("INSERT INTO blob_use VALUES (?,?) ON CONFLICT DO NOTHING", (run, name))

    def read(self, cursor: apsw.Cursor, digest: str) -> bytes:
        """Return a blob. Raises Corrupt."""
        # No bytes.fromhex: a malformed digest is simply not here.
        row = cursor.execute("SELECT content FROM blob WHERE digest=unhex(?)", (digest,)).fetchone()
        if row is None or row[0] is not None:
            return verified_blob(digest, None if row is None else row[0])
        try:
            content: bytes | None = (self.folder / digest).read_bytes()
        except FileNotFoundError:
            content = None
        return verified_blob(digest, content)

    def sweep(self, cursor: apsw.Cursor, alive: Callable[[str | None], bool]) -> None:
        """Remove files without a row, and incomplete files of dead writers.

        It runs under the write lock, so that no process is unnoticed between a file and its row, and in a transaction
        that removed no row itself: a failed commit restores a row, but not a file.
        """
        if not self.folder.is_dir():
            return
        rows = cursor.execute("SELECT digest FROM blob WHERE content IS NULL")
        named = {bytes(row[0]).hex() for row in rows}
        for file in self.folder.iterdir():
            digest, _, rest = file.name.partition(".")
            if not (alive(rest.removesuffix(".tmp")) if rest else digest in named):
                file.unlink(missing_ok=True)


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
    outcome: str = ""
    waiting: str = ""


def fixed_sum(values: Fixed) -> int:
    """Return the checksum of the values that no step changes."""
    return checksum(*(values[:6] if values[6:] == ("", "", "{}") else values))


def usage_columns(run_id: str, change: HeadChange) -> tuple[int | None, ...]:
    """Return the values of the columns of usage with their checksums: those of the run, then those of child runs."""
    own = (None, None, None) if change.usage is None else (*change.usage, checksum(run_id, *change.usage))
    below = change.children or NOTHING
    return *own, *below, None if below == NOTHING else checksum(run_id, *below)


def position_sum(values: Values) -> int:
    """Return the checksum of the position of a run."""
    return checksum(*(values[:8] if values[8:] == ("", "") else values))


class RunRow(NamedTuple):
    """One row of `run`."""

    id: int
    run_id: str
    graph: str
    fingerprint: str
    created_at: float
    parent_run_id: str | None
    conversation_id: str | None
    agent: str
    agent_version: str
    tags: str
    fixed_sum: int
    epoch: int
    seq: int
    last_hash: str
    progress: int
    status: str
    reason: str
    updated_at: float
    outcome: str
    waiting: str
    sum: int
    state: str
    state_since: float | None
    state_sum: int | None
    tokens: int | None
    cost: int | None
    usage_sum: int | None
    child_tokens: int
    child_cost: int | None
    child_sum: int | None
    requests: int
    requests_sum: int
    owner: str | None
    holder: str | None

    def values(self) -> Values:
        """Return the values that `sum` covers."""
        return Values._make((self.run_id, *self[_EPOCH : _EPOCH + 9]))

    @property
    def tag_values(self) -> dict[str, str]:
        """The tags."""
        tags: dict[str, str] = orjson.loads(self.tags)
        return tags

    def is_right(self) -> bool:
        """Return whether the values are those that were written."""
        state, usage = (self.state, self.state_since), (self.tokens, self.cost)
        children = (self.child_tokens, self.child_cost)
        return (
            fixed_sum(Fixed._make(self[1:_FIXED_SUM])) == self.fixed_sum
            and position_sum(self.values()) == self.sum
            and self.state_sum == (None if state == ("", None) else checksum(self.run_id, *state))
            and self.usage_sum == (None if usage == (None, None) else checksum(self.run_id, *usage))
            and self.child_sum
            in ({None} if children == NOTHING else set()) | {checksum(self.run_id, *children)}
            and checksum(self.run_id, self.requests) == self.requests_sum
        )

    def summary(self, state_of: Callable[[str | None], HolderState]) -> RunHead:
        """Return the head of the run."""
        holder = state_of(self.holder)
        tokens, cost = total(self.tokens, self.cost, self.child_tokens, self.child_cost)
        return RunHead(
            run_id=self.run_id,
            graph=self.graph,
            fingerprint=self.fingerprint,
            status=self.status,
            seq=self.seq,
            epoch=self.epoch,
            owner=self.owner if holder.alive else None,
            created_at=self.created_at,
            updated_at=self.updated_at,
            reason=self.reason,
            parent_run_id=self.parent_run_id,
            conversation_id=self.conversation_id,
            stuck_claims=self.epoch - self.progress,
            lease_expires_in=holder.expires_in if holder.alive and holder.overdue else None,
            lease_renewed_at=holder.renewed_at,
            agent=self.agent,
            agent_version=self.agent_version,
            tags=self.tag_values,
            state=self.state,
            state_since=self.state_since,
            outcome=self.outcome,
            waiting=self.waiting,
            tokens=tokens,
            cost_micros=cost,
        )


COLUMNS = ", ".join(f"run.{name}" for name in RunRow._fields)
_FIXED_SUM = RunRow._fields.index("fixed_sum")
_EPOCH = RunRow._fields.index("epoch")
_LAST_HASH = RunRow._fields.index("last_hash")


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
        digest = bytes(row[_LAST_HASH]).hex()  # type: ignore[call-overload]
        found = RunRow._make((*row[:_LAST_HASH], digest, *row[_LAST_HASH + 1 :]))
        right = found.is_right()
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


def selected_rows(
    cursor: apsw.Cursor, query: RunQuery, before: tuple[float, int] | None
) -> list[tuple[object, ...]]:
    """Return the next page of unverified rows, each with its value of the order at the end."""
    where, values = query.where("?", before)
    # The rows are sorted by number and order alone, and read after that.
    chosen = f"SELECT run.id FROM run WHERE {where} ORDER BY {query.ordered} LIMIT ?"  # noqa: S608
    text = f"SELECT {COLUMNS}, {ORDERS[query.order_by]} FROM run WHERE run.id IN ({chosen}) ORDER BY {query.ordered}"  # noqa: S608
    return cursor.execute(text, (*values, query.page)).fetchall()


def newest_row(cursor: apsw.Cursor, conversation_id: str) -> RunRow | None:
    """Return the row of the newest run of a conversation, or None. Raises Corrupt."""
    row = cursor.execute(
        f"SELECT {COLUMNS} FROM run WHERE conversation_id=? ORDER BY id DESC LIMIT 1",  # noqa: S608
        (conversation_id,),
    ).fetchone()
    return None if row is None else proved(row)

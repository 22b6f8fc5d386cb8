"""Return the store for an address: SQLite for a file, PostgreSQL for `postgresql://…`."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from orchestrator import around
from orchestrator.journal.address import Address, JournalAddress
from orchestrator.journal.sqlite import SqliteJournal

if TYPE_CHECKING:
    from orchestrator.around import PostgresJournal

StoredJournal: TypeAlias = "SqliteJournal | PostgresJournal"
"""Beside the contract, both have `open`, `size`, `check` and `address`, and are async context managers."""

OPENING = 3.0
"""Seconds that an interactive command waits for a server that does not answer."""


def journal_at(
    address: Address,
    *,
    only_reads: bool = False,
    create: bool = True,
    operator: bool = False,
    opening: float | None = None,
) -> StoredJournal:
    """Return a journal that is not opened yet. Raises MissingExtra if its driver is not installed.

    On a server the tables are created unless `create` is False; `opening` is the seconds to wait for it, None
    means OPENING. A command of an `operator` works on a full disk, if the journal is a file.
    """
    if isinstance(address, JournalAddress):
        seconds = OPENING if opening is None else opening
        return around.PostgresJournal(address, only_reads=only_reads, create=create, opening=seconds)
    return SqliteJournal(address, only_reads=only_reads, operator=operator)

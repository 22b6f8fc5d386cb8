"""The store at an address: a file is SQLite's, `postgresql://…` a server's."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from orchestrator.journal.address import Address, JournalAddress
from orchestrator.journal.sqlite import SqliteJournal

if TYPE_CHECKING:
    from orchestrator.journal.postgres import PostgresJournal

StoredJournal: TypeAlias = "SqliteJournal | PostgresJournal"
"""Both have, beside the contract, `open`, `size`, `check`, `address`, and are left by `async with`."""

OPENING = 3.0
"""Seconds that somebody who looks at a screen waits for a server that does not answer."""


def journal_at(
    address: Address, *, only_reads: bool = False, create: bool = True, opening: float = OPENING
) -> StoredJournal:
    """Return a journal that is not opened yet. MissingExtra where it needs a driver that is not installed.

    Of a server, its tables are made unless `create` is False, and it is waited for `opening` seconds.
    """
    if isinstance(address, JournalAddress):
        from orchestrator.journal.postgres import PostgresJournal

        return PostgresJournal(address, only_reads=only_reads, create=create, opening=opening)
    return SqliteJournal(address, only_reads=only_reads)

"""Where the journal of a folder is: a file in it, or a schema of the server whose address lies beside the folder."""

from __future__ import annotations

import asyncio
from pathlib import Path

from orchestrator.errors import RunUnknown
from orchestrator.journal.opening import StoredJournal
from orchestrator.journal.postgres import PostgresJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.journal import Journal

SERVER = "server"
TTL = 0.4
"""Seconds after which a frozen process counts as dead; a killed one a quarter of a second after its last beat."""


def journal_of(folder: Path, ttl: float = 10.0) -> StoredJournal:
    """Return the journal of a folder; `ttl` is that of a file, a server's is TTL."""
    server = folder.parent / SERVER
    if not server.exists():
        return SqliteJournal(folder / "journal.db", ttl=ttl)
    return PostgresJournal(server.read_text(), schema=f"{folder.parent.name} {folder.name}"[-60:], ttl=TTL)


async def left(journal: Journal, run: str) -> None:
    """Wait until nobody holds a run whose owner was killed: a server does not know at once."""
    try:
        while (await journal.head(run)).owner is not None:  # noqa: ASYNC110  another machine might hold it
            await asyncio.sleep(0.02)
    except RunUnknown:
        return

"""The last verdict of `orchestrator doctor` about a journal, kept in the journal itself.

The verdict is a record of one run, `doctor`, whose graph is that of engines, so that listings leave it out. So every
store can keep it, every process that reads the journal finds it, and a store of an earlier version needs no upgrade. A
server has no place for a file beside the journal, and a separate table would need one more format.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from orchestrator.errors import RunExists, RunUnknown
from orchestrator.kernel.journal import ENGINE, RECORD_SCHEMA, Draft, Journal, Lease, let_go, write_records

CHECKS: Final = "doctor"
"""Id of the run that has the verdicts."""
_MOST: Final = 20
"""Most problems that are kept."""
_LONGEST: Final = 600
"""Most characters of a problem."""


@dataclass(frozen=True, slots=True)
class JournalCheck:
    """A check of every record of a journal."""

    at: float
    """Epoch seconds."""
    host: str
    """Name of the host that checked."""
    runs: int
    records: int
    count: int
    """Number of problems."""
    problems: tuple[str, ...]
    """The first of them."""

    @classmethod
    def made(cls, runs: int, records: int, problems: Sequence[str]) -> Self:
        """Return the check that ended now."""
        kept = tuple(one[:_LONGEST] for one in problems[:_MOST])
        return cls(time.time(), socket.gethostname(), runs, records, len(problems), kept)

    @classmethod
    def read(cls, body: Mapping[str, Any]) -> Self:
        """Read it from its record."""
        runs, records, count = (int(body.get(name) or 0) for name in ("runs", "records", "count"))
        problems = tuple(map(str, body.get("problems") or ()))
        return cls(float(body.get("at") or 0.0), str(body.get("host", "")), runs, records, count, problems)


async def record_check(journal: Journal, check: JournalCheck) -> None:
    """Keep a verdict. Raises the errors of the journal, Held if another process writes one at this moment."""
    lease = await _lease(journal, f"{check.host}:{CHECKS}:{check.at}", check.at)
    try:
        body = {"reason": "checked", "at": check.at, "t": 0.0, CHECKS: asdict(check)}
        await write_records(journal, lease, Draft("parked", body))
    finally:
        await let_go(journal, lease)


async def last_check(journal: Journal) -> JournalCheck | None:
    """Return the last verdict; None if the journal has none. Raises Corrupt, StoreDown."""
    try:
        records = await journal.load(CHECKS)
    except RunUnknown:
        return None
    found = [record.body[CHECKS] for record in records if CHECKS in record.body]
    return JournalCheck.read(found[-1]) if found else None


async def _lease(journal: Journal, owner: str, at: float) -> Lease:
    body = {
        "schema": RECORD_SCHEMA,
        "graph": ENGINE,
        "fingerprint": "",
        "at": at,
        "parent_run_id": None,
        "conversation_id": None,
    }
    try:
        return await journal.claim(CHECKS, owner)
    except RunUnknown:
        pass
    try:
        return await journal.create(CHECKS, owner, body)
    except RunExists:
        return await journal.claim(CHECKS, owner)

"""`orchestrator doctor --restore`: restore a backup into a temporary place and compare it with the live journal."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.doctor import judged, not_ended, open_runs
from orchestrator.cli.exit import Exit
from orchestrator.cli.output import say, say_json
from orchestrator.cli.runs.phrase import heading, many, table
from orchestrator.cli.runs.store import head_json, journal_file
from orchestrator.errors import ConfigError, JournalError
from orchestrator.journal.address import Address
from orchestrator.journal.difference import JournalDifference, difference
from orchestrator.journal.opening import StoredJournal, journal_at
from orchestrator.journal.sqlite import SqliteHealth, SqliteJournal

if TYPE_CHECKING:
    from orchestrator.journal.postgres.read import PostgresHealth as ServerHealth

_EXPLAINED = {
    "missing": "not in the backup",
    "behind": "lacks its last records",
    "diverged": "holds other records than the live journal",
    "removed": "removed from the live journal since",
    "damaged": "cannot be compared",
}


@dataclass(slots=True)
class DrillReport:
    """The findings of a drill. `health` is None if the backup cannot be restored, `lost` if nothing was compared."""

    backup: Address
    live: Address | None
    health: SqliteHealth | ServerHealth | None = None
    lost: JournalDifference | None = None
    problems: list[str] = field(default_factory=list)


def restore_drill(backup: Address, *, json: bool, journal: Address | None) -> int:
    """Check a backup by restoring it, and compare it with the live journal, if there is one.

    `backup` is a file that `runs backup` wrote, or the address of a database into which a dump was restored. Neither
    it nor the live journal is changed. Exit code 1 when the backup cannot be restored, is damaged, or diverges.
    """
    if isinstance(backup, Path) and not backup.is_file():
        raise ConfigError(f"there is no backup {backup}: name a file that `orchestrator runs backup` wrote")
    live = journal_file(journal)
    found = DrillReport(backup, live if not isinstance(live, Path) or live.is_file() else None)
    if found.live is None and journal is not None:
        raise ConfigError(f"there is no journal {live} to compare with: leave --journal out, or name another")
    with contextlib.ExitStack() as scratch:
        try:
            restored = _restored(backup, scratch)
            asyncio.run(_examined(found, restored))
        except JournalError as error:
            found.problems.append(str(error))
        if json:
            say_json(_plain(found))
        else:
            for line in _lines(found):
                say(line)
    return Exit.FAILED if found.problems else Exit.COMPLETED


def _restored(backup: Address, scratch: contextlib.ExitStack) -> StoredJournal:
    """Return the journal of a backup, restored to a place of its own. Raises JournalError."""
    if not isinstance(backup, Path):
        return journal_at(backup, only_reads=True)
    place = Path(scratch.enter_context(tempfile.TemporaryDirectory(prefix="orchestrator-restore-")))
    SqliteJournal.restore(backup, place / "journal.db")
    return SqliteJournal(place / "journal.db")


async def _examined(found: DrillReport, restored: StoredJournal) -> None:
    async with restored:
        found.health = await restored.check()
        found.problems += found.health.problems
        if found.live is None:
            return
        try:
            async with journal_at(found.live, only_reads=True) as live:
                found.lost = await difference(restored, live)
        except JournalError as error:
            found.problems.append(f"the live journal cannot be compared: {error}")
            return
    found.problems += found.lost.problems
    found.problems += [f"run {run.run_id} {_EXPLAINED['diverged']}" for run in found.lost.of("diverged")]
    found.problems += [
        f"run {run.run_id} {_EXPLAINED['damaged']}: {run.why}" for run in found.lost.of("damaged")
    ]


def _lines(found: DrillReport) -> Iterator[str]:
    yield heading(f"backup {found.backup}")
    health = found.health
    if health is not None:
        state = "every chain proved" if health.ok else "not everything could be proved"
        yield f"  holds     {many(health.runs, 'run')}, {many(health.records, 'record')}: {state}"
        yield from open_runs(health)
    if found.lost is not None:
        yield ""
        yield from _compared(found.lost, found.live)
    elif found.live is None and health is not None:
        yield "  there is no live journal to compare it with"
    yield from judged(found.problems, "the backup can be restored")


def _compared(lost: JournalDifference, live: Address | None) -> Iterator[str]:
    yield heading(f"against the live journal {live}")
    if not lost.runs:
        yield "  nothing would be lost"
        return
    runs, records, requests = len(lost.of("missing")), lost.records, lost.requests
    yield (
        f"  a restore would lose {many(runs, 'run')}, {many(records, 'record')} and {many(requests, 'request')} in all"
    )
    if removed := len(lost.of("removed")):
        yield f"  a restore would bring back {many(removed, 'run')} that the live journal has removed"
    rows = [
        (
            run.run_id,
            run.graph,
            run.status,
            _EXPLAINED[run.state],
            f"{run.records:,}",
            f"{run.requests:,}",
        )
        for run in lost.runs
    ]
    names = ("run", "graph", "status", "in the backup", "records lost", "requests lost")
    yield from table(names, rows, right=names[-2:])


def _plain(found: DrillReport) -> dict[str, Any]:
    data: dict[str, Any] = {
        "backup": str(found.backup),
        "live": None if found.live is None else str(found.live),
        "ok": not found.problems,
        "problems": found.problems,
    }
    if found.health is not None:
        opened = [head_json(head) for head in not_ended(found.health)]
        data |= {"runs": found.health.runs, "records": found.health.records, "open": opened}
    if found.lost is not None:
        data["lost"] = {
            "runs": len(found.lost.of("missing")),
            "records": found.lost.records,
            "requests": found.lost.requests,
        }
        data["differences"] = [asdict(run) for run in found.lost.runs]
    return data

"""Compare a backup with a live journal, for a restore drill. Both are only read, through the contract of a store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from orchestrator.errors import Corrupt, RunUnknown
from orchestrator.kernel.journal import Journal, RunHead


async def heads(
    journal: Journal, *, graph: str | None = None, status: str | None = None
) -> tuple[list[RunHead], str]:
    """Return the runs of a graph or a status, oldest first, and a text about damaged ones, or "".

    A store reports damage after all readable runs, so a run with inconsistent records hides no other. Raises
    StoreDown.
    """
    found: list[RunHead] = []
    try:
        async for head in journal.runs(graph=graph, status=status):
            found.append(head)  # noqa: PERF401 - runs before an error count
    except Corrupt as error:
        return found, str(error)
    return found, ""


State: TypeAlias = Literal["missing", "behind", "diverged", "removed", "damaged"]
"""State of a run in the backup, compared with the live journal: it does not exist; it lacks records or requests; its
records differ; the live journal has removed it; one of both cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDifference:
    """One run that differs between backup and live journal."""

    run_id: str
    graph: str
    status: str
    """Status in the live journal; in the backup for `removed`."""
    state: State
    records: int = 0
    """Number of records that the backup lacks: all after the last common one."""
    requests: int = 0
    """Number of posted requests that the backup lacks."""
    why: str = ""
    """For `damaged`: the fault."""


@dataclass(frozen=True, slots=True)
class JournalDifference:
    """All runs that differ, oldest first."""

    runs: tuple[RunDifference, ...] = ()
    problems: tuple[str, ...] = field(default=())
    """Parts that could not be compared."""

    def of(self, state: State) -> tuple[RunDifference, ...]:
        """Return the runs in a state."""
        return tuple(run for run in self.runs if run.state == state)

    @property
    def records(self) -> int:
        """Number of records of the live journal that the backup lacks."""
        return sum(run.records for run in self.runs)

    @property
    def requests(self) -> int:
        """Number of posted requests that the backup lacks."""
        return sum(run.requests for run in self.runs)


async def difference(backup: Journal, live: Journal) -> JournalDifference:
    """Compare every run of two journals and verify each chain. Raises StoreDown.

    The backup is read first: records that runs append meanwhile count as lost.
    """
    kept, wrong = await heads(backup)
    present, damage = await heads(live)
    backed_up = {head.run_id: head for head in kept}
    found = [one async for one in _of_live(backup, live, backed_up, present)]
    known = {head.run_id for head in present}
    removed = [
        RunDifference(run_id=head.run_id, graph=head.graph, status=head.status, state="removed")
        for head in kept
        if head.run_id not in known
    ]
    return JournalDifference((*found, *removed), tuple(filter(None, (wrong, damage))))


async def _of_live(
    backup: Journal, live: Journal, backed_up: dict[str, RunHead], present: list[RunHead]
) -> AsyncIterator[RunDifference]:
    for head in present:
        try:
            found = await _compared(backup, live, backed_up.get(head.run_id), head)
        except RunUnknown:  # removed since it was listed
            continue
        except Corrupt as error:
            found = _different(head, "damaged", why=str(error))
        if found is not None:
            yield found


async def _compared(
    backup: Journal, live: Journal, kept: RunHead | None, head: RunHead
) -> RunDifference | None:
    """Compare one run; return None if nothing is lost."""
    theirs = [record.hash for record in await live.load(head.run_id)]
    posted = [request.id for request in await live.inbox(head.run_id)]
    if kept is None:
        return _different(head, "missing", len(theirs), len(posted))
    ours = [record.hash for record in await backup.load(head.run_id)]
    # The number of leading records that two chains share: a hash covers all records before it.
    same = [number for number, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one == other]
    common = same[-1] + 1 if same else 0
    records = len(theirs) - common
    requests = len(set(posted) - {request.id for request in await backup.inbox(head.run_id)})
    if common < len(ours):
        return _different(head, "diverged", records, requests)
    return _different(head, "behind", records, requests) if records or requests else None


def _different(
    head: RunHead, state: State, records: int = 0, requests: int = 0, why: str = ""
) -> RunDifference:
    return RunDifference(
        run_id=head.run_id,
        graph=head.graph,
        status=head.status,
        state=state,
        records=records,
        requests=requests,
        why=why,
    )

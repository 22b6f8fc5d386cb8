"""Requests to one run or to all runs of a filter: pause, resume, cancel."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.errors import ConfigError, Corrupt, RunError, StoreDown
from orchestrator.kernel.journal import Journal, Posted, RunHead
from orchestrator.kernel.mailbox import Kind
from orchestrator.machines.approval.graph import APPROVAL
from orchestrator.runtime.runs.listing import FILTERS, RunFilter, read_page
from orchestrator.runtime.service.control import RunController


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A request to one run, posted, refused, or only shown."""

    run: RunHead
    """The run at the time of the request."""
    posted: Posted | None = None
    """The request in the journal; None in a preview, and if it was refused."""
    repeated: bool = False
    """The same request was posted before and is unread; nothing was posted again."""
    refused: str = ""
    """Why the run does not accept the request."""


@dataclass(frozen=True, slots=True)
class RequestDraft:
    """A request that is not posted yet."""

    kind: Kind
    by: str = ""
    why: str = ""

    async def post(self, control: RunController, selected: list[RunHead]) -> list[RunRequest]:
        """Post it for each run. A run that refuses it does not prevent the others."""
        found = []
        for head in selected:
            try:
                found.append(await self.post_one(control, head))
            except StoreDown:
                raise
            except RunError as error:
                found.append(RunRequest(head, refused=str(error)))
        return found

    async def post_one(self, control: RunController, head: RunHead) -> RunRequest:
        """Post it for one run. Raises RunOver, RunError, StoreDown."""
        if head.graph == APPROVAL.name and head.owner is None:
            raise RunError(
                f"run {head.run_id!r} belongs to graph {head.graph!r} and has state outside its records: only "
                "`orchestrator approval` or its own program may change it"
            )
        return RunRequest(head, *await control.post_request(head.run_id, self.kind, self.by, self.why))


async def select(journal: Journal, kind: str, conditions: RunFilter) -> list[RunHead]:
    """Return the runs of a filter that have not ended, oldest first.

    Raises ConfigError without a condition, and Corrupt if a run cannot be trusted.
    """
    if all(value is None for value in conditions.values()):
        raise ConfigError(
            f"{kind} needs the id of a run, or at least one condition: {', '.join(sorted(FILTERS))}"
        )
    page = await read_page(journal, "age", **conditions)
    if page.damage:
        raise Corrupt(page.damage)
    return [head for head in page.runs if head.status != "ended"]

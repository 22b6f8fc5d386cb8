"""List the valid runs of a store, with a sentence about the others."""

from __future__ import annotations

from orchestrator.errors import Corrupt
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

"""The runs of a store that can be trusted, and a sentence about the rest."""

from __future__ import annotations

from orchestrator.errors import Corrupt
from orchestrator.kernel.journal import Journal, RunHead


async def heads(
    journal: Journal, *, graph: str | None = None, status: str | None = None
) -> tuple[list[RunHead], str]:
    """Return the runs of a graph, of a status, oldest first, and what is wrong with the others, or "".

    A store tells of damage last, after all that it could read: one run whose records do not agree hides no other.
    Raises StoreDown.
    """
    found: list[RunHead] = []
    try:
        async for head in journal.runs(graph=graph, status=status):
            found.append(head)  # noqa: PERF401 - what came before an error counts
    except Corrupt as error:
        return found, str(error)
    return found, ""

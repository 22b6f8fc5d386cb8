"""The usage of stored child runs, whatever their graphs: from their records alone."""

from __future__ import annotations

from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Journal
from orchestrator.llm.message import NO_USAGE, Usage
from orchestrator.runtime.llm_loop.run_record import loop_codec


async def usage_of_children(journal: Journal, run_id: str, prefix: str = "") -> dict[str, Usage]:
    """Return the usage of each direct child run of a stored run whose id begins with `prefix`.

    An answer that a crash lost is charged when the child run is resumed. Raises StoreDown, Corrupt.
    """
    heads = [head async for head in journal.runs(parent_run_id=run_id) if head.run_id.startswith(prefix)]
    return {head.run_id: await _usage(journal, head.run_id) for head in heads}


async def _usage(journal: Journal, run_id: str) -> Usage:
    stored = StoredRun.of(run_id, await journal.load(run_id))
    if stored.ended is not None and "usage" in stored.ended:  # a workflow
        return Usage.of(stored.ended["usage"])
    if "spent" in stored.context:
        return loop_codec().decoded({**stored.context, "messages": []}).spent.total
    return sum((await usage_of_children(journal, run_id)).values(), NO_USAGE)

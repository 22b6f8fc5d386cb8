"""The runs of a journal: list them and read them, in any process, without the agents that started them."""

from __future__ import annotations

from typing import TypeAlias, Unpack

from orchestrator.errors import Corrupt
from orchestrator.kernel.journal import Journal, RunHead
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.runtime.runs.details import RunDetails, not_ended
from orchestrator.runtime.runs.listing import RunFilter, RunPage, read_page
from orchestrator.runtime.runs.result import recorded_result
from orchestrator.runtime.runs.story import Story
from orchestrator.runtime.runs.tree import RunTree, read_tree

RunHeads: TypeAlias = list[RunHead]


class Runs:
    """The runs of a journal. An agent has those of its own journal as `agent.runs`.

    Args:
        journal: The journal.

    Example:
        runs = Runs(journal)
        for head in await runs.list(agent="support", waiting=True, order_by="age"):
            print(head.run_id, head.waiting)
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    # ---- reading ----

    async def list(
        self,
        *,
        order_by: str = "newest",
        limit: int | None = None,
        after: str | None = None,
        **conditions: Unpack[RunFilter],
    ) -> RunHeads:
        """Return the runs that meet every condition. No record is read.

        Args:
            order_by: `newest`, or the greatest number first: `age`, `updated` (the last written first),
                `time_in_state`, `tokens`, `cost`.
            limit: Most runs; None for all.
            after: Id of the last run of the page before.
            conditions: See `RunFilter`.

        Raises:
            ConfigError: A condition, the order or the limit is invalid.
            RunUnknown: The journal does not have the run `after`.
            Corrupt: A run cannot be trusted. `page` returns the others.
            StoreDown: The store is unavailable.
        """
        found = await self.page(order_by=order_by, limit=limit, after=after, **conditions)
        if found.damage:
            raise Corrupt(found.damage)
        return found.runs

    async def page(
        self,
        *,
        order_by: str = "newest",
        limit: int | None = None,
        after: str | None = None,
        engines: bool = False,
        **conditions: Unpack[RunFilter],
    ) -> RunPage:
        """Return a page of `list`: its runs, whether more follow, and a sentence about damaged runs.

        With `engines` it has also the runs that represent engines.
        """
        return await read_page(self.journal, order_by, limit, after, engines=engines, **conditions)

    async def get(self, run_id: str) -> RunDetails:
        """Read a run: its head, its history, and its unread requests. Raises RunUnknown, Corrupt, StoreDown."""
        return await RunDetails.read(self.journal, run_id)

    async def children(self, run_id: str) -> RunTree:
        """Return the child runs of a run, at any depth. Raises RunUnknown, Corrupt, StoreDown."""
        return await read_tree(self.journal, await self.journal.head(run_id))

    async def result(self, run_id: str) -> Result:
        """Return the result of an ended run from its records. Nothing is executed.

        The output is JSON: a value of an `output_type` is not converted back; `agent.resume` of an ended run does that.

        Raises:
            RunError: The run has not ended.
            RunUnknown: The journal does not have the run.
            Corrupt: The records of the run cannot be trusted.
            StoreDown: The store is unavailable.
        """
        head = await self.journal.head(run_id)
        if head.status != "ended":
            raise not_ended(head)
        records = await self.journal.load(run_id)
        return recorded_result(Story.of(run_id, records), records)

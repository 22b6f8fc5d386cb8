"""The runs of a journal: list, read, answer and control them in any process, without the agents that started them.

A journal has no notification, so a run of another process is read again every POLL seconds: first its head, which
costs one row, and its records only if there are new ones. The owner needs no poll: its feed has each append.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, Unpack

from orchestrator.errors import ConfigError, Corrupt, RunError, RunUnknown, StoreDown
from orchestrator.kernel.fact import RecordsWritten
from orchestrator.kernel.journal import AgentStatistics, Journal, Posted, Record, RunCounts, RunHead
from orchestrator.kernel.mailbox import Kind
from orchestrator.llm.live_event import EventsDropped, RunEvent
from orchestrator.llm.port import SystemClock
from orchestrator.machines.approval import model as approval
from orchestrator.machines.timeline import Timeline
from orchestrator.runtime.llm_loop.result import Result
from orchestrator.runtime.runs.event_reader import EventReader, as_stored
from orchestrator.runtime.runs.listing import (
    FILTERS,
    LAST_RUNS,
    MachineHistory,
    RunFilter,
    RunPage,
    RunTree,
    count_runs,
    read_agents,
    read_family,
    read_machine,
    read_page,
    read_tree,
)
from orchestrator.runtime.runs.result import RunPair, compare_runs, recorded_children, recorded_result
from orchestrator.runtime.runs.story import RunDetails, Story, not_ended
from orchestrator.runtime.runs.timeline import read_timeline
from orchestrator.runtime.service.answer import PostedRequest
from orchestrator.runtime.service.descendant import PendingQuestion, descendants
from orchestrator.runtime.service.live_runs import RunRegistry
from orchestrator.runtime.service.run_controller import RunController
from orchestrator.runtime.service.run_feed import StreamBuffer


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
        if head.graph == approval.GRAPH and head.owner is None:
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


POLL = 0.1
"""Seconds between two reads of a run that another process owns."""

_START = (-1, 0)
_WHOLE = 1_000_000
"""More than the events of any record."""


def position_of(after: int | str | None) -> tuple[int, int]:
    """Return record and part of the last event that was received. Raises ConfigError."""
    if after is None:
        return _START
    seq, dot, part = str(after).partition(".")
    kind_is_wrong = isinstance(after, bool) or not isinstance(after, int | str)
    if kind_is_wrong or not seq.isdecimal() or (dot and not part.isdecimal()):
        raise ConfigError(
            f"after is {after!r}; it must be the id of an event, the number of a record (0 or more), or None"
        )
    return int(seq), int(part) if dot else _WHOLE


class RunFollower:
    """Reads the events of one run after a position."""

    def __init__(self, journal: Journal, live: RunRegistry, run_id: str, after: tuple[int, int]) -> None:
        self._journal = journal
        self._live = live
        self._run_id = run_id
        self._after = after
        self._reader = EventReader(run_id)

    @property
    def ended(self) -> bool:
        """Whether the end of the run was read."""
        return self._reader.ended

    async def stored(self) -> AsyncGenerator[RunEvent, None]:
        """Yield the events that the journal has and that were not read. Raises RunUnknown, Corrupt, StoreDown."""
        for event in await self.until(await self._journal.head(self._run_id)):
            yield event

    async def until(self, head: RunHead) -> Iterator[RunEvent]:
        """Return the events that were not read, if the head of the run says that there are some."""
        has_more = head.seq >= self._reader.next
        return self._read(await self._journal.load(self._run_id, self._reader.next) if has_more else ())

    async def until_end(self) -> AsyncGenerator[RunEvent, None]:
        """Yield the events until the run has ended, from its feed while it is live here."""
        while not self._reader.ended:
            feed = self._live.feed_of(self._run_id)
            with contextlib.nullcontext() if feed is None else feed.tap() as tap:
                try:
                    async for event in self.stored():
                        yield event
                except RunUnknown:
                    if tap is None:
                        raise  # a live run may not be in the journal yet
                if tap is not None:
                    async for event in self._tapped(tap):
                        yield event
                    continue  # the rest is in the journal
            if not self._reader.ended:
                await self._live.wait_for(self._run_id, POLL)

    async def _tapped(self, tap: StreamBuffer) -> AsyncGenerator[RunEvent, None]:
        """Yield the events of a live run until it is no longer live here, or has ended."""
        while not self._reader.ended and (item := await tap.next()) is not None:
            if isinstance(item, RecordsWritten):
                if item.records[0].seq > self._reader.next:  # a slow reader lost records before these
                    records = await self._journal.load(self._run_id, self._reader.next)
                else:
                    records = as_stored(item.records)
                for event in self._read(records):
                    yield event
            elif not isinstance(item, EventsDropped) and item.iteration > self._reader.answered:
                yield item

    def _read(self, records: Sequence[Record]) -> Iterator[Any]:
        for event in self._reader.read(records):
            if (event.seq or 0, event.part) > self._after:
                yield event


class TreeFollower:
    """Reads the events of a run and of its descendants after the positions of some of them.

    The journal is read as a whole: each time when something was committed, the heads of the tree are read, and the
    records of the runs that have new ones.
    """

    def __init__(
        self, journal: Journal, live: RunRegistry, run_id: str, after: Mapping[str, tuple[int, int]]
    ) -> None:
        self._journal = journal
        self._live = live
        self._run_id = run_id
        self._after = after
        self._followers: dict[str, RunFollower] = {}

    async def stored(self) -> AsyncGenerator[RunEvent, None]:
        """Yield the events that the journal has and that were not read. Raises RunUnknown, Corrupt, StoreDown."""
        root = await self._journal.head(self._run_id)
        for event in await self._follower(root).until(root):
            yield event
        async for head, _ in descendants(self._journal, root, ended=True):
            for event in await self._follower(head).until(head):
                yield event

    async def until_end(self) -> AsyncGenerator[RunEvent, None]:
        """Yield the events until the run has ended, and then what its descendants have written."""
        read = ""
        while not (self._run_id in self._followers and self._followers[self._run_id].ended):
            if (now := await self._journal.version()) == read:
                await asyncio.sleep(POLL)
                continue
            read = now
            async for event in self.stored():
                yield event
        async for event in self.stored():  # a descendant may end after the run
            yield event

    def _follower(self, head: RunHead) -> RunFollower:
        if head.run_id not in self._followers:
            after = self._after.get(head.run_id, _START)
            self._followers[head.run_id] = RunFollower(self._journal, self._live, head.run_id, after)
        return self._followers[head.run_id]


RunHeads: TypeAlias = list[RunHead]
AgentStatisticsList: TypeAlias = list[AgentStatistics]
RunNames: TypeAlias = list[tuple[str, str]]
Records: TypeAlias = list[Record]
Questions: TypeAlias = list[PendingQuestion]
RunRequests: TypeAlias = list[RunRequest]


class Runs:
    """The runs of a journal. An agent has those of its own journal as `agent.runs`.

    Args:
        journal: The journal.
        control: Delivers requests to the live runs of an agent at once; by default their owner reads them from the
            journal. A journal in memory has no other readers: use `agent.runs` there.

    Example:
        runs = Runs(journal)
        for head in await runs.list(agent="support", waiting=True, order_by="age"):
            print(head.run_id, head.waiting)
    """

    def __init__(self, journal: Journal, *, control: RunController | None = None) -> None:
        self.journal = journal
        self._control = control or RunController(RunRegistry(), journal, SystemClock())

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
        offset: int = 0,
        engines: bool = False,
        **conditions: Unpack[RunFilter],
    ) -> RunPage:
        """Return a page of `list`: its runs, whether more follow, and a sentence about damaged runs.

        With `engines` it has also the runs that represent engines. `offset` is the number of runs before the first.
        """
        return await read_page(
            self.journal, order_by, limit, after, offset=offset, engines=engines, **conditions
        )

    async def count(self, **conditions: Unpack[RunFilter]) -> RunCounts:
        """Count the runs that meet every condition, by status and outcome, without those of engines.

        No record is read. Raises ConfigError, StoreDown.
        """
        return await count_runs(self.journal, **conditions)

    async def agents(
        self, *, by_version: bool = False, **conditions: Unpack[RunFilter]
    ) -> AgentStatisticsList:
        """Return counts, tokens, cost and duration of the runs of each agent. Only heads of runs are read.

        Args:
            by_version: One row for each version of each agent.
            conditions: See `RunFilter`.

        Raises:
            ConfigError: A condition is invalid.
            StoreDown: The store is unavailable.

        Example:
            for found in await runs.agents(tag={"team": "billing"}):
                print(found.agent, found.counts.total, found.cost_micros, found.p95)
        """
        return await read_agents(self.journal, by_version=by_version, **conditions)

    async def names(self) -> RunNames:
        """Return each pair of a machine and an agent that runs of the journal have. Raises StoreDown."""
        return await self.journal.names()

    async def version(self) -> str:
        """Return a text that changes with each commit of any process, to find out cheaply whether to read again.

        An owner that dies commits nothing. Raises StoreDown.
        """
        return await self.journal.version()

    async def head(self, run_id: str) -> RunHead:
        """Return the part of a run that a listing shows. No record is read. Raises RunUnknown, Corrupt, StoreDown."""
        return await self.journal.head(run_id)

    async def records(self, run_id: str, since: int = 0) -> Records:
        """Return the records of a run from number `since`, with the whole chain verified.

        Raises RunUnknown, Corrupt, StoreDown.
        """
        return list(await self.journal.load(run_id, since))

    async def get(self, run_id: str) -> RunDetails:
        """Read a run: its head, its history, and its unread requests. Raises RunUnknown, Corrupt, StoreDown."""
        return await RunDetails.read(self.journal, run_id)

    async def story(self, head: RunHead) -> Story:
        """Read the history of a run. Raises RunUnknown, Corrupt, StoreDown."""
        return Story.of(head.run_id, await self.journal.load(head.run_id))

    async def children(self, run_id: str) -> RunTree:
        """Return the child runs of a run, at any depth. Raises RunUnknown, Corrupt, StoreDown."""
        return await read_tree(self.journal, await self.journal.head(run_id))

    async def family(self, run_id: str) -> RunTree:
        """Return the tree that a run is part of, from its root, as far as a page shows it.

        Raises RunUnknown, StoreDown.
        """
        return await read_family(self.journal, await self.journal.head(run_id))

    async def timeline(self, run_id: str) -> Timeline:
        """Return what happened in a run, and when; `timeline_svg` of `orchestrator.drawing.timeline` draws it.

        A run that has not ended lasts until now. Raises RunUnknown, Corrupt, StoreDown.
        """
        head = await self.journal.head(run_id)
        records = await self.journal.load(run_id)
        children = [child async for child in self.journal.runs(parent_run_id=run_id)]
        return read_timeline(records, head=head, now=self._control.clock.time(), children=children)

    async def machine(self, name: str, limit: int = LAST_RUNS) -> MachineHistory:
        """Return states, edges and guards of the last runs of a machine.

        The records of at most `limit` runs are read. Raises ConfigError, StoreDown.
        """
        return await read_machine(self.journal, name, limit)

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
        story = Story.of(run_id, records)
        return recorded_result(story, records, await recorded_children(self.journal, story))

    async def compare(self, first: str, second: str) -> RunPair:
        """Compare two runs, or a run and its fork. Raises RunUnknown, Corrupt, StoreDown.

        Args:
            first: Id of a run.
            second: Id of another run. If one was forked from the other, the comparison starts at the fork, and the
                fork is the second run of the pair.
        """
        heads = [await self.journal.head(run_id) for run_id in (first, second)]
        one, other = [(head, await self.journal.load(head.run_id)) for head in heads]
        return await asyncio.to_thread(compare_runs, one, other)  # long runs have many records

    def events(
        self, run_id: str, *, after: int | str | None = None, follow: bool = False
    ) -> AsyncGenerator[RunEvent, None]:
        """Yield the events of a run of any process (`orchestrator.events`): `async for event in runs.events(run_id)`.

        Each journalled event has an `id`; `after=` that id continues behind it, in any process. So `id` is the id of
        a server-sent event, and `Last-Event-ID` is `after`. Child runs have their own events, under their own ids:
        `tree_events` has them all.

        Deltas (TextDelta, ReasoningDelta, ToolArgumentsDelta) have no id and exist only in the process that owns the
        run, with `agent.runs` of its agent: first one of each kind with all pieces so far of the present model
        request, then each piece. A model streams while its run has a reader: a reader that arrives during a request
        of a run that had none gets its text with ModelRequestFinished, and deltas from the next request on. To stream
        from the first request, start the run with `agent.stream`, `engine.stream` or a `follower` of `engine.submit`.

        Args:
            run_id: Id of the run.
            after: The `id` of the last event that was received, or the number of a record, all of whose events were
                received; None for all events.
            follow: Wait for new events until the run has ended. Then the last event is RunFinished.

        Raises:
            ConfigError: `after` is no such id or number; raised at the call.
            RunUnknown: The journal does not have the run; raised when the first event is read, as the others.
            Corrupt: The records of the run cannot be trusted.
            StoreDown: The store is unavailable.

        Example:
            async for event in agent.runs.events("r1", follow=True):
                print(event.id, type(event).__name__)
        """
        found = RunFollower(self.journal, self._control.live, run_id, position_of(after))
        return found.until_end() if follow else found.stored()

    def tree_events(
        self, run_id: str, *, after: Mapping[str, int | str] | None = None, follow: bool = False
    ) -> AsyncGenerator[RunEvent, None]:
        """Yield the events of a run and of all its descendants, from any process.

        The events of one run come in their order; `event.run_id` is the run. Deltas are left out: `events` of a live
        run has them. A reader that continues keeps the last id of each run.

        Args:
            run_id: Id of the run at the top.
            after: Run id -> the `id` of its last event that was received; a run that is missing is read from its start.
            follow: Wait for new events until the run at the top has ended.

        Raises:
            ConfigError: A value of `after` is no such id; raised at the call.
            RunUnknown: The journal does not have the run; raised when the first event is read, as the others.
            Corrupt: The records of a run cannot be trusted.
            StoreDown: The store is unavailable.

        Example:
            read: dict[str, int | str] = {}
            async for event in runs.tree_events("r1", after=read, follow=True):
                read[event.run_id] = event.id
        """
        positions = {name: position_of(value) for name, value in (after or {}).items()}
        found = TreeFollower(self.journal, self._control.live, run_id, positions)
        return found.until_end() if follow else found.stored()

    # ---- questions ----

    async def pending(self, run_id: str) -> Questions:
        """Return the unanswered questions of a run and its descendants. Raises RunUnknown, Corrupt, StoreDown.

        The questions of the run itself come first. `run_id` and `agents` of a question name the run that asks.
        """
        return await self._control.pending(run_id)

    async def approve(
        self,
        run_id: str,
        call: str | None = None,
        *,
        digest: str | None = None,
        arguments: str | None = None,
        by: str = "",
        why: str = "",
    ) -> PostedRequest:
        """Approve a call that waits for a person; return the answer that the journal keeps.

        Args:
            run_id: Id of the run that asks; or of a run above it, if `digest` is the whole digest of the question.
            call: Key of the call as in `pending`; required if several calls wait.
            digest: If given, the answer counts only for exactly these arguments.
            arguments: JSON text that replaces the model's arguments.
            by: Who answers; the current user by default.
            why: The reason.

        Raises:
            AnswerRefused: The answer does not count. `earlier` is the answer that counts, if any.
            RunUnknown: The journal does not have the run.
            StoreDown: The store is unavailable.
        """
        return await self._control.post_answer(
            run_id, "approve", by, call=call, digest=digest, arguments=arguments, why=why or None
        )

    async def reject(
        self,
        run_id: str,
        call: str | None = None,
        *,
        digest: str | None = None,
        by: str = "",
        why: str = "",
        end: bool = False,
    ) -> PostedRequest:
        """Reject a call: the model reads that and the reason. With `end` the run ends as `rejected`. As `approve`."""
        return await self._control.post_answer(
            run_id, "reject", by, call=call, digest=digest, why=why or None, end=end or None
        )

    async def respond(
        self,
        run_id: str,
        content: str,
        call: str | None = None,
        *,
        digest: str | None = None,
        by: str = "",
        why: str = "",
    ) -> PostedRequest:
        """Answer a call in place of its tool: the model reads `content` as its result. As `approve`."""
        return await self._control.post_answer(
            run_id, "respond", by, call=call, digest=digest, content=content, why=why or None
        )

    async def request_changes(
        self,
        run_id: str,
        changes: str,
        plan: str | None = None,
        *,
        digest: str | None = None,
        by: str = "",
    ) -> PostedRequest:
        """Request another version of a plan of the machine approval.

        A process with the folder of the project makes it, as it carries out an approval. As `approve`.

        Args:
            run_id: Id of the run.
            changes: The changes, for the planner.
            plan: Key of the plan as in `pending`.
            digest: If given, the answer counts only for exactly this plan.
            by: Who answers; the current user by default.
        """
        return await self._control.post_answer(
            run_id, "request_changes", by, call=plan, digest=digest, why=changes
        )

    # ---- requests ----

    async def pause(
        self,
        run_id: str | None = None,
        *,
        by: str = "",
        why: str = "",
        preview: bool = False,
        **conditions: Unpack[RunFilter],
    ) -> RunRequests:
        """Request that runs park before their next step. As `cancel`."""
        return await self._request(RequestDraft("pause", by, why), run_id, conditions, preview=preview)

    async def request_resume(
        self,
        run_id: str | None = None,
        *,
        by: str = "",
        why: str = "",
        preview: bool = False,
        **conditions: Unpack[RunFilter],
    ) -> RunRequests:
        """Request that paused runs continue. Their owner or an engine resumes them; this does not. As `cancel`."""
        return await self._request(RequestDraft("resume", by, why), run_id, conditions, preview=preview)

    async def cancel(
        self,
        run_id: str | None = None,
        *,
        by: str = "",
        why: str = "",
        preview: bool = False,
        **conditions: Unpack[RunFilter],
    ) -> RunRequests:
        """Request that one run stops, or each open or parked run that meets every condition.

        The owner of a run carries the request out at once; without an owner, an engine does or the next resumption.
        The descendants of the run end with it.

        Args:
            run_id: Id of the run; None for those that meet the conditions.
            by: Who asks; the current user by default.
            why: The reason.
            preview: Only return the runs; nothing is posted.
            conditions: See `RunFilter`; at least one without a run id.

        Raises:
            ConfigError: Neither a run id nor a condition is given, or both, or a condition is invalid.
            RunOver: The one run has ended. For several runs, `refused` of its request says so.
            RunUnknown: The journal does not have the run.
            Corrupt: A run cannot be trusted; nothing was posted.
            StoreDown: The store is unavailable.
        """
        return await self._request(RequestDraft("cancel", by, why), run_id, conditions, preview=preview)

    async def _request(
        self, draft: RequestDraft, run_id: str | None, conditions: RunFilter, *, preview: bool
    ) -> RunRequests:
        if run_id is None:
            selected = await select(self.journal, draft.kind, conditions)
            if preview:
                return [RunRequest(head) for head in selected]
            return await draft.post(self._control, selected)
        if conditions:
            raise ConfigError(f"{draft.kind} takes the id of a run or conditions, not both")
        head = await self.journal.head(run_id)
        if preview:
            return [RunRequest(head)]
        return [await draft.post_one(self._control, head)]

"""Control of runs: the requests and answers of this process to runs that are live here or elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from typing import TYPE_CHECKING, Any

from orchestrator.errors import AnswerRefused, ConfigError, JournalError, RunError, RunOver, RunUnknown
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Journal, Posted
from orchestrator.kernel.mailbox import Kind, Signal
from orchestrator.kernel.outcome import REASONS, Outcome
from orchestrator.llm.port import Clock
from orchestrator.runtime.service import program
from orchestrator.runtime.service.answer import (
    OpenQuestions,
    PostedRequest,
    answer_of,
    default_actor,
    edit_fault,
    post_answer,
    post_replies,
)
from orchestrator.runtime.service.evicted_runs import EvictedRuns
from orchestrator.runtime.service.inbox import Inbox
from orchestrator.runtime.service.live_runs import RunRegistry
from orchestrator.tools.result import why_of
from orchestrator.tools.spec import ToolSpec, canonical_arguments
from orchestrator_guards import Refusal

if TYPE_CHECKING:
    from orchestrator.runtime.service.descendant import PendingQuestion

# `descendant` is imported with the first question: a host that asks nobody has no use for it.


class _Done:
    """The result of a completed request: may be awaited, but need not be."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


class RunController:
    """The requests to the runs of one agent."""

    def __init__(
        self,
        live: RunRegistry,
        journal: Journal,
        clock: Clock,
        find_tool: Callable[[str, Mapping[str, str]], ToolSpec | None] = lambda _, __: None,
    ) -> None:
        self.live = live
        self._find_tool = find_tool
        self._journal = journal
        self.clock = clock
        self.inbox = Inbox(live, journal)
        self.evicted = EvictedRuns(journal, clock)
        self._posting: set[asyncio.Task[None]] = set()

    async def deliver(self, run_id: str) -> bool:
        """Deliver new requests to a live run, or let the caller of an evicted one read them.

        Returns False if that is not possible yet.
        """
        if (evicted := self.evicted.find(run_id)) is not None:
            evicted.wake()
        return await self.inbox.deliver(run_id)

    # ---- requests ----

    def stop(self, run_id: str, reason: str, by: str, why: str) -> Awaitable[None]:
        """Request that a run stops. Raises ConfigError for an unknown reason."""
        if reason not in REASONS[Outcome.CANCELLED]:
            raise ConfigError(
                f"unknown reason {reason!r}; allowed: {', '.join(sorted(REASONS[Outcome.CANCELLED]))}"
            )
        return self.send(run_id, "cancel", "shutdown" if reason == "shutdown" else by, why)

    def pause(self, run_id: str, by: str, why: str) -> Awaitable[None]:
        """Request that a run parks before its next step."""
        return self.send(run_id, "pause", by, why)

    def go_on(self, run_id: str, by: str) -> None:
        """Resume a paused run of this process."""
        self.live.get(run_id).mailbox.post(Signal(kind="resume", id=_new_id(), by=by))

    def answer(self, run_id: str, decision: str, by: str, why: str, **members: Any) -> Awaitable[None]:
        """Answer a question about a call. Raises AnswerRefused for an answer that does not count."""
        answer = self._answer_of(run_id, decision, by, {**members, "why": why})
        return self._sent(run_id, decision, lambda: self._answer(run_id, answer))

    async def post_answer(self, run_id: str, decision: str, by: str, **members: Any) -> PostedRequest:
        """Answer a question about a call; return the answer that the journal keeps. Raises AnswerRefused."""
        return await self._post_answer(run_id, self._answer_of(run_id, decision, by, members))

    def _answer_of(self, run_id: str, decision: str, by: str, members: Mapping[str, Any]) -> Posted:
        """Return an answer with the members that have a value. Raises AnswerRefused for invalid arguments."""
        body = {name: value for name, value in members.items() if value is not None}
        if (fault := edit_fault(body.get("arguments"))) is not None:
            raise AnswerRefused(run_id, fault, kind="edit")
        return Posted("", decision, body, by or default_actor(), self.clock.time())

    async def _answer(self, run_id: str, answer: Posted) -> None:
        await self._post_answer(run_id, answer)

    async def _post_answer(self, run_id: str, answer: Posted) -> PostedRequest:
        """Post an answer to the run that it is about: the run itself, or a descendant whose whole digest it has."""
        try:
            return await self._post_answer_to(run_id, answer)
        except AnswerRefused as refused:
            from orchestrator.runtime.service.descendant import asking_descendant

            asking = await asking_descendant(self._journal, run_id, answer, refused, self.clock.time())
            if asking is None:
                raise
        return await self._post_answer_to(asking, answer)

    async def _post_answer_to(self, run_id: str, answer: Posted) -> PostedRequest:
        try:
            await self._check_edit(run_id, answer)
            return await post_answer(self._journal, run_id, answer, self.clock.time)
        except RunUnknown:
            if self.live.find(run_id) is None:
                raise
            raise AnswerRefused(run_id, "it asks nothing") from None  # the journal does not have it yet
        finally:
            # Also for an answer that another agent posted: with an unshared journal the run gets it only here.
            with contextlib.suppress(JournalError):  # the answer is stored; the listener retries
                await self.deliver(run_id)

    async def _check_edit(self, run_id: str, answer: Posted) -> None:
        """Raise AnswerRefused for edited arguments that the tool rejects, if the tool is known here.

        A run that is not live here may belong to another agent with another tool of this name: then only the run
        itself checks them. `find_tool` gets the tools of its records, with their digests.
        """
        if answer.body.get("arguments") is None:
            return
        asked = await OpenQuestions.read(self._journal, run_id, self.clock.time())
        question = asked.judge(answer_of(answer))
        live = self.live.find(run_id)
        if isinstance(question, Refusal):
            return
        if live is None:
            spec = self._find_tool(question.tool, asked.stored.definition or {})
        else:
            spec = live.deps.tools.find(question.tool)
        if spec is None:
            return
        try:
            canonical_arguments(spec, str(answer.body["arguments"]))
        except Exception as error:
            why = f"the edited arguments are refused: {why_of(error)}"
            raise AnswerRefused(run_id, why, kind="edit") from error

    def say(self, run_id: str, says: str, text: str, by: str) -> Awaitable[None]:
        """Send a message to a run; its hooks read messages in order. Raises RunUnknown, RunOver."""
        run = self.live.find(run_id)
        # Durable and in one order for all readers. A run with an unshared journal reads it when it is resumed here.
        if run is None or (self._journal.shared and run.lease is not None):
            return self._sent(run_id, says, lambda: self._post(run_id, says, by, text))
        run.mailbox.post(Signal(None, _new_id(), by or default_actor(), text, {"says": says}, "message"))
        return _Done()

    def reply(self, run_id: str, answers: Mapping[str, str], by: str) -> Awaitable[None]:
        """Answer questions of a run about its work. Raises AnswerRefused, RunUnknown, RunOver."""
        return self._sent(run_id, "answer", lambda: self._reply(run_id, answers, by or default_actor()))

    async def _reply(self, run_id: str, answers: Mapping[str, str], by: str) -> None:
        try:
            await post_replies(self._journal, run_id, answers, by, self.clock.time())
        finally:
            with contextlib.suppress(JournalError):  # the answers are stored; the listener retries
                await self.deliver(run_id)

    async def post_request(self, run_id: str, kind: Kind, by: str, why: str) -> PostedRequest:
        """Post a pause, a resume or a cancel through the journal, unless an equal one is unread.

        Raises RunOver, RunUnknown, StoreDown, and RunError for a pause of a paused run.
        """
        stored = await self._stored(run_id)
        if kind == "pause" and (stored.parked or {}).get("reason") == "paused":
            raise RunError(f"run {run_id!r} is paused already: nothing was posted")
        # A resumption answers a question about programs only if it is newer than the question.
        newer = kind == "resume" and bool(program.programs_question(stored))
        for one in await stored.unread(self._journal):
            if one.kind == kind and (not newer or program.programs_answered(stored, [one])):
                return PostedRequest(one, repeated=True)
        body = {"why": why} if why else {}
        request = Posted(_new_id(), kind, body, by or default_actor(), self.clock.time())
        await self._journal.post(run_id, request)
        with contextlib.suppress(JournalError):  # the request is stored; the listener retries
            await self.deliver(run_id)
        return PostedRequest(request, repeated=False)

    async def pending(self, run_id: str) -> list[PendingQuestion]:
        """Return the unanswered questions of a run and its descendants. Raises RunUnknown."""
        from orchestrator.runtime.service.descendant import pending_questions

        try:
            return await pending_questions(self._journal, run_id, self.clock.time())
        except RunUnknown:
            if self.live.find(run_id) is None:
                raise
            return []  # the journal does not have it yet

    def send(self, run_id: str, kind: Kind, by: str, why: str) -> Awaitable[None]:
        """Request cancel, pause or resume: at once from a live run of this process, else through the journal."""
        run = self.live.find(run_id)
        if run is None:
            if self._journal.shared:
                return self._sent(run_id, kind, lambda: self._post(run_id, kind, by, why))
            return self._sent(run_id, kind, lambda: self._nobody(run_id))
        run.mailbox.post(Signal(kind=kind, id=_new_id(), by=by or default_actor(), why=why))
        return _Done()

    def _sent(self, run_id: str, kind: str, work: Callable[[], Coroutine[Any, Any, None]]) -> Awaitable[None]:
        """Start to post at once, for callers that do not await the result; errors are logged for them.

        A journal in memory answers at once, so its errors are raised at once, as for a live run of this process.
        Without an event loop nothing can start; Python then warns about the missing await.
        """
        if not self._journal.shared:
            started = work()
            try:
                started.send(None)
            except StopIteration:
                return _Done()
            started.close()  # it would have to wait, and has written nothing
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return work()
        task = loop.create_task(work(), name=f"orchestrator {kind} {run_id}")
        self._posting.add(task)  # the loop keeps no reference; asyncio logs an unretrieved error
        task.add_done_callback(self._posted)
        return task

    def _posted(self, task: asyncio.Task[None]) -> None:
        self._posting.discard(task)
        if task.cancelled():
            logging.getLogger("orchestrator").warning("%s: cancelled before it was posted", task.get_name())

    async def _stored(self, run_id: str) -> StoredRun:
        """Return a run that has not ended. Raises RunUnknown, RunOver."""
        stored = StoredRun.of(run_id, await self._journal.load(run_id))
        if stored.ended is not None:
            raise RunOver(run_id, str(stored.ended.get("outcome")))
        return stored

    async def _nobody(self, run_id: str) -> None:
        """Refuse a request that cannot be read: no other process sees this journal."""
        await self._stored(run_id)
        raise RunUnknown(run_id)

    async def _post(self, run_id: str, kind: str, by: str, why: str) -> None:
        await self._stored(run_id)
        await self._journal.post(run_id, Posted(_new_id(), kind, {"why": why}, by or default_actor()))


def _new_id() -> str:
    return secrets.token_hex(8)

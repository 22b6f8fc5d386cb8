"""What people and other processes may ask of a run: at once where it lives here, through the journal elsewhere."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from typing import Any

from orchestrator.errors import AnswerRefused, ConfigError, RunOver, RunUnknown
from orchestrator.journal.stored import StoredRun
from orchestrator.kernel.journal import Journal, Posted
from orchestrator.kernel.outcome import REASONS, Outcome
from orchestrator.kernel.run import Kind, Run, Signal
from orchestrator.machines.llm_loop.model import LoopContext, Question
from orchestrator.ports import Clock
from orchestrator.runtime.inbox import DECISIONS, Inbox
from orchestrator.runtime.live import LiveRuns
from orchestrator.runtime.login import somebody
from orchestrator.toolarguments import BadArguments, json_data
from orchestrator.toolresult import why_of
from orchestrator.toolspec import canonical_arguments
from orchestrator_callbacks.llm_loop import people
from orchestrator_callbacks.llm_loop.deps import Tools
from orchestrator_guards import Refusal, judge_answer


class _Done:
    """What an act that was carried out at once returns: may be awaited, need not be."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


class Control:
    """The requests to the runs of one agent."""

    def __init__(self, live: LiveRuns, journal: Journal, clock: Clock, tools: Tools | None = None) -> None:
        self._live = live
        self._tools = tools
        self._journal = journal
        self.clock = clock
        inbox = Inbox(live, journal)
        self.listening, self.deliver = inbox.listening, inbox.deliver
        self._posting: set[asyncio.Task[None]] = set()

    # ---- asking ----

    def stop(self, run_id: str, reason: str, by: str, why: str) -> Awaitable[None]:
        """Ask a run to stop. Raises ConfigError for an unknown reason."""
        if reason not in REASONS[Outcome.CANCELLED]:
            raise ConfigError(
                f"unknown reason {reason!r}; known: {', '.join(sorted(REASONS[Outcome.CANCELLED]))}"
            )
        return self._send(run_id, "cancel", "shutdown" if reason == "shutdown" else by, why)

    def hold(self, run_id: str, by: str, why: str) -> Awaitable[None]:
        """Ask a run to park before its next step."""
        return self._send(run_id, "pause", by, why)

    def go_on(self, run_id: str, by: str) -> None:
        """Let a run that lives here and was paused go on."""
        self._live.get(run_id).mailbox.post(Signal(kind="resume", id=_new_id(), by=by))

    def answer(self, run_id: str, decision: str, by: str, why: str, **members: Any) -> Awaitable[None]:
        """Answer a question about a call. Raises AnswerRefused for one that would not count, at once."""
        answer = {name: value for name, value in members.items() if value is not None} | {
            "decision": decision
        }
        if (fault := edit_fault(answer.get("arguments"))) is not None:
            raise AnswerRefused(run_id, fault)
        run = self._live.find(run_id)
        if run is None:
            return self._sent(run_id, decision, lambda: self._post(run_id, decision, by, why, answer))
        found = self._judged(run, answer)
        if isinstance(found, Refusal):
            raise AnswerRefused(run_id, found.why)
        _check_edit(run_id, run.deps.tools, found, answer)
        run.mailbox.post(Signal(kind="decision", id=_new_id(), by=by or somebody(), why=why, payload=answer))
        return _Done()

    def _judged(self, run: Run[Any, Any], answer: Mapping[str, Any]) -> Question | Refusal:
        """Judge an answer as the run will, once it has read those that it is about to read."""
        now = self.clock.time()
        asked = {one.key: one for one in _questions(run)}
        ctx = run.ctx
        decided: dict[str, Mapping[str, Any]] = (
            dict(ctx.ledger.decided) if isinstance(ctx, LoopContext) else {}
        )
        for signal in run.mailbox.decided:
            found = judge_answer(asked.values(), decided, signal.payload, now=now) if signal.payload else None
            if found is None or isinstance(found, Refusal):
                continue  # an alarm, or an answer that will not count
            for key in list(asked) if signal.payload.get("end") else [found.key]:
                del asked[key]
                decided[key] = {"by": signal.by, "decision": signal.payload["decision"]}
        return judge_answer(asked.values(), decided, answer, now=now)

    def say(
        self, run_id: str, says: str, text: str, by: str, about: Mapping[str, Any] | None = None
    ) -> Awaitable[None]:
        """Leave a message for a run; its hooks read those in order. Raises RunUnknown, RunOver."""
        run = self._live.find(run_id)
        # Durable, and one order for everybody; one that is left in memory reads it when it goes on here.
        if run is None or (self._journal.shared and run.lease is not None):
            return self._sent(run_id, says, lambda: self._post(run_id, says, by, text, about or {}))
        payload = {**(about or {}), "says": says}
        run.mailbox.post(Signal(None, _new_id(), by or somebody(), text, payload, "message"))
        return _Done()

    async def pending(self, run_id: str) -> list[Question]:
        """Return what a person is asked about a run now. Raises RunUnknown."""
        run = self._live.find(run_id)
        if run is not None:
            return _questions(run)
        return list(StoredRun.of(run_id, await self._journal.load(run_id)).questions.values())

    def _send(self, run_id: str, kind: Kind, by: str, why: str) -> Awaitable[None]:
        run = self._live.find(run_id)
        if run is None:
            if self._journal.shared:
                return self._sent(run_id, kind, lambda: self._post(run_id, kind, by, why, {}))
            return self._sent(run_id, kind, lambda: self._nobody(run_id))
        run.mailbox.post(Signal(kind=kind, id=_new_id(), by=by or somebody(), why=why))
        return _Done()

    def _sent(self, run_id: str, kind: str, work: Callable[[], Coroutine[Any, Any, None]]) -> Awaitable[None]:
        """Begin to post at once, for those who do not await this as well; what goes wrong then is logged.

        A journal in memory answers at once, and so it raises at once, as for a run that lives here. Without an event
        loop nothing can begin; Python then warns of what is not awaited.
        """
        if not self._journal.shared and _carried_out(work()):
            return _Done()
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return work()
        task = loop.create_task(work(), name=f"orchestrator {kind} {run_id}")
        self._posting.add(task)  # the loop keeps none; a task whose error nobody hears is logged by asyncio
        task.add_done_callback(self._posted)
        return task

    def _posted(self, task: asyncio.Task[None]) -> None:
        self._posting.discard(task)
        if task.cancelled():
            logging.getLogger("orchestrator").warning("%s: given up before it was posted", task.get_name())

    async def _stored(self, run_id: str) -> StoredRun:
        """Return a run that has not ended. Raises RunUnknown, RunOver."""
        stored = StoredRun.of(run_id, await self._journal.load(run_id))
        if stored.ended is not None:
            raise RunOver(run_id, str(stored.ended.get("outcome")))
        return stored

    async def _nobody(self, run_id: str) -> None:
        """Refuse a request that nobody would read: no other process sees this journal."""
        await self._stored(run_id)
        raise RunUnknown(run_id)

    async def _post(self, run_id: str, kind: str, by: str, why: str, body: Mapping[str, Any]) -> None:
        stored = await self._stored(run_id)
        if kind in DECISIONS:
            found = judge_answer(stored.questions.values(), stored.decided, body, now=self.clock.time())
            if isinstance(found, Refusal):
                raise AnswerRefused(run_id, found.why)
            _check_edit(run_id, self._tools, found, body)
            # Bound to what is asked now: the run may ask something else by the time it reads this.
            body = {"call": found.key, "digest": found.digest, **body}
        await self._journal.post(run_id, Posted(_new_id(), kind, {**body, "why": why}, by or somebody()))


def _questions(run: Run[Any, Any]) -> list[Question]:
    """Return what people are asked about a run; in a graph without calls that is nothing."""
    return people.questions(run) if isinstance(run.ctx, LoopContext) else []


def _carried_out(work: Coroutine[Any, Any, None]) -> bool:
    """Carry out what waits for nothing; False for what would have to wait before anything is written."""
    try:
        work.send(None)
    except StopIteration:
        return True
    work.close()
    return False


def _check_edit(run_id: str, tools: Tools | None, question: Question, answer: Mapping[str, Any]) -> None:
    """Raise AnswerRefused for edited arguments that the tool does not take, where the tool is known here."""
    edited = answer.get("arguments")
    spec = None if tools is None or edited is None else tools.find(question.tool)
    if spec is None:
        return
    try:
        canonical_arguments(spec, str(edited))
    except Exception as error:
        raise AnswerRefused(run_id, f"the edited arguments are refused: {why_of(error)}") from error


def edit_fault(arguments: object) -> str | None:
    """Say why a person's edit cannot stand for the arguments of a call, or None; None is no edit."""
    if arguments is None:
        return None
    try:
        given = json_data(arguments) if isinstance(arguments, str) else None
    except RecursionError:
        return "the edited arguments are nested too deeply; a tool takes a flatter object"
    except BadArguments as error:
        return f"the edited arguments are refused: {error}"
    except ValueError as error:
        return f"the edited arguments are not JSON ({error}); they must be the text of one object"
    if not isinstance(given, dict):
        return "the edited arguments must be the text of one JSON object"
    return None


def _new_id() -> str:
    return secrets.token_hex(8)

"""Answers and control requests to runs, from this process or another. The journal decides which answer counts.

The id of an answer contains its question: the key of the call and the digest. A store keeps one request per id,
whichever process posts it. Of two concurrent answers it keeps one, on every store and even while the run reads its
inbox; the caller of the other one gets AnswerRefused. The alternative, to read, check and then post under a unique
id, fails if another process answers in between.

An answer that the run refuses, because its question has expired or differs, does not count. It does not block the
question either: a number in the id distinguishes the next answer.

Answers to questions always go through the journal, which decides which answer counts (see `answer`).
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import itertools
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from orchestrator.errors import (
    AnswerRefused,
    ConfigError,
    Corrupt,
    JournalError,
    RunError,
    RunOver,
    RunUnknown,
    StoreDown,
)
from orchestrator.journal.stored_run import PLAN, StoredRun
from orchestrator.kernel.journal import Journal, Posted
from orchestrator.kernel.mailbox import Kind, Signal
from orchestrator.kernel.outcome import REASONS, Outcome
from orchestrator.kernel.run import Run
from orchestrator.llm.port import Clock
from orchestrator.machines.question import Question, judge
from orchestrator.runtime.service import program
from orchestrator.runtime.service.ownership import RunRegistry
from orchestrator.tools.argument import BadArguments, json_data
from orchestrator.tools.result import why_of
from orchestrator.tools.spec import ToolSpec, canonical_arguments
from orchestrator_guards import Refusal, describe_answer, repeats_answer

POLL = 0.1
"""Seconds between two reads. A read costs some 150 µs, mostly for thread switches, whatever the number of runs."""

_EVERY = 10
"""Number of reads between two checks of a waiting run's lease."""

DECISIONS = ("approve", "reject", "respond", "request_changes")
"""Kinds of requests that answer a question."""

MESSAGES = ("stop", "steer", "inform", "answer")
"""Kinds of requests that a run's hooks read in order."""

_KINDS: dict[str, Kind] = {
    "cancel": "cancel",
    "pause": "pause",
    "resume": "resume",
    **dict.fromkeys(DECISIONS, "decision"),
    **dict.fromkeys(MESSAGES, "message"),
}


def answer_of(posted: Posted) -> dict[str, Any]:
    """Return a posted answer as guards and hooks read it: its body, with its kind as `decision`."""
    return {**posted.body, "decision": posted.kind}


class Inbox:
    """Listens while runs are live here and their journal is shared with other processes.

    Threads with an event loop each may run one agent at the same time. Each loop has its own listener, which delivers
    to the runs of its loop only: a mailbox belongs to the loop of its run.
    """

    def __init__(self, live: RunRegistry, journal: Journal) -> None:
        self._live = live
        self._journal = journal
        self._listeners: dict[asyncio.AbstractEventLoop, _Listener] = {}

    @contextlib.asynccontextmanager
    async def listening(self, run_id: str) -> AsyncIterator[None]:
        """Deliver requests of other processes to a live run while the block is active."""
        if not self._journal.shared:
            yield
            return
        loop = asyncio.get_running_loop()
        listener = self._listeners.get(loop)
        if listener is None:
            listener = self._listeners[loop] = _Listener(self._live, self._journal, self.deliver)
        listener.begin(run_id)
        try:
            yield
        finally:
            if listener.leave(run_id):
                del self._listeners[loop]
                await listener.end()

    async def deliver(self, run_id: str) -> bool:
        """Deliver new requests to a live run; return False if that is not possible yet."""
        run = self._live.find(run_id)
        if run is None:
            return True
        if run.lease is None:  # it is starting or ending
            return False
        with contextlib.suppress(RunUnknown):
            for posted in await self._journal.inbox(run_id, run.control.inbox):
                # Two reads may overlap: skip requests that the other one has delivered.
                signal = signal_of(posted) if posted.number > run.control.inbox else None
                run.acknowledge(posted.number)
                if signal is not None:
                    run.mailbox.post(signal)
        return True


class _Listener:
    """Reads the requests for the live runs of one event loop.

    `news` names a run only once, so a run stays listed here until its inbox was read successfully. An error of one
    run affects neither the other runs nor the listening. The writers report an unavailable store.
    """

    def __init__(
        self, live: RunRegistry, journal: Journal, deliver: Callable[[str], Awaitable[bool]]
    ) -> None:
        self._live = live
        self._journal = journal
        self._deliver = deliver
        self._runs: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._since = -1
        self._owed: dict[str, None] = {}
        self._looks = 0
        self._round: list[str] = []
        self._delivered: set[str] = set()

    def begin(self, run_id: str) -> None:
        """Deliver to a run, too."""
        self._runs[run_id] = None
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._listen(), name="orchestrator inbox")

    def leave(self, run_id: str) -> bool:
        """Stop to deliver to a run; return whether it was the last one."""
        self._runs.pop(run_id, None)
        return not self._runs

    async def end(self) -> None:
        """Stop to read."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))

    async def _listen(self) -> None:
        """Read until cancelled."""
        self._since = -1
        while True:
            try:
                delivered, self._delivered = self._delivered, set()
                await self._look(delivered)
            except StoreDown:
                self._since = -1
            except Exception as error:  # noqa: BLE001 - logged; the listener must continue
                self._since = -1
                self._warn("requests of other processes", error, delivered)
            await asyncio.sleep(POLL)

    async def _look(self, delivered: set[str]) -> None:
        position, news = await self._journal.news(self._since)
        # The first read, and a read after an error, have no known start.
        wanted = self._runs if self._since < 0 else [run_id for run_id in news if run_id in self._runs]
        self._owed |= dict.fromkeys(wanted)
        self._since = position
        for run_id in tuple(self._owed):
            try:
                if await self._deliver(run_id):
                    del self._owed[run_id]
            except StoreDown:
                raise
            except Exception as error:  # noqa: BLE001 - concerns this run only; retried with the next read
                self._warn(f"requests to run {run_id!r}", error, delivered)
        self._looks += 1
        if not self._looks % _EVERY:
            await self._fence_one()

    def _warn(self, what: str, error: Exception, delivered: set[str]) -> None:
        """Log an error once for as long as it lasts."""
        text = f"{what} could not be read and are retried: {type(error).__name__}: {error}"
        self._delivered.add(text)
        if text not in delivered:
            logging.getLogger("orchestrator").error("%s", text)

    async def _fence_one(self) -> None:
        """Detect whether another owner has claimed a waiting run; one run at a time, because there may be thousands."""
        if not self._round:
            self._round = [run_id for run_id in self._runs if self._waits(run_id) is not None]
        run = self._waits(self._round.pop()) if self._round else None
        if run is None:
            return
        try:
            epoch = (await self._journal.head(run.run_id)).epoch
        except RunUnknown:
            epoch = None
        except Corrupt:
            return  # its readers report it
        if run.control.services is not None and run.lease is not None and epoch != run.lease.epoch:
            run.control.services.fence(run)

    def _waits(self, run_id: str) -> Run[Any, Any] | None:
        run = self._live.find(run_id)
        return run if run is not None and run.parked and run.lease is not None else None


def signal_of(posted: Posted) -> Signal | None:
    """Return a request of another process as a signal for the run's driver; None for an unknown kind."""
    why = str(posted.body.get("why") or "")
    payload = answer_of(posted) if posted.kind in DECISIONS else {}
    if posted.kind in MESSAGES:
        payload = {**posted.body, "says": posted.kind}
    kind = _KINDS.get(posted.kind)
    if kind is None:
        return None
    return Signal(kind=kind, id=posted.id, by=posted.by, why=why, payload=payload, number=posted.number)


_MEMBERS = ("digest", "arguments", "content", "end", "why")
"""Fields of an answer besides its call."""


class PostedRequest(NamedTuple):
    """A request to a run, or an answer that counts, as stored in the journal."""

    request: Posted
    repeated: bool
    """It was posted before; nothing was posted again."""


@dataclass(slots=True)
class OpenQuestions:
    """The questions of a run.

    An answer counts as soon as the journal has stored it, even if the run has not read it.
    """

    stored: StoredRun
    now: float
    """Epoch seconds; an expired question accepts no answer."""
    waiting: dict[str, Question]
    """Key of a call -> its unanswered question."""
    answered: dict[str, Mapping[str, Any]]
    """Key of a call -> its answer that counts, with `decision`, `by`, `at` and `id`."""

    @classmethod
    async def read(cls, journal: Journal, run_id: str, now: float) -> Self:
        """Read the questions of a run and their answers. Raises RunUnknown, Corrupt, StoreDown."""
        stored = StoredRun.of(run_id, await journal.load(run_id))
        found = cls(stored, now, stored.questions, stored.decided)
        for posted in await stored.unread(journal):
            if posted.kind in DECISIONS:
                question = found.judge(answer_of(posted))
                if isinstance(question, Refusal):
                    continue
                # It counts as soon as it is posted, in the same way as the run will count it.
                answer = {**answer_of(posted), "id": posted.id, "by": posted.by, "at": posted.at}
                for key in tuple(found.waiting) if posted.body.get("end") else (question.key,):
                    asked = found.waiting.pop(key)
                    found.answered.pop(key, None)  # so that the newest is the last entry
                    found.answered[key] = {**answer, "key": key, "digest": asked.digest}
        return found

    def judge(self, answer: Mapping[str, Any]) -> Question | Refusal:
        """Return the question of an answer, or the reason why the answer does not count."""
        return judge(self.waiting.values(), self.answered, answer, now=self.now)

    def earlier(self, call: str | None) -> Mapping[str, Any] | None:
        """Return the answer about a call that counts; without a call, the last one of the run."""
        if call is None:
            return next(reversed(self.answered.values()), None)
        return self.answered.get(call)


async def post_answer(
    journal: Journal, run_id: str, answer: Posted, now: Callable[[], float]
) -> PostedRequest:
    """Post an answer, unless another one counts. `now` returns epoch seconds; the id is made here.

    Returns normally if the same person repeats the same answer.

    Raises:
        AnswerRefused: Another answer counts, which the error names, or this one is invalid.
        RunOver: The run has ended.
        RunUnknown: The journal does not have the run.
        StoreDown: The store is unavailable.
    """
    for number in itertools.count():
        found = await OpenQuestions.read(journal, run_id, now())
        question = found.judge(answer_of(answer))
        if isinstance(question, Refusal):
            earlier = found.earlier(answer.body.get("call"))
            given = {**answer_of(answer), "by": answer.by}
            if question.kind != "answered" or earlier is None or not repeats_answer(earlier, given):
                raise _refused(found, answer, question)
            body = {name: earlier[name] for name in _MEMBERS if earlier.get(name) is not None}
            at, by_id = float(earlier.get("at") or 0.0), str(earlier.get("id", ""))
            request = Posted(by_id, answer.kind, {"call": earlier["key"], **body}, answer.by, at)
            return PostedRequest(request, repeated=True)
        if (fault := _unfit(question, answer)) is not None:
            raise AnswerRefused(run_id, fault, kind="edit")
        # The answer is bound to the current question, because the run may ask another one before it reads this.
        body = {**answer.body, "call": question.key, "digest": question.digest}
        # The number counts the answers that the run refused.
        name = f"answer {question.key} {question.digest}" + (f" {number}" if number else "")
        request = replace(answer, id=name, body=body)
        if not await journal.post(run_id, request):
            continue
        # An earlier answer with another id may count instead: it ended the whole run, or was posted by an earlier
        # version. The order of the inbox decides.
        found = await OpenQuestions.read(journal, run_id, now())
        counts = found.earlier(question.key)
        if counts is not None and counts.get("id") == request.id:
            return PostedRequest(request, repeated=False)
        now_asked = found.judge(answer_of(request))
        why = now_asked if isinstance(now_asked, Refusal) else Refusal("unasked", "the run has refused it")
        raise _refused(found, request, why)
    raise AssertionError("unreachable")


async def post_replies(
    journal: Journal, run_id: str, answers: Mapping[str, str], by: str, now: float
) -> None:
    """Post answers to questions about a run's work: question id -> text, each under an id with its question.

    Returns normally for answers that the same person repeats. Raises AnswerRefused if another answer counts, before
    anything is posted, except for a concurrent answer; RunOver; RunUnknown; StoreDown.
    """
    await _are_kept(journal, run_id, answers, by)
    for question, text in answers.items():
        for number in itertools.count():
            if await _are_kept(journal, run_id, {question: text}, by):
                break
            name = f"answer {question}" + (f" {number}" if number else "")
            body = {"answers": {question: text}, "why": ""}
            await journal.post(run_id, Posted(name, "answer", body, by, now))


async def _are_kept(journal: Journal, run_id: str, answers: Mapping[str, str], by: str) -> bool:
    """Return whether the journal stores all these answers. Raises AnswerRefused if it stores another; RunOver."""
    stored = StoredRun.of(run_id, await journal.load(run_id))
    kept = {
        question: posted
        for question, posted in (await replies(journal, stored)).items()
        if question in answers
    }
    for question, first in kept.items():
        if (first.by, first.body["answers"][question]) != (by, answers[question]):
            earlier = {"by": first.by, "decision": "answer", "at": first.at, "key": question}
            raise AnswerRefused(
                run_id, f"question {question}: {describe_answer(earlier)}", "answered", earlier
            )
    if stored.ended is not None and kept.keys() != answers.keys():
        raise RunOver(run_id, str(stored.ended.get("outcome")))
    return kept.keys() == answers.keys()


async def replies(journal: Journal, stored: StoredRun) -> dict[str, Posted]:
    """Return the answer to each question about a run's work: the first one that the run has not refused."""
    found: dict[str, Posted] = {}
    for posted in await journal.inbox(stored.run_id):
        if posted.kind == "answer":
            unknown = stored.refused.get(posted.id, "").removeprefix("there is no question ").split(", ")
            for question in (posted.body.get("answers") or {}).keys() - set(unknown):
                found.setdefault(question, posted)
    return found


def _unfit(question: Question, answer: Posted) -> str | None:
    """Return why an answer of this kind does not fit its question, or None."""
    changes = answer.kind == "request_changes"
    if question.why != PLAN:
        return "only a plan can be changed: reject the call with a reason" if changes else None
    if answer.kind == "respond":
        return "a plan has no result: approve it, reject it, or request changes"
    if answer.body.get("arguments") is not None:
        return "a plan is approved as it is: request changes instead"
    if answer.body.get("end"):
        return "rejecting a plan ends its request already: leave `end` out"
    if changes and not str(answer.body.get("why") or "").strip():
        return "the changes are empty: describe them"
    return None


def _refused(found: OpenQuestions, answer: Posted, why: Refusal) -> AnswerRefused:
    run_id, ended = found.stored.run_id, found.stored.ended
    earlier = found.earlier(answer.body.get("call")) if why.kind == "answered" else None
    if ended is None:
        return AnswerRefused(run_id, why.why, kind=why.kind, earlier=earlier)
    said = "" if earlier is None else describe_answer(earlier)
    return RunOver(run_id, str(ended.get("outcome")), why=said, earlier=earlier)


def login() -> str:
    """Return the login name; empty if it is unknown."""
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""


def default_actor() -> str:
    """Return the login name; `unknown` if there is none."""
    return login() or "unknown"


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
        find_tool: Callable[[str], ToolSpec | None] = lambda _: None,
    ) -> None:
        self.live = live
        self._find_tool = find_tool
        self._journal = journal
        self.clock = clock
        inbox = Inbox(live, journal)
        self.listening, self.deliver = inbox.listening, inbox.deliver
        self._posting: set[asyncio.Task[None]] = set()

    # ---- requests ----

    def stop(self, run_id: str, reason: str, by: str, why: str) -> Awaitable[None]:
        """Request that a run stops. Raises ConfigError for an unknown reason."""
        if reason not in REASONS[Outcome.CANCELLED]:
            raise ConfigError(
                f"unknown reason {reason!r}; allowed: {', '.join(sorted(REASONS[Outcome.CANCELLED]))}"
            )
        return self._send(run_id, "cancel", "shutdown" if reason == "shutdown" else by, why)

    def pause(self, run_id: str, by: str, why: str) -> Awaitable[None]:
        """Request that a run parks before its next step."""
        return self._send(run_id, "pause", by, why)

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
        """Raise AnswerRefused for edited arguments that the tool rejects, if the tool is known here."""
        if answer.body.get("arguments") is None:
            return
        asked = await OpenQuestions.read(self._journal, run_id, self.clock.time())
        question = asked.judge(answer_of(answer))
        live = self.live.find(run_id)
        find = self._find_tool if live is None else live.deps.tools.find
        spec: ToolSpec | None = None if isinstance(question, Refusal) else find(question.tool)
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

    async def pending(self, run_id: str) -> list[Question]:
        """Return the unanswered questions of a run. Raises RunUnknown."""
        try:
            found = await OpenQuestions.read(self._journal, run_id, self.clock.time())
        except RunUnknown:
            if self.live.find(run_id) is None:
                raise
            return []  # the journal does not have it yet
        return list(found.waiting.values())

    def _send(self, run_id: str, kind: Kind, by: str, why: str) -> Awaitable[None]:
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


def edit_fault(arguments: object) -> str | None:
    """Return why edited arguments are invalid, or None; None as argument means no edit."""
    if arguments is None:
        return None
    try:
        given = json_data(arguments) if isinstance(arguments, str) else None
    except RecursionError:
        return "the edited arguments are nested too deeply; give a flatter object"
    except BadArguments as error:
        return f"the edited arguments are refused: {error}"
    except ValueError as error:
        return f"the edited arguments are not JSON ({error}); they must be the text of one object"
    if not isinstance(given, dict):
        return "the edited arguments must be the text of one JSON object"
    return None


def _new_id() -> str:
    return secrets.token_hex(8)

"""What every agent says about its runs, whatever its graph: one set of words for all facades."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from orchestrator.argument_names import checks_names
from orchestrator.errors import RunExists, RunUnknown, Suspended
from orchestrator.kernel.fact import Follower
from orchestrator.kernel.machine import Machine
from orchestrator.runtime.service.arguments import IfExists, check_if_exists
from orchestrator.runtime.service.hosting import Hosting
from orchestrator.runtime.service.ownership import AgentIdentity
from orchestrator.runtime.service.run_service import RunService
from orchestrator.runtime.service.waiting_run import (
    Answers,
    OpenQuestion,
    Wait,
    WaitingRun,
    check_answers,
    check_wait,
)

if TYPE_CHECKING:
    from orchestrator.llm.run_event import QuestionAsked
    from orchestrator.runtime.run_stream import RunStream
    from orchestrator.runtime.runs.runs import Runs
    from orchestrator.runtime.service.descendant import PendingQuestion

R = TypeVar("R")


@checks_names
class Facade(Generic[R]):
    """The common words of the facades, which hold a RunService; R is the type of a run's result."""

    _service: RunService[R]
    hosting: Hosting
    """Engine-only interface of the agent."""
    parks: bool = False
    """Whether a run that has to wait for a person is left in the journal (Suspended); child runs always wait here."""

    @property
    def name(self) -> str:
        """Name of the agent; empty if it has none."""
        return self.identity.name

    @property
    def version(self) -> str:
        """Version of the agent; empty if it has none."""
        return self.identity.version

    @property
    def machine(self) -> Machine:
        """The `transitions.Machine` of its graph. A change through the library's interface applies to all its runs.

        Each run follows at its next step, and its records have the fingerprint of the changed table. Several changes
        go into one block `with agent.machine.changing():`.
        """
        return self._service.machine

    @property
    def identity(self) -> AgentIdentity:
        """Name, version and tools of the agent."""
        return self._service.identity

    @property
    def runs(self) -> Runs:
        """The runs of the journal, also those of other agents and processes."""
        from orchestrator.runtime.runs.runs import (
            Runs,  # readers of journals: a host that only runs agents has no use for them
        )

        return Runs(self._service.journal, control=self._service.control)

    async def _run_or_continue(
        self, if_exists: IfExists, wait: Wait, prompt: Any, run_id: str, *others: Any
    ) -> R:
        """Start a run with the arguments of `_begin` and return its end; `if_exists` and `wait` are those of `run`."""
        begin = partial(self._begin, prompt, run_id, *others)
        work = partial(self._start_or_continue, run_id, if_exists, begin, partial(self.resume, run_id))
        return await self._ended_or_waiting(run_id, wait, work)

    async def _start_or_continue(
        self,
        run_id: str,
        if_exists: IfExists,
        begin: Callable[[], Awaitable[R]],
        resume: Callable[[], Awaitable[R]],
    ) -> R:
        """Start a run; if it exists, resume it or return its result, as `if_exists` says. A run of here is awaited."""
        if if_exists == "raise":
            return await begin()
        if not self._is_active(run_id) and not await self.hosting.continues(run_id, if_exists):
            try:
                return await begin()
            except RunExists as error:  # another caller was quicker
                if error.run_id != run_id or not (if_exists == "resume" or self._is_active(run_id)):
                    raise
        if self._is_active(run_id):
            end: R = await asyncio.shield(self._service.live.end_of(run_id))
            return end
        return await resume()

    def _is_active(self, run_id: str) -> bool:
        """Return whether a run is active in this process, and not paused."""
        live = self._service.live.find(run_id)
        return live is not None and live.control.pause_request is None

    async def _ended_or_waiting(self, run_id: str, wait: Wait, work: Callable[[], Awaitable[R]]) -> R:
        """Return the result of a run, or with `wait="never"` a WaitingRun as soon as it waits for a person."""
        if wait == "always":
            return await work()
        check_wait(wait)
        with self._service.left_when_waiting(run_id):
            try:
                return await work()
            except Suspended as error:
                head = await self._service.journal.head(run_id)
                questions = await self.questions(run_id)
                if error.run_id != run_id or not (questions or head.reason == "paused"):
                    raise
                waiting: Any = WaitingRun(run_id=run_id, reason=head.reason or "", questions=questions)
                return cast("R", waiting)

    async def questions(self, run_id: str) -> tuple[OpenQuestion, ...]:
        """Return the open questions of a run and of its child runs, in this or another process. Raises RunUnknown."""
        await self._service.journal.head(run_id)
        return tuple(
            OpenQuestion(
                id=one.key if one.run_id == run_id else f"{one.run_id}/{one.key}",
                run_id=one.run_id,
                agents=one.agents,
                key=one.key,
                text=one.notice or f"May {one.tool} be called with {one.arguments}?",
                why=one.why,
                tool=one.tool,
                arguments=one.arguments,
                digest=one.digest,
                expires_at=one.expires_at,
            )
            for one in await self._service.control.pending(run_id)
        )

    async def _post_answers(self, run_id: str, answers: Answers | None, by: str) -> None:
        """Answer open questions of a run and of its child runs.

        Raises ConfigError, before any answer is posted, and AnswerRefused for a question that was answered meanwhile.
        """
        if answers is None:
            return
        questions = {one.id: one for one in await self.questions(run_id)}
        check_answers(run_id, answers, questions)
        for name, answer in answers.items():
            one = questions[name]
            verb = "respond" if isinstance(answer, str) else "approve" if answer else "reject"
            content = {"content": answer} if isinstance(answer, str) else {}
            await self._service.control.answer(
                one.run_id, verb, by, "", call=one.key, digest=one.digest, **content
            )

    def _stream_or_continue(
        self,
        new: RunStream[Any, R],
        run_id: str | None,
        if_exists: IfExists,
        resume: Callable[[], Awaitable[R]],
    ) -> RunStream[Any, R]:
        """Return the stream of a run that starts or, if it exists, continues. Raises ConfigError."""
        if if_exists == "raise":
            return new
        check_if_exists(if_exists, run_id)
        from orchestrator.runtime.run_stream import either_stream, resumed_stream

        async def fail() -> R:
            raise RunExists(new.run_id)

        go_on = partial(self._start_or_continue, new.run_id, if_exists, fail, resume)
        refuse = partial(self._service.recovery.refuse_foreign, from_agent=None)
        return either_stream(new, resumed_stream(new.run_id, self.runs, refuse, go_on), self._exists)

    async def _exists(self, run_id: str) -> bool:
        try:
            await self._service.journal.head(run_id)
        except RunUnknown:
            return False
        return True

    async def _start(  # noqa: PLR0917 - the arguments of a new run
        self,
        prompt: Any,
        run_id: str,
        conversation_id: str | None,
        limits: Any,
        deadline: float | None,
        settings: Any,
        follower: Follower | None = None,
        /,
    ) -> R:
        """Start a run with checked arguments and drive it until it has ended, or is left."""
        raise NotImplementedError

    async def resume(self, run_id: str, /) -> R:
        """Resume a run of the journal from its last record and return its result."""
        raise NotImplementedError

    def _begin(self, *arguments: Any) -> Coroutine[Any, Any, R]:
        """Start a run as `_start` does and return its result; an evicted run is followed until it has ended.

        Not a coroutine function: an evicted run shall keep neither its arguments nor its frames.
        """
        work = self._start(*arguments)
        if not self._service.runtime.evict_after:
            return work
        follower = next(iter(arguments[6:]), None)
        return self._service.outlast(work, self.resume, follower)

    def cancel(
        self, run_id: str, *, reason: str = "caller", by: str = "caller", why: str = ""
    ) -> Awaitable[None]:
        """Request that a run stops: it starts nothing more and ends as `cancelled`.

        A live run of this process has received the request when this returns. For a run of another process, await the
        result: the request is in the journal then.

        Args:
            run_id: Id of the run.
            reason: "caller", or "shutdown" if the process stops.
            by: Who cancels the run.
            why: The reason as text.

        Raises:
            RunUnknown: The run does not exist.
            ConfigError: `reason` has another value.
        """
        return self._service.control.stop(run_id, reason, by, why)

    def pause(self, run_id: str, *, by: str = "", why: str = "") -> Awaitable[None]:
        """Request that a run parks before its next step, after the work in flight; `resume` continues it.

        As `cancel`.
        """
        return self._service.control.pause(run_id, by, why)


@checks_names
class HumanInput(Facade[R]):
    """The facade of runs that ask people about calls; R is the type of a run's result."""

    def approve(
        self,
        run_id: str | QuestionAsked,
        call: str | None = None,
        *,
        digest: str | None = None,
        arguments: str | None = None,
        by: str = "",
        why: str = "",
    ) -> Awaitable[None]:
        """Approve a call that waits for a person.

        Await this: the answer is in the journal then. A journal in memory has it when this returns. The journal
        stores the first valid answer to a question, from any process. The same answer of the same person returns
        normally, also after the run has ended.

        Args:
            run_id: Id of the run that asks, or the event QuestionAsked of a stream, which names run, call and
                arguments; or of a run above it, if `digest` is the whole digest of the question.
            call: Key of the call as in `pending`; required if several calls wait.
            digest: If given, the answer counts only for exactly these arguments.
            arguments: JSON text that replaces the model's arguments.
            by: Who answers; the current user by default.
            why: The reason.

        Raises:
            AnswerRefused: The answer does not count. `earlier` is the answer that counts, if any.
            RunUnknown: The run does not exist.
            StoreDown: The store is unavailable.
        """
        run_id, call, digest = _about(run_id, call, digest)
        return self._service.control.answer(
            run_id, "approve", by, why, call=call, digest=digest, arguments=arguments
        )

    def reject(
        self,
        run_id: str | QuestionAsked,
        call: str | None = None,
        *,
        digest: str | None = None,
        by: str = "",
        why: str = "",
        end: bool = False,
    ) -> Awaitable[None]:
        """Reject a call: the model reads that and the reason. With `end` the run ends as `rejected`. As `approve`."""
        run_id, call, digest = _about(run_id, call, digest)
        return self._service.control.answer(
            run_id, "reject", by, why, call=call, digest=digest, end=end or None
        )

    def respond(
        self,
        run_id: str | QuestionAsked,
        content: str,
        call: str | None = None,
        *,
        digest: str | None = None,
        by: str = "",
        why: str = "",
    ) -> Awaitable[None]:
        """Answer a call in place of its tool: the model reads `content` as its result. As `approve`."""
        run_id, call, digest = _about(run_id, call, digest)
        return self._service.control.answer(
            run_id, "respond", by, why, call=call, digest=digest, content=content
        )

    async def pending(self, run_id: str) -> list[PendingQuestion]:
        """Return the unanswered questions of a run and its descendants, in this or another process. Raises RunUnknown.

        The questions of the run itself come first. `run_id` and `agents` of a question name the run that asks. A
        question is listed as soon as it is durable, until the journal stores an answer to it or a request to stop the
        run or one above it.
        """
        return await self._service.control.pending(run_id)


def _about(
    run: str | QuestionAsked, call: str | None, digest: str | None
) -> tuple[str, str | None, str | None]:
    """Return run, call and digest of an answer, from the event of the question if that is given."""
    return (
        (run, call, digest) if isinstance(run, str) else (run.run_id, call or run.key, digest or run.digest)
    )

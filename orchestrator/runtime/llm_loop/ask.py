"""`Agent(ask=…)`: a function of the host answers the questions of its runs, and of their child runs, in this process.

It is an observer of parked runs, so it costs nothing in a turn, sees the questions of the whole tree, and is called
again for a question that a resumed run finds open. The first valid answer counts, whoever gives it: an answer from
another process is not overwritten.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

from orchestrator.errors import AnswerRefused, RunUnknown
from orchestrator.kernel.fact import Fact, Observer, RunParked
from orchestrator.machines.question import WHY, Question
from orchestrator.runtime.facade import HumanInput
from orchestrator.runtime.service.child_run import current_scope

Ask: TypeAlias = Callable[[Question], Awaitable[bool | str | None]]
"""Answers a question: True approves the call, False rejects it, a text answers in place of the tool, None leaves it
open for another answer."""


class AskObserver:
    """Calls `ask` once for each open question of a parked run and gives the answers to `agent`.

    An exception of `ask` leaves the question open and is a RuntimeWarning.
    """

    answers = True

    def __init__(self, ask: Ask, agent: HumanInput[Any]) -> None:
        self._ask, self._agent = ask, agent
        self._by = getattr(ask, "__name__", type(ask).__name__)
        self._being_answered: set[tuple[str, str, str]] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def of(self, agent: HumanInput[Any]) -> AskObserver:
        """Return one that gives the answers to another agent."""
        return AskObserver(self._ask, agent)

    def hears(self, kind: type[Fact]) -> Callable[[Any], None] | None:
        """Return what receives the facts of a kind: only parked runs are of interest."""
        return self.observe if kind is RunParked else None

    def observe(self, fact: Fact, /) -> None:
        """Ask about a parked run, in a task of its own."""
        if isinstance(fact, RunParked):
            task = asyncio.get_running_loop().create_task(self._answer_all(fact.run_id))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer_all(self, run_id: str) -> None:
        try:
            questions = await self._agent.pending(run_id)
        except RunUnknown:  # of another agent that shares the observers
            return
        # A child run has an observer of its own.
        new = {(run_id, one.key, one.digest): one for one in questions if one.run_id == run_id}
        await asyncio.gather(
            *(self._answer(*item) for item in new.items() if item[0] not in self._being_answered)
        )

    async def _answer(self, about: tuple[str, str, str], question: Question) -> None:
        self._being_answered.add(about)
        run_id, key, digest = about
        try:
            answer: object = await self._ask(question)
            if isinstance(answer, str):
                await self._agent.respond(run_id, answer, key, digest=digest, by=self._by)
            elif answer is not None:
                reply = self._agent.approve if answer is True else self._agent.reject
                await reply(run_id, key, digest=digest, by=self._by)
        except AnswerRefused:
            pass  # answered elsewhere, or expired, meanwhile
        except Exception as error:  # noqa: BLE001 - of the host's function
            said = f"{self._by} raised {type(error).__name__} for a question about {question.tool}, which stays open"
            warnings.warn(said, RuntimeWarning, stacklevel=1)
        finally:
            self._being_answered.discard(about)


class UnansweredNotice:
    """Says once that a run waits for a person: the log names the run, and a RuntimeWarning what its host can do.

    A host with an observer that `attends` parked runs is not warned.
    """

    answers = False

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._is_quiet = any(getattr(one, "attends", False) for one in observers)

    def of(self, agent: HumanInput[Any]) -> UnansweredNotice:  # noqa: ARG002 - as AskObserver
        """Return one for another agent."""
        return self

    def hears(self, kind: type[Fact]) -> Callable[[Any], None] | None:
        """Return what receives the facts of a kind: only parked runs are of interest."""
        return self.observe if kind is RunParked and not self._is_quiet else None

    def observe(self, fact: Any, /) -> None:
        """Warn of a parked run that `run` drives alone, or of a child run of such a run."""
        scope = current_scope()
        if self._is_quiet or scope is None or fact.reason not in WHY or not scope.outermost.unattended:
            return
        self._is_quiet = True
        logging.getLogger("orchestrator").warning("run %r waits for a person; %s", fact.run_id, UNANSWERED)
        warnings.warn(f"a run waits for a person; {UNANSWERED}", RuntimeWarning, stacklevel=1)


UNANSWERED = (
    "its caller gets no question: give Agent(ask=...), read agent.stream(...), or let "
    'run(..., wait="never") return'
)

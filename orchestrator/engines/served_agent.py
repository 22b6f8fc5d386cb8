"""An agent for clients that start runs and ask for their results later, from any process of the same journal."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import uuid4

from pydantic_core import to_json

from orchestrator.errors import AnswerRefused, OtherAgent, ResultUnreadable, RunUnknown
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.live_event import RunEvent
from orchestrator.llm.run_event import ToolStarted
from orchestrator.providers.mcp.serving import RunAnswer, RunQuestion
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.result import Result, ended_as
from orchestrator.runtime.service.descendant import PendingQuestion
from orchestrator.tools.input_request import request_of
from orchestrator.tools.result import output_text, unreadable_text

_PREFIX = "mcp-"
"""Of the ids of its runs: a client can continue no other run of the journal."""
_BY = "mcp client"


class DurableAgent:
    """One agent as a tool of an MCP server. Its runs continue when a client is gone.

    Raises ConfigError if a tool reads deps and the agent has none: no client can give any.
    """

    def __init__(self, agent: Agent[Any, Any], name: str, description: str) -> None:
        agent.hosting.check(*(None,) * 4)
        self.name = name
        self.description = description
        self._agent = agent
        self._live: dict[str, asyncio.Task[Result[Any]]] = {}
        """The active runs, and those whose failure no client has read. The journal has the ends of the others."""

    async def start(self, prompt: str) -> str:
        """Start a run; return its id, once the journal has the run."""
        run_id = f"{_PREFIX}{uuid4().hex}"
        task = self._drive(run_id, self._agent.run(prompt, run_id=run_id))
        while not task.done() and not await self._is_stored(run_id):
            await asyncio.wait({task}, timeout=_STORED)
        return run_id

    async def wait(
        self, run_id: str, progress: Callable[[str], Awaitable[None]]
    ) -> RunAnswer | list[RunQuestion]:
        """Return the end of a run, or its open questions.

        Raises RunUnknown, OtherAgent, and the errors of the agent if the run could not be started.
        """
        if run_id not in self._live:
            await self._refuse_foreign(run_id)
            self._drive(run_id, self._agent.resume(run_id))
        task = self._live[run_id]
        watching = asyncio.ensure_future(self._questions(run_id))
        reporting = asyncio.ensure_future(self._report(run_id, progress))
        try:
            await asyncio.wait({task, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done() and (asked := await watching):
                return [_question_of(run_id, one) for one in asked]
            result = await asyncio.shield(task)
            output = result.output
            try:
                text = output_text(output)
            except ResultUnreadable as error:
                # The run has ended all the same, and a client must not start it again.
                text = unreadable_text(str(error))
            if result.outcome is not Outcome.COMPLETED:
                text = f"the run {ended_as(result)}" + (
                    "" if output is None else f"; its last answer: {text}"
                )
            data = {"run_id": result.run_id, "outcome": result.outcome.value, "reason": result.reason}
            return RunAnswer(text, result.outcome is not Outcome.COMPLETED, data)
        finally:
            if task.done() and self._live.get(run_id) is task:
                del self._live[run_id]
            watching.cancel()
            reporting.cancel()
            await asyncio.gather(watching, reporting, return_exceptions=True)

    async def answer(self, run_id: str, key: str, *, accept: bool, content: Mapping[str, Any]) -> bool:
        """Answer a question with the content of its form; return whether it is an answer.

        An answer that counts already changes nothing. Raises RunUnknown, OtherAgent.
        """
        await self._refuse_foreign(run_id)
        found = next((one for one in await self._agent.pending(run_id) if _key_of(run_id, one) == key), None)
        if found is None:
            return True
        run_id = found.run_id
        bound: dict[str, Any] = {"digest": found.digest, "by": _BY}
        try:
            if accept and found.input is not None and request_of(found.input).schema is not None:
                await self._agent.respond(run_id, to_json(content).decode(), found.key, **bound)
                return True
            decision = content.get("decision", "approve" if found.input is not None else None)
            if accept and decision not in {"approve", "reject"}:
                return False
            post = self._agent.approve if accept and decision == "approve" else self._agent.reject
            await post(run_id, found.key, why=str(content.get("reason") or ""), **bound)
        except AnswerRefused as refused:
            return refused.kind != "input"
        return True

    async def stop(self) -> None:
        """Leave the runs: they stay in the journal, and the next process resumes them when a client asks."""
        tasks = [*self._live.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _refuse_foreign(self, run_id: str) -> None:
        """Raise RunUnknown for a run that no client of an MCP server started, OtherAgent for one of another agent."""
        if not run_id.startswith(_PREFIX):
            raise RunUnknown(run_id)
        head = await self._agent.runs.head(run_id)
        if head.agent != self._agent.name:
            raise OtherAgent(run_id, head.agent, self._agent.name)

    def _drive(self, run_id: str, work: Awaitable[Result[Any]]) -> asyncio.Task[Result[Any]]:
        async def driven() -> Result[Any]:
            return await work

        def forget(task: asyncio.Task[Result[Any]]) -> None:
            if not task.cancelled() and task.exception() is None and self._live.get(run_id) is task:
                del self._live[run_id]

        task = self._live[run_id] = asyncio.get_running_loop().create_task(driven(), name=f"run {run_id}")
        task.add_done_callback(forget)
        return task

    async def _is_stored(self, run_id: str) -> bool:
        try:
            await self._agent.runs.get(run_id)
        except RunUnknown:
            return False
        return True

    async def _questions(self, run_id: str) -> list[PendingQuestion]:
        """Return the open questions of a run and of its descendants as soon as there are some."""
        runs, seen = self._agent.runs, ""
        while True:
            version = await runs.version()
            if version != seen and (asked := await self._agent.pending(run_id)):
                return asked
            seen = version
            await asyncio.sleep(_POLL)

    async def _report(self, run_id: str, progress: Callable[[str], Awaitable[None]]) -> None:
        """Report the progress of a run until its end."""
        async for event in self._agent.runs.events(run_id, follow=True):
            if (text := _progress(event)) is not None:
                await progress(text)


_DIGITS = 16
"""Characters of the digest of a request for input in the key of its question."""
_POLL = 0.1
"""Seconds between two looks for questions: the events of a run do not have those of its child runs."""
_STORED = 0.01
"""Seconds between two looks for a run that is being created."""


def _progress(event: RunEvent) -> str | None:
    return f"calls {event.tool}" if isinstance(event, ToolStarted) else None


def _key_of(run_id: str, question: PendingQuestion) -> str:
    """Return the key of a question of a run's tree for a client.

    The run that asks is part of it if it is another one: keys of calls repeat between runs. The digest tells several
    requests for input of one call apart.
    """
    key = question.key if question.run_id == run_id else f"{question.run_id}/{question.key}"
    return key if question.input is None else f"{key}:{question.digest[:_DIGITS]}"


def _question_of(run_id: str, question: PendingQuestion) -> RunQuestion:
    if question.input is None:
        asked = {"unknown_effect": "It is not known whether this call took effect. Run it again?"}
        first = asked.get(question.why, f"May the agent call {question.tool}?")
        return RunQuestion(
            _key_of(run_id, question),
            f"{first}\n{question.tool} {question.arguments}"
            + (f"\n{question.notice}" if question.notice else ""),
        )
    request = request_of(question.input)
    text = request.message + (f"\n{request.url}" if request.url else "")
    return RunQuestion(_key_of(run_id, question), text, request.schema, request.url)

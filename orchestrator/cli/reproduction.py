"""Recorded conversations driven through the real Agent, and the results.

All messages are from our own runs: the first run starts from the recorded prompt, each later one from the history
of our previous run. A conversation is played while that history equals the recorded one. After the first difference
the recording contains no valid replies.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from orchestrator.errors import OrchestratorError, RunUnknown
from orchestrator.kernel.outcome import Outcome
from orchestrator.kernel.record import Observer
from orchestrator.llm.message import Message
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.providers.replay import (
    IRREGULAR,
    UNUSABLE,
    ProviderRecord,
    ReplayError,
    ReplayLLM,
    ReplayTools,
    RequestDifference,
    RunScript,
    differences,
    expectation,
    irregularities,
    split_runs,
)
from orchestrator.runtime.llm_loop.agent import Agent
from orchestrator.runtime.llm_loop.result import Result

DIVERGED = "diverged"
"""The result differs from the recording: a limit ended the run, or our behaviour is not that of the recorded agent."""
CANCELLED = "cancelled"
"""The replay was stopped in this conversation."""


@dataclass(slots=True)
class Reproduction:
    """The result of one conversation."""

    id: str
    file: str
    result: str
    irregular: tuple[str, ...] = ()
    runs: list[Result] = field(default_factory=list)
    messages: Sequence[Message] = ()
    """Our messages, up to the end of the recording, without results that only close calls without a recorded answer."""
    reason: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        data: dict[str, Any] = {
            "id": self.id,
            "file": self.file,
            "result": self.result,
            "irregular": list(self.irregular),
            "runs": [_run_json(run) for run in self.runs],
            "messages": [message.to_openai() for message in self.messages],
        }
        return data | {"reason": self.reason} if self.reason else data


def _unusable(error: ReplayError) -> Reproduction:
    """Return the message for a line that holds no conversation."""
    name = error.file.replace("\\", "/").rpartition("/")[2]
    stem = name.rpartition(".")[0] or name
    line = "" if error.line is None else f"-{error.line}"
    return Reproduction(f"{stem}{line}", name, UNUSABLE, reason=str(error))


class ReplayStage:
    """The display of the runs of a conversation; this one shows nothing."""

    observers: Sequence[Observer] = ()

    def begin(self, record: ProviderRecord) -> None:
        """Start a conversation."""

    def turn(self, script: RunScript) -> AbstractContextManager[None]:
        """Enclose one run."""
        del script
        return nullcontext()

    def answered(self, result: Result) -> None:
        """Show the result of one run."""

    def end(self, done: Reproduction) -> None:
        """End a conversation."""

    def skip(self, done: Reproduction) -> None:
        """Skip a line that holds no conversation."""


class ConversationPlayer:
    """Plays conversations one after the other. `stop` ends the run in flight and everything after it."""

    def __init__(
        self, limits: Limits, *, stage: ReplayStage, observers: Iterable[Observer] = (), speed: float = 0.0
    ) -> None:
        self.stopped = False
        self._limits = limits
        self._stage = stage
        self._observers = (*stage.observers, *observers)
        self._speed = speed
        self._live: tuple[Agent, str] | None = None

    def stop(self) -> None:
        """Cancel the current run; start no further one."""
        self.stopped = True
        if self._live is not None:
            agent, run_id = self._live
            with suppress(RunUnknown):  # it has just ended
                agent.cancel(run_id, why="signal")

    async def play(self, record: ProviderRecord | ReplayError) -> Reproduction:
        """Play one conversation. If it cannot be read, or our own API rejects it, it is unusable."""
        if isinstance(record, ReplayError):
            done = _unusable(record)
            self._stage.skip(done)
            return done
        self._stage.begin(record)
        try:
            done = await self._played(record)
        except OrchestratorError as error:
            done = Reproduction(record.id, record.file, UNUSABLE, reason=str(error))
        self._stage.end(done)
        return done

    async def _played(self, record: ProviderRecord) -> Reproduction:
        agent = Agent(
            ReplayLLM(record, speed=self._speed),
            tools=ReplayTools(record, speed=self._speed),
            limits=self._limits,
            observers=self._observers,
        )
        scripts = split_runs(record)
        ours: Sequence[Message] = scripts[0].history if scripts else ()
        done = Reproduction(record.id, record.file, IRREGULAR, irregularities(record.messages))
        for script in scripts:
            await asyncio.sleep(0)  # replies do not wait, but signal handlers need a turn of the loop
            if self.stopped:
                break
            with self._stage.turn(script):
                result = await self._run(agent, [*ours, *script.prompt])
            self._stage.answered(result)
            done.runs.append(result)
            ours = result.messages[: script.stop]
            closed = len(result.messages) > script.stop and script is not scripts[-1]
            if closed or next(differences(record.messages[: script.stop], ours), None) is not None:
                break
        done.messages = ours
        cut = self.stopped and len(done.runs) < len(scripts)
        done.result, done.reason = _judged(record, done, cut=cut)
        return done

    async def _run(self, agent: Agent, messages: list[Message]) -> Result:
        run_id = uuid4().hex
        self._live = agent, run_id
        try:
            return await agent.run(messages, run_id=run_id)
        finally:
            self._live = None


def _judged(record: ProviderRecord, done: Reproduction, *, cut: bool) -> tuple[str, str]:
    """Return the result of the conversation, with a reason if one is needed."""
    last = done.runs[-1] if done.runs else None
    if cut or (last is not None and last.outcome is Outcome.CANCELLED):
        return CANCELLED, "stopped by a signal"
    expected = expectation(record)
    if expected == IRREGULAR:
        return IRREGULAR, ""
    found = next(differences(record.messages, done.messages), None)
    return (expected, "") if found is None else (DIVERGED, _why(found, last))


def _why(found: RequestDifference, last: Result | None) -> str:
    ended = f"; the run ended as {last.outcome} ({last.reason})" if last is not None else ""
    return f"{found}{ended}"


def _run_json(run: Result) -> dict[str, Any]:
    path = run.transitions
    visits = Counter([one.source for one in path[:1]] + [one.dest for one in path if not one.internal])
    return {
        "outcome": run.outcome.value,
        "reason": run.reason,
        "error": None if run.error is None else str(run.error),
        "transitions": path[-1].seq if path else 0,
        "states": dict(visits),
    }

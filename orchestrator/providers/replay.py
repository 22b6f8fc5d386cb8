"""Replay recorded conversations: recorded replies of the model, and recorded results of the tools.

    for record in load("conversations.jsonl"):
        for script in split_runs(record):
            agent = Agent(ReplayLLM(script), tools=ReplayTools(script))
            ...  # run [*script.history, *script.prompt]; compare(script.expected, new messages) == []

A replayed model answers by position, not by count: the request's messages alone decide the next reply. So a repeated
request (a retry, a resumed run) gets the same reply twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from orchestrator.llm.message import Message, Request, Response
from orchestrator.llm.port import Clock
from orchestrator.providers.difference import RequestDifference, compare, differences
from orchestrator.providers.recorded_run import (
    RecordingEnds,
    ReplayDiverged,
    ReplaySource,
    RunScript,
    expectation,
    irregularities,
    is_prompt,
    split_runs,
)
from orchestrator.providers.recording import ProviderRecord, ReplayError, load, scan
from orchestrator.providers.replay_tool import ReplayTools
from orchestrator.providers.scripted import stream

__all__ = [
    "ProviderRecord",
    "RecordingEnds",
    "ReplayDiverged",
    "ReplayError",
    "ReplayLLM",
    "ReplayTools",
    "RunScript",
    "compare",
    "expectation",
    "irregularities",
    "load",
    "scan",
    "split_runs",
]


class ReplayLLM:
    """A model that answers each request with the recorded reply.

    The reply has the recorded content, calls, finish reason, usage, reasoning and refusal.

    Args:
        source: The conversation or run to replay.
        strict: False compares nothing: replies come in the recorded order, one for each request.
        speed: Factor of the recorded times: 1 waits as long as recorded, 0 does not wait.
        clock: Clock of the waits.

    Raises:
        ReplayDiverged: From `complete`: the messages of the request are not the recorded ones up to that reply.
        RecordingEnds: From `complete`: the recording stops before that reply.

    Example:
        agent = Agent(ReplayLLM(script), tools=ReplayTools(script))
    """

    double: ClassVar[bool] = True
    """Not a real model: allowed if real models are refused."""

    def __init__(
        self,
        source: ProviderRecord | RunScript,
        *,
        strict: bool = True,
        speed: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        self._source = ReplaySource(source, speed, clock)
        self._strict = strict
        self._next = self._source.start
        self.model = self._source.record.model or "recorded"
        self.reports_cost = any(turn.usage.cost is not None for turn in self._source.record.turns.values())

    async def complete(self, request: Request) -> Response:
        """Return the recorded reply to these messages."""
        source = self._source
        index = self._position(request.messages) if self._strict else self._following()
        message, turn = source.record.messages[index], source.record.turn(index)
        await source.wait(turn.latency)
        response = Response(
            message.content,
            message.tool_calls,
            turn.finish_reason,
            turn.usage,
            self.model,
            message.refusal,
            message.reasoning,
        )
        await stream(response.content, request, response.reasoning, response.tool_calls)
        return response

    def _position(self, messages: Sequence[Message]) -> int:
        """Return the index of the reply to exactly these messages."""
        source = self._source
        recorded = source.record.messages
        index = len(messages)
        found = next(differences(recorded[:index], messages), None)
        if found is None and index < source.start:
            found = next(differences(recorded[: source.start], messages))
        if found is not None:
            raise ReplayDiverged(source.record, found)
        if index >= source.stop or is_prompt(recorded[index]):
            raise RecordingEnds(source.record, index, "the model's answer")
        if recorded[index].role != "assistant":
            missing = RequestDifference(index, "message", f"a message of {recorded[index].role}", "nothing")
            raise ReplayDiverged(source.record, missing)
        return index

    def _following(self) -> int:
        """Return the index of the next reply in recorded order."""
        source = self._source
        for index in range(self._next, source.stop):
            if source.record.messages[index].role == "assistant":
                self._next = index + 1
                return index
        raise RecordingEnds(source.record, source.stop, "the model's answer")

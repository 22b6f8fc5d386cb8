"""The tools of a recorded conversation: nothing runs, each call gets its recorded result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from orchestrator.llm.message import Message, ToolCall
from orchestrator.llm.port import Clock
from orchestrator.providers.difference import differences
from orchestrator.providers.recorded_run import (
    RecordingEnds,
    ReplayDiverged,
    ReplaySource,
    RunScript,
    results_after,
)
from orchestrator.providers.recording import ProviderRecord, tool_name
from orchestrator.tools.result import ToolResult
from orchestrator.tools.spec import Progress, ToolContext, ToolSpec
from orchestrator.tools.tool_set import After, Around, Before, ContextFor, ToolSet


def no_context(call: ToolCall, position: int) -> ToolContext:
    """Make an empty context: no recorded tool reads it."""
    return ToolContext(run_id="", idempotency_key=f"{call.name}-{position}")


class ReplayTools(ToolSet):
    """A tool set that returns the recorded results verbatim, without a length limit or a check of names or arguments.

    Only arguments with a duplicate name are refused, as for every call. Results are found by assistant turn and
    position, never by id alone: ids repeat and can be empty. The turn is the next recorded one with exactly these
    calls, so a resumed run finds its position. One run at a time.

    Raises:
        ReplayDiverged: From `execute_all`: the recording does not have these calls.
        RecordingEnds: From `execute_all`: a call has no recorded result.

    Example:
        agent = Agent(ReplayLLM(script), tools=ReplayTools(script))
    """

    def __init__(
        self, source: ProviderRecord | RunScript, *, speed: float = 0.0, clock: Clock | None = None
    ) -> None:
        super().__init__(())
        self._source = ReplaySource(source, speed, clock)
        self._next = self._source.start
        self._results: Sequence[Message | None] = ()
        record = self._source.record
        called = {call.name: None for message in record.messages for call in message.tool_calls}
        self._specs = {name: _spec({"name": name}) for name in called}
        self._specs |= {tool_name(tool): _spec(tool) for tool in record.tools}
        self._offer()

    def find(self, name: str) -> ToolSpec | None:
        """Return the tool of this name, declared or only called in the recording."""
        return self._specs.get(name)

    async def execute(
        self,
        call: ToolCall,
        position: int,
        context_for: ContextFor,  # noqa: ARG002  the signature is ToolSet's
        *,
        waited: float = 0.0,
        exact: bool = False,  # noqa: ARG002
        around: Around | None = None,  # noqa: ARG002  no tool runs
    ) -> ToolResult:
        """Return the recorded result at this position of the present turn of `execute_all`."""
        result = self._results[position] if position < len(self._results) else None
        if result is None:
            raise RecordingEnds(self._source.record, self._source.stop, f"the result of {call.name}")
        seconds = self._source.record.tool_seconds.get(call.id, 0.0)
        await self._source.wait(seconds)
        return ToolResult(call, position, result.text, "error" if result.is_error else "ok", seconds, waited)

    async def execute_all(
        self,
        calls: Sequence[ToolCall],
        context_for: ContextFor = no_context,
        *,
        max_concurrent: int = 10,
        before: Before | None = None,
        after: After | None = None,
        done: list[ToolResult | None] | None = None,
        exact: bool = False,
        around: Around | None = None,
    ) -> list[ToolResult]:
        """Answer the calls of one turn. If a result is missing, those before it still fill `done`."""
        done = [None] * len(calls) if done is None else done
        index = self._turn_of(calls)
        self._results = _by_position(calls, results_after(self._source.record.messages, index))
        known = next((at for at, result in enumerate(self._results) if result is None), len(calls))
        part = done[:known]
        try:
            found = await super().execute_all(
                calls[:known],
                context_for,
                max_concurrent=max_concurrent,
                before=before,
                after=after,
                done=part,
                exact=exact,
                around=around,
            )
        finally:
            done[:known] = part
        if known < len(calls):
            missing = f"the result of {calls[known].name}"
            raise RecordingEnds(self._source.record, index + 1 + known, missing, found)
        self._next = index + 1
        self._offer()
        return found

    def _turn_of(self, calls: Sequence[ToolCall]) -> int:
        """Return the index of the next message with exactly these calls."""
        messages = self._source.record.messages
        turns = [at for at in range(self._next, self._source.stop) if messages[at].tool_calls]
        if not turns:
            raise RecordingEnds(self._source.record, self._source.stop, "a turn with calls")
        found = next((at for at in turns if messages[at].tool_calls == tuple(calls)), None)
        if found is None:
            made, ours = Message("assistant", None, messages[turns[0]].tool_calls), tuple(calls)
            first = next(differences([made], [Message("assistant", None, ours)], start=turns[0]))
            raise ReplayDiverged(self._source.record, first)
        return found

    def _offer(self) -> None:
        """Offer the tools of the next reply."""
        record = self._source.record
        at = self._next
        while at < len(record.messages) and record.messages[at].role != "assistant":
            at += 1
        self.offers = tuple(self._specs[tool_name(tool)] for tool in record.tools_at(at))


def _by_position(calls: Sequence[ToolCall], results: Sequence[Message]) -> list[Message | None]:
    """Return the result of each call: the first unused one with its id.

    For results in call order that is the one at the call's own position, even if all ids are equal.
    """
    left = list(results)
    found: list[Message | None] = []
    for call in calls:
        at = next((at for at, one in enumerate(left) if (one.tool_call_id or "") == call.id), None)
        found.append(None if at is None else left.pop(at))
    return found


def _spec(tool: Mapping[str, Any]) -> ToolSpec:
    """Return a tool that is offered as recorded and accepts any text as arguments."""
    about = tool.get("function") or tool
    return recorded_tool(tool_name(tool), str(about.get("description") or ""), about.get("parameters") or {})


def recorded_tool(
    name: str,
    description: str = "",
    schema: Mapping[str, Any] = MappingProxyType({}),
    progress: Progress = "strict",
) -> ToolSpec:
    """Return a tool that accepts any text as arguments, because the recorded result is independent of it."""
    return ToolSpec(
        name,
        description,
        dict(schema),
        _recorded,
        effect="pure",
        progress=progress,
        max_result_chars=0,
        read=_unread,
        dump=None,
    )


def _recorded() -> None:
    """Replace the recorded tool."""


def _unread(_: str) -> dict[str, Any]:
    """Accept any text as arguments, because the recorded result is independent of it."""
    return {}

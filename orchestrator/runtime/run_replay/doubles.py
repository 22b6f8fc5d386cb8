"""The recorded model, tools and clock: they give what the records have, and touch nothing outside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

from orchestrator.errors import LLMError, OrchestratorError
from orchestrator.llm.message import Request, Response, ToolCall
from orchestrator.machines.llm_loop.model import LoopEvent
from orchestrator.providers.replay import recorded_tool
from orchestrator.runtime.run_replay.recording import Recording
from orchestrator.tools.result import ToolResult
from orchestrator.tools.spec import ToolSpec
from orchestrator.tools.tool_set import Around, ContextFor, ToolSet
from orchestrator_guards import tool_key


class RecordEnds(OrchestratorError):
    """The replayed run needs an answer or a result that the records do not have."""


class _NoTimer:
    """A timer that never rings: in a replay only the recorded times pass."""

    def cancel(self) -> None:
        """Do nothing."""


class RecordedClock:
    """A clock that shows the recorded times. It never waits, and its timers never ring."""

    def __init__(self) -> None:
        self.now = 0.0
        """Active seconds of the run."""

    def time(self) -> float:
        """Return the active seconds of the run."""
        return self.now

    def monotonic(self) -> float:
        """Return the active seconds of the run."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Return at once."""
        del seconds
        await asyncio.sleep(0)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> _NoTimer:
        """Return a timer that never rings."""
        del seconds, callback
        return _NoTimer()


class RecordedModel:
    """A model that gives the recorded answers in their order, after the recorded errors."""

    double: ClassVar[bool] = True

    def __init__(self, recording: Recording, clock: RecordedClock) -> None:
        self.model = next((one.model for one in recording.answers if one.model), "recorded")
        self.reports_cost = any(one.usage and one.usage.cost_micros is not None for one in recording.answers)
        self.turn = 0
        """Answers given."""
        self._recording, self._clock = recording, clock
        self._errors = 0
        self._times = [step.t for step in recording.steps if step.event == LoopEvent.LLM_RESPONSE]

    async def complete(self, request: Request) -> Response:
        """Return the next recorded answer. Raises the recorded errors before it, and RecordEnds behind the last one."""
        del request
        recording = self._recording
        if self.turn >= len(recording.answers):
            raise RecordEnds(f"the records of run {recording.run_id!r} have no answer {self.turn + 1}")
        errors = recording.attempts[self.turn] if self.turn < len(recording.attempts) else []
        if self._errors < len(errors):
            self._errors += 1
            raise LLMError("recorded error", kind=errors[self._errors - 1])
        answer = recording.answers[self.turn]
        if self.turn < len(self._times):
            self._clock.now = max(self._clock.now, self._times[self.turn])
        self.turn, self._errors = self.turn + 1, 0
        return answer


class RecordedTools(ToolSet):
    """Tools that give the recorded results of the calls of the model's last answer."""

    offers_all: ClassVar[bool] = False

    def __init__(self, recording: Recording, model: RecordedModel, clock: RecordedClock) -> None:
        super().__init__(())
        self._recording, self._model, self._recorded_clock = recording, model, clock
        names = {call.name for answer in recording.answers for call in answer.tool_calls}
        self._specs = {
            name: recorded_tool(name, progress=recording.policies.get(tool_key(name), "strict"))
            for name in names
        }
        # A limit needs its tool, and the records do not say which tools were offered.
        self.offers = tuple(recorded_tool(name) for name in recording.limits.tool_caps)
        self._times = [step.t for step in recording.steps if step.event == LoopEvent.TOOLS_EXECUTED]
        self._turns = 0

    def find(self, name: str) -> ToolSpec | None:
        """Return a tool that a recorded answer calls."""
        return self._specs.get(name)

    async def execute_all(self, *args: Any, **options: Any) -> list[ToolResult]:
        """Return the recorded results of a turn, at their recorded time."""
        try:
            return await super().execute_all(*args, **options)
        finally:
            if self._turns < len(self._times):
                self._recorded_clock.now = max(self._recorded_clock.now, self._times[self._turns])
            self._turns += 1

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
        """Return the recorded result of a call. Raises RecordEnds if there is none."""
        key = f"{self._model.turn}:{position}"
        done = self._recording.results.get(key)
        if done is None:
            raise RecordEnds(f"the records of run {self._recording.run_id!r} have no result of call {key}")
        return ToolResult(
            call,
            position,
            done["content"],
            done["outcome"],
            float(done.get("seconds") or 0.0),
            waited,
            bool(done.get("cut")),
            parts=tuple(done.get("parts", ())),
            returned=done.get("returned"),
        )

"""The loop written by hand, with the behaviour of the original that seed 003 was taken from: an oracle, nothing else.

Its known defects are switched on by default and can be repaired one by one, so that a difference to the machine can be
traced to the one that causes it. Those that show in outcome, messages, calls run or episodes are here:

    D1   a failure in finalize is lost: the run reports success
    D4   the n-th equal success ends the run, before a stall could be counted
    D5   equal results of other arguments count as repeats; only a turn just like the last one counts as a stall
    D6   a run that ends by budget stores no failure episode
    D7   the longest delay bounds all delays together
    D8   whether to try again is told by the error's text
    D10  a result fails when it has a key `error`, even null, or one of twelve words in it
    D11  unusable answers meet no guard: neither progress nor iterations are asked before a retry is prepared
    D13  a success takes one error off instead of all
    D14  a hint follows the results of agent calls, unasked
    D16  caps are checked when the call has run
    D17  errors and successes are counted by the name as it was written
    D18  the results of the turn that trips a budget are lost
    D19  a restart gives iterations and counted calls back

The others leave no trace there: D2 and D3 (clocks, the initial state), D9 (compaction), D12 (labels), D15 (toggles).
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from orchestrator.llm.message import Message, Response, ToolCall
from orchestrator.llm.retry import RetryPolicy, classify
from orchestrator.llm.structured_output import error_payload
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.testing.clock import FakeClock
from orchestrator.tools.result import ToolResult
from orchestrator_callbacks.llm_loop.answer import FEEDBACK
from orchestrator_guards import (
    FAILURE_PHRASES,
    Escalation,
    ObservedCall,
    TurnFingerprint,
    Verdict,
    call_key,
    call_keys,
    escalation,
    expected,
    failed_result,
    fingerprint,
    progress,
    repeated_success,
    stall,
    tool_cap,
    window_size,
)

ORDER = ("D7", "D8", "D1", "D11", "D16", "D17", "D10", "D13", "D4", "D5", "D18", "D14", "D19", "D6")
"""In the order in which the loop comes to them."""
DEFECTS = frozenset(ORDER)
HINT = "The agent has answered. If that completes the task, give the final answer."
_AGAIN = re.compile("timeout|temporarily|try again")


class End(Exception):
    """The loop ended; `by_budget` tells a guard's end from a failure."""

    def __init__(self, outcome: str, reason: str, *, by_budget: bool = False) -> None:
        super().__init__(outcome, reason)
        self.ending = (outcome, reason)
        self.by_budget = by_budget


class Streak(NamedTuple):
    """Equal successes of one tool."""

    call: str
    result: str
    times: int
    only: bool
    """All of them had the same arguments."""


@dataclass
class HandLoop:
    """One run. `ask` and `execute` are the model and the tools; `finalize` may raise."""

    ask: Callable[[Sequence[Message]], Awaitable[Response]]
    execute: Callable[[Sequence[ToolCall], list[ToolResult | None]], Awaitable[list[ToolResult]]]
    finalize: Callable[[], None]
    limits: Limits
    retry: RetryPolicy
    clock: FakeClock
    messages: list[Message]
    defects: frozenset[str] = DEFECTS
    episodes: int = 0
    iteration: int = 0
    restarts: int = 0
    attempts: int = 0
    mark: int = -1
    counted: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    streaks: dict[str, Streak] = field(default_factory=dict)
    turns: deque[TurnFingerprint] = field(default_factory=deque)
    last: str = ""
    stalled: int = 0
    blocked: TurnFingerprint | None = None
    refusal: Verdict | None = None

    async def run(self) -> tuple[str, str]:
        """Return outcome and reason."""
        self.base = len(self.messages)
        try:
            await self._loop()
        except End as end:
            if end.ending[0] != "completed" and not (end.by_budget and "D6" in self.defects):
                self.episodes += 1
            return end.ending
        raise AssertionError

    async def _loop(self) -> None:
        while True:
            if self._iterations_used():
                raise End("budget_exceeded", "max_iterations")
            response = await self._invoke()
            self.iteration += 1
            self.messages.append(response.message())
            if response.tool_calls:
                await self._tools(response.tool_calls)
            else:
                self._complete(response.message().text)

    def _iterations_used(self) -> bool:
        return bool(self.limits.max_iterations) and self.iteration >= self.limits.max_iterations

    # ---- the model ----

    async def _invoke(self) -> Response:
        waited = 0.0
        for attempt in range(self.retry.attempts):
            try:
                return await self.ask(self.messages)
            except Exception as error:
                delay = self.retry.base * 2**attempt
                if "D7" not in self.defects:
                    delay = min(delay, self.retry.max_delay)
                late = "D7" in self.defects and waited + delay > self.retry.max_delay
                if late or attempt + 1 == self.retry.attempts or not self._may_retry(error):
                    raise End("failed", "llm_error") from error
                waited += delay
                await self.clock.sleep(delay)
        raise AssertionError

    def _may_retry(self, error: Exception) -> bool:
        if "D8" not in self.defects:
            return classify(error).retryable
        return isinstance(error, TimeoutError) or _AGAIN.search(str(error)) is not None

    # ---- the final answer ----

    def _complete(self, text: str) -> None:
        issue = error_payload(text) if self.limits.completion_retries else None
        if issue is None:
            self._finish()
        if self.attempts >= self.limits.completion_retries:
            raise End("failed", "completion_invalid")
        if "D11" not in self.defects:
            self._guard_retry(text)
        self.attempts += 1
        if self.mark >= 0:
            del self.messages[self.mark : self.mark + 2]
        self.mark = len(self.messages) - 1
        most = self.limits.completion_retries
        said = FEEDBACK.format(
            attempt=self.attempts, most=most, issue=issue, form="", left=most - self.attempts
        )
        self.messages.append(Message("user", said))

    def _finish(self) -> None:
        try:
            self.finalize()
        except RuntimeError:
            if "D1" not in self.defects:
                raise End("failed", "callback_error") from None
        raise End("completed", "none" if self.messages[-1].text.strip() else "empty_answer")

    def _guard_retry(self, text: str) -> None:
        if self.limits.max_no_progress:
            self._remember(fingerprint([], text))
            if not progress(self.turns, self.limits.max_no_progress):
                raise End("no_progress", "stalled")
        if self._iterations_used():
            raise End("budget_exceeded", "max_iterations")

    # ---- tools ----

    async def _tools(self, calls: Sequence[ToolCall]) -> None:
        results = await self.execute(calls, [self._admit(call, at, calls) for at, call in enumerate(calls)])
        ending = self._count_all(results)
        if self.refusal is not None:
            cap = self.refusal.guard == "tool_cap"
            ending = ("budget_exceeded", "tool_calls") if cap else ("no_progress", "repeated_success")
        if ending is None or "D18" not in self.defects:
            self.messages += [result.message() for result in results]
        if ending is not None:
            raise End(*ending, by_budget=True)
        if "D14" in self.defects and any(call.name == "call_agent" for call in calls):
            self.messages.append(Message("system", HINT))
        self._judge(results)

    def _admit(self, call: ToolCall, position: int, calls: Sequence[ToolCall]) -> ToolResult | None:
        """Refuse a call before it runs: only repaired versions do that."""
        why = None
        if self.blocked and self.blocked.calls == call_keys((one.name, one.arguments) for one in calls):
            why = "not run: this repeats earlier calls that brought no progress; do something else or answer"
        else:
            for refused in (verdict for verdict in self._asked(call) if not verdict):
                self.refusal = refused if self.refusal is None else self.refusal
                why = why or f"not run: {refused.explain()}"
        if why is not None:
            return ToolResult.failure(call, position, "denied", why, kind="Denied")
        if "D16" not in self.defects:
            key = call.name.casefold()
            self.counted[key] = self.counted.get(key, 0) + 1
        return None

    def _asked(self, call: ToolCall) -> list[Verdict]:
        asked = []
        key = call.name.casefold()
        cap = self.limits.tool_caps.get(key, 0)
        if cap and "D16" not in self.defects:
            asked.append(tool_cap(call.name, self.counted.get(key, 0), cap))
        streak = self.streaks.get(self._key(call.name))
        repeats = streak is not None and streak.call == call_key(call.name, call.arguments)
        if "D4" not in self.defects and self.limits.max_repeated_success and streak and repeats:
            asked.append(repeated_success(streak.times, self.limits.max_repeated_success))
        return asked

    def _key(self, name: str) -> str:
        return name if "D17" in self.defects else name.casefold()

    # ---- guards of the original ----

    def _count_all(self, results: Sequence[ToolResult]) -> tuple[str, str] | None:
        ending = None
        for result in results:
            if result.outcome == "denied":
                continue
            found = self._count_call(result.call) or self._count(result)
            ending = ending or found
        return ending

    def _count_call(self, call: ToolCall) -> tuple[str, str] | None:
        if "D16" not in self.defects:
            return None
        key = call.name.casefold()
        self.counted[key] = self.counted.get(key, 0) + 1
        cap = self.limits.tool_caps.get(key, 0)
        return ("budget_exceeded", "tool_calls") if cap and self.counted[key] > cap else None

    def _count(self, result: ToolResult) -> tuple[str, str] | None:
        key, limits = self._key(result.call.name), self.limits
        if self._failed(result):
            self.errors[key] = self.errors.get(key, 0) + 1
            self.streaks.pop(key, None)
            tripped = limits.max_tool_errors and self.errors[key] >= limits.max_tool_errors
            return ("budget_exceeded", "tool_errors") if tripped else None
        self.errors[key] = max(0, self.errors.get(key, 0) - 1) if "D13" in self.defects else 0
        streak = self._streak(result, self.streaks.get(key))
        self.streaks[key] = streak
        deferred = "D4" not in self.defects and streak.only
        tripped = limits.max_repeated_success and streak.times >= limits.max_repeated_success and not deferred
        return ("no_progress", "repeated_success") if tripped else None

    def _streak(self, result: ToolResult, before: Streak | None) -> Streak:
        call = call_key(result.call.name, result.call.arguments)
        if before is None or before.result != result.content:
            return Streak(call, result.content, 1, only=True)
        if before.call != call and "D5" not in self.defects:
            return Streak(call, result.content, 1, only=True)
        return Streak(call, result.content, before.times + 1, only=before.only and before.call == call)

    def _failed(self, result: ToolResult) -> bool:
        if "D10" not in self.defects:
            return result.is_error or failed_result(result.content)
        try:
            value = json.loads(result.content)
        except ValueError:
            text = result.content.casefold()
            return not text.strip() or any(phrase in text for phrase in FAILURE_PHRASES)
        return isinstance(value, dict) and (
            "error" in value or value.get("success") is False or value.get("ok") is False
        )

    # ---- progress and restarts ----

    def _judge(self, results: Sequence[ToolResult]) -> None:
        stuck, stopped = self._repeats(results)
        if "D19" not in self.defects and self._iterations_used():
            if stopped:
                raise End("no_progress", "stalled", by_budget=True)
            raise End("budget_exceeded", "max_iterations")
        if stuck and self.restarts < self.limits.max_restarts:
            self._start_over()
        elif stopped:
            raise End("no_progress", "stalled", by_budget=True)

    def _repeats(self, results: Sequence[ToolResult]) -> tuple[bool, bool]:
        """Tell whether the run is stuck enough to restart, and enough to stop."""
        limit, threshold = self.limits.max_no_progress, self.limits.restart_stall_threshold
        threshold = min(threshold, limit) if limit else threshold
        seen = [ObservedCall(r.call.name, r.call.arguments, r.content, self._failed(r)) for r in results]
        if "D5" not in self.defects:
            self._remember(fingerprint(seen))
            found = stall(self.turns, threshold)
            return found.repeats >= threshold * found.patience, not progress(self.turns, limit)
        exact = json.dumps([[_canonical(call.arguments), call.tool, call.result] for call in seen])
        self.stalled = self.stalled + 1 if exact == self.last else 0
        self.last = exact
        return self.stalled >= threshold, bool(limit) and self.stalled >= limit

    def _remember(self, turn: TurnFingerprint) -> None:
        """Repaired D5: a window of turns, and the last repetition is blocked before it runs."""
        limit = self.limits.max_no_progress
        if self.blocked is not None and turn.calls == self.blocked.calls:
            turn = self.blocked
        self.turns = deque(self.turns, window_size(limit or self.limits.restart_stall_threshold))
        self.turns.append(turn)
        self.blocked = None
        verdict = progress(self.turns, limit)
        if escalation(verdict.observed, verdict.limit) is Escalation.BLOCK and "D5" not in self.defects:
            self.blocked = expected(self.turns, stall(self.turns, limit))

    def _start_over(self) -> None:
        self.restarts += 1
        del self.messages[self.base :]
        self.errors, self.streaks, self.turns, self.blocked = {}, {}, deque(), None
        self.last, self.stalled, self.attempts, self.mark = "", 0, 0, -1
        if "D19" in self.defects:
            self.iteration, self.counted = 0, {}


def _canonical(arguments: str) -> Any:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except ValueError:
        return " ".join(arguments.split())

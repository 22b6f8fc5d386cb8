"""Calls of an agent: the answer is checked, requested again if it is invalid, and durable before the next action."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from orchestrator.kernel.record import OperationAttempt
from orchestrator.kernel.thread import called
from orchestrator.llm.attempt import attempt_row
from orchestrator.llm.retry import UNLIMITED, RetryAttempt, RetryPolicy
from orchestrator.machines.ralph import contract
from orchestrator.machines.ralph.contract import AgentInput, AgentOutput, Role
from orchestrator.machines.ralph.fault import AgentFailed, AgentOutputInvalid
from orchestrator.machines.ralph.model import AgentAnswer
from orchestrator.machines.ralph.ports import AgentRequest
from orchestrator_callbacks.ralph.deps import RalphRun
from orchestrator_callbacks.ralph.spending import charge_call, check_limits, last_call, remaining_cost
from orchestrator_guards import planning_retries, structured_retries
from orchestrator_guards.evaluation import row_of

T = TypeVar("T", bound=AgentOutput)

_AT_ONCE = RetryPolicy(UNLIMITED, base=0.0, deadline=0.0, jitter=0.0)
"""An invalid answer is requested again without a delay; guards limit the number of requests."""


class _Question(NamedTuple):
    """A request to an agent, with its repetitions."""

    role: Role
    agent_input: AgentInput
    key: str
    before: Callable[[], object] | None
    """Prepares each call, in a thread."""


class StateCalls:
    """The calls of one visit of a state. Calls that were answered before a crash are not repeated."""

    def __init__(self, run: RalphRun) -> None:
        self._run = run
        self._answers = 0

    @property
    def known(self) -> bool:
        """Whether an agent has answered in this visit, in this process or before."""
        return any(answer.seq == self._run.seq for answer in self._run.ctx.answers)

    async def ask(
        self,
        kind: type[T],
        role: Role,
        agent_input: AgentInput,
        *,
        usable: Callable[[T], str | None] = lambda _: None,
        before: Callable[[], object] | None = None,
        check: Callable[[T], None] = lambda _: None,
    ) -> T:
        """Return the output of an agent.

        Args:
            kind: Class of the output.
            role: Role of the agent.
            agent_input: Input of the agent.
            usable: Returns the fault of an output that fits its contract, or None.
            before: Prepares each call, in a thread.
            check: Changes the context in the same record as the answer.

        Raises:
            AgentOutputInvalid: The answer was invalid as often as the limits allow.
            Exception: Any error that the agent raises.
        """
        run = self._run
        given = [answer for answer in run.ctx.answers if answer.seq == run.seq]
        if self._answers < len(given):
            answer = given[self._answers]
            self._answers += 1
            return _as(kind, contract.read(role, answer.body))
        key = f"{run.run_id}:{run.cursor.state}:{run.seq}:{self._answers}"
        found = await self._usable(kind, _Question(role, agent_input, key, before), usable)
        run.ctx.answers = (*given, AgentAnswer(run.seq, role, found.as_json()))
        check(found)
        await asyncio.to_thread(run.deps.session.sync)  # the answer refers to files that the agent wrote
        await run.keep()
        self._answers += 1
        return found

    async def _usable(self, kind: type[T], question: _Question, usable: Callable[[T], str | None]) -> T:
        """Repeat the request until the answer is valid, as often as the limits allow."""
        role = question.role
        faults: list[str] = []

        async def ask() -> T:
            found = _as(kind, await self._once(question, len(faults), faults[-1] if faults else ""))
            if (wrong := usable(found)) is not None:
                raise AgentOutputInvalid(role.value, wrong)
            return found

        def may_repeat(error: Exception) -> bool:
            return isinstance(error, AgentOutputInvalid) and self._may_repeat(role, len(faults))

        def tried(one: RetryAttempt) -> None:
            if isinstance(one.error, AgentOutputInvalid):
                faults.append(one.error.why)
                self._publish_attempt(
                    one.number, "retry" if one.outcome == "retry" else "exhausted", "schema_invalid"
                )

        try:
            return await _AT_ONCE.call(
                ask, may_retry=may_repeat, on_attempt=tried, clock=self._run.deps.clock
            )
        except AgentOutputInvalid as error:
            raise AgentOutputInvalid(role.value, f"{error.why} (asked {len(faults)} times)") from None

    async def _once(self, question: _Question, again: int, fault: str) -> AgentOutput:
        """Call an agent, with retries of network errors."""
        run, role = self._run, question.role
        request = AgentRequest(
            role=role,
            input=question.agent_input.as_json(),
            key=question.key,
            run_id=run.run_id,
            again=again,
            fault=fault,
            notes=run.ctx.notes,
            deps=run.deps.host,
        )

        async def call() -> AgentOutput:
            check_limits(run)
            if question.before is not None:
                await asyncio.to_thread(question.before)
            try:
                rest, previous = remaining_cost(run), last_call(run, request)
                answer = await self._charged(
                    replace(request, remaining_cost=rest, previous=previous, calls=[])
                )
                return contract.read(role, answer)
            except (AgentOutputInvalid, AgentFailed):
                raise
            except Exception as error:
                run.ctx.fault = "stage_error"
                error.add_note(f"the {role.value} raised it")
                raise

        def tried(one: RetryAttempt) -> None:
            row = attempt_row(run.deps.clock, one.seconds, one.kind or "", one.delay)
            run.attach_attempt(row)
            if one.outcome in {"retry", "exhausted"}:
                self._publish_attempt(one.number, one.outcome, one.kind, one.delay)

        found = await run.deps.retry.call(call, on_attempt=tried, clock=run.deps.clock)
        run.ctx.fault = None
        return found

    async def _charged(self, request: AgentRequest) -> Any:
        """Call the agent of a role and charge the run for it."""
        try:
            answer: Any = await called(self._run.deps.agents[request.role], request, request.role.value)
        except Exception:
            charge_call(self._run, request, None)
            raise
        except asyncio.CancelledError:  # only what the agent has reported: a resumed run calls it again
            if request.calls:
                charge_call(self._run, request, None)
            raise
        charge_call(self._run, request, answer)
        return answer

    def _publish_attempt(self, number: int, outcome: str, reason: str | None, delay: float = 0.0) -> None:
        run = self._run
        run.emit(OperationAttempt(run.graph.name, run.run_id, "completion", number, outcome, reason, delay))

    def _may_repeat(self, role: Role, again: int) -> bool:
        limits = self._run.ctx.limits
        if role is Role.PLANNER:
            verdict = planning_retries(again, limits.max_planning_retries)
        else:
            verdict = structured_retries(again, limits.max_agent_retries)
        self._run.attach_guards((row_of(verdict),))
        return verdict.ok


def _as(kind: type[T], found: AgentOutput) -> T:
    assert isinstance(found, kind)  # noqa: S101 - by the table of contract.OUTPUTS
    return found

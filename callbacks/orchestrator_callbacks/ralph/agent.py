"""Calls of an agent: limits before each call, charges after it, and an answer that is durable before the next action.

An answer is checked, and requested again if it is invalid. A call is charged when it ends, also if it failed. What an
agent does not report is an estimate: tokens from the texts of the call, the cost from the price table. A cost that
remains unknown stays None.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from orchestrator.errors import LimitReached
from orchestrator.kernel.cancellation import called
from orchestrator.kernel.fact import BudgetChecked, OperationAttempt
from orchestrator.llm.attempt import attempt_row
from orchestrator.llm.retry import UNLIMITED, RetryAttempt, RetryPolicy
from orchestrator.llm.usage import Usage, approximate_tokens
from orchestrator.machines.ralph import contract
from orchestrator.machines.ralph.contract import (
    AgentFailed,
    AgentInput,
    AgentOutput,
    AgentOutputInvalid,
    Role,
)
from orchestrator.machines.ralph.model import AgentAnswer, AgentRequest, RoleCall
from orchestrator_callbacks.llm_loop.request_usage import Pricing
from orchestrator_callbacks.ralph.deps import RalphRun
from orchestrator_guards import (
    Verdict,
    cost,
    cost_unknown,
    first_refusal,
    planning_retries,
    structured_retries,
    tokens,
)
from orchestrator_guards.evaluation import row_of
from orchestrator_guards.money import in_currency

# ---- limits and charges ----


def check_limits(run: RalphRun) -> None:
    """Evaluate the limits on tokens and cost before a call. Raises LimitReached."""
    used, limit = run.ctx.usage, run.ctx.limits.max_tokens
    verdicts = [*([tokens(used.input_tokens + used.output_tokens, limit)] if limit else []), *_cost(run)]
    if not verdicts:
        return
    run.attach_guards([row_of(one) for one in verdicts])
    run.emit(BudgetChecked(run.graph.name, run.run_id, run.cursor.state, run.ctx.iteration, verdicts))
    refusal = first_refusal(verdicts)
    if refusal is not None:
        raise LimitReached(refusal)


def _cost(run: RalphRun) -> list[Verdict]:
    ctx, limits = run.ctx, run.ctx.limits
    if not limits.max_cost:
        return []
    found = [cost(ctx.usage.cost_for_limits, limits.max_cost_micros)]
    if limits.on_unknown_cost == "stop":
        unknown = next((one for one in ctx.agent_calls if one.usage.cost_micros is None), None)
        if unknown is not None:
            found.append(cost_unknown(1, model=unknown.model or unknown.agent or unknown.role.value))
    return found


def remaining_cost(run: RalphRun) -> float | None:
    """Return the rest of the limit on cost; None if there is none."""
    ctx = run.ctx
    if not ctx.limits.max_cost:
        return None
    return in_currency(max(0, ctx.limits.max_cost_micros - (ctx.usage.cost_for_limits)))


def last_call(run: RalphRun, request: AgentRequest) -> RoleCall | None:
    """Return the last call of the role of a request for its task."""
    work = request.role, request.task_id
    return next((one for one in reversed(run.ctx.agent_calls) if (one.role, one.task_id) == work), None)


def charge_call(run: RalphRun, request: AgentRequest, answer: object) -> None:
    """Add the usage of a call that ended; `answer` is None if it failed. Durable with the next record."""
    ctx = run.ctx
    if not request.calls:
        request.spend(
            Usage(_tokens_of(request.input), 0 if answer is None else _tokens_of(answer)).as_estimate()
        )
    known = {one.child_run_id for one in ctx.agent_calls if one.child_run_id is not None}
    calls = [_priced(run, one) for one in request.calls if one.child_run_id not in known]
    new = [replace(one, failed=True) for one in calls] if answer is None else calls
    for one in new:
        ctx.usage += one.usage
        if one.agent:
            # The record of a call of a coding agent.
            body: dict[str, Any] = {"call": request.key, "agent": one.agent, "usage": one.usage.short()}
            run.note(
                "coding_agent",
                body | {name: value for name in ("model", "session") if (value := getattr(one, name))},
            )
    ctx.agent_calls = (*ctx.agent_calls, *new)


def _tokens_of(given: object) -> int:
    text = given if isinstance(given, str) else json.dumps(given, default=str)
    return approximate_tokens(len(text))


def _priced(run: RalphRun, call: RoleCall) -> RoleCall:
    """Return a call whose cost is an estimate by the price table, if it has none. Raises ConfigError."""
    usage = call.usage
    if usage.cost_micros is not None or not call.model:
        return call
    micros = Pricing(run.deps.price, None, call.model).cost(usage, None)
    if micros is None:
        return call
    return replace(call, usage=replace(usage, cost_micros=micros, estimated_cost_micros=micros))


# ---- calls ----


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

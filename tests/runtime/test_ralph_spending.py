"""Tokens and cost of the agents of the ralph loop: in the result, in the journal, and under the limits of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import BudgetExceeded, ConfigError
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.outcome import Outcome
from orchestrator.llm.usage import Usage
from orchestrator.machines.ralph.contract import AgentFailed, Role
from orchestrator.machines.ralph.model import AgentRequest, RalphLimits
from orchestrator.providers.price import price_table
from orchestrator.runtime.ralph.prompt_agent import PromptAgent
from orchestrator.runtime.ralph.ralph import Ralph
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.testing import ScriptedLLM
from tests.runtime.ralph_stage import World

ONE = ("task-1: one",)


class Spender(World):
    """Agents that report a usage, each role a session."""

    def __init__(self, root: Path, usage: Usage | None, *, model: str = "", **more: Any) -> None:
        super().__init__(root, tasks=ONE, **more)
        self.usage, self.model = usage, model

    def __call__(self, request: AgentRequest) -> Any:
        if self.usage is not None:
            session = f"{request.role}-session"
            request.spend(self.usage, agent="coder", model=self.model, session=session)
        return super().__call__(request)


async def test_the_result_and_the_journal_have_session_tokens_and_cost_of_each_call(tmp_path: Path) -> None:
    journal = MemoryJournal()
    world = Spender(tmp_path, Usage(100, 20, cost=0.25))
    result = await world.ralph(questioner=False, journal=journal).run("x")
    roles = [Role.PLANNER, Role.EXECUTOR, Role.REVIEWER, Role.CHECKER]
    assert [one.role for one in result.agent_calls] == roles
    assert [one.task_id for one in result.agent_calls] == [None, "task-1", "task-1", None]
    assert [one.session for one in result.agent_calls] == [f"{role}-session" for role in roles]
    assert result.usage == Usage(400, 80, cost=1.0)
    noted = [record.body for record in await journal.load(result.run_id) if record.kind == "coding_agent"]
    assert [(one["agent"], one["session"], one["usage"]["cost_micros"]) for one in noted] == [
        ("coder", f"{role}-session", 250_000) for role in roles
    ]
    # the run as another process reads it
    read = await world.ralph(questioner=False, journal=journal).resume(result.run_id)
    assert (read.usage, read.agent_calls) == (result.usage, result.agent_calls)


LIMITS = {
    "tokens": (RalphLimits(max_tokens=240), Usage(100, 20), ("tokens", 240, 240)),
    "cost": (RalphLimits(max_cost=0.5), Usage(100, 20, cost=0.25), ("cost", 0.5, 0.5)),
    "unknown cost": (RalphLimits(max_cost=0.5), Usage(100, 20), ("cost_unknown", 1, 1)),
}


@pytest.mark.parametrize("case", LIMITS)
async def test_a_limit_stops_the_loop_by_its_guard_before_the_next_call(case: str, tmp_path: Path) -> None:
    limits, usage, refusal = LIMITS[case]
    journal = MemoryJournal()
    world = Spender(tmp_path, usage)
    result = await world.ralph(questioner=False, journal=journal, limits=limits).run("x")
    assert result.verdict is not None
    assert (result.verdict.guard, result.verdict.observed, result.verdict.limit) == refusal
    assert (result.outcome, result.reason) == (Outcome.BUDGET_EXCEEDED, refusal[0])
    assert len(world.calls) == (1 if case == "unknown cost" else 2)
    with pytest.raises(BudgetExceeded, match=refusal[0]):
        result.raise_for_outcome()
    last = [record.body for record in await journal.load(result.run_id) if record.kind == "transition"][-1]
    assert refusal[0] in [row[1] for row in last["guards"]]


async def test_a_larger_limit_continues_a_session_that_a_limit_stopped(tmp_path: Path) -> None:
    world = Spender(tmp_path, Usage(100, 20))
    first = await world.ralph(questioner=False, limits=RalphLimits(max_tokens=240)).run("x")
    assert first.reason == "tokens"
    then = await world.ralph(questioner=False).run(session=first.session_path)
    assert then.outcome is Outcome.COMPLETED
    assert world.called[2:] == ["reviewer task-1", "checker"]


async def test_an_unknown_cost_counts_as_nothing_where_the_limits_say_so(tmp_path: Path) -> None:
    limits = RalphLimits(max_cost=0.5, on_unknown_cost="ignore")
    result = await Spender(tmp_path, Usage(100, 20)).ralph(limits=limits).run("x")
    assert (result.outcome, result.usage.cost) == (Outcome.COMPLETED, None)


async def test_the_price_table_estimates_a_cost_that_the_agent_does_not_report(tmp_path: Path) -> None:
    runtime = Runtime(journal=MemoryJournal(), observers=(), price=price_table({"codex-1": (1.0, 10.0)}))
    world = Spender(tmp_path, Usage(100, 20), model="codex-1")
    result = await Ralph(world, world, world, root=tmp_path, runtime=runtime).run("x")
    assert (result.usage.cost, result.usage.estimated_cost) == (0.0009, 0.0009)
    assert result.usage.estimated_input_tokens == 0


async def test_a_price_function_gets_the_same_counts_as_for_the_loop(tmp_path: Path) -> None:
    seen: list[tuple[str | None, Any]] = []

    def price(model: str | None, tokens: Any) -> float | None:
        seen.append((model, tokens))
        return None

    runtime = Runtime(journal=MemoryJournal(), observers=(), price=price)
    world = Spender(tmp_path, Usage(100, 20, reasoning_tokens=5), model="codex-1")
    await Ralph(world, world, world, root=tmp_path, runtime=runtime).run("x")
    counts = {"input_tokens": 100, "output_tokens": 20, "cached_input_tokens": 0, "cache_write_tokens": 0}
    assert seen[0] == ("codex-1", counts)


async def test_an_agent_that_reports_nothing_is_charged_with_an_estimate_of_unknown_cost(
    tmp_path: Path,
) -> None:
    result = await Spender(tmp_path, None).ralph(questioner=False).run("x")
    first = result.agent_calls[0].usage
    assert first.input_tokens == first.estimated_input_tokens > 10
    assert first.output_tokens == first.estimated_output_tokens > 0
    assert {one.usage.cost for one in result.agent_calls} == {None}


async def test_a_call_that_failed_and_a_repeated_one_are_charged(tmp_path: Path) -> None:
    says = {Role.PLANNER: ["not JSON", None], Role.EXECUTOR: [AgentFailed("executor", "it broke")] * 9}
    result = await Spender(tmp_path, Usage(100, 20), says=says).ralph(questioner=False).run("x")
    assert result.outcome is Outcome.FAILED
    assert [one.role for one in result.agent_calls] == [Role.PLANNER, Role.PLANNER, Role.EXECUTOR]
    assert result.usage == Usage(300, 60)


async def test_the_usage_of_models_counts_once_with_the_id_of_the_child_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    planner = PromptAgent(ScriptedLLM(['{"status": "completed"}']))
    world = Spender(tmp_path, Usage(0, 0))
    journal = MemoryJournal()
    limits = RalphLimits(max_tokens=1)
    ralph = Ralph(planner, world, world, root=tmp_path, limits=limits, observers=(), journal=journal)
    result = await ralph.run("x")
    (call,) = result.agent_calls[:1]
    assert call.child_run_id is not None
    child = await journal.load(call.child_run_id)
    assert child[0].body["parent_run_id"] == result.run_id
    assert result.usage.input_tokens + result.usage.output_tokens >= 1


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ({"max_tokens": -1}, "max_tokens is -1; it must be 0 (off) or more"),
        ({"max_tokens": 1.5}, "max_tokens is 1.5; it must be a whole number"),
        ({"max_cost": -0.1}, "max_cost is -0.1; it must be 0 (off) or more"),
        ({"on_unknown_cost": "no"}, "on_unknown_cost is 'no'; it must be one of: stop, ignore"),
    ],
)
def test_a_limit_that_cannot_work_is_one_sentence(limit: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        RalphLimits(**limit)
    assert said in str(refused.value)


async def test_a_usage_that_is_none_is_refused(tmp_path: Path) -> None:
    request = AgentRequest(role=Role.PLANNER, input={})
    with pytest.raises(ConfigError, match="give Usage"):
        request.spend({"input_tokens": 3})  # type: ignore[arg-type]
    assert request.calls == []

"""The seed's run loop as a class: the pipeline's work, the specification's machine, the report at the end."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from orchestrator import AgentOrchestrator, OrchestrationState, Outcome, SqliteJournal
from orchestrator.errors import ConfigError, RunUnknown
from orchestrator.pipeline import Pipeline, PipelineLimits
from orchestrator.telemetry import Metrics, TransitionLog
from tests.telemetry.sampling import sampled

S = OrchestrationState


def stages(
    scores: Iterable[float | Exception] = (9.0,), valid: Iterable[bool] = ()
) -> list[Callable[..., Any]]:
    """Four stages; the judge gives these scores, in order, or raises."""
    given, found = iter(scores), iter(valid)

    def judge(request: Any) -> dict[str, Any]:
        score = next(given)
        if isinstance(score, Exception):
            raise score
        return {"score": score, "comments": f"{score:g} of 10", "tokens": 50}

    return [
        lambda request: {"steps": [request.spec], "told": [one.text for one in request.feedback]},
        lambda request: (
            [] if next(found, True) else {"issues": [{"severity": "error", "message": "too short"}]}
        ),
        lambda request: f"draft {request.refinement}",
        judge,
    ]


def agent(*arguments: Any, **options: Any) -> AgentOrchestrator:
    return AgentOrchestrator(*stages(*arguments), **{"observers": (), **options})


def path(one: AgentOrchestrator) -> list[str]:
    return [transition.to_state.value for transition in one.state_machine.history]


WORK = ["planning", "validating", "implementing", "judging"]


def test_it_goes_through_every_failure_to_success_and_logs_the_report(
    caplog: pytest.LogCaptureFixture,
) -> None:
    one = agent((6.0, 3.0, 9.0), (False, True, True))
    with caplog.at_level(logging.INFO, logger="orchestrator.pipeline"):
        result = one.run("a page")
    assert (result.outcome, result.output) == (Outcome.COMPLETED, "draft 1")
    assert path(one) == [*WORK[:2], *WORK, "implementing", "judging", *WORK, "succeeded"]
    report = one.state_machine.format_metrics_report()
    assert caplog.messages[-1] == f"\n{report}"
    assert report.splitlines()[2:4] == ["Final State: succeeded", "Iterations: 3 / 3"]
    assert one.state_machine.get_state_metrics(S.JUDGING).total_tokens == 150


def test_the_machine_says_of_each_transition_what_the_pipeline_says() -> None:
    stream, registry = io.StringIO(), CollectorRegistry()
    one = agent((6.0, 9.0), observers=[TransitionLog(stream), Metrics(registry)])
    result = one.run("a page")
    assert [
        (move.from_state, move.to_state, move.duration_seconds, move.tokens_consumed, move.reason or "")
        for move in one.state_machine.history
    ] == [(fact.source, fact.dest, fact.dwell, fact.tokens, fact.reason) for fact in result.transitions]
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    moves = [line for line in lines if line["msg"] == "fsm.transition"]
    assert len(moves) == len(result.transitions)
    where = {"machine": "pipeline", "state": "judging"}
    assert sampled(registry, "orchestrator_stage_tokens_total", **where) == 100


def test_observers_of_the_seed_hear_of_the_run_as_it_goes() -> None:
    one = agent()
    told: list[tuple[str, int]] = []

    class Heard:
        def on_state_transition(self, transition: Any) -> None:
            told.append((transition.to_state.value, len(one.state_machine.history)))

        def on_metrics_update(self, metrics: dict[str, Any]) -> None:
            assert metrics["total_transitions"] == len(one.state_machine.history)

    one.add_observer(Heard())
    one.run("a page")
    assert told == [(state, number) for number, state in enumerate([*WORK, "succeeded"], 1)]
    assert one.state_machine.observer_errors == {}


class Budget:
    """Used up after it was asked so often."""

    def __init__(self, asked: int) -> None:
        self.left = asked

    def is_exhausted(self) -> bool:
        self.left -= 1
        return self.left < 0


def test_a_budget_ends_the_run_wherever_it_ends() -> None:
    ends = []
    for asked in range(8):
        one = agent(budget=Budget(asked))
        result = one.run("a page")
        assert result.state == one.state_machine.current_state
        ends.append((one.state_machine.history[-1].from_state.value, result.state))
    asked_twice = [(state, S.BUDGET_EXHAUSTED) for state in WORK for _ in ("before", "after")]
    # Asked before and after each stage, but not after a judge that approves: that run is done.
    assert ends == [*asked_twice[:7], ("judging", S.SUCCEEDED)]


def test_iterations_end_at_their_limit() -> None:
    one = agent([1.0] * 9, limits=PipelineLimits(max_iterations=2))
    result = one.run("a page")
    assert (result.state, result.reason) == (S.FAILED, "max_iterations")
    assert path(one) == [*WORK, *WORK, "failed"]
    assert "Iterations: 2 / 2" in one.state_machine.format_metrics_report()


def test_a_judge_that_raises_fails_the_run() -> None:
    one = agent([ValueError("no score")])
    result = one.run("a page")
    assert (result.state, result.output) == (S.FAILED, None)
    assert path(one) == [*WORK, "failed"]


def test_a_second_run_begins_anew() -> None:
    one = agent((9.0, 9.0))
    one.run("a page")
    one.run("another")
    assert path(one) == [*WORK, "succeeded"]


def test_one_run_at_a_time_and_none_from_inside_a_loop() -> None:
    one = agent((9.0, 9.0, 9.0))

    async def both() -> None:
        with pytest.raises(ConfigError, match="run_async"):
            one.run("a page")
        results = await asyncio.gather(one.run_async("1"), one.run_async("2"), return_exceptions=True)
        assert [type(result).__name__ for result in results] == ["PipelineResult", "ConfigError"]

    asyncio.run(both())
    assert one.run("a page").outcome == Outcome.COMPLETED


def test_a_run_of_another_process_goes_on_with_its_whole_history(tmp_path: Path) -> None:
    judging = asyncio.Event()

    async def hangs(request: Any) -> Any:
        judging.set()
        await asyncio.Event().wait()

    async def interrupted() -> None:
        async with SqliteJournal(tmp_path / "journal.db") as journal:
            planner, validator, implementer, _ = stages()
            first = Pipeline(planner, validator, implementer, hangs, journal=journal, observers=())
            running = asyncio.create_task(first.run("a page", run_id="r1"))
            await judging.wait()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running

    async def resumed() -> AgentOrchestrator:
        async with SqliteJournal(tmp_path / "journal.db") as journal:
            one = AgentOrchestrator(*stages((6.0, 9.0)), journal=journal, observers=())
            with pytest.raises(RunUnknown):
                await one.resume_async("r2")
            result = await one.resume_async("r1")
            assert result.outcome == Outcome.COMPLETED
            assert len(result.transitions) == len(one.state_machine.history)
            return one

    asyncio.run(interrupted())
    one = asyncio.run(resumed())
    assert path(one) == [*WORK, "implementing", "judging", "succeeded"]
    assert one.state_machine.iteration_count == one.state_machine.refinement_count == 1

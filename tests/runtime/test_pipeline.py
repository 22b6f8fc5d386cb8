"""Whole runs of the pipeline: where each answer of a stage leads, and how each limit ends a run."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from orchestrator.errors import BudgetExceeded, ConfigError, Refused, RunError, RunExists, RunFailed
from orchestrator.journal.memory import MemoryJournal
from orchestrator.kernel.clock import GRACE
from orchestrator.kernel.fact import BudgetChecked, Transition
from orchestrator.kernel.graph import Edge
from orchestrator.kernel.outcome import REASONS
from orchestrator.machines.pipeline.graph import PIPELINE
from orchestrator.machines.pipeline.model import (
    Evaluation,
    FeedbackKind,
    Implementation,
    Issue,
    OrchestrationState,
    PipelineLimits,
    Plan,
    Rubric,
    Severity,
    Validation,
)
from orchestrator.machines.pipeline.progress import tokens_of
from orchestrator.runtime.pipeline.pipeline import Pipeline, PipelineResult
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.telemetry.log import TransitionLog
from orchestrator.telemetry.metrics import Metrics
from orchestrator.testing.clock import FakeClock
from tests.result_kinds import KINDS
from tests.runtime.pipeline_stage import BAD, GOOD, HARD, PASS, SOFT, Purse, Stages
from tests.runtime.stage import Facts, path, until
from tests.telemetry.sampling import sampled

START = ["start", "plan_ready"]
MADE = ["plan_valid", "implemented"]


def run(stages: Stages, spec: Any = "a module", **options: Any) -> PipelineResult:
    result = stages.pipeline(**options).run_sync(spec)
    assert result.reason in REASONS[result.outcome]
    assert result.iterations == path(result.transitions).count("plan_ready")
    assert result.refinements == path(result.transitions).count("soft_failure")
    return result


def test_a_plan_that_is_valid_and_an_implementation_that_is_approved_succeed() -> None:
    stages = Stages()

    result = run(stages)

    assert (result.state, result.outcome, result.reason) == (
        OrchestrationState.SUCCEEDED,
        "completed",
        "none",
    )
    assert path(result.transitions) == [*START, *MADE, "approved"]
    assert result.output == "code"
    assert result.best is not None
    assert (result.best.score, result.best.implementation, result.best.iteration) == (8.5, "code", 1)
    assert set(stages.calls.values()) == {1}


def test_a_plan_with_an_error_goes_back_and_one_with_warnings_does_not() -> None:
    stages = Stages(plan=[{"n": 1}, {"n": 2}], valid=[BAD, GOOD])

    result = run(stages)

    assert path(result.transitions) == [*START, "plan_invalid", "plan_ready", *MADE, "approved"]
    assert result.iterations == 2
    first, second = stages.planner.requests
    assert first.feedback == ()
    assert [one.kind for one in second.feedback] == [FeedbackKind.VALIDATION_FAILURE]
    assert second.feedback[0].text == (
        "The plan was not valid.\n- error: steps[1]: two steps have no test\n- info: short"
    )
    assert second.plan == Plan({"n": 1})
    assert second.iteration == 1


def test_a_soft_failure_refines_and_tells_the_implementer_alone() -> None:
    stages = Stages(made=["v1", "v2"], judged=[SOFT, PASS])

    result = run(stages)

    assert path(result.transitions)[4:] == ["soft_failure", "implemented", "approved"]
    assert (result.iterations, result.refinements, result.output) == (1, 1, "v2")
    _, refining = stages.implementer.requests
    assert [one.kind for one in refining.feedback] == [FeedbackKind.JUDGE_SOFT_FAILURE]
    assert refining.feedback[0].text == (
        "The implementation has to be refined: it scored 6.\n- timing_coverage: 4\nthe middle is missing"
    )
    assert (refining.implementation, refining.evaluation) == (Implementation("v1"), SOFT)
    assert len(stages.planner.requests) == 1


def test_a_hard_failure_makes_a_new_plan_and_tells_the_planner_alone() -> None:
    stages = Stages(plan=["p1", "p2"], judged=[HARD, PASS])

    result = run(stages)

    assert path(result.transitions)[4:] == ["hard_failure", "plan_ready", *MADE, "approved"]
    again = stages.planner.requests[1]
    assert [one.kind for one in again.feedback] == [FeedbackKind.JUDGE_HARD_FAILURE]
    assert stages.implementer.requests[1].feedback == ()
    assert stages.implementer.requests[1].evaluation is None, "a new plan begins anew"


def test_a_soft_score_whose_failing_categories_speak_of_the_plan_makes_a_new_plan() -> None:
    of_plan = Evaluation(6.0, {"energy_matching": 4.0, "template_variety": 5.0, "timing_coverage": 5.0})

    result = run(Stages(judged=[of_plan, PASS]))

    assert path(result.transitions)[4] == "hard_failure"


def test_thresholds_and_categories_are_data() -> None:
    rubric = Rubric(top=100, approve=70, hard=60, category=60, plan=("design",), implementation=("code",))

    result = run(Stages(judged=[Evaluation(65.0, {"code": 50.0}), Evaluation(70.0)]), rubric=rubric)

    assert path(result.transitions)[4:] == ["soft_failure", "implemented", "approved"]


def test_feedback_over_its_limit_of_tokens_loses_the_oldest() -> None:
    invalid = [[Issue(Severity.ERROR, f"{name} is missing")] for name in ("one", "two", "six")]
    texts = [f"The plan was not valid.\n- error: {name} is missing" for name in ("one", "two", "six")]
    each = tokens_of(texts[0])

    def told(limit: int) -> list[list[str]]:
        stages = Stages(valid=[*invalid, GOOD])
        result = run(stages, limits=PipelineLimits(max_iterations=4, feedback_tokens=limit))
        assert stages.planner.requests[-1].feedback == result.feedback
        return [[one.text for one in request.feedback] for request in stages.planner.requests]

    assert told(0) == told(3 * each) == [[], texts[:1], texts[:2], texts]
    assert told(3 * each - 1) == told(2 * each) == [[], texts[:1], texts[:2], texts[1:]]
    assert told(2 * each - 1) == told(each) == [[], texts[:1], texts[1:2], texts[2:]]


# ---- limits ----


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_plans_that_are_never_valid_end_at_the_iteration_limit(limit: int) -> None:
    stages = Stages(valid=[BAD])

    result = run(stages, limits=PipelineLimits(max_iterations=limit))

    assert (result.state, result.outcome, result.reason) == (
        OrchestrationState.FAILED,
        "failed",
        "max_iterations",
    )
    assert stages.calls[OrchestrationState.PLANNING] == result.iterations == limit
    assert result.verdict is not None
    assert (result.verdict.guard, result.verdict.observed, result.verdict.limit) == (
        "iterations",
        limit,
        limit,
    )
    assert result.transitions[-1].reason == "max_iterations"
    assert isinstance(result.error, Refused)
    assert result.best is None


@pytest.mark.parametrize("limit", [1, 2])
def test_hard_failures_end_at_the_iteration_limit_and_the_best_attempt_is_kept(limit: int) -> None:
    scores = [Evaluation(4.5), Evaluation(2.0)]
    stages = Stages(made=["first", "second"], judged=scores)

    result = run(stages, limits=PipelineLimits(max_iterations=limit))

    assert (result.state, result.reason, result.output) == (OrchestrationState.FAILED, "max_iterations", None)
    assert result.best is not None
    assert (result.best.score, result.best.implementation) == (4.5, "first")


@pytest.mark.parametrize("limit", [1, 2, 4])
def test_soft_failures_end_at_a_limit_of_their_own(limit: int) -> None:
    stages = Stages(judged=[SOFT])

    result = run(stages, limits=PipelineLimits(max_refinements=limit))

    assert (result.state, result.reason) == (OrchestrationState.FAILED, "max_iterations")
    assert result.refinements == limit
    assert stages.calls[OrchestrationState.IMPLEMENTING] == limit + 1
    assert result.verdict is not None
    assert result.verdict.guard == "refinements"
    assert result.best is not None
    assert result.best.score == 6.0


def test_a_limit_of_zero_is_none() -> None:
    many = [BAD] * 20 + [GOOD]

    result = run(Stages(valid=many), limits=PipelineLimits(max_iterations=0))

    assert (result.outcome, result.iterations) == ("completed", 21)


def test_the_best_of_several_attempts_is_the_first_with_the_highest_score() -> None:
    scores = [Evaluation(5.5), Evaluation(6.5), Evaluation(6.5), Evaluation(6.0)]
    stages = Stages(made=["a", "b", "c", "d"], judged=scores)

    result = run(stages)

    assert result.best is not None
    assert (result.best.implementation, result.best.refinement) == ("b", 1)
    assert result.implementation is not None
    assert result.implementation.content == "d"


# ---- budgets ----


def tokens(**each: int) -> Stages:
    return Stages(
        plan=[Plan("p", each.get("plan", 0))],
        valid=[Validation((), each.get("validate", 0))],
        made=[Implementation("code", each.get("implement", 0))],
        judged=[Evaluation(each.get("score", 6), tokens=each.get("judge", 0))],
    )


@pytest.mark.parametrize(
    ("used", "budget", "state"),
    [
        ({}, 6_599, "planning"),
        ({"plan": 6_600}, 6_600, "planning"),
        ({"plan": 100, "validate": 6_500}, 6_600, "validating"),
        ({"plan": 5_000}, 15_199, "implementing"),
        ({"plan": 5_000, "implement": 5_200}, 15_200, "judging"),
        ({"plan": 5_000, "implement": 10_200}, 15_200, "implementing"),
        ({"plan": 5_000, "implement": 5_000, "judge": 7_800}, 17_800, "judging"),
        ({"plan": 5_000, "implement": 5_000, "judge": 7_800, "score": 1}, 17_800, "judging"),
        ({"plan": 5_000, "implement": 5_000, "judge": 5_000}, 23_399, "implementing"),
    ],
)
def test_the_token_budget_ends_a_run_before_or_after_each_stage(
    used: dict[str, int], budget: int, state: str
) -> None:
    result = run(tokens(**used), limits=PipelineLimits(token_budget=budget))

    assert (result.state, result.outcome, result.reason) == (
        OrchestrationState.BUDGET_EXHAUSTED,
        "budget_exceeded",
        "tokens",
    )
    last = result.transitions[-1]
    assert (last.event, last.dest) == ("budget_exhausted", "budget_exhausted")
    assert last.reason == "Token budget exhausted"
    assert result.verdict is not None
    assert result.verdict.guard in {"affordable", "tokens"}
    assert last.source == state
    assert result.tokens == sum(one.tokens for one in result.transitions)


def test_a_stage_is_begun_when_what_is_left_covers_its_estimate_with_the_margin() -> None:
    limits = PipelineLimits(token_budget=6_600)

    assert run(tokens(plan=1), limits=limits).transitions[-1].source == "implementing"
    assert run(tokens(plan=1), limits=PipelineLimits(token_budget=6_599)).iterations == 0


def test_a_refinement_has_an_estimate_of_its_own() -> None:
    spent = {"plan": 1_000, "implement": 1_000, "judge": 1_000}

    enough = run(tokens(**spent), limits=PipelineLimits(token_budget=11_400))
    short = run(tokens(**spent), limits=PipelineLimits(token_budget=11_399))

    assert enough.refinements == short.refinements == 1
    assert [one.source for one in enough.transitions].count("implementing") == 2
    assert enough.transitions[-1].source == "judging"
    assert short.transitions[-1].source == "implementing"


def test_what_was_approved_is_not_lost_to_a_budget_that_it_used_up() -> None:
    used = tokens(plan=5_000, implement=5_000, judge=7_800, score=9)

    result = run(used, limits=PipelineLimits(token_budget=17_800))

    assert (result.outcome, result.output) == ("completed", "code")


def test_a_budget_of_zero_is_none() -> None:
    result = run(tokens(plan=10**9, score=9), limits=PipelineLimits(token_budget=0))

    assert (result.outcome, result.tokens) == ("completed", 10**9)


@pytest.mark.parametrize(("at", "state"), [*enumerate(["planning", "validating", "implementing", "judging"])])
@pytest.mark.parametrize("when", ["before", "after"])
def test_the_budget_of_the_host_is_asked_before_and_after_each_stage(at: int, state: str, when: str) -> None:
    asked = 2 * at + (1 if when == "before" else 2)
    stages, purse = Stages(judged=[SOFT]), Purse(asked)

    result = run(stages, budget=purse)

    assert (result.state, result.transitions[-1].source) == (OrchestrationState.BUDGET_EXHAUSTED, state)
    assert purse.asked == asked, "the rest was not asked"
    assert stages.calls[OrchestrationState(state)] == (0 if when == "before" else 1)
    assert result.verdict is not None
    assert result.verdict.guard == "host_budget"


def test_a_budget_may_answer_asynchronously_and_one_that_raises_fails_the_run() -> None:
    class Remote(Purse):
        async def is_exhausted(self) -> bool:  # type: ignore[override]
            await asyncio.sleep(0)
            return super().is_exhausted()

    class Broken(Purse):
        def is_exhausted(self) -> bool:
            raise OSError("no answer")

    assert run(Stages(), budget=Remote(3)).state == OrchestrationState.BUDGET_EXHAUSTED
    result = run(Stages(), budget=Broken())
    assert (result.state, result.reason) == (OrchestrationState.FAILED, "callback_error")


# ---- stages that fail ----


@pytest.mark.parametrize("stage", ["plan", "valid", "made", "judged"])
def test_a_stage_that_raises_fails_the_run_with_the_type_of_its_error(stage: str) -> None:
    stages = Stages(**{stage: [ZeroDivisionError("a secret")]})

    result = run(stages)

    assert (result.state, result.outcome, result.reason) == (
        OrchestrationState.FAILED,
        "failed",
        "stage_error",
    )
    assert isinstance(result.error, ZeroDivisionError)
    last = result.transitions[-1]
    assert last.reason == f"{last.source} failed: ZeroDivisionError"
    with pytest.raises(RunFailed, match="stage_error"):
        result.raise_for_outcome()


@pytest.mark.parametrize(
    "said",
    [None, "fine", {"verdict": "approve"}, {"score": "8"}, {"score": True}, 8.0, Evaluation(float("nan")),
     Evaluation(11.0), Evaluation(-1.0), Evaluation(8.0, {"a": 12.0}), {"score": 8, "categories": [1]}],
)  # fmt: skip
def test_a_judge_that_gives_no_score_approves_nothing(said: Any) -> None:
    result = run(Stages(judged=[said]))

    assert (result.state, result.reason, result.output) == (OrchestrationState.FAILED, "stage_error", None)
    assert isinstance(result.error, RunError)
    assert result.best is None


@pytest.mark.parametrize(
    "said",
    [None, True, "ok", [{"severity": "bad", "message": "x"}], [{"where": "x"}], [3], {"tokens": 3}],
)
def test_a_validator_that_cannot_be_read_lets_nothing_pass(said: Any) -> None:
    result = run(Stages(valid=[said]))

    assert (result.state, result.reason) == (OrchestrationState.FAILED, "stage_error")
    assert result.transitions[-1].source == "validating"


_JSON = ("bytes", "a part without content")
"""Kinds that are JSON data, although a model cannot read them as the result of a tool."""


@pytest.mark.parametrize("stage", ["plan", "made"])
def test_a_stage_that_returns_nothing_has_failed(stage: str) -> None:
    assert run(Stages(**{stage: [None]})).reason == "stage_error"


@pytest.mark.parametrize("stage", ["plan", "made"])
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"nothing", "exception", "a proxy that raises"}))
def test_a_stage_that_returned_has_run_whatever_its_content_is(stage: str, kind: str) -> None:
    value = KINDS[kind].make()
    stages, journal, lines = Stages(**{stage: [value]}), MemoryJournal(), StringIO()
    done = stages.pipeline(journal=journal, observers=[TransitionLog(lines)]).run_sync("a spec", run_id="r")
    assert done.reason == "none"
    name = OrchestrationState.PLANNING if stage == "plan" else OrchestrationState.IMPLEMENTING
    assert stages.calls[name] == 1
    records = asyncio.run(journal.load("r"))
    [made] = [
        record.body["made"]["content"]
        for record in records
        if record.kind == "stage" and record.body["state"] == name
    ]
    unreadable = isinstance(made, dict) and made.get("ran") is True
    assert unreadable == (kind == "large number" or (KINDS[kind].text is None and kind not in _JSON))
    logged = [json.loads(line)["state"] for line in lines.getvalue().splitlines() if "unreadable" in line]
    assert logged == ([name] if unreadable else [])
    read = stages.implementer.requests[0].plan if stage == "plan" else stages.judge.requests[0].implementation
    assert read is not None
    assert read.content == made


def test_stages_may_give_plain_data() -> None:
    issues = {"issues": [{"severity": "warning", "message": "m"}], "tokens": 5}
    judged = {"score": 7, "categories": {"timing_coverage": 7.5}, "comments": "fine", "tokens": 6}

    result = run(Stages(valid=[issues], judged=[judged]))

    assert result.validation == Validation((Issue(Severity.WARNING, "m"),), 5)
    assert result.evaluation == Evaluation(7.0, {"timing_coverage": 7.5}, "fine", 6)
    assert result.tokens == 11


def test_a_sync_port_runs_beside_the_loop_and_a_function_may_give_an_awaitable() -> None:
    async def later() -> str:
        return "code"

    pipeline = Pipeline(
        lambda request: {"for": request.spec},
        lambda _: [],
        lambda _: later(),
        lambda _: {"score": 9},
        observers=(),
    )

    result = pipeline.run_sync("x")

    assert result.plan is not None
    assert (result.plan.content, result.output) == ({"for": "x"}, "code")


def test_a_sync_port_that_never_returns_holds_up_neither_a_cancel_nor_the_end_of_the_loop() -> None:
    began, never = threading.Event(), threading.Event()

    def stuck(_: Any) -> None:
        began.set()
        never.wait()

    async def inside() -> PipelineResult:
        clock = FakeClock()
        pipeline = Pipeline(stuck, stuck, stuck, stuck, runtime=Runtime(clock=clock, observers=()))
        running = asyncio.create_task(pipeline.run("x", run_id="r"))
        await until(began.is_set)
        pipeline.cancel("r")
        while not running.done():
            await clock.advance(GRACE)
        return await running

    assert asyncio.run(inside()).outcome == "cancelled"
    never.set()


def test_a_sync_port_that_exits_fails_its_stage_and_not_the_process() -> None:
    def leaves(_: Any) -> None:
        raise SystemExit(3)

    result = Pipeline(leaves, print, print, print, observers=()).run_sync("x")

    assert (result.reason, str(result.error)) == ("stage_error", "planning raised SystemExit")


def test_what_a_failing_stage_says_it_used_counts() -> None:
    async def dear(request: Any) -> None:
        request.spend(70)
        request.spend(7)
        raise ValueError

    stages = Stages()
    stages.implementer = dear  # type: ignore[assignment]

    result = stages.pipeline().run_sync("x")

    assert (result.reason, result.tokens, result.transitions[-1].tokens) == ("stage_error", 77, 77)


# ---- the rest of a run ----


def test_a_cancelled_run_ends_as_such_and_the_stage_in_flight_is_interrupted() -> None:
    began = asyncio.Event()

    async def slow(_: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    async def inside() -> PipelineResult:
        stages = Stages()
        stages.implementer = slow  # type: ignore[assignment]
        pipeline = stages.pipeline()
        running = asyncio.create_task(pipeline.run("x", run_id="r"))
        await began.wait()
        pipeline.cancel("r", by="ann")
        return await running

    result = asyncio.run(inside())

    assert (result.state, result.outcome, result.reason) == (OrchestrationState.FAILED, "cancelled", "caller")
    assert result.transitions[-1].reason == "implementing failed: CancelRequested"


@pytest.mark.parametrize("given", [{"deadline": 5.0}, {"limits": PipelineLimits(max_seconds=5.0)}])
def test_time_ends_a_run_also_within_a_stage(given: dict[str, Any]) -> None:
    clock = FakeClock(auto=True)

    async def slow(_: Any) -> None:
        await clock.sleep(100)

    stages = Stages()
    stages.judge = slow  # type: ignore[assignment]

    result = asyncio.run(stages.pipeline(clock=clock).run("x", **given))

    assert (result.state, result.outcome, result.reason) == (
        OrchestrationState.FAILED,
        "budget_exceeded",
        "time",
    )
    with pytest.raises(BudgetExceeded):
        result.raise_for_outcome()


def test_a_stage_that_lasts_too_long_fails_the_run() -> None:
    clock = FakeClock(auto=True)

    async def stuck(_: Any) -> None:
        await clock.sleep(1e9)

    stages = Stages()
    stages.planner = stuck  # type: ignore[assignment]

    result = asyncio.run(stages.pipeline(clock=clock).run("x"))

    assert (result.outcome, result.reason) == ("failed", "state_timeout")


def test_hooks_of_the_host_run_after_ours_and_may_refuse() -> None:
    class Hooks:
        async def before_approved(self, run: Any) -> None:
            raise Refused(f"not on Sundays: {run.ctx.evaluation.score:g}")

    result = run(Stages(), hooks=[Hooks()])

    assert (result.state, result.outcome, result.reason) == (
        OrchestrationState.FAILED,
        "failed",
        "policy_stop",
    )
    assert result.output is None


REVIEWED = PIPELINE.extend(
    name="reviewed",
    states=["reviewing"],
    events=["reviewed"],
    without=[("implementing", "implemented")],
    edges=[
        Edge("implemented", "implementing", "reviewing"),
        Edge("reviewed", "reviewing", "judging"),
        Edge("failure", "reviewing", "failed"),
    ],
)


def test_a_host_adds_a_phase_without_touching_ours() -> None:
    class Review:
        async def enter_reviewing(self, run: Any) -> Any:
            run.ctx.implementation = replace(run.ctx.implementation, content="reviewed code")
            return run.graph.events("reviewed")

    result = run(Stages(judged=[SOFT, PASS]), graph=REVIEWED, hooks=[Review()])

    assert path(result.transitions)[2:5] == ["plan_valid", "implemented", "reviewed"]
    assert (result.state, result.output) == (OrchestrationState.SUCCEEDED, "reviewed code")
    assert isinstance(result.state, OrchestrationState), "of ours, not of the machine with the phase"
    assert [one.source for one in result.transitions].count("reviewing") == 2


def test_any_number_of_runs_go_on_at_once_and_know_nothing_of_each_other() -> None:
    stages = Stages(valid=[BAD, GOOD, BAD, GOOD])
    pipeline = stages.pipeline()

    async def inside() -> list[PipelineResult]:
        return await asyncio.gather(*(pipeline.run(number, run_id=f"r{number}") for number in range(10)))

    results = asyncio.run(inside())

    assert {result.outcome for result in results} == {"completed"}
    assert [result.run_id for result in results] == [f"r{number}" for number in range(10)]


def test_a_known_run_id_is_refused() -> None:
    pipeline = Stages().pipeline(journal=MemoryJournal())
    pipeline.run_sync("x", run_id="r")

    with pytest.raises(RunExists):
        pipeline.run_sync("x", run_id="r")


@pytest.mark.parametrize("spec", [None, "", object(), {"a": {1, object()}}])
def test_a_spec_that_says_nothing_or_cannot_be_stored_is_refused(spec: Any) -> None:
    with pytest.raises(ConfigError, match="spec"):
        Stages().pipeline().run_sync(spec)


def test_what_cannot_do_the_work_of_a_stage_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="judge is str"):
        Pipeline(print, print, print, "me", observers=())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="planner is Stages"):
        Pipeline(Stages, print, print, print, observers=())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="rubric is a dict"):
        Stages().pipeline(rubric={"approve": 7})
    with pytest.raises(ConfigError, match="limits is 3; give PipelineLimits"):
        Stages().pipeline(limits=3)
    with pytest.raises(ConfigError, match="is_exhausted"):
        Stages().pipeline(budget=object())
    with pytest.raises(ConfigError, match="PipelineLimits"):
        Stages().pipeline().run_sync("x", limits={"max_iterations": 3})  # type: ignore[arg-type]


def test_every_answer_of_a_budget_is_told() -> None:
    facts = Facts()

    run(Stages(), observers=(facts,), budget=Purse())

    asked = [[verdict.guard for verdict in fact.verdicts] for fact in facts.of(BudgetChecked)]
    before, after = ["host_budget", "affordable"], ["host_budget", "tokens"]
    assert asked == [before, after, ["host_budget"], after, before, after, before]


def test_the_tokens_of_each_state_are_counted_where_they_were_used() -> None:
    registry = CollectorRegistry()

    result = run(tokens(plan=10, validate=3, implement=20, judge=5, score=8), observers=(Metrics(registry),))

    def counted(state: str) -> float | None:
        where = {"machine": "pipeline", "state": state}
        return sampled(registry, "orchestrator_stage_tokens_total", **where)

    of_history = {state.value: 0 for state in OrchestrationState}
    for one in result.transitions:
        of_history[one.source] += one.tokens
    assert {state: counted(state) for state in of_history} == of_history
    assert (of_history["planning"], of_history["judging"]) == (10, 5)


def test_transitions_and_results_are_the_same_when_told_again() -> None:
    stages = Stages(valid=[BAD, GOOD], judged=[SOFT, HARD, PASS])
    pipeline = stages.pipeline(journal=MemoryJournal(), clock=FakeClock(auto=True))

    async def inside() -> tuple[PipelineResult, PipelineResult]:
        return await pipeline.run("x", run_id="r"), await pipeline.resume("r")

    first, again = asyncio.run(inside())

    def seen(one: Transition) -> tuple[Any, ...]:
        return (one.seq, one.event, one.source, one.dest, one.iteration, one.tokens, one.reason, one.at)

    assert list(map(seen, again.transitions)) == list(map(seen, first.transitions))
    for name in ("state", "outcome", "reason", "output", "best", "plan", "validation", "implementation"):
        assert getattr(again, name) == getattr(first, name), name
    assert (again.feedback, again.tokens, again.evaluation) == (
        first.feedback,
        first.tokens,
        first.evaluation,
    )

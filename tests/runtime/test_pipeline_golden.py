"""The pipeline with a model in all four places: the journal's transitions, what the stages were told, what they used.

Validation fails twice, the judge softly once and hard once, then it is approved.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import AnswerRefused, ConfigError, RunStopped
from orchestrator.journal.memory import MemoryJournal
from orchestrator.llm.message import Response, Usage
from orchestrator.machines.llm_loop.limits import Limits
from orchestrator.machines.pipeline.model import OrchestrationState, PipelineLimits, StageRequest
from orchestrator.providers.scripted import ScriptedLLM, call
from orchestrator.runtime.pipeline.orchestration import RunMetrics
from orchestrator.runtime.pipeline.pipeline import Pipeline, PipelineResult
from orchestrator.runtime.pipeline.prompt_stage import PromptStage, limits_within
from orchestrator.runtime.service.runtime import Runtime
from orchestrator.telemetry.log import TransitionLog
from orchestrator.testing.clock import FakeClock
from orchestrator.tools.spec import tool
from tests.runtime.stage import NO_WAIT, Facts, until
from tests.with_runtime import with_runtime


def said(text: object, used: int) -> Response:
    """An answer that used so many tokens, half of them for the prompt."""
    content = text if isinstance(text, str) else json.dumps(text)
    return Response(content, (), "stop", Usage(used // 2, used - used // 2))


def issue(message: str) -> dict[str, Any]:
    return {"issues": [{"severity": "error", "message": message}]}


def models() -> dict[str, ScriptedLLM]:
    return {
        "planner": ScriptedLLM([said(f"plan {number}", 100 + number) for number in (1, 2, 3, 4)]),
        "validator": ScriptedLLM(
            [
                said(issue("no tests"), 10),
                said(issue("no docs"), 11),
                said({"issues": []}, 12),
                said({"issues": [{"severity": "info", "message": "long"}]}, 13),
            ]
        ),
        "implementer": ScriptedLLM([said(f"code {number}", 200 + number) for number in (1, 2, 3)]),
        "judge": ScriptedLLM(
            [
                said({"score": 6.5, "categories": {"timing_coverage": 5}, "comments": "gaps"}, 30),
                said({"score": 4, "comments": "not it"}, 31),
                said({"score": 9, "categories": {"timing_coverage": 9}}, 32),
            ]
        ),
    }


def piped(llms: dict[str, ScriptedLLM], **options: Any) -> Pipeline:
    stages = [
        PromptStage(llms[name], f"You are the {name}.", retry=NO_WAIT)
        for name in ("planner", "validator", "implementer", "judge")
    ]
    given = {"limits": PipelineLimits(max_iterations=4), "observers": (), **options}
    return Pipeline(*stages, **with_runtime(**given))


GOLDEN = """
 1 initialized  start         planning        0
 2 planning     plan_ready    validating    101
 3 validating   plan_invalid  planning       10  Validation failed, retrying with feedback
 4 planning     plan_ready    validating    102
 5 validating   plan_invalid  planning       11  Validation failed, retrying with feedback
 6 planning     plan_ready    validating    103
 7 validating   plan_valid    implementing   12
 8 implementing implemented   judging       201
 9 judging      soft_failure  implementing   30  Soft failure, refining implementation
10 implementing implemented   judging       202
11 judging      hard_failure  planning       31  Hard failure, replanning
12 planning     plan_ready    validating    104
13 validating   plan_valid    implementing   13
14 implementing implemented   judging       203
15 judging      approved      succeeded      32
"""

REPORT = """
=== Orchestration Metrics Report ===

Final State: succeeded
Iterations: 4 / 4
Total Duration: 0.00s
Total Tokens: 1,155
Total Transitions: 15

--- State Visit Counts ---
  implementing: 3
  initialized: 1
  judging: 3
  planning: 4
  validating: 4

--- Bottleneck Analysis ---
Slowest State: initialized
  Avg Duration: 0.00s
  Total Duration: 0.00s
  Visits: 1

Highest Token State: implementing
  Avg Tokens: 202
  Total Tokens: 606
  Visits: 3

--- Transition Patterns ---
Most Common: planning → validating (4x)
Unique Transitions: 8
"""

NO_TESTS = "The plan was not valid.\n- error: no tests"
NO_DOCS = "The plan was not valid.\n- error: no docs"
GAPS = "The implementation has to be refined: it scored 6.5.\n- timing_coverage: 5\ngaps"
NOT_IT = "The plan has to be made anew: it scored 4.\nnot it"


def as_lines(bodies: list[dict[str, Any]]) -> list[list[str]]:
    return [
        [
            str(body["seq"]),
            body["source"],
            body["event"],
            body["dest"],
            str(body.get("tokens", 0)),
            *body.get("reason", "").split(),
        ]
        for body in bodies
    ]


def test_a_run_through_models_has_exactly_these_transitions_feedback_and_tokens() -> None:
    llms, journal = models(), MemoryJournal()

    async def inside() -> tuple[PipelineResult, list[dict[str, Any]]]:
        result = await piped(llms, journal=journal).run({"goal": "a parser"}, run_id="r")
        return result, [dict(one.body) for one in await journal.load("r") if one.kind == "transition"]

    result, transitions = asyncio.run(inside())

    assert as_lines(transitions) == [line.split() for line in GOLDEN.strip().splitlines()]
    assert (result.outcome, result.output, result.iterations, result.refinements) == (
        "completed",
        "code 3",
        4,
        1,
    )
    assert result.tokens == 101 + 102 + 103 + 104 + 10 + 11 + 12 + 13 + 201 + 202 + 203 + 30 + 31 + 32
    assert [one.text for one in result.feedback] == [NO_TESTS, NO_DOCS, GAPS, NOT_IT]
    assert [(one.kind.value, one.iteration) for one in result.feedback] == [
        ("validation_failure", 1),
        ("validation_failure", 2),
        ("judge_soft_failure", 3),
        ("judge_hard_failure", 3),
    ]
    for llm in llms.values():
        llm.assert_complete()


def test_its_report_is_exactly_this_text() -> None:
    result = piped(models(), clock=FakeClock()).run_sync("a parser")

    assert RunMetrics.of(result.transitions, 4).report().strip() == REPORT.strip()


def test_each_model_reads_the_spec_what_was_made_and_its_own_feedback() -> None:
    llms = models()
    piped(llms).run_sync({"goal": "a parser"})

    def prompt(name: str, turn: int) -> str:
        return str(llms[name].requests[turn].messages[-1].content)

    spec = '## Specification\n\n{\n  "goal": "a parser"\n}'
    assert prompt("planner", 0) == f"You are the planner.\n\n{spec}"
    assert prompt("planner", 3) == (
        f"You are the planner.\n\n{spec}\n\n## The plan before this one\n\nplan 3\n\n"
        f"## Feedback, oldest first\n\n{NO_TESTS}\n\n{NO_DOCS}\n\n{NOT_IT}"
    )
    assert prompt("implementer", 1) == (
        f"You are the implementer.\n\n{spec}\n\n## Plan\n\nplan 3\n\n"
        f"## The implementation before this one\n\ncode 1\n\n## Feedback, oldest first\n\n{GAPS}"
    )
    assert prompt("judge", 2) == (
        f"You are the judge.\n\n{spec}\n\n## Plan\n\nplan 4\n\n## Implementation\n\ncode 3"
    )
    assert llms["judge"].requests[0].output_schema is not None
    assert llms["planner"].requests[0].output_schema is None


def test_each_stage_is_a_run_below_in_the_same_journal_under_its_key() -> None:
    journal = MemoryJournal()
    pipeline = piped(models(), journal=journal)

    async def inside() -> list[tuple[str, str, str | None]]:
        await pipeline.run("x", run_id="r")
        return [(one.run_id, one.status, one.parent_run_id) async for one in journal.runs(graph="llm_loop")]

    below = asyncio.run(inside())

    assert len(below) == 14
    assert below[0] == ("r:planning:1", "ended", "r")
    assert below[8] == ("r:implementing:9", "ended", "r")
    assert {(status, above) for _, status, above in below} == {("ended", "r")}


def test_the_logs_of_both_machines_go_to_the_same_observers() -> None:
    facts = Facts()

    piped(models(), observers=(facts,)).run_sync("x", run_id="r")

    assert {fact.graph for fact in facts.all} == {"pipeline", "llm_loop"}


def test_an_answer_that_fits_no_schema_fails_its_stage_and_what_it_used_counts() -> None:
    llms = models()
    llms["judge"] = ScriptedLLM([said("splendid", 10)] * 3)

    result = piped(llms).run_sync("x")

    assert (result.state, result.reason) == (OrchestrationState.FAILED, "stage_error")
    assert isinstance(result.error, RunStopped)
    last = result.transitions[-1]
    assert (last.source, last.tokens, last.reason) == ("judging", 30, "judging failed: RunFailed")


def test_a_stage_is_lent_no_more_tokens_than_remain() -> None:
    assert limits_within(Limits(), None) == Limits()
    assert limits_within(Limits(), 500).max_output_tokens == 500
    assert limits_within(Limits(max_output_tokens=20, max_input_tokens=900), 500) == Limits(
        max_output_tokens=20, max_input_tokens=500
    )
    assert limits_within(Limits(), 0).max_input_tokens == 1


def test_a_model_may_use_tools_and_the_prompt_may_be_a_function() -> None:
    looked: list[str] = []

    @tool(effect="pure")
    async def look(where: str) -> str:
        """Look somewhere."""
        looked.append(where)
        return "a cat"

    def prompt(request: StageRequest) -> str:
        return f"Plan {request.spec}, {request.iteration} plans before."

    llms = models()
    planner = PromptStage(ScriptedLLM([call("look", where="box"), "a plan"]), prompt, tools=[look])
    pipeline = Pipeline(planner, lambda _: [], lambda _: "code", lambda _: {"score": 9}, observers=())

    result = pipeline.run_sync("a house")

    assert result.plan is not None
    assert (looked, result.plan.content, result.output) == (["box"], "a plan", "code")
    assert llms["planner"].requests == []


def test_a_cancelled_pipeline_ends_the_run_of_its_stage_first() -> None:
    began = asyncio.Event()

    async def never(_: Any) -> str:
        began.set()
        await asyncio.Event().wait()
        return ""

    journal = MemoryJournal()
    planner = PromptStage(ScriptedLLM([never]), "plan")
    pipeline = Pipeline(planner, print, print, print, observers=(), journal=journal)

    async def inside() -> tuple[PipelineResult, str, str]:
        running = asyncio.create_task(pipeline.run("x", run_id="r"))
        await began.wait()
        pipeline.cancel("r")
        result = await running
        below = await journal.load("r:planning:1")
        return result, below[-1].kind, below[-1].body["outcome"]

    result, kind, outcome = asyncio.run(inside())

    assert (result.outcome, kind, outcome) == ("cancelled", "ended", "cancelled")


def test_a_pipeline_that_is_left_leaves_the_run_of_its_stage_and_both_go_on_together() -> None:
    began = asyncio.Event()

    async def never(_: Any) -> str:
        began.set()
        await asyncio.Event().wait()
        return ""

    journal, clock = MemoryJournal(), FakeClock(auto=True)

    def with_planner(*script: Any) -> Pipeline:
        llms = models() | {"planner": ScriptedLLM(script)}
        llms["validator"] = ScriptedLLM([said({"issues": []}, 12)])
        llms["judge"] = ScriptedLLM([said({"score": 9}, 32)])
        return piped(llms, journal=journal, clock=clock)

    async def inside() -> tuple[PipelineResult, str]:
        running = asyncio.create_task(with_planner(never).run("x", run_id="r"))
        await began.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        stands = (await journal.head("r:planning:1")).status
        return await with_planner(said("late", 9)).resume("r"), stands

    result, stands = asyncio.run(inside())

    assert stands == "parked"
    assert (result.outcome, result.plan and result.plan.content) == ("completed", "late")


def test_the_run_of_a_stage_is_resumed_with_its_pipeline_and_not_by_itself() -> None:
    journal = MemoryJournal()

    async def inside() -> None:
        began = asyncio.Event()

        async def never(_: Any) -> str:
            began.set()
            await asyncio.Event().wait()
            return ""

        planner = PromptStage(ScriptedLLM([never]), "plan")
        pipeline = Pipeline(planner, print, print, print, observers=(), journal=journal)
        running = asyncio.create_task(pipeline.run("x", run_id="r"))
        await began.wait()
        running.cancel()
        await until(running.done)
        agent = planner.bound(pipeline, OrchestrationState.PLANNING).agent
        with pytest.raises(ConfigError, match="resume that run"):
            await agent.resume("r:planning:1")

    asyncio.run(inside())


@pytest.mark.parametrize("prompt", ["", "   ", None])
def test_a_stage_without_a_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(ConfigError, match="prompt"):
        PromptStage(ScriptedLLM([]), prompt)


def test_a_stage_outside_its_pipeline_is_refused() -> None:
    pipeline = piped(models())
    port: Any = PromptStage(ScriptedLLM([]), "plan").bound(pipeline, OrchestrationState.PLANNING)

    with pytest.raises(ConfigError, match="inside a run"):
        asyncio.run(
            port(StageRequest(stage=OrchestrationState.PLANNING, spec="x", iteration=0, refinement=0))
        )


def test_the_transition_log_says_tokens_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    piped(models(), observers=(TransitionLog(),)).run_sync("x", run_id="r")

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    moved = [line for line in lines if line["msg"] == "fsm.transition" and line["machine"] == "pipeline"]
    assert [line.get("tokens", 0) for line in moved] == [
        int(line.split()[4]) for line in GOLDEN.strip().splitlines()
    ]
    assert moved[2]["reason"] == "Validation failed, retrying with feedback"
    assert [line["iteration"] for line in moved] == [0, 1, 1, 2, 2, 3, 3, 3, 3, 3, 3, 4, 4, 4, 4]


def test_a_person_who_is_asked_within_a_stage_answers_through_the_pipeline_and_no_time_passes() -> None:
    clock = FakeClock()

    @tool(effect="irreversible", approval=True)
    async def buy(what: str) -> str:
        """Buy something."""
        return f"bought {what}"

    planner = PromptStage(ScriptedLLM([call("buy", what="bread"), "a plan"]), "plan", tools=[buy])
    pipeline = Pipeline(
        planner,
        lambda _: [],
        lambda _: "code",
        lambda _: {"score": 9},
        runtime=Runtime(observers=(), clock=clock),
    )

    async def inside() -> PipelineResult:
        running = asyncio.create_task(pipeline.run("x", run_id="r"))
        stage = "r:planning:1"
        await until(lambda: pipeline._service.live.find(stage) and pipeline._service.live.get(stage).parked)
        [question] = await pipeline.pending(stage)
        assert await pipeline.pending("r") == [replace(question, agents=("pipeline", "llm_loop"))]
        with pytest.raises(AnswerRefused):
            pipeline.approve("r")
        await clock.advance(100_000.0)  # far beyond the limit of planning
        assert not running.done()
        pipeline.approve(stage, digest=question.digest)
        return await running

    result = asyncio.run(inside())

    assert (result.outcome, result.plan and result.plan.content) == ("completed", "a plan")

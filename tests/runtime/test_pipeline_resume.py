"""Runs of the pipeline that are left, by a crash or on purpose, and gone on with: in the same process or the next."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfigError, Held, JournalError, OtherGraph, RunUnknown, StoreDown, Suspended
from orchestrator.journal.crashing import WRITES, CrashingJournal
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.sqlite import SqliteJournal
from orchestrator.kernel.fact import RunCompleted, RunRecovered, RunStarted, Transition
from orchestrator.machines.pipeline.graph import PIPELINE
from orchestrator.machines.pipeline.model import Implementation, OrchestrationState, PipelineLimits, Plan
from orchestrator.runtime.pipeline.pipeline import Pipeline, PipelineResult
from tests.runtime.pipeline_stage import BAD, GOOD, HARD, PASS, SOFT, Stages
from tests.runtime.stage import Facts, path, until


def told(result: PipelineResult) -> tuple[Any, ...]:
    """A result but for its times and its run's id."""
    moves = [(one.seq, one.event, one.iteration, one.tokens, one.reason) for one in result.transitions]
    return (
        *(result.state, result.outcome, result.reason, result.output, result.best, result.tokens),
        *(result.feedback, result.plan, result.implementation, result.evaluation, result.iterations),
        *(result.refinements, moves),
    )


class Deciding(Stages):
    """Stages that give by what they are asked, not by how often: a resumed run is given the same."""

    def __init__(self) -> None:
        super().__init__()
        self.planner.script = (Plan({"n": 1}, 10),)
        self.implementer.script = (Implementation("code", 5),)
        valid, judged = {1: BAD, 2: GOOD, 3: GOOD}, {(2, 0): SOFT, (2, 1): HARD, (3, 1): PASS}
        self._answer(self.validator, lambda request: valid[request.iteration])
        self._answer(self.judge, lambda request: judged[request.iteration, request.refinement])

    def _answer(self, port: Any, give: Any) -> None:
        listed = port.requests.append
        port.__class__ = type("Decided", (port.__class__,), {"__call__": _decided(give, listed)})


def _decided(give: Any, listed: Any) -> Any:
    async def called(_: Any, request: Any) -> Any:
        listed(request)
        return give(request)

    return called


@pytest.fixture
def expected() -> PipelineResult:
    return Deciding().pipeline().run_sync("x", run_id="r")


def test_what_is_to_be_gone_on_with_is_a_run_with_all_kinds_of_failures(expected: PipelineResult) -> None:
    assert expected.outcome == "completed"
    assert path(expected.transitions) == [
        *("start", "plan_ready", "plan_invalid", "plan_ready", "plan_valid", "implemented", "soft_failure"),
        *("implemented", "hard_failure", "plan_ready", "plan_valid", "implemented", "approved"),
    ]


async def broken_off(at: int, when: Any) -> PipelineResult | None:
    """Run on a journal that breaks at one of its writes, then go on without it; None where it never broke."""
    inner = MemoryJournal()
    journal = CrashingJournal(inner, at=at, when=when)
    with contextlib.suppress(StoreDown, JournalError):
        await Deciding().pipeline(journal=journal).run("x", run_id="r")
    if not journal.crashed:
        return None
    inner.bury((await inner.head("r")).owner or "")
    return await Deciding().pipeline(journal=inner).resume("r")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_journal_that_breaks_at_any_write_loses_nothing_that_was_durable(
    when: str, expected: PipelineResult
) -> None:
    broken = 0
    while (result := asyncio.run(broken_off(broken + 1, when))) is not None:
        broken += 1
        assert told(result) == told(expected), broken
    assert broken == 1 + 2 * 12 + 1


def test_a_stage_cut_short_is_carried_out_again_under_the_same_key_and_no_other() -> None:
    journal = MemoryJournal()
    first, second = Deciding(), Deciding()
    began = asyncio.Event()

    async def stuck(request: Any) -> None:
        first.implementer.requests.append(request)
        began.set()
        await asyncio.Event().wait()

    async def inside() -> PipelineResult:
        ports = (first.planner, first.validator, stuck, first.judge)
        running = asyncio.create_task(Pipeline(*ports, journal=journal, observers=()).run("x", run_id="r"))
        await began.wait()
        running.cancel()
        await until(running.done)
        return await second.pipeline(journal=journal).resume("r", by="ann")

    result = asyncio.run(inside())

    assert result.outcome == "completed"
    assert second.implementer.requests[0].key == first.implementer.requests[0].key == "r:implementing:5"
    assert second.implementer.requests[0].plan == first.implementer.requests[0].plan
    assert second.calls[OrchestrationState.PLANNING] == 1, "the plan after the hard failure alone"


async def left(journal: Any, stage: str = "implementer", effect: str | None = None) -> Stages:
    """Leave a run in the middle of a stage, and return stages that would go on with it."""
    began = asyncio.Event()

    class Stuck:
        async def __call__(self, request: Any) -> None:
            began.set()
            await asyncio.Event().wait()

    earlier, later = Stages(), Stages()
    setattr(earlier, stage, Stuck())
    if effect is not None:
        getattr(earlier, stage).effect = getattr(later, stage).effect = effect
    running = asyncio.create_task(earlier.pipeline(journal=journal).run("x", run_id="r"))
    await began.wait()
    running.cancel()
    await until(running.done)
    return later


def interrupted(journal: Any, stage: str = "implementer", effect: str | None = None) -> Stages:
    """As `left`, where no event loop runs yet."""
    return asyncio.run(left(journal, stage, effect))


@pytest.mark.parametrize("effect", [None, "pure", "idempotent"])
def test_a_stage_that_may_be_repeated_is(effect: str | None) -> None:
    journal = MemoryJournal()

    result = asyncio.run(interrupted(journal, effect=effect).pipeline(journal=journal).resume("r"))

    assert result.outcome == "completed"


def test_an_irreversible_stage_that_may_have_happened_waits_until_somebody_says_again() -> None:
    journal = MemoryJournal()
    stages = interrupted(journal, effect="irreversible")
    pipeline = stages.pipeline(journal=journal)

    async def inside() -> PipelineResult:
        for _ in range(10):  # asked so often, it is no poison either
            with pytest.raises(Suspended, match="implementing may have happened"):
                await pipeline.resume("r")
        return await pipeline.resume("r", again=True)

    result = asyncio.run(inside())

    assert (result.outcome, stages.calls[OrchestrationState.IMPLEMENTING]) == ("completed", 1)


def test_an_irreversible_stage_keeps_no_run_from_being_cancelled(tmp_path: Path) -> None:
    async def inside() -> PipelineResult:
        async with SqliteJournal(tmp_path / "journal.db") as journal:
            stages = await left(journal, effect="irreversible")
            pipeline = stages.pipeline(journal=journal)
            await pipeline.cancel("r", by="ann")
            result = await pipeline.resume("r")
            assert stages.calls[OrchestrationState.IMPLEMENTING] == 0
            return result

    assert asyncio.run(inside()).outcome == "cancelled"


def test_other_stages_of_a_pipeline_with_an_irreversible_one_may_be_repeated() -> None:
    journal = MemoryJournal()
    stages = interrupted(journal, stage="judge")
    stages.implementer.effect = "irreversible"  # type: ignore[attr-defined]

    result = asyncio.run(stages.pipeline(journal=journal).resume("r"))

    assert (result.outcome, stages.calls[OrchestrationState.IMPLEMENTING]) == ("completed", 0)


def test_what_a_hook_puts_in_the_place_of_a_stages_work_is_durable_too() -> None:
    class Tidy:
        async def before_implemented(self, run: Any) -> None:
            run.ctx.implementation = Implementation("tidied", run.ctx.implementation.tokens)

    journal = MemoryJournal()
    left = Stages(made=[Implementation("code", 7)])
    began = asyncio.Event()

    async def stuck(_: Any) -> None:
        began.set()
        await asyncio.Event().wait()

    left.judge = stuck  # type: ignore[assignment]
    later = Stages()

    async def inside() -> PipelineResult:
        running = asyncio.create_task(left.pipeline(journal=journal, hooks=[Tidy()]).run("x", run_id="r"))
        await began.wait()
        running.cancel()
        await until(running.done)
        await later.pipeline(journal=journal, hooks=[Tidy()]).resume("r")
        return await later.pipeline(journal=journal).resume("r")

    result = asyncio.run(inside())

    assert later.judge.requests[0].implementation == Implementation("tidied", 7)
    assert (result.output, result.tokens) == ("tidied", 7)


def test_an_unknown_effect_is_refused() -> None:
    stages = Stages()
    stages.judge.effect = "harmless"  # type: ignore[attr-defined]

    with pytest.raises(ConfigError, match="allowed: pure, idempotent, irreversible"):
        stages.pipeline()


def test_new_limits_count_from_there_on() -> None:
    journal = MemoryJournal()
    stages = interrupted(journal)
    stages.judge.script = (SOFT,)

    result = asyncio.run(
        stages.pipeline(journal=journal).resume("r", limits=PipelineLimits(max_refinements=1))
    )

    assert (result.reason, result.refinements) == ("max_iterations", 1)


def test_a_run_under_way_here_is_held_and_one_that_was_paused_goes_on() -> None:
    stages = Stages()
    pipeline = stages.pipeline()

    async def inside() -> tuple[PipelineResult, PipelineResult]:
        release = asyncio.Event()

        async def slow(_: Any) -> str:
            await release.wait()
            return "code"

        pipeline._deps = replace(
            pipeline._deps, ports={**pipeline._deps.ports, OrchestrationState.IMPLEMENTING: slow}
        )
        running = asyncio.create_task(pipeline.run("x", run_id="r"))
        await until(
            lambda: (
                pipeline._service.live.find("r")
                and pipeline._service.live.get("r").cursor.state == "implementing"
            )
        )
        with pytest.raises(Held):
            await pipeline.resume("r")
        pipeline.pause("r")
        release.set()
        await until(lambda: pipeline._service.live.get("r").parked)
        resumed = await pipeline.resume("r")
        return resumed, await running

    resumed, first = asyncio.run(inside())

    assert resumed == first
    assert first.outcome == "completed"


def test_a_cancel_that_was_posted_meanwhile_is_carried_out_by_whoever_goes_on(tmp_path: Path) -> None:
    async def inside() -> PipelineResult:
        async with SqliteJournal(tmp_path / "journal.db") as journal:
            stages = Stages()
            began = asyncio.Event()

            async def stuck(_: Any) -> None:
                began.set()
                await asyncio.Event().wait()

            stages.planner = stuck  # type: ignore[assignment]
            running = asyncio.create_task(stages.pipeline(journal=journal).run("x", run_id="r"))
            await began.wait()
            running.cancel()
            await until(running.done)
            pipeline = Stages().pipeline(journal=journal)
            await pipeline.cancel("r", by="ann", why="no more need")
            [found] = await pipeline.hosting.open_runs()
            assert found.will == "ends: ann cancelled it"
            return await pipeline.resume("r")

    result = asyncio.run(inside())

    assert (result.outcome, result.reason, result.iterations) == ("cancelled", "caller", 0)


def test_open_runs_say_where_they_go_on() -> None:
    journal = MemoryJournal()
    pipeline = interrupted(journal).pipeline(journal=journal)

    [found] = asyncio.run(pipeline.hosting.open_runs())

    assert (found.run_id, found.status, found.state) == ("r", "parked", "implementing")
    assert found.will == "continues in implementing"


def test_whoever_observes_hears_that_a_run_goes_on_and_nothing_twice() -> None:
    journal, facts = MemoryJournal(), Facts()
    pipeline = interrupted(journal).pipeline(journal=journal, observers=(facts,))

    asyncio.run(pipeline.resume("r"))

    [started] = facts.of(RunStarted)
    assert (started.origin, started.state) == ("resumed", "implementing")
    assert facts.of(RunRecovered) == []
    assert path(facts.of(Transition)) == ["implemented", "approved"]
    [completed] = facts.of(RunCompleted)
    used = {"iterations": 0.3333, "tokens": 0.0}
    assert completed.summary == {"tokens": 0, "refinements": 0, "budget_used": used}


def test_a_run_of_another_graph_and_an_unknown_one_are_refused() -> None:
    journal = MemoryJournal()
    stages = interrupted(journal)
    phase = PIPELINE.extend(events=["other"], edges=[replace(PIPELINE.edges[0], event="other")])

    async def inside() -> None:
        with pytest.raises(OtherGraph):
            await stages.pipeline(journal=journal, graph=phase).resume("r")
        with pytest.raises(RunUnknown):
            await stages.pipeline(journal=journal).resume("nobody")

    asyncio.run(inside())


def test_the_writes_of_a_run_are_two_for_each_stage() -> None:
    journal = CrashingJournal(MemoryJournal(), on=WRITES)

    Stages().pipeline(journal=journal).run_sync("x")

    assert journal.writes == ["create", *["append"] * (1 + 2 * 4 + 1), "release"]

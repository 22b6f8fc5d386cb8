"""`AgentOrchestrator`: the pipeline with a state machine and metrics that follow its run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Unpack

from orchestrator.errors import ConfigError
from orchestrator.kernel.journal import Journal
from orchestrator.kernel.record import Fact, Observer, RunStarted, Transition
from orchestrator.machines.pipeline.graph import PIPELINE
from orchestrator.machines.pipeline.limits import PipelineLimits
from orchestrator.machines.pipeline.model import OrchestrationState
from orchestrator.runtime.pipeline.orchestration.machine import OrchestrationStateMachine, logger
from orchestrator.runtime.pipeline.orchestration.metrics import RunMetrics, counts
from orchestrator.runtime.pipeline.orchestration.model import StateMachineObserver
from orchestrator.runtime.pipeline.pipeline import (
    Pipeline,
    PipelineArguments,
    PipelineResumeArguments,
    PipelineRunArguments,
)
from orchestrator.runtime.pipeline.result import PipelineResult
from orchestrator.runtime.service.recorded_path import path_of
from orchestrator.runtime.service.runtime import Runtime, runtime_of


class AgentOrchestrator:
    """Plan, validate, implement and judge until success or a limit; one run at a time.

    `Pipeline` does the work: budgets are checked before and after each stage, iterations end at their limit, a judge
    that raises fails the run, and with a journal a run can be resumed. `state_machine` follows each transition. The
    metrics report is logged at the end.

    Args:
        planner, validator, implementer, judge, observers: As for Pipeline.
        limits: Limits of a run.
        runtime, journal: As for Pipeline.
        options: Further options of Pipeline.
    """

    def __init__(
        self,
        planner: Any,
        validator: Any,
        implementer: Any,
        judge: Any,
        *,
        limits: PipelineLimits | None = None,
        runtime: Runtime | None = None,
        journal: Journal | None = None,
        observers: Iterable[Observer] | None = None,
        **options: Unpack[PipelineArguments],
    ) -> None:
        limits = self._limits = limits or PipelineLimits()
        own = runtime_of(runtime, journal, observers)
        self.state_machine = OrchestrationStateMachine(
            limits.max_iterations, max_refinements=limits.max_refinements, observers=()
        )
        self._journal = own.journal
        self._running: str | None = None
        self.pipeline = Pipeline(
            planner,
            validator,
            implementer,
            judge,
            limits=limits,
            runtime=replace(own, observers=(self, *own.observers)),
            **options,
        )

    def add_observer(self, observer: StateMachineObserver) -> None:
        """Add an observer that is called after each committed transition."""
        self.state_machine.add_observer(observer)

    def run(self, spec: Any, **options: Unpack[PipelineRunArguments]) -> PipelineResult:
        """Run to the end; options as for `Pipeline.run`. Raises ConfigError inside a running event loop."""
        return _outside_a_loop(self.run_async(spec, **options), "run_async")

    def resume(self, run_id: str, **options: Unpack[PipelineResumeArguments]) -> PipelineResult:
        """Resume a run of the journal; options as for `Pipeline.resume`. Raises the errors of `run`."""
        return _outside_a_loop(self.resume_async(run_id, **options), "resume_async")

    async def run_async(self, spec: Any, **options: Unpack[PipelineRunArguments]) -> PipelineResult:
        """Run to the end, from inside an event loop."""
        self._begin("")
        self._limit(options.get("limits") or self._limits)
        self.state_machine.reset()
        return await self._reported(self.pipeline.run(spec, **options))

    async def resume_async(self, run_id: str, **options: Unpack[PipelineResumeArguments]) -> PipelineResult:
        """Resume a run of the journal, from inside an event loop."""
        records = await self._journal.load(run_id)
        self._begin(run_id)
        path = path_of(run_id, PIPELINE.name, records, laps=("plan_ready",))
        if (limits := options.get("limits")) is not None:
            self._limit(limits)
        before = RunMetrics.of(path, self.state_machine.max_iterations)
        self.state_machine.reset()
        self.state_machine.restore(
            before.history,
            state=before.current_state,
            iterations=before.iteration_count,
            refinements=counts(before.history).refinements,
        )
        return await self._reported(self.pipeline.resume(run_id, **options))

    def observe(self, fact: Fact, /) -> None:
        """Move the state machine with the run; child runs of stages are ignored."""
        if isinstance(fact, RunStarted) and self._running == "" and fact.graph == PIPELINE.name:
            self._running = fact.run_id
        elif isinstance(fact, Transition) and fact.run_id == self._running:
            self.state_machine.transition(
                OrchestrationState(fact.dest),
                reason=fact.reason or None,
                duration_seconds=fact.dwell,
                tokens_consumed=fact.tokens,
            )

    def _limit(self, limits: PipelineLimits) -> None:
        """Set the run's limits on the machine."""
        self.state_machine.max_iterations = limits.max_iterations
        self.state_machine.max_refinements = limits.max_refinements

    def _begin(self, run_id: str) -> None:
        if self._running is not None:
            raise ConfigError("this AgentOrchestrator has an active run; make another one for a second run")
        self._running = run_id

    async def _reported(self, work: Any) -> PipelineResult:
        try:
            result: PipelineResult = await work
        finally:
            self._running = None
        logger.info("\n%s", self.state_machine.format_metrics_report())
        return result


def _outside_a_loop(work: Any, instead: str) -> PipelineResult:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        result: PipelineResult = asyncio.run(work)
        return result
    work.close()
    raise ConfigError(f"this was called inside a running event loop; use `await agent.{instead}(...)` there")

"""`AgentOrchestrator`: the pipeline with a state machine and metrics that follow its run.

A checkpoint is one record. It contains the transitions that the previous one does not have, so that the size of a
long run is linear, and a digest of the whole machine. Loading joins the parts, compares the digest, and replays the
history on the edge table. An invalid checkpoint is rejected with one sentence, and none of it is used. In addition,
the journal's hash chain proves that the records are unchanged; this module proves that they form a state machine.

The synchronous calls take as long as the journal's write, also inside an event loop. `save` and `load` are the
asynchronous versions.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, Unpack

from orchestrator.errors import ConfigError, Corrupt, RunUnknown, TooNew
from orchestrator.journal.address import address_of
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.opening import journal_at
from orchestrator.kernel.clock import Clock, SystemClock
from orchestrator.kernel.fact import Fact, Observer, RunStarted, Transition
from orchestrator.kernel.journal import RECORD_SCHEMA, Draft, Journal, let_go, write_records
from orchestrator.kernel.outcome import Ending
from orchestrator.machines.pipeline.graph import PIPELINE
from orchestrator.machines.pipeline.model import OrchestrationState, PipelineLimits
from orchestrator.runtime.pipeline.orchestration.machine import (
    OrchestrationStateMachine,
    RunMetrics,
    StateMachineObserver,
    StateTransition,
    counts,
    logger,
)
from orchestrator.runtime.pipeline.pipeline import (
    Pipeline,
    PipelineArguments,
    PipelineResult,
    PipelineResumeArguments,
    PipelineRunArguments,
)
from orchestrator.runtime.service.restored_run import path_of
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


T = TypeVar("T")

GRAPH = "pipeline_checkpoint"
"""Graph name of checkpoints in a journal. They are not runs and cannot be resumed."""
KIND = "state_machine"
"""Kind of the records, and the default name of a checkpoint."""
VERSION = 1
"""Version of the record's body. A newer one is rejected."""


class CheckpointManager:
    """Save and load one state machine under a name in a journal.

    Two machines need two names. A path is opened for each call and closed after it.

    Args:
        journal: A journal, its path or postgresql://…, or None for memory.
        name: Name of the checkpoint.
        clock: Clock, for tests.

    Example:
        manager = CheckpointManager("pipeline.db")
        manager.save_state_machine(machine)
        machine = manager.load_state_machine()
    """

    def __init__(
        self, journal: Journal | str | Path | None = None, name: str = KIND, *, clock: Clock | None = None
    ) -> None:
        self.name = name
        self._journal = MemoryJournal() if journal is None else journal
        self._clock = clock or SystemClock()

    def save_state_machine(self, state_machine: OrchestrationStateMachine) -> None:
        """Store the machine durably, with history, counters and limits.

        Of a transition's context the JSON members are stored, and the names of the others are noted.

        Raises:
            JournalError: The journal cannot be written (Held while another process saves).
            ConfigError: The history was changed to an impossible one.
        """
        _now(self.save(state_machine))

    def load_state_machine(
        self, *, observers: Iterable[Observer] | None = None
    ) -> OrchestrationStateMachine | None:
        """Return the last saved machine, or None if none was saved. Raises Corrupt or TooNew."""
        return _now(self.load(observers=observers))

    async def save(self, state_machine: OrchestrationStateMachine) -> None:
        """Save the machine from inside an event loop without blocking it."""
        whole = _plain(state_machine)
        if problem := _replayed(whole):
            raise ConfigError(f"the machine is not saved, because its history is impossible: {problem}")
        end = state_machine.ending() if state_machine.is_terminal() else None
        await self._with(lambda journal: self._save(journal, whole, end))

    async def load(self, *, observers: Iterable[Observer] | None = None) -> OrchestrationStateMachine | None:
        """Load the machine from inside an event loop without blocking it."""
        whole = await self._with(self._load)
        if whole is None:
            return None
        machine = OrchestrationStateMachine(
            whole["max_iterations"],
            max_refinements=whole["max_refinements"],
            observers=observers,
            run_id=whole["run_id"],
            clock=self._clock,
        )
        machine.restore(
            [_transition(row) for row in whole["history"]],
            state=OrchestrationState(whole["current_state"]),
            iterations=whole["iteration_count"],
            refinements=whole["refinement_count"],
            iterations_set=whole["iterations_set"],
            assigned=[(position, OrchestrationState(state)) for position, state in whole["assigned"]],
        )
        return machine

    async def _with(self, work: Callable[[Journal], Coroutine[Any, Any, T]]) -> T:
        if not isinstance(self._journal, str | Path):
            return await work(self._journal)
        async with journal_at(address_of(self._journal)) as journal:
            return await work(journal)

    async def _save(self, journal: Journal, whole: dict[str, Any], end: Ending | None) -> None:
        owner, at = f"checkpoint:{os.getpid()}", self._clock.time()
        try:
            before = await self._load(journal)
            lease = await journal.claim(self.name, owner)
        except RunUnknown:
            before = None
            body = {"schema": RECORD_SCHEMA, "graph": GRAPH, "fingerprint": PIPELINE.fingerprint, "at": at}
            lease = await journal.create(self.name, owner, body)
        try:
            known = [] if before is None else before["history"]
            kept = len(known) if whole["history"][: len(known)] == known else 0
            body = {**whole, "after": kept, "history": whole["history"][kept:], "at": at}
            body["checksum"] = _checksum(whole)
            drafts = [Draft(KIND, body)]
            if end is not None:
                drafts.append(Draft("ended", {"outcome": end.outcome.value, "reason": end.reason, "at": at}))
            await write_records(journal, lease, *drafts)
        finally:
            await let_go(journal, lease)

    async def _load(self, journal: Journal) -> dict[str, Any] | None:
        """Return the whole machine as of the last checkpoint."""
        try:
            records = await journal.load(self.name)
        except RunUnknown:
            return None
        graph = str(records[0].body.get("graph", ""))
        if graph != GRAPH:
            raise Corrupt(f"{self.name!r} is a run of graph {graph!r}, not a checkpoint of a state machine")
        bodies = [record.body for record in records if record.kind == KIND]
        if not bodies:
            return None
        history: list[Any] = []
        whole: dict[str, Any] = {}
        checksum = None
        for body in bodies:
            version = body.get("version")
            if not isinstance(version, int) or version > VERSION:
                raise TooNew(
                    f"checkpoint {self.name!r} has version {version!r}; this version reads up to {VERSION}"
                )
            whole = dict(body)
            kept, added, checksum = (
                whole.pop("after", None),
                whole.get("history"),
                whole.pop("checksum", None),
            )
            whole.pop("at", None)
            if not isinstance(kept, int) or not isinstance(added, list) or kept > len(history):
                raise self._unusable("is damaged: a part of its history is missing")
            whole["history"] = history = [*history[:kept], *added]
        if checksum != _checksum(whole):
            raise self._unusable("is damaged: its checksum does not match")
        if problem := _replayed(whole):
            raise self._unusable(f"has an impossible history: {problem}")
        return whole

    def _unusable(self, why: str) -> Corrupt:
        return Corrupt(f"checkpoint {self.name!r} {why}; nothing of it is used")


# ---- a machine as plain data ----


def _plain(machine: OrchestrationStateMachine) -> dict[str, Any]:
    limits = {"max_iterations": machine.max_iterations, "max_refinements": machine.max_refinements}
    return {
        "version": VERSION,
        "run_id": machine.run_id,
        "current_state": machine.current_state.value,
        "iteration_count": machine.iteration_count,
        "iterations_set": machine.iterations_set,
        "refinement_count": machine.refinement_count,
        **limits,
        "assigned": [[position, state.value] for position, state in machine.assigned],
        "history": [_row(one) for one in machine.history],
    }


def _row(one: StateTransition) -> dict[str, Any]:
    kept, left_out = {}, []
    for name, value in one.context.items():
        try:
            kept[str(name)] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError):
            left_out.append(str(name))
    row = {
        "from_state": one.from_state.value,
        "to_state": one.to_state.value,
        "timestamp": one.timestamp,
        "context": kept,
        "reason": one.reason,
        "duration_seconds": one.duration_seconds,
        "tokens_consumed": one.tokens_consumed,
    }
    return row | ({"left_out": left_out} if left_out else {})


def _transition(row: Mapping[str, Any]) -> StateTransition:
    return StateTransition(
        from_state=OrchestrationState(row["from_state"]),
        to_state=OrchestrationState(row["to_state"]),
        timestamp=float(row["timestamp"]),
        context=dict(row["context"]),
        reason=row["reason"],
        duration_seconds=float(row["duration_seconds"]),
        tokens_consumed=int(row["tokens_consumed"]),
    )


def _checksum(whole: Mapping[str, Any]) -> str:
    text = json.dumps(whole, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _replayed(whole: Mapping[str, Any]) -> str:
    """Return the contradiction in a machine whose history is replayed from the initial state; "" if there is none."""
    try:
        state, problem = _followed(whole)
        found = counts(_transition(row) for row in whole["history"])
        iterations = found.iterations + whole["iterations_set"]
        if problem:
            return problem
        if state != whole["current_state"]:
            return f"it leads to {state.value!r} and not to {whole['current_state']!r}"
        if (iterations, found.refinements) != (whole["iteration_count"], whole["refinement_count"]):
            said = f"{whole['iteration_count']} and {whole['refinement_count']}"
            return f"it has {iterations} iterations and {found.refinements} refinements, not {said}"
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return f"it cannot be read ({type(error).__name__}: {error})"
    return ""


def _followed(whole: Mapping[str, Any]) -> tuple[OrchestrationState, str]:
    """Return the final state of a history, and its first impossible transition."""
    table = OrchestrationStateMachine.VALID_TRANSITIONS
    assigned = {position: OrchestrationState(state) for position, state in whole["assigned"]}
    state = OrchestrationState.INITIALIZED
    for number, row in enumerate(whole["history"]):
        state, one = assigned.get(number, state), _transition(row)
        if one.from_state != state:
            return state, f"transition {number + 1} leaves {one.from_state.value!r} in state {state.value!r}"
        if one.to_state not in table.get(state, ()):
            return state, f"transition {number + 1}, {state.value!r} → {one.to_state.value!r}, has no edge"
        state = one.to_state
    return assigned.get(len(whole["history"]), state), ""


# ---- synchronous calls ----


def _now(work: Coroutine[Any, Any, T]) -> T:
    """Wait for a coroutine; inside a running loop in another thread, which blocks the loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    found: list[T] = []
    errors: list[BaseException] = []

    def write_checkpoint() -> None:
        try:
            found.append(asyncio.run(work))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=write_checkpoint, name="checkpoint")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return found[0]

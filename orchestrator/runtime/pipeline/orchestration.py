"""The pipeline as a state machine with metrics that the host drives itself.

The table is `machines.pipeline.graph.PIPELINE`, and the kernel's driver makes each transition: `transition` selects
the event that leads to the requested state and fires it. A driver without a journal never waits, so its coroutine
completes at once and needs no event loop. Rules:

- In a terminal state `transition` warns, returns False and records nothing. `strict=True` raises instead.
- Iterations are counted only on planning → validating. `transition` itself takes every edge of the table, and the
  caller's loop checks `reached_max_iterations`. With `strict=True` the pipeline's guards are evaluated too, and
  InvalidTransitionError names the limit; entering failed instead would make `can_transition_to` wrong.
- Without a given duration, the time since the state was entered is measured; 0.0 would hide a bottleneck.
- `current_state` and `iteration_count` can be set. This is not a transition: only a checkpoint notes it.

`AgentOrchestrator` is the pipeline with a state machine and metrics that follow its run. A checkpoint is one record. It
contains the transitions that the previous one does not have, so that the size of a long run is linear, and a digest of
the whole machine. Loading joins the parts, compares the digest, and replays the history on the edge table. An invalid
checkpoint is rejected with one sentence, and none of it is used. In addition, the journal's hash chain proves that the
records are unchanged; this module proves that they form a state machine.

The synchronous calls take as long as the journal's write, also inside an event loop. `save` and `load` are the
asynchronous versions.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import logging
import math
import os
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, Unpack, runtime_checkable

from orchestrator.errors import ConfigError, Corrupt, EventError, Refused, RunUnknown, TooNew
from orchestrator.journal.address import address_of
from orchestrator.journal.memory import MemoryJournal
from orchestrator.journal.opening import journal_at
from orchestrator.kernel.cancellation import at_once
from orchestrator.kernel.clock import Clock, SystemClock
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.fact import (
    EventFailed,
    Fact,
    Observer,
    RunParked,
    RunStarted,
    Transition,
    TransitionNote,
)
from orchestrator.kernel.hooks import Hooks
from orchestrator.kernel.journal import RECORD_SCHEMA, Draft, Journal, claimed, let_go, write_records
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.outcome import REASONS, Ending, Outcome
from orchestrator.kernel.run import Cursor, Run
from orchestrator.machines.pipeline.graph import EVENT_OF, PIPELINE
from orchestrator.machines.pipeline.model import OFF, OrchestrationState, PipelineContext, PipelineLimits
from orchestrator.runtime.pipeline.pipeline import (
    Pipeline,
    PipelineArguments,
    PipelineResult,
    PipelineResumeArguments,
    PipelineRunArguments,
)
from orchestrator.runtime.service.restored_run import path_of
from orchestrator.runtime.service.runtime import Runtime, runtime_of
from orchestrator.telemetry.log import TransitionLog
from orchestrator.telemetry.metrics import Metrics
from orchestrator_callbacks.pipeline import before


@dataclass
class StateTransition:
    """One committed transition. Duration and tokens belong to `from_state`."""

    from_state: OrchestrationState
    to_state: OrchestrationState
    timestamp: float
    """UTC, in seconds since the epoch."""
    context: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None
    duration_seconds: float = 0.0
    tokens_consumed: int = 0


@dataclass
class StateMetrics:
    """Totals of all completed visits of one state. Times are in seconds."""

    state: OrchestrationState
    visit_count: int = 0
    total_duration_seconds: float = 0.0
    total_tokens: int = 0
    avg_duration_seconds: float = 0.0
    avg_tokens: float = 0.0
    min_duration_seconds: float | None = None
    """None before the first visit ends, because JSON has no infinity."""
    max_duration_seconds: float = 0.0


class InvalidTransitionError(EventError):
    """No edge leads from the current state to the requested one. The state does not change."""

    def __init__(
        self, from_state: str, to_state: str, allowed: Sequence[str], graph: str = "pipeline"
    ) -> None:
        said = f"Invalid transition: {from_state} → {to_state}. Valid transitions: {list(allowed)}"
        super().__init__(said, graph="", state=from_state, event=to_state)
        self.graph = graph
        self.allowed = tuple(allowed)


@runtime_checkable
class StateMachineObserver(Protocol):
    """Called after each committed transition. Its exceptions are counted and have no other effect."""

    def on_state_transition(self, transition: StateTransition) -> None:
        """Handle a transition."""
        ...

    def on_metrics_update(self, metrics: dict[str, Any]) -> None:
        """Handle the totals after a transition, as `get_total_metrics` returns them."""
        ...


TERMINAL = frozenset(OrchestrationState(state) for state in PIPELINE.terminal)

_ITERATION = (OrchestrationState.PLANNING, OrchestrationState.VALIDATING)
_REFINEMENT = (OrchestrationState.JUDGING, OrchestrationState.IMPLEMENTING)


class Counts(NamedTuple):
    """Counts of a history: plans passed to validation, and implementations sent back."""

    iterations: int
    refinements: int


def counts(history: Iterable[StateTransition]) -> Counts:
    """Count a history."""
    edges = Counter((one.from_state, one.to_state) for one in history)
    return Counts(edges[_ITERATION], edges[_REFINEMENT])


@dataclass(frozen=True, slots=True)
class RunMetrics:
    """The metrics of one run, computed only from its history, so that a restored history gives the same ones."""

    history: Sequence[StateTransition]
    current_state: OrchestrationState
    iteration_count: int
    max_iterations: int

    @classmethod
    def of(cls, facts: Iterable[Transition], max_iterations: int) -> RunMetrics:
        """Return the metrics of a run from the facts of its transitions."""
        history = [transition_of(fact) for fact in facts]
        state = history[-1].to_state if history else OrchestrationState.INITIALIZED
        return cls(history, state, counts(history).iterations, max_iterations)

    def of_state(self, state: OrchestrationState) -> StateMetrics:
        """Return the totals of the completed visits of a state."""
        left = [one for one in self.history if one.from_state == state]
        if not left:
            return StateMetrics(state)
        durations = [one.duration_seconds for one in left]
        tokens = sum(one.tokens_consumed for one in left)
        return StateMetrics(
            state=state,
            visit_count=len(left),
            total_duration_seconds=sum(durations),
            total_tokens=tokens,
            avg_duration_seconds=sum(durations) / len(left),
            avg_tokens=tokens / len(left),
            min_duration_seconds=min(durations),
            max_duration_seconds=max(durations),
        )

    def of_states(self) -> dict[OrchestrationState, StateMetrics]:
        """Return the totals of every non-terminal state."""
        return {state: self.of_state(state) for state in OrchestrationState if state not in TERMINAL}

    def totals(self) -> dict[str, Any]:
        """Return the totals of the run, and the number of visits of each state."""
        visits = Counter(one.from_state.value for one in self.history)
        return {
            "total_duration_seconds": sum(one.duration_seconds for one in self.history),
            "total_tokens": sum(one.tokens_consumed for one in self.history),
            "total_transitions": len(self.history),
            "iteration_count": self.iteration_count,
            "state_visits": dict(visits),
            "current_state": self.current_state.value,
        }

    def edges(self) -> dict[str, Any]:
        """Return the number of uses of each edge, and the most used edge (of equal ones the first)."""
        counts = Counter(f"{one.from_state.value} → {one.to_state.value}" for one in self.history)
        edge, count = counts.most_common(1)[0] if counts else (None, 0)
        return {
            "transition_counts": dict(counts),
            "most_common_transition": edge,
            "most_common_count": count,
            "unique_transitions": len(counts),
        }

    def bottlenecks(self) -> dict[str, Any]:
        """Return the state with the longest mean visit, the one with most tokens per visit, and means per iteration."""
        seen = [one for one in self.of_states().values() if one.visit_count]
        slowest = max(seen, key=lambda one: one.avg_duration_seconds, default=None)
        hungriest = max(seen, key=lambda one: one.avg_tokens, default=None)
        totals, rounds = self.totals(), self.iteration_count
        return {
            "slowest_state": slowest
            and {
                "state": slowest.state.value,
                "avg_duration_seconds": slowest.avg_duration_seconds,
                "total_duration_seconds": slowest.total_duration_seconds,
                "visit_count": slowest.visit_count,
            },
            "highest_token_state": hungriest
            and {
                "state": hungriest.state.value,
                "avg_tokens": hungriest.avg_tokens,
                "total_tokens": hungriest.total_tokens,
                "visit_count": hungriest.visit_count,
            },
            "avg_duration_per_iteration": totals["total_duration_seconds"] / rounds if rounds else 0.0,
            "avg_tokens_per_iteration": totals["total_tokens"] / rounds if rounds else 0.0,
        }

    # ---- the report ----

    def report(self) -> str:
        """Return the text report."""
        totals = self.totals()
        lines = [
            "=== Orchestration Metrics Report ===",
            "",
            f"Final State: {totals['current_state']}",
            f"Iterations: {totals['iteration_count']} / {self.max_iterations}",
            f"Total Duration: {totals['total_duration_seconds']:.2f}s",
            f"Total Tokens: {totals['total_tokens']:,}",
            f"Total Transitions: {totals['total_transitions']}",
            "",
            "--- State Visit Counts ---",
        ]
        lines += [f"  {state}: {count}" for state, count in sorted(totals["state_visits"].items())]
        found = self.bottlenecks()
        slowest, hungriest = found["slowest_state"], found["highest_token_state"]
        if slowest is not None and hungriest is not None:
            lines += [
                "",
                "--- Bottleneck Analysis ---",
                f"Slowest State: {slowest['state']}",
                f"  Avg Duration: {slowest['avg_duration_seconds']:.2f}s",
                f"  Total Duration: {slowest['total_duration_seconds']:.2f}s",
                f"  Visits: {slowest['visit_count']}",
                "",
                f"Highest Token State: {hungriest['state']}",
                f"  Avg Tokens: {hungriest['avg_tokens']:.0f}",
                f"  Total Tokens: {hungriest['total_tokens']:,}",
                f"  Visits: {hungriest['visit_count']}",
            ]
        edges = self.edges()
        if edges["most_common_transition"] is not None:
            lines += [
                "",
                "--- Transition Patterns ---",
                f"Most Common: {edges['most_common_transition']} ({edges['most_common_count']}x)",
                f"Unique Transitions: {edges['unique_transitions']}",
            ]
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON types, with every state and every transition."""
        totals = self.totals()
        return {
            "final_state": totals["current_state"],
            "iterations": totals["iteration_count"],
            "max_iterations": self.max_iterations,
            "total_duration_seconds": totals["total_duration_seconds"],
            "total_tokens": totals["total_tokens"],
            "total_transitions": totals["total_transitions"],
            "state_visits": totals["state_visits"],
            "states": {state.value: asdict(one) for state, one in self.of_states().items()},
            "bottlenecks": self.bottlenecks(),
            "transitions": self.edges(),
            "history": [transition_json(one) for one in self.history],
        }


def transition_json(one: StateTransition) -> dict[str, Any]:
    """Return one transition as JSON types, without its context, which may contain any object."""
    return {
        "from_state": one.from_state.value,
        "to_state": one.to_state.value,
        "timestamp": one.timestamp,
        "at": datetime.fromtimestamp(one.timestamp, UTC).isoformat(timespec="milliseconds"),
        "reason": one.reason,
        "duration_seconds": one.duration_seconds,
        "tokens_consumed": one.tokens_consumed,
    }


def transition_of(fact: Transition, context: dict[str, Any] | None = None) -> StateTransition:
    """Return a transition fact of the kernel as an entry of the history."""
    return StateTransition(
        from_state=OrchestrationState(fact.source),
        to_state=OrchestrationState(fact.dest),
        timestamp=fact.at,
        context={} if context is None else context,
        reason=fact.reason or None,
        duration_seconds=fact.dwell,
        tokens_consumed=fact.tokens,
    )


class Recorder:
    """Passes each transition to the history before other observers are called."""

    def __init__(self, record: Callable[[Transition], None]) -> None:
        self._record = record

    def hears(self, kind: type[Fact]) -> Callable[[Any], None] | None:
        """Return the function for facts of a kind, or None."""
        return self._record if kind is Transition else None


class ObserverSlot:
    """One observer. `last` returns the newest transition, `totals` the argument of `on_metrics_update`."""

    component = "observer"

    def __init__(
        self,
        observer: StateMachineObserver,
        last: Callable[[], StateTransition],
        totals: Callable[[], dict[str, Any]],
    ) -> None:
        self.__self__ = observer  # the reporter names it when it raises
        self._last = last
        self._totals = totals

    def hears(self, kind: type[Fact]) -> Callable[[Any], None] | None:
        """Return the function for facts of a kind, or None."""
        return self if kind is Transition else None

    def __call__(self, _: Transition) -> None:
        """Report the last transition and then the totals, even if the first call raised."""
        try:
            self.__self__.on_state_transition(self._last())
        finally:
            self.__self__.on_metrics_update(self._totals())


logger = logging.getLogger("orchestrator.pipeline")

_LAST = (OrchestrationState.FAILED, OrchestrationState.BUDGET_EXHAUSTED)
"""States that are listed last among the next states, in this order."""


def _table() -> dict[OrchestrationState, list[OrchestrationState]]:
    """Return state -> next states, without terminal states as keys."""
    found: dict[OrchestrationState, list[OrchestrationState]] = {}
    for source, dest in EVENT_OF:
        found.setdefault(OrchestrationState(source), []).append(OrchestrationState(dest))
    for ways in found.values():
        ways.sort(key=lambda state: _LAST.index(state) + 1 if state in _LAST else 0)
    return found


@functools.cache
def _compiled() -> Machine:
    """Return the graph with the counting hooks only: the host does the work."""
    counting = {name: (hook,) for name, hook in vars(before).items() if name.startswith("before_")}
    return Machine(PIPELINE, Hooks(counting))


class OrchestrationStateMachine:
    """One run of the pipeline that the host drives with `transition`.

    Not thread-safe. A machine that is dropped before its end stays in the gauges of live runs; `reset` removes it.

    Args:
        max_iterations: Limit of `reached_max_iterations`; 0 is unlimited.
        max_refinements: Limit for `strict=True` only; 0 is unlimited.
        observers: As for Agent. `add_observer` adds observers of transitions.

    Example:
        machine = OrchestrationStateMachine(max_iterations=3)
        machine.transition(OrchestrationState.PLANNING, tokens_consumed=900)
    """

    VALID_TRANSITIONS: ClassVar[dict[OrchestrationState, list[OrchestrationState]]] = _table()
    TERMINAL_STATES: ClassVar[set[OrchestrationState]] = set(TERMINAL)

    def __init__(
        self,
        max_iterations: int = 3,
        *,
        max_refinements: int = 3,
        observers: Iterable[Observer] | None = None,
        run_id: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.max_iterations = max_iterations
        self.max_refinements = max_refinements
        self.history: list[StateTransition] = []
        self.assigned: list[tuple[int, OrchestrationState]] = []
        """(number of earlier transitions, state) for each assignment of `current_state`."""
        self.iterations_set = 0
        """Sum of the changes by assignments of `iteration_count`."""
        self._clock = clock or SystemClock()
        self._observers = (TransitionLog(), Metrics()) if observers is None else tuple(observers)
        self._added: list[StateMachineObserver] = []
        self._said: dict[str, Any] = {}
        self._driver = self._new_driver()
        for observer in self._observers:
            if (declare := getattr(observer, "declare", None)) is not None:
                declare(PIPELINE)
        self._run = self._new_run(run_id)

    # ---- state ----

    @property
    def run_id(self) -> str:
        """Id of the run in log and metrics; `reset` starts another one."""
        return self._run.run_id

    @property
    def current_state(self) -> OrchestrationState:
        """The current state. Setting it is not a transition."""
        return OrchestrationState(self._run.cursor.state)

    @current_state.setter
    def current_state(self, state: OrchestrationState) -> None:
        state = OrchestrationState(state)
        if self._run.ended or state in TERMINAL:
            self._leave()
            counted, self._run = self._run.ctx, self._new_run(None)
            self._run.ctx = counted
        now = self._clock.monotonic()
        self._run.restore(replace(self._run.cursor, state=state.value, entered_at=now))
        self.assigned.append((len(self.history), state))

    @property
    def iteration_count(self) -> int:
        """Number of transitions from planning to validating."""
        return int(self._run.ctx.iteration)

    @iteration_count.setter
    def iteration_count(self, count: int) -> None:
        self.iterations_set += count - self.iteration_count
        self._run.ctx.iteration = count

    @property
    def refinement_count(self) -> int:
        """Number of transitions from judging to implementing."""
        return int(self._run.ctx.refinements)

    def can_transition_to(self, state: OrchestrationState) -> bool:
        """Return whether an edge leads from the current state to `state`."""
        return state in self.VALID_TRANSITIONS.get(self.current_state, ())

    def is_terminal(self) -> bool:
        """Return whether the current state is terminal."""
        return self.current_state in TERMINAL

    def reached_max_iterations(self) -> bool:
        """Return whether `max_iterations` is reached; 0 allows any number."""
        return 0 < self.max_iterations <= self.iteration_count

    exceeded_max_iterations = reached_max_iterations
    """Alternative name: true at the limit, not only beyond it."""

    def get_transition_history(self) -> list[StateTransition]:
        """Return a copy of the history, oldest first."""
        return self.history.copy()

    # ---- transitions ----

    def transition(
        self,
        to_state: OrchestrationState,
        context: dict[str, Any] | None = None,
        reason: str | None = None,
        duration_seconds: float | None = None,
        tokens_consumed: int = 0,
        *,
        strict: bool = False,
    ) -> bool:
        """Make a transition and return True, or warn and return False in a terminal state.

        `duration_seconds` and `tokens_consumed` belong to the state that is left. The duration is measured by default,
        but is 0 before the first transition. `context` and `reason` are stored in the history.

        Raises InvalidTransitionError if no edge leads to `to_state`, or if with `strict` a limit or a terminal state
        forbids it, and ConfigError for a duration or tokens that are negative or not finite.
        """
        if self.is_terminal() and not strict:
            said = f"Attempted transition from terminal state {self.current_state.value} → {_name(to_state)}"
            logger.warning(said)
            return False
        if not self.can_transition_to(to_state):
            raise self._refused(to_state)
        tokens: object = tokens_consumed
        if not (isinstance(tokens, int) and tokens >= 0) or not 0 <= (duration_seconds or 0.0) < math.inf:
            raise ConfigError(  # a report could not add them up
                "duration_seconds must be a finite number, 0 or more, and tokens_consumed a whole number, 0 or more"
            )
        run, event = self._run, EVENT_OF[self.current_state, OrchestrationState(to_state)]
        run.ctx.limits = OFF
        if strict:
            run.ctx.limits = replace(
                OFF, max_iterations=self.max_iterations, max_refinements=self.max_refinements
            )
        if duration_seconds is None and self.current_state == OrchestrationState.INITIALIZED:
            duration_seconds = 0.0
        run.annotate(TransitionNote(tokens_consumed, reason or "", duration_seconds))
        self._said = {} if context is None else context
        self._take_up()
        try:
            at_once(self._driver.fire(run, event))
        except Refused as refusal:
            run.annotate(TransitionNote())
            raise self._invalid(to_state, refusal) from refusal
        return True

    def reset(self) -> None:
        """Return to the initial state as a new run without history."""
        self._leave()
        self.history.clear()
        self.assigned.clear()
        self.iterations_set = 0
        self._run = self._new_run(None)

    def add_observer(self, observer: StateMachineObserver) -> None:
        """Add an observer that is called after each committed transition from now on."""
        self._added.append(observer)
        errors = self._driver.observer_errors
        self._driver = self._new_driver()
        self._driver.observer_errors.update(errors)

    @property
    def observer_errors(self) -> dict[str, int]:
        """Class name of an observer -> number of its exceptions."""
        return dict(self._driver.observer_errors)

    def restore(
        self,
        history: Iterable[StateTransition],
        *,
        state: OrchestrationState,
        iterations: int,
        refinements: int = 0,
        iterations_set: int = 0,
        assigned: Iterable[tuple[int, OrchestrationState]] = (),
    ) -> None:
        """Restore a stored run without publishing its past. The arguments are not checked."""
        self.history[:] = history
        self.assigned[:] = assigned
        self.iterations_set = iterations_set
        run = self._run
        run.ctx.iteration, run.ctx.refinements = iterations, refinements
        now, ended = self._clock.monotonic(), state in TERMINAL
        cursor = Cursor(state.value, entry_pending=False, seq=len(self.history), parked=True, ended=ended)
        run.restore(replace(cursor, started_at=now, entered_at=now))

    # ---- metrics ----

    @property
    def metrics(self) -> RunMetrics:
        """The metrics of this run."""
        return RunMetrics(self.history, self.current_state, self.iteration_count, self.max_iterations)

    def get_state_metrics(self, state: OrchestrationState) -> StateMetrics:
        """Return the totals of the completed visits of a state."""
        return self.metrics.of_state(state)

    def get_all_state_metrics(self) -> dict[OrchestrationState, StateMetrics]:
        """Return the totals of every non-terminal state."""
        return self.metrics.of_states()

    def get_total_metrics(self) -> dict[str, Any]:
        """Return total duration, tokens and transitions, iterations, and the number of visits of each state."""
        return self.metrics.totals()

    def get_transition_metrics(self) -> dict[str, Any]:
        """Return the number of uses of each edge, and the most used edge."""
        return self.metrics.edges()

    def get_bottleneck_analysis(self) -> dict[str, Any]:
        """Return the slowest state, the one with most tokens (None before any transition), and means per iteration."""
        return self.metrics.bottlenecks()

    def format_metrics_report(self) -> str:
        """Return the metrics as a text report."""
        return self.metrics.report()

    def metrics_json(self) -> dict[str, Any]:
        """Return the report as JSON types."""
        return self.metrics.as_json()

    # ---- private ----

    def _new_driver(self) -> Driver:
        told = [ObserverSlot(one, lambda: self.history[-1], self.get_total_metrics) for one in self._added]
        watching: tuple[Any, ...] = (Recorder(self._record), *self._observers, *told)
        return Driver(_compiled(), observers=watching, clock=self._clock, ending=lambda _: self.ending())

    def _new_run(self, run_id: str | None) -> Run[PipelineContext, None]:
        ctx = PipelineContext(None, limits=OFF)
        run: Run[PipelineContext, None] = Run(_compiled(), run_id or secrets.token_hex(16), ctx, None)
        run.restore(replace(run.cursor, entry_pending=False, entered_at=self._clock.monotonic()))
        return run

    def ending(self) -> Ending:
        """Return outcome and reason of the run; the host's reason counts if it is an allowed one."""
        if self.current_state is OrchestrationState.SUCCEEDED:
            return Ending(Outcome.COMPLETED, "none")
        if self.current_state is OrchestrationState.BUDGET_EXHAUSTED:
            return Ending(Outcome.BUDGET_EXCEEDED, "tokens")
        said = self.history[-1].reason if self.history else None
        return Ending(Outcome.FAILED, said if said in REASONS[Outcome.FAILED] else "internal")

    def _take_up(self) -> None:
        """Publish the start of the run, or its resumption from a checkpoint. Constructing a machine starts no run."""
        run, now = self._run, self._clock.monotonic()
        if run.started_at is None:
            run.restore(replace(run.cursor, started_at=run.entered_at))
            self._driver.publish(
                RunStarted(PIPELINE.name, run.run_id, self._clock.time(), state=run.cursor.state)
            )
        elif run.parked:
            run.restore(replace(run.cursor, parked=False))
            stay = now - run.entered_at
            at = self._clock.time()
            fact = RunStarted(PIPELINE.name, run.run_id, at, "resumed", state=run.cursor.state, dwell=stay)
            self._driver.publish(fact)

    def _leave(self) -> None:
        """Publish that a run is dropped before its end."""
        run = self._run
        if run.started_at is not None and not run.ended and not run.parked:
            at = self._clock.time()
            self._driver.publish(RunParked(PIPELINE.name, run.run_id, run.cursor.state, "interrupted", at))

    def _refused(self, to_state: OrchestrationState) -> InvalidTransitionError:
        """Publish a transition without an edge in the same way as the driver does."""
        event = next((event for (_, dest), event in EVENT_OF.items() if dest == to_state), "")
        reason = "undeclared_edge" if event else "unknown_event"
        run, error, at = self._run, self._invalid(to_state), self._clock.time()
        self._driver.publish(
            EventFailed(
                PIPELINE.name,
                run.run_id,
                run.cursor.state,
                str(event),
                reason,
                at,
                run.ctx.iteration,
                None,
                error,
            )
        )
        return error

    def _invalid(
        self, to_state: OrchestrationState, refusal: Refused | None = None
    ) -> InvalidTransitionError:
        now = self.current_state
        allowed = [state.value for state in self.VALID_TRANSITIONS.get(now, ())]
        error = InvalidTransitionError(now.value, _name(to_state), allowed)
        if refusal is not None:
            error.args = (f"{error.args[0]}; refused: {refusal.reason}",)
        return error

    def _record(self, fact: Transition) -> None:
        """Append a committed transition to the history before other observers are called."""
        self.history.append(transition_of(fact, self._said))
        logger.info(
            "State transition: %s → %s (iteration %d, duration: %.2fs, tokens: %d, reason: %s)",
            fact.source,
            fact.dest,
            fact.iteration,
            fact.dwell,
            fact.tokens,
            fact.reason or "none",
        )


def _name(state: object) -> str:
    return str(getattr(state, "value", state))


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


# ---- the pipeline and its checkpoints ----

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
            lease = await claimed(journal, self.name, owner)
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

"""The state machine that the host drives: a facade of the pipeline's graph.

The table is `machines.pipeline.graph.PIPELINE`, and the kernel's driver makes each transition: `transition` selects
the event that leads to the requested state and fires it. A driver without a journal never waits, so its coroutine
completes at once and needs no event loop. Rules:

- In a terminal state `transition` warns, returns False and records nothing. `strict=True` raises instead.
- Iterations are counted only on planning → validating. `transition` itself takes every edge of the table, and the
  caller's loop checks `reached_max_iterations`. With `strict=True` the pipeline's guards are evaluated too, and
  InvalidTransitionError names the limit; entering failed instead would make `can_transition_to` wrong.
- Without a given duration, the time since the state was entered is measured; 0.0 would hide a bottleneck.
- `current_state` and `iteration_count` can be set. This is not a transition: only a checkpoint notes it.
"""

from __future__ import annotations

import functools
import logging
import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from orchestrator.errors import ConfigError, EventError, Refused
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
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.outcome import REASONS, Ending, Outcome
from orchestrator.kernel.run import Cursor, Run
from orchestrator.machines.pipeline.graph import EVENT_OF, PIPELINE
from orchestrator.machines.pipeline.model import OFF, OrchestrationState, PipelineContext
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

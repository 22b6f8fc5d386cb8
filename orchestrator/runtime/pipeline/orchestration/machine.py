"""The state machine of the specification, moved by the host: a facade over the graph of the pipeline.

The table is `machines.pipeline.graph.PIPELINE`, and the kernel's driver makes each move: `transition` picks the event
that leads to the state asked for and fires it. A driver without a journal never waits, so its coroutine is run to its
end at once and no event loop is needed. Where the specification and its own tests disagree, this holds:

- A terminal state is looked at first: `transition` warns and returns False, and nothing is recorded. `strict=True`
  raises instead.
- Iterations are counted on planning → validating alone. As in the specification, `transition` itself takes every edge
  of the table, and the loop around it asks `reached_max_iterations`; with `strict=True` the guards of the pipeline are
  asked too, and InvalidTransitionError says which limit is reached. Silently going to failed where the caller said
  planning was the other choice; then `can_transition_to` would be wrong.
- A duration that the caller gives is recorded as given. Without one, the time since the state was entered is measured
  by the monotonic clock; 0.0 would hide a bottleneck.
- `current_state` and `iteration_count` can be set, as the specification's own code does. That is no transition:
  nothing is logged, and a checkpoint says that it was done.
"""

from __future__ import annotations

import functools
import logging
import math
import secrets
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

from orchestrator.errors import ConfigError, Refused
from orchestrator.kernel.clock import Clock, SystemClock
from orchestrator.kernel.driver import Driver
from orchestrator.kernel.hooks import Hooks
from orchestrator.kernel.machine import Machine
from orchestrator.kernel.outcome import REASONS, Ending, Outcome
from orchestrator.kernel.record import (
    EventFailed,
    Observer,
    RunParked,
    RunStarted,
    Transition,
    TransitionNote,
)
from orchestrator.kernel.run import Run
from orchestrator.kernel.run_parts import Cursor
from orchestrator.kernel.thread import at_once
from orchestrator.machines.pipeline.graph import EVENT_OF, PIPELINE
from orchestrator.machines.pipeline.limits import OFF, PipelineLimits
from orchestrator.machines.pipeline.model import OrchestrationState, PipelineContext
from orchestrator.runtime.pipeline.orchestration.metrics import TERMINAL, RunMetrics, transition_of
from orchestrator.runtime.pipeline.orchestration.model import (
    InvalidTransitionError,
    StateMachineObserver,
    StateMetrics,
    StateTransition,
)
from orchestrator.runtime.pipeline.orchestration.observer import ObserverSlot, Recorder
from orchestrator.telemetry.log import TransitionLog
from orchestrator.telemetry.metrics import Metrics
from orchestrator_callbacks.pipeline import before

logger = logging.getLogger("orchestrator.pipeline")

_LAST = (OrchestrationState.FAILED, OrchestrationState.BUDGET_EXHAUSTED)
"""States that stand last among the ways out, in this order."""


def _table() -> dict[OrchestrationState, list[OrchestrationState]]:
    """Return state -> the states that an edge of the graph leads to; terminal states are left out."""
    found: dict[OrchestrationState, list[OrchestrationState]] = {}
    for source, dest in EVENT_OF:
        found.setdefault(OrchestrationState(source), []).append(OrchestrationState(dest))
    for ways in found.values():
        ways.sort(key=lambda state: _LAST.index(state) + 1 if state in _LAST else 0)
    return found


@functools.cache
def _compiled() -> Machine:
    """Return the graph with the hooks that count, and none that works: the host does the work."""
    counting = {name: (hook,) for name, hook in vars(before).items() if name.startswith("before_")}
    return Machine(PIPELINE, Hooks(counting))


class OrchestrationStateMachine:
    """One run of the pipeline that the host moves with `transition`.

    `observers` are those of the kernel: None is `TransitionLog()` and `Metrics()` on the default registry, `()` none.
    `add_observer` adds those of the specification. `max_refinements` counts only for `strict=True`. Not for use by
    two threads at once. A machine that is dropped before its end stays in the gauges of live runs; `reset` ends that.
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
        """(transitions before it, state) of each time that `current_state` was set."""
        self.iterations_set = 0
        """By how much setting `iteration_count` moved it away from what the history counts."""
        self._clock = clock or SystemClock()
        self._observers = (TransitionLog(), Metrics()) if observers is None else tuple(observers)
        self._heard: list[StateMachineObserver] = []
        self._said: dict[str, Any] = {}
        self._driver = self._new_driver()
        for observer in self._observers:
            if (declare := getattr(observer, "declare", None)) is not None:
                declare(PIPELINE)
        self._run = self._new_run(run_id)

    # ---- where it stands ----

    @property
    def run_id(self) -> str:
        """The id under which log and metrics know this run; `reset` begins another."""
        return self._run.run_id

    @property
    def current_state(self) -> OrchestrationState:
        """The present state. Setting it is no transition."""
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
        """How often planning was left for validating."""
        return int(self._run.ctx.iteration)

    @iteration_count.setter
    def iteration_count(self, count: int) -> None:
        self.iterations_set += count - self.iteration_count
        self._run.ctx.iteration = count

    @property
    def refinement_count(self) -> int:
        """How often judging was left for implementing."""
        return int(self._run.ctx.refinements)

    def can_transition_to(self, state: OrchestrationState) -> bool:
        """Tell whether an edge leads from the present state to `state`."""
        return state in self.VALID_TRANSITIONS.get(self.current_state, ())

    def is_terminal(self) -> bool:
        """Tell whether the present state is one that nothing leaves."""
        return self.current_state in TERMINAL

    def reached_max_iterations(self) -> bool:
        """Tell whether as many iterations were made as `max_iterations` allows; 0 allows any number."""
        return 0 < self.max_iterations <= self.iteration_count

    exceeded_max_iterations = reached_max_iterations
    """The specification's name for it: true at the limit, not only beyond."""

    def get_transition_history(self) -> list[StateTransition]:
        """Return a copy of the history, oldest first."""
        return self.history.copy()

    # ---- moving ----

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
        """Move to a state and return True; duration and tokens are what the state that is left has cost.

        A duration that nobody gives is measured, but for the time before the first transition, in which nothing was
        done: 0. From a terminal state it warns and returns False. Raises InvalidTransitionError where no edge leads
        there, the state unchanged; with `strict` also from a terminal state and where a limit forbids it. Raises
        ConfigError for a duration or a number of tokens that is negative or not finite.
        """
        if self.is_terminal() and not strict:
            said = f"Attempted transition from terminal state {self.current_state.value} → {_name(to_state)}"
            logger.warning(said)
            return False
        if not self.can_transition_to(to_state):
            raise self._refused(to_state)
        _check(duration_seconds, tokens_consumed)
        run, event = self._run, EVENT_OF[self.current_state, OrchestrationState(to_state)]
        run.ctx.limits = self._limits(strict=strict)
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
        """Go back to the initial state as a new run, without history."""
        self._leave()
        self.history.clear()
        self.assigned.clear()
        self.iterations_set = 0
        self._run = self._new_run(None)

    def add_observer(self, observer: StateMachineObserver) -> None:
        """Let an observer hear of each transition from now on, after it was committed."""
        self._heard.append(observer)
        errors = self._driver.observer_errors
        self._driver = self._new_driver()
        self._driver.observer_errors.update(errors)

    @property
    def observer_errors(self) -> dict[str, int]:
        """Name of an observer's class -> how often it raised."""
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
        """Stand where a stored run stood; nothing of its past is told again. Takes what it is given for true."""
        self.history[:] = history
        self.assigned[:] = assigned
        self.iterations_set = iterations_set
        run = self._run
        run.ctx.iteration, run.ctx.refinements = iterations, refinements
        now, ended = self._clock.monotonic(), state in TERMINAL
        cursor = Cursor(state.value, entry_pending=False, seq=len(self.history), parked=True, ended=ended)
        run.restore(replace(cursor, started_at=now, entered_at=now))

    # ---- figures ----

    @property
    def metrics(self) -> RunMetrics:
        """The figures of this run."""
        return RunMetrics(self.history, self.current_state, self.iteration_count, self.max_iterations)

    def get_state_metrics(self, state: OrchestrationState) -> StateMetrics:
        """Return what the completed stays in a state add up to."""
        return self.metrics.of_state(state)

    def get_all_state_metrics(self) -> dict[OrchestrationState, StateMetrics]:
        """Return the same for every state that is not terminal."""
        return self.metrics.of_states()

    def get_total_metrics(self) -> dict[str, Any]:
        """Return total duration, tokens and transitions, iterations, and how often each state was left."""
        return self.metrics.totals()

    def get_transition_metrics(self) -> dict[str, Any]:
        """Return how often each edge was taken, and which one most often."""
        return self.metrics.edges()

    def get_bottleneck_analysis(self) -> dict[str, Any]:
        """Return the slowest state, the one with the most tokens (None before any transition), and means."""
        return self.metrics.bottlenecks()

    def format_metrics_report(self) -> str:
        """Return all of it as text."""
        return self.metrics.report()

    def metrics_json(self) -> dict[str, Any]:
        """Return the report as plain data that any JSON writer takes."""
        return self.metrics.as_json()

    # ---- inside ----

    def _new_driver(self) -> Driver:
        told = [ObserverSlot(one, lambda: self.history[-1], self.get_total_metrics) for one in self._heard]
        watching: tuple[Any, ...] = (Recorder(self._record), *self._observers, *told)
        return Driver(_compiled(), observers=watching, clock=self._clock, ending=lambda _: self.ending())

    def _new_run(self, run_id: str | None) -> Run[PipelineContext, None]:
        ctx = PipelineContext(None, limits=OFF)
        run: Run[PipelineContext, None] = Run(_compiled(), run_id or secrets.token_hex(16), ctx, None)
        run.restore(replace(run.cursor, entry_pending=False, entered_at=self._clock.monotonic()))
        return run

    def ending(self) -> Ending:
        """Return how the run ended; the host's reason counts where it is one of the closed table."""
        if self.current_state is OrchestrationState.SUCCEEDED:
            return Ending(Outcome.COMPLETED, "none")
        if self.current_state is OrchestrationState.BUDGET_EXHAUSTED:
            return Ending(Outcome.BUDGET_EXCEEDED, "tokens")
        said = self.history[-1].reason if self.history else None
        return Ending(Outcome.FAILED, said if said in REASONS[Outcome.FAILED] else "internal")

    def _limits(self, *, strict: bool) -> PipelineLimits:
        if not strict:
            return OFF
        return replace(OFF, max_iterations=self.max_iterations, max_refinements=self.max_refinements)

    def _take_up(self) -> None:
        """Tell of a run that begins, or goes on from a checkpoint. Constructing a machine is not yet a run."""
        run, now = self._run, self._clock.monotonic()
        if run.started_at is None:
            run.restore(replace(run.cursor, started_at=run.entered_at))
            self._driver.tell(
                RunStarted(PIPELINE.name, run.run_id, self._clock.time(), state=run.cursor.state)
            )
        elif run.parked:
            run.restore(replace(run.cursor, parked=False))
            stay = now - run.entered_at
            at = self._clock.time()
            fact = RunStarted(PIPELINE.name, run.run_id, at, "resumed", state=run.cursor.state, dwell=stay)
            self._driver.tell(fact)

    def _leave(self) -> None:
        """Tell of a run that is dropped before its end."""
        run = self._run
        if run.started_at is not None and not run.ended and not run.parked:
            at = self._clock.time()
            self._driver.tell(RunParked(PIPELINE.name, run.run_id, run.cursor.state, "interrupted", at))

    def _refused(self, to_state: OrchestrationState) -> InvalidTransitionError:
        """Tell of a transition that no edge allows, as the driver tells of an event without an edge."""
        event = next((event for (_, dest), event in EVENT_OF.items() if dest == to_state), "")
        reason = "undeclared_edge" if event else "unknown_event"
        run, error, at = self._run, self._invalid(to_state), self._clock.time()
        self._driver.tell(
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
        """Take a committed transition into the history, before anybody else hears of it."""
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


def _check(seconds: float | None, tokens: object) -> None:
    """Raise ConfigError for figures that no report could add up."""
    if not (isinstance(tokens, int) and tokens >= 0) or not 0 <= (seconds or 0.0) < math.inf:
        raise ConfigError(
            "duration_seconds is finite and not negative, tokens_consumed a whole number and not negative"
        )


def _name(state: object) -> str:
    return str(getattr(state, "value", state))

"""Metrics of a history as data, JSON and text report. Every number is finite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from orchestrator.kernel.record import Transition
from orchestrator.machines.pipeline.graph import PIPELINE
from orchestrator.machines.pipeline.model import OrchestrationState
from orchestrator.runtime.pipeline.orchestration.model import StateMetrics, StateTransition

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
        return "\n".join([*lines, *self._bottleneck_lines(), *self._pattern_lines()])

    def _bottleneck_lines(self) -> list[str]:
        found = self.bottlenecks()
        slowest, hungriest = found["slowest_state"], found["highest_token_state"]
        if slowest is None or hungriest is None:
            return []
        return [
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

    def _pattern_lines(self) -> list[str]:
        edges = self.edges()
        if edges["most_common_transition"] is None:
            return []
        return [
            "",
            "--- Transition Patterns ---",
            f"Most Common: {edges['most_common_transition']} ({edges['most_common_count']}x)",
            f"Unique Transitions: {edges['unique_transitions']}",
        ]

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

"""The state machine of seed 000 as a facade: table, errors, its four tests, the themes of the original's suite."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from orchestrator import (
    InvalidTransitionError,
    OrchestrationState,
    OrchestrationStateMachine,
    OrchestratorError,
    StateMachineObserver,
    StateMetrics,
    StateTransition,
)
from orchestrator.errors import ConfigError, EventError
from orchestrator.telemetry import Metrics, TransitionLog
from orchestrator.testing import FakeClock
from tests.telemetry.sampling import sampled

S = OrchestrationState

# Seed 000's table, transcribed; and the two budget edges that its own loop needs (systems.md 4.4).
TABLE = {
    S.INITIALIZED: [S.PLANNING, S.FAILED],
    S.PLANNING: [S.VALIDATING, S.FAILED, S.BUDGET_EXHAUSTED],
    S.VALIDATING: [S.IMPLEMENTING, S.PLANNING, S.FAILED, S.BUDGET_EXHAUSTED],
    S.IMPLEMENTING: [S.JUDGING, S.FAILED, S.BUDGET_EXHAUSTED],
    S.JUDGING: [S.SUCCEEDED, S.IMPLEMENTING, S.PLANNING, S.FAILED, S.BUDGET_EXHAUSTED],
}
TERMINAL = {S.SUCCEEDED, S.FAILED, S.BUDGET_EXHAUSTED}
PAIRS = [pytest.param(one, other, id=f"{one}-{other}") for one in S for other in S]


def machine(*path: OrchestrationState, **options: Any) -> OrchestrationStateMachine:
    """A machine that was led along a path, silent unless it is given observers."""
    made = OrchestrationStateMachine(**{"observers": (), **options})
    for state in path:
        assert made.transition(state)
    return made


def standing(state: OrchestrationState) -> OrchestrationStateMachine:
    made = machine()
    made.current_state = state
    return made


# ---- the table ----


def test_the_table_is_the_seeds_with_two_more_budget_edges() -> None:
    assert OrchestrationStateMachine.VALID_TRANSITIONS == TABLE
    assert OrchestrationStateMachine.TERMINAL_STATES == TERMINAL
    assert [state.value for state in S] == [
        "initialized", "planning", "validating", "implementing", "judging", "succeeded", "failed", "budget_exhausted",
    ]  # fmt: skip


@pytest.mark.parametrize(("source", "dest"), PAIRS)
def test_each_of_the_64_pairs_is_taken_or_refused_as_the_table_says(
    source: OrchestrationState, dest: OrchestrationState, caplog: pytest.LogCaptureFixture
) -> None:
    sm = standing(source)
    allowed = TABLE.get(source, [])
    assert sm.can_transition_to(dest) is (dest in allowed)
    if source in TERMINAL:
        with caplog.at_level(logging.WARNING):
            assert sm.transition(dest) is False
        assert caplog.messages == [f"Attempted transition from terminal state {source} → {dest}"]
    elif dest in allowed:
        assert sm.transition(dest) is True
        assert (sm.current_state, len(sm.history)) == (dest, 1)
        return
    else:
        with pytest.raises(InvalidTransitionError) as refused:
            sm.transition(dest)
        assert str(refused.value) == (
            f"Invalid transition: {source.value} → {dest.value}. "
            f"Valid transitions: {[state.value for state in allowed]}"
        )
        assert (refused.value.state, refused.value.event) == (source.value, dest.value)
    assert (sm.current_state, sm.history, sm.iteration_count) == (source, [], 0)


@pytest.mark.parametrize("dest", list(S))
def test_a_terminal_state_raises_only_for_who_is_strict(dest: OrchestrationState) -> None:
    sm = standing(S.SUCCEEDED)
    with pytest.raises(InvalidTransitionError, match=r"Valid transitions: \[\]$"):
        sm.transition(dest, strict=True)
    assert (sm.current_state, sm.history) == (S.SUCCEEDED, [])


def test_what_is_no_state_is_refused_like_a_state_without_an_edge() -> None:
    sm = machine()
    with pytest.raises(InvalidTransitionError, match="initialized → nowhere"):
        sm.transition("nowhere")  # type: ignore[arg-type]
    assert sm.transition("planning") is True  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="nowhere"):
        sm.current_state = "nowhere"  # type: ignore[assignment]


def test_the_error_stands_in_the_librarys_tree() -> None:
    assert issubclass(InvalidTransitionError, EventError)
    assert issubclass(InvalidTransitionError, OrchestratorError)


# ---- the seed's four tests ----


def test_state_machine_transitions() -> None:
    sm = machine()
    assert sm.can_transition_to(S.PLANNING)
    sm.transition(S.PLANNING)
    assert sm.current_state == S.PLANNING
    assert not sm.can_transition_to(S.SUCCEEDED)
    with pytest.raises(InvalidTransitionError):
        sm.transition(S.SUCCEEDED)


def test_terminal_states() -> None:
    sm = standing(S.SUCCEEDED)
    assert sm.is_terminal()
    assert not sm.can_transition_to(S.PLANNING)


def test_metrics_tracking() -> None:
    sm = machine()
    sm.transition(S.PLANNING, duration_seconds=10.5, tokens_consumed=500)
    metrics = sm.get_state_metrics(S.INITIALIZED)
    assert (metrics.total_duration_seconds, metrics.total_tokens, metrics.visit_count) == (10.5, 500, 1)


def test_bottleneck_analysis() -> None:
    """The seed gives implementing's figures to the transition that enters it (A1); the one that leaves has them."""
    sm = machine()
    sm.transition(S.PLANNING, duration_seconds=0.0)
    sm.transition(S.VALIDATING, duration_seconds=5.0, tokens_consumed=100)
    sm.transition(S.IMPLEMENTING, duration_seconds=1.0, tokens_consumed=0)
    sm.transition(S.JUDGING, duration_seconds=15.0, tokens_consumed=800)
    bottlenecks = sm.get_bottleneck_analysis()
    assert bottlenecks["slowest_state"] == {
        "state": "implementing",
        "avg_duration_seconds": 15.0,
        "total_duration_seconds": 15.0,
        "visit_count": 1,
    }
    assert bottlenecks["highest_token_state"]["state"] == "implementing"
    assert (bottlenecks["avg_duration_per_iteration"], bottlenecks["avg_tokens_per_iteration"]) == (
        21.0,
        900.0,
    )


# ---- the themes of the original's suite ----


def test_a_new_machine_is_initialized_and_empty() -> None:
    sm = machine()
    assert (sm.current_state, sm.history, sm.iteration_count, sm.max_iterations) == (S.INITIALIZED, [], 0, 3)
    assert not sm.is_terminal()


def test_a_transition_is_recorded_with_all_that_was_said() -> None:
    clock = FakeClock(1_000.0)
    sm = machine(clock=clock)
    sm.transition(S.PLANNING, {"plan": [1]}, "begin", 2.5, 7)
    assert sm.get_transition_history() == [
        StateTransition(S.INITIALIZED, S.PLANNING, 1_000.0, {"plan": [1]}, "begin", 2.5, 7)
    ]


def test_the_history_that_is_given_out_is_a_copy() -> None:
    sm = machine(S.PLANNING)
    sm.get_transition_history().clear()
    assert len(sm.history) == 1


def test_iterations_are_counted_from_planning_to_validating_and_nowhere_else() -> None:
    assert machine(S.PLANNING, S.FAILED).iteration_count == 0
    assert machine(S.PLANNING, S.BUDGET_EXHAUSTED).iteration_count == 0
    assert machine(S.PLANNING, S.VALIDATING).iteration_count == 1
    assert machine(S.PLANNING, S.VALIDATING, S.PLANNING, S.VALIDATING).iteration_count == 2


@pytest.mark.parametrize(("limit", "reached"), [(1, True), (2, True), (3, False), (0, False)])
def test_the_limit_is_reached_at_its_value_and_0_is_none(limit: int, reached: bool) -> None:
    sm = machine(S.PLANNING, S.VALIDATING, S.PLANNING, S.VALIDATING, max_iterations=limit)
    assert (sm.reached_max_iterations(), sm.exceeded_max_iterations()) == (reached, reached)


def test_the_loop_asks_for_the_limit_unless_it_is_strict() -> None:
    sm = machine(S.PLANNING, S.VALIDATING, max_iterations=1)
    with pytest.raises(InvalidTransitionError, match=r"'planning'.*; refused: iterations: 1 of 1 used"):
        sm.transition(S.PLANNING, strict=True)
    assert (sm.current_state, len(sm.history)) == (S.VALIDATING, 2)
    assert sm.transition(S.PLANNING) is True


def test_refinements_have_a_limit_of_their_own() -> None:
    sm = machine(S.PLANNING, S.VALIDATING, S.IMPLEMENTING, S.JUDGING, max_refinements=1)
    assert sm.transition(S.IMPLEMENTING, strict=True)
    sm.transition(S.JUDGING)
    with pytest.raises(InvalidTransitionError, match="refinements: 1 of 1 used"):
        sm.transition(S.IMPLEMENTING, strict=True)
    assert (sm.refinement_count, sm.iteration_count) == (1, 1)


def test_state_metrics_have_count_sum_mean_least_and_most() -> None:
    sm = machine(S.PLANNING)
    sm.transition(S.VALIDATING, duration_seconds=2.0, tokens_consumed=10)
    sm.transition(S.PLANNING, duration_seconds=0.0)
    sm.transition(S.VALIDATING, duration_seconds=4.0, tokens_consumed=20)
    assert sm.get_state_metrics(S.PLANNING) == StateMetrics(S.PLANNING, 2, 6.0, 30, 3.0, 15.0, 2.0, 4.0)


def test_a_state_that_was_never_left_has_no_least_duration_and_is_json() -> None:
    never = machine().get_state_metrics(S.JUDGING)
    assert (never.visit_count, never.min_duration_seconds, never.max_duration_seconds) == (0, None, 0.0)
    json.dumps(machine().metrics_json(), allow_nan=False)


def test_all_metrics_have_every_state_that_can_be_left() -> None:
    assert list(machine().get_all_state_metrics()) == [state for state in S if state not in TERMINAL]


def test_total_and_transition_metrics() -> None:
    sm = machine()
    for state in (S.PLANNING, S.VALIDATING, S.PLANNING, S.VALIDATING):
        sm.transition(state, duration_seconds=1.5, tokens_consumed=4)
    assert sm.get_total_metrics() == {
        "total_duration_seconds": 6.0,
        "total_tokens": 16,
        "total_transitions": 4,
        "iteration_count": 2,
        "state_visits": {"initialized": 1, "planning": 2, "validating": 1},
        "current_state": "validating",
    }
    assert sm.get_transition_metrics() == {
        "transition_counts": {
            "initialized → planning": 1,
            "planning → validating": 2,
            "validating → planning": 1,
        },
        "most_common_transition": "planning → validating",
        "most_common_count": 2,
        "unique_transitions": 3,
    }


def test_without_a_transition_there_is_no_bottleneck_and_no_common_one() -> None:
    sm = machine()
    assert sm.get_bottleneck_analysis() == {
        "slowest_state": None,
        "highest_token_state": None,
        "avg_duration_per_iteration": 0.0,
        "avg_tokens_per_iteration": 0.0,
    }
    assert sm.get_transition_metrics() == {
        "transition_counts": {},
        "most_common_transition": None,
        "most_common_count": 0,
        "unique_transitions": 0,
    }
    assert sm.format_metrics_report() == (
        "=== Orchestration Metrics Report ===\n\nFinal State: initialized\nIterations: 0 / 3\n"
        "Total Duration: 0.00s\nTotal Tokens: 0\nTotal Transitions: 0\n\n--- State Visit Counts ---"
    )


REPORT = """\
=== Orchestration Metrics Report ===

Final State: succeeded
Iterations: 2 / 3
Total Duration: 38.25s
Total Tokens: 12,340
Total Transitions: 9

--- State Visit Counts ---
  implementing: 2
  initialized: 1
  judging: 2
  planning: 2
  validating: 2

--- Bottleneck Analysis ---
Slowest State: implementing
  Avg Duration: 11.00s
  Total Duration: 22.00s
  Visits: 2

Highest Token State: implementing
  Avg Tokens: 4500
  Total Tokens: 9,000
  Visits: 2

--- Transition Patterns ---
Most Common: planning → validating (2x)
Unique Transitions: 7"""

FLOW = (
    (S.PLANNING, 0.0, 0),
    (S.VALIDATING, 5.0, 1_000),
    (S.PLANNING, 0.25, 0),
    (S.VALIDATING, 4.0, 900),
    (S.IMPLEMENTING, 0.25, 0),
    (S.JUDGING, 12.0, 5_000),
    (S.IMPLEMENTING, 3.25, 700),
    (S.JUDGING, 10.0, 4_000),
    (S.SUCCEEDED, 3.5, 740),
)


def test_the_report_has_the_seeds_headings_and_figures() -> None:
    sm = machine()
    for state, seconds, tokens in FLOW:
        sm.transition(state, duration_seconds=seconds, tokens_consumed=tokens)
    assert sm.format_metrics_report() == REPORT


def test_the_report_as_json_says_the_same() -> None:
    sm = machine()
    for state, seconds, tokens in FLOW:
        sm.transition(state, duration_seconds=seconds, tokens_consumed=tokens)
    found = json.loads(json.dumps(sm.metrics_json(), allow_nan=False))
    assert found["bottlenecks"] == sm.get_bottleneck_analysis()
    assert found["transitions"] == sm.get_transition_metrics()
    assert {name: found[name] for name in ("final_state", "iterations", "max_iterations")} == {
        "final_state": "succeeded",
        "iterations": 2,
        "max_iterations": 3,
    }
    assert found["states"]["implementing"]["max_duration_seconds"] == 12.0
    assert [one["to_state"] for one in found["history"]] == [state.value for state, _, _ in FLOW]
    assert found["history"][0]["at"].endswith("+00:00")


def test_reset_begins_another_run() -> None:
    sm = machine(S.PLANNING, S.VALIDATING, S.FAILED)
    before = sm.run_id
    sm.reset()
    assert (sm.current_state, sm.history, sm.iteration_count) == (S.INITIALIZED, [], 0)
    assert sm.run_id != before
    assert sm.transition(S.PLANNING)


@pytest.mark.parametrize("state", [state for state in S if state not in TERMINAL])
def test_no_state_leads_to_itself(state: OrchestrationState) -> None:
    with pytest.raises(InvalidTransitionError):
        standing(state).transition(state)


def test_the_flows_to_each_end() -> None:
    work = (S.PLANNING, S.VALIDATING, S.IMPLEMENTING, S.JUDGING)
    assert machine(*work, S.SUCCEEDED).is_terminal()
    assert machine(*work, S.IMPLEMENTING, S.JUDGING, S.PLANNING, S.VALIDATING, S.FAILED).is_terminal()
    for length in range(1, 5):
        assert machine(*work[:length], S.BUDGET_EXHAUSTED).is_terminal()


# ---- what the seed leaves open ----


def test_a_duration_that_nobody_gave_is_measured_and_one_that_was_given_wins() -> None:
    clock = FakeClock()
    sm = machine(clock=clock)
    clock._move_to(4.0)
    sm.transition(S.PLANNING)
    clock._move_to(10.0)
    sm.transition(S.VALIDATING)
    clock._move_to(10.5)
    sm.transition(S.PLANNING, duration_seconds=1.0)
    clock._move_to(12.0)
    sm.transition(S.VALIDATING, duration_seconds=0.0)
    assert [one.duration_seconds for one in sm.history] == [0.0, 6.0, 1.0, 0.0]
    assert sm.history[3].timestamp == clock.time()


@pytest.mark.parametrize("given", [{"duration_seconds": -1.0}, {"duration_seconds": float("inf")},
                                   {"duration_seconds": float("nan")}, {"tokens_consumed": -1},
                                   {"tokens_consumed": 1.5}, {"tokens_consumed": float("inf")}])  # fmt: skip
def test_figures_that_no_report_could_add_up_are_refused(given: dict[str, Any]) -> None:
    sm = machine()
    with pytest.raises(ConfigError, match="0 or more"):
        sm.transition(S.PLANNING, **given)
    assert (sm.current_state, sm.history) == (S.INITIALIZED, [])


def test_setting_the_state_is_no_transition() -> None:
    stream = io.StringIO()
    sm = machine(observers=[TransitionLog(stream)])
    sm.current_state = S.JUDGING
    sm.iteration_count = 2
    assert (sm.history, stream.getvalue(), sm.exceeded_max_iterations()) == ([], "", False)
    sm.transition(S.PLANNING)
    sm.transition(S.VALIDATING)
    assert (sm.iteration_count, sm.exceeded_max_iterations()) == (3, True)
    sm.current_state = S.FAILED
    assert sm.transition(S.PLANNING) is False
    sm.current_state = S.PLANNING
    assert sm.transition(S.VALIDATING) is True


# ---- who hears of it ----


class Heard:
    """An observer of the seed's kind; raises where it is told to."""

    def __init__(self, raises: tuple[str, ...] = ()) -> None:
        self.raises = raises
        self.transitions: list[StateTransition] = []
        self.metrics: list[dict[str, Any]] = []

    def on_state_transition(self, transition: StateTransition) -> None:
        self.transitions.append(transition)
        if "transition" in self.raises:
            raise ValueError("transition")

    def on_metrics_update(self, metrics: dict[str, Any]) -> None:
        self.metrics.append(metrics)
        if "metrics" in self.raises:
            raise ValueError("metrics")


class Failing(Heard):
    """Named in the counts."""


def test_observers_hear_of_both_after_the_commit() -> None:
    sm, heard = machine(), Heard()
    assert isinstance(heard, StateMachineObserver)
    sm.add_observer(heard)
    sm.transition(S.PLANNING, reason="go")
    assert heard.transitions == sm.history
    assert heard.metrics == [sm.get_total_metrics()]
    with pytest.raises(InvalidTransitionError):
        sm.transition(S.SUCCEEDED)
    assert len(heard.transitions) == 1


@pytest.mark.parametrize("raises", [("transition",), ("metrics",), ("transition", "metrics")])
def test_an_observer_that_raises_keeps_nobody_from_anything(
    raises: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    registry = CollectorRegistry()
    sm = machine(observers=[Metrics(registry)])
    failing, heard = Failing(raises), Heard()
    sm.add_observer(failing)
    sm.add_observer(heard)
    with caplog.at_level(logging.ERROR):
        assert sm.transition(S.PLANNING)
        assert sm.transition(S.VALIDATING)
    assert len(failing.transitions) == len(failing.metrics) == len(heard.transitions) == 2
    assert sm.observer_errors == {"Failing": 2}
    assert caplog.messages == ["observer Failing raised ValueError"]
    errors = registry.get_sample_value("orchestrator_telemetry_errors_total", {"component": "observer"})
    assert errors == 2


def test_an_observer_cannot_move_the_machine_in_the_middle_of_a_move() -> None:
    sm = machine()

    class Meddling(Heard):
        def on_state_transition(self, transition: StateTransition) -> None:
            sm.transition(S.FAILED)

    sm.add_observer(Meddling())
    assert sm.transition(S.PLANNING)
    assert (sm.current_state, len(sm.history), sm.observer_errors) == (S.PLANNING, 1, {"Meddling": 1})


def test_each_transition_is_one_line_and_moves_the_metrics_of_its_state() -> None:
    stream, registry = io.StringIO(), CollectorRegistry()
    sm = machine(observers=[TransitionLog(stream), Metrics(registry)])
    for state, seconds, tokens in FLOW:
        sm.transition(state, reason="because", duration_seconds=seconds, tokens_consumed=tokens)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    moves = [line for line in lines if line["msg"] == "fsm.transition"]
    assert [line["msg"] for line in lines if line not in moves] == ["run.started", "run.completed"]
    assert [(line["from_state"], line["to_state"], line["state_duration_s"]) for line in moves] == [
        (one.from_state, one.to_state, one.duration_seconds) for one in sm.history
    ]
    assert {line["run_id"] for line in lines} == {sm.run_id}
    assert {line["reason"] for line in moves} == {"because"}
    ended = {"machine": "pipeline", "outcome": "completed", "reason": "none"}
    assert sampled(registry, "orchestrator_runs_completed_total", **ended) == 1


def test_a_refused_transition_is_counted_as_any_other_failed_event() -> None:
    stream, registry = io.StringIO(), CollectorRegistry()
    sm = machine(observers=[TransitionLog(stream), Metrics(registry)])
    for dest in (S.SUCCEEDED, S.INITIALIZED):
        with pytest.raises(InvalidTransitionError):
            sm.transition(dest)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line["msg"], line["reason"], line["fsm_event"]) for line in lines] == [
        ("fsm.transition_failed", "undeclared_edge", "approved"),
        ("fsm.transition_failed", "unknown_event", ""),
    ]
    where = {
        "machine": "pipeline",
        "from_state": "initialized",
        "event": "approved",
        "reason": "undeclared_edge",
    }
    assert sampled(registry, "orchestrator_transition_failures_total", **where) == 1


def test_the_seeds_own_log_line_goes_to_the_hosts_logger(caplog: pytest.LogCaptureFixture) -> None:
    sm = machine(S.PLANNING)
    with caplog.at_level(logging.INFO, logger="orchestrator.pipeline"):
        sm.transition(S.VALIDATING, duration_seconds=1.0, tokens_consumed=3)
    assert caplog.messages == [
        "State transition: planning → validating (iteration 1, duration: 1.00s, tokens: 3, reason: none)"
    ]


def test_an_observer_may_be_made_from_the_protocol() -> None:
    class MetricsLogger(StateMachineObserver):
        """As the seed writes it."""

        def __init__(self) -> None:
            self.seen: list[str] = []

        def on_state_transition(self, transition: StateTransition) -> None:
            self.seen.append(transition.to_state.value)

        def on_metrics_update(self, metrics: dict[str, Any]) -> None:
            self.seen.append(metrics["current_state"])

    sm, observer = machine(), MetricsLogger()
    sm.add_observer(observer)
    sm.transition(S.PLANNING)
    assert (observer.seen, sm.observer_errors) == (["planning", "planning"], {})


def test_without_observers_of_ones_own_it_logs_to_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    sm = OrchestrationStateMachine()
    sm.transition(S.PLANNING)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["msg"], line["run_id"]) for line in lines] == [
        ("run.started", sm.run_id),
        ("fsm.transition", sm.run_id),
    ]


def test_a_machine_that_nobody_moved_is_no_run() -> None:
    registry = CollectorRegistry()
    sm = machine(observers=[Metrics(registry)])
    started = {"machine": "pipeline", "origin": "new"}
    assert sampled(registry, "orchestrator_runs_started_total", **started) == 0
    sm.transition(S.PLANNING)
    assert sampled(registry, "orchestrator_runs_started_total", **started) == 1
    live = {"machine": "pipeline", "state": "planning"}
    assert sampled(registry, "orchestrator_runs_active", **live) == 1
    sm.reset()
    assert sampled(registry, "orchestrator_runs_active", **live) == 0

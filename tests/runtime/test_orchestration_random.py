"""Whatever is done to the facade in whatever order: no illegal state, and every count agrees with the history."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from orchestrator import (
    CheckpointManager,
    InvalidTransitionError,
    OrchestrationState,
    OrchestrationStateMachine,
)
from orchestrator.telemetry import Metrics
from tests.runtime.pipeline_stage import weighted
from tests.tiers import examples, reaching

S = OrchestrationState
TERMINAL = OrchestrationStateMachine.TERMINAL_STATES
TABLE = OrchestrationStateMachine.VALID_TRANSITIONS
EDGES = {(source, dest) for source, dests in TABLE.items() for dest in dests}

WAY = weighted(st.just("on"), st.just("end"), st.just("any"), of=9)
MOVE = st.tuples(
    st.just("move"),
    st.tuples(WAY, st.sampled_from(list(S))),
    st.sampled_from((None, 0.0, 0.25, 3.5)),
    st.integers(0, 5_000),
    st.booleans(),
)
LIMIT = st.tuples(st.just("limit"), st.integers(0, 3))
RESET, SAVE = st.just(("reset",)), st.just(("save",))
COMMANDS = st.lists(weighted(MOVE, LIMIT, SAVE, RESET, SAVE, of=20), min_size=12, max_size=30)


class Watched:
    """Keeps what observers are told."""

    def __init__(self) -> None:
        self.moves: list[tuple[str, str]] = []
        self.totals: dict[str, Any] = {}

    def on_state_transition(self, transition: Any) -> None:
        self.moves.append((transition.from_state, transition.to_state))

    def on_metrics_update(self, metrics: dict[str, Any]) -> None:
        self.totals = metrics


def check(sm: OrchestrationStateMachine) -> None:
    """Everything that can be derived from the history says what the history says."""
    state = S.INITIALIZED
    for one in sm.history:
        assert one.from_state == state
        assert one.to_state in TABLE[state]
        state = one.to_state
    assert sm.current_state == state
    moves = Counter((one.from_state, one.to_state) for one in sm.history)
    assert sm.iteration_count == moves[S.PLANNING, S.VALIDATING]
    assert sm.refinement_count == moves[S.JUDGING, S.IMPLEMENTING]
    totals, states = sm.get_total_metrics(), sm.get_all_state_metrics()
    assert totals["total_transitions"] == len(sm.history) == sum(one.visit_count for one in states.values())
    assert totals["total_tokens"] == sum(one.total_tokens for one in states.values())
    check_report(sm)


def check_report(sm: OrchestrationStateMachine) -> None:
    text, data = sm.format_metrics_report(), json.loads(json.dumps(sm.metrics_json(), allow_nan=False))
    assert re.search(rf"^Final State: {sm.current_state}$", text, re.MULTILINE)
    assert re.search(rf"^Total Transitions: {len(sm.history)}$", text, re.MULTILINE)
    listed = text.partition("--- State Visit Counts ---")[2].partition("\n\n")[0]
    visits = dict(re.findall(r"^  (\w+): (\d+)$", listed, re.MULTILINE))
    assert visits == {state: str(count) for state, count in data["state_visits"].items()}
    slowest = data["bottlenecks"]["slowest_state"]
    assert (f"Slowest State: {slowest['state']}" in text) if slowest else "Bottleneck" not in text
    assert len(data["history"]) == len(sm.history)


def wished(state: S, way: str, wish: S) -> S:
    """Mostly a state that an edge leads to, and seldom an end: any state at all would end nearly every run at once."""
    ways = sorted(dest for dest in TABLE.get(state, ()) if (dest in TERMINAL) == (way == "end"))
    return wish if way == "any" or not ways else ways[list(S).index(wish) % len(ways)]


def moved(sm: OrchestrationStateMachine, command: tuple[Any, ...]) -> bool:
    """Carry out a move; tell whether it was made, having checked that it had to be."""
    _, wish, seconds, tokens, strict = command
    before, count = sm.current_state, len(sm.history)
    dest = wished(before, *wish)
    try:
        done = sm.transition(dest, duration_seconds=seconds, tokens_consumed=tokens, strict=strict)
    except InvalidTransitionError:
        assert strict or (dest not in TABLE.get(before, ()) and before not in TERMINAL)
        done = False
    else:
        assert done is (before not in TERMINAL)
    assert (sm.current_state, len(sm.history)) == ((dest, count + 1) if done else (before, count))
    return done


@pytest.mark.campaign
def test_no_sequence_of_commands_leads_to_an_illegal_state_or_a_wrong_count() -> None:
    reached: Counter[Any] = Counter()
    carried_out(reached)
    assert len(EDGES) == 17
    assert len(EDGES & set(reached)) >= 15, f"never taken: {EDGES - set(reached)}"
    assert reached["saved with a refinement"] >= 3
    assert reached["not made"] >= 3


# Thirty commands are short enough to be read, and to shrink them would take minutes: longer than a test may.
@settings(max_examples=reaching(150, 250), phases=[Phase.explicit, Phase.reuse, Phase.generate])
@given(commands=COMMANDS)
def carried_out(reached: Counter[Any], commands: list[tuple[Any, ...]]) -> None:
    store, watched = CheckpointManager(), Watched()
    sm = OrchestrationStateMachine(observers=())
    sm.add_observer(watched)
    for command in commands:
        match command[0]:
            case "move":
                edge = None
                if moved(sm, command):
                    edge = (sm.history[-1].from_state, sm.history[-1].to_state)
                    assert watched.moves[-1] == edge
                    assert watched.totals == sm.get_total_metrics()
                reached[edge or "not made"] += 1
            case "reset":
                sm.reset()
            case "limit":
                sm.max_iterations = command[1]
            case "save":
                reached["saved with a refinement"] += sm.refinement_count > 0
                store.save_state_machine(sm)
                again = store.load_state_machine(observers=())
                assert again is not None
                assert (again.history, again.metrics_json()) == (sm.history, sm.metrics_json())
                again.add_observer(watched)
                sm = again
        check(sm)


def test_prometheus_shows_the_same_sums_as_the_report() -> None:
    reached: Counter[Any] = Counter()
    counted(reached)
    on = {(source, dest) for source, dest in EDGES if dest not in TERMINAL}
    assert len(on & set(reached)) >= 6, f"never taken: {on - set(reached)}"


@settings(max_examples=examples(40))
@given(commands=st.lists(MOVE, min_size=10, max_size=20))
def counted(reached: Counter[Any], commands: list[tuple[Any, ...]]) -> None:
    registry = CollectorRegistry()
    sm = OrchestrationStateMachine(observers=[Metrics(registry)])
    for command in commands:
        moved(sm, command)
    samples = [
        sample for family in registry.collect() for sample in family.samples
    ]  # one look: it costs most
    for state, metrics in sm.get_all_state_metrics().items():
        where = {"machine": "pipeline", "agent": "_none", "state": state.value}
        names = ("state_duration_seconds_count", "state_duration_seconds_sum", "stage_tokens_total")
        here = {sample.name: sample.value for sample in samples if sample.labels == where}
        found = {name: here.get(f"orchestrator_{name}") for name in names}
        assert found["state_duration_seconds_count"] == metrics.visit_count
        assert abs((found["state_duration_seconds_sum"] or 0.0) - metrics.total_duration_seconds) < 1e-9
        assert found["stage_tokens_total"] == metrics.total_tokens
    counts = Counter((one.from_state, one.to_state) for one in sm.history)
    from_metrics = {
        (sample.labels["from_state"], sample.labels["to_state"]): sample.value
        for sample in samples
        if sample.name == "orchestrator_transitions_total" and sample.value
    }
    assert from_metrics == counts
    reached.update(counts)

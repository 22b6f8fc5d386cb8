from __future__ import annotations

import pytest

from orchestrator.kernel.fact import LLMCall, Transition
from orchestrator.telemetry.history import History
from tests.kernel.toy import E, new_run, rig


def moved(
    seq: int, source: str, dest: str, dwell: float, event: str = "go", *, internal: bool = False
) -> Transition:
    return Transition("toy", "r", seq, event, source, dest, dwell, 0.0, 0, None, internal)


def test_visits_and_dwell_times_are_those_of_each_state() -> None:
    history = History(
        facts=[
            moved(1, "a", "b", 1.0),
            moved(2, "b", "a", 4.0),
            moved(3, "a", "b", 3.0),
            moved(4, "b", "c", 2.0),
        ]
    )
    stats = {
        name: (s.visits, s.left, s.total, s.shortest, s.longest, s.mean) for name, s in history.states.items()
    }
    assert stats == {
        "a": (2, 2, 4.0, 1.0, 3.0, 2.0),
        "b": (2, 2, 6.0, 2.0, 4.0, 3.0),
        "c": (1, 0, 0.0, 0.0, 0.0, 0.0),
    }


def test_the_bottleneck_is_where_most_time_went_and_none_before_there_was_any() -> None:
    history = History()
    assert (history.bottleneck, history.commonest) == (None, None)
    for fact in (moved(1, "a", "b", 1.0), moved(2, "b", "a", 9.0), moved(3, "a", "b", 1.0)):
        history.observe(fact)
    assert history.bottleneck == "b"
    assert history.commonest == ("a", "go", "b")


def test_seed_000s_example_puts_the_time_on_the_state_that_was_left() -> None:
    history = History(
        facts=[moved(1, "planning", "validating", 5.0), moved(2, "validating", "implementing", 15.0)]
    )
    assert history.bottleneck == "validating"


def test_an_internal_edge_is_counted_but_is_no_visit() -> None:
    history = History(facts=[moved(1, "a", "a", 1.0, internal=True), moved(2, "a", "b", 3.0)])
    assert (history.states["a"].visits, history.states["a"].total) == (1, 3.0)
    assert history.edges == {("a", "go", "a"): 1, ("a", "go", "b"): 1}


def test_the_initial_states_of_many_runs_all_count() -> None:
    history = History(facts=[moved(1, "a", "b", 1.0), moved(2, "b", "a", 1.0), moved(1, "a", "b", 1.0)])
    assert history.states["a"].visits == 3


def test_one_that_came_late_counts_the_visit_it_saw_the_end_of() -> None:
    assert History(facts=[moved(7, "b", "c", 1.0)]).states["b"].visits == 1


def test_tokens_go_to_the_state_that_spent_them() -> None:
    call = LLMCall("toy", "r", "work", 1, "m", "ok", 0.1, input_tokens=7, output_tokens=3)
    assert History(facts=[call, call]).states["work"].tokens == 20


def test_it_keeps_the_last_facts_and_the_statistics_of_all() -> None:
    history = History(limit=10, facts=[moved(n, "a", "b", 1.0) for n in range(1, 1001)])
    assert [fact.seq for fact in history.transitions] == list(range(991, 1001))
    assert history.states["b"].visits == 1000
    assert history.edges == {("a", "go", "b"): 1000}


@pytest.mark.parametrize("turns", [0, 3])
async def test_it_agrees_with_a_run(turns: int) -> None:
    a = rig(*[E.AGAIN] * turns)
    history = History()
    driver = type(a.driver)(a.run.machine, observers=(history,))
    run = new_run(a.run.machine, *[E.AGAIN] * turns)
    await driver.drive(run)
    assert sum(history.edges.values()) == run.seq
    assert {name: stats.visits for name, stats in history.states.items()} == {
        "init": 1,
        "work": turns + 1,
        "check": turns + 1,
        "done": 1,
    }

"""What the machine promises, and what it relies on in transitions 0.9.3."""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version

import pytest
import transitions

from orchestrator.errors import InvalidEvent, UnknownEvent
from orchestrator.kernel.graph import Edge
from orchestrator.kernel.hooks import Hooks
from orchestrator.kernel.machine import Machine
from orchestrator.machines.llm_loop.graph import LLM_LOOP
from tests.kernel.toy import TOY, E, S, machine, new_run, nothing


@dataclass(slots=True)
class Model:
    cursor: str = "a"


def table(*rows: tuple[str, str, str | None]) -> transitions.Machine:
    made = transitions.Machine(
        model=None, states=["a", "b"], initial="a", auto_transitions=False, model_attribute="cursor"
    )
    for trigger, source, dest in rows:
        made.add_transition(trigger, source, dest)
    return made


# ---- transitions ----


def test_the_version_is_the_one_these_tests_speak_of() -> None:
    assert version("transitions").startswith("0.9.")


def test_a_trigger_moves_an_object_it_has_never_seen_and_adds_nothing_to_it() -> None:
    made, model = table(("0:go", "a", "b")), Model()
    assert made.events["0:go"].trigger(model) is True
    assert model == Model("b")
    assert made.models == []


def test_an_edge_without_destination_is_internal() -> None:
    made, model = table(("0:stay", "a", None)), Model()
    assert made.events["0:stay"].trigger(model) is True
    assert model.cursor == "a"


def test_a_trigger_from_a_wrong_state_is_a_machine_error_and_moves_nothing() -> None:
    made, model = table(("0:go", "a", "b")), Model("b")
    with pytest.raises(transitions.MachineError):
        made.events["0:go"].trigger(model)
    assert model.cursor == "b"


def test_an_enum_member_is_filed_under_its_name_which_is_why_it_is_given_values() -> None:
    class Odd(StrEnum):
        FIRST = "first one"

    made = transitions.Machine(model=None, states=[Odd.FIRST], initial=Odd.FIRST, auto_transitions=False)
    assert list(made.states) == ["FIRST"]


def test_nothing_is_logged_for_a_transition(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    caplog.set_level(logging.INFO, logger="orchestrator")
    run = new_run(machine())
    run.machine.steps("init", "start")[0].commit(run)
    assert caplog.records == []
    assert logging.getLogger("transitions").getEffectiveLevel() >= logging.WARNING


def test_a_row_that_does_not_begin_where_the_run_is_is_refused_and_moves_nothing() -> None:
    run = new_run(machine())
    (step,) = run.machine.steps("work", "did")
    with pytest.raises(transitions.MachineError, match=r"Can't trigger event .* from state init"):
        step.commit(run)
    assert run.cursor == "init"


def test_a_run_that_is_nowhere_in_the_table_is_refused() -> None:
    run = new_run(machine())
    run.cursor = "elsewhere"
    with pytest.raises(ValueError, match="'elsewhere' is not a registered state"):
        run.machine.steps("init", "start")[0].commit(run)


@pytest.mark.parametrize("row", list(LLM_LOOP.rows), ids=lambda row: f"{row[0]}-{row[1]}")
def test_the_short_trigger_moves_as_the_librarys_own_does(row: tuple[E, E, E, Edge]) -> None:
    source, event, dest, _ = row
    plain = transitions.Machine(
        model=None,
        states=[state.value for state in LLM_LOOP.states],
        initial=LLM_LOOP.initial.value,
        auto_transitions=False,
        model_attribute="cursor",
    )
    plain.add_transition("go", source.value, dest.value)
    compiled = Machine(LLM_LOOP, Hooks({}))
    for state in LLM_LOOP.states:
        theirs, ours = Model(state.value), Model(state.value)
        (step,) = compiled.steps(source.value, event.value)
        outcomes: list[bool | None] = []
        for trigger, model in ((plain.events["go"].trigger, theirs), (step.commit, ours)):
            try:
                outcomes.append(trigger(model))
            except transitions.MachineError:
                outcomes.append(None)
        assert outcomes[0] == outcomes[1]
        assert theirs == ours


# ---- the machine ----


def test_it_finds_the_step_of_a_state_and_event_given_as_members_or_text() -> None:
    made = machine()
    (step,) = made.steps(S.INIT, E.START)
    assert made.steps("init", "start") == (step,)
    assert (step.event, step.source, step.dest, step.internal) == (E.START, S.INIT, S.WORK, False)


def test_a_known_event_without_an_edge_names_what_is_allowed() -> None:
    with pytest.raises(InvalidEvent) as caught:
        machine().steps("init", "finish")
    error = caught.value
    assert (error.graph, error.state, error.event, error.allowed) == (
        "toy",
        "init",
        "finish",
        (E.FAIL, E.START),
    )


def test_an_unknown_event_names_what_is_known() -> None:
    with pytest.raises(UnknownEvent) as caught:
        machine().steps("init", "fly")
    error = caught.value
    assert (error.state, error.event) == ("init", "fly")
    assert error.known == tuple(sorted(event.value for event in E))


def test_events_from_a_state_are_sorted() -> None:
    made = machine()
    assert made.events_from("ask") == (E.ANSWER, E.FAIL, E.LATE, E.NOTE)
    assert made.events_from("lost") == ()


def test_two_runs_share_one_machine() -> None:
    made = machine()
    one, other = new_run(made), new_run(made, run_id="r2")
    made.steps("init", "start")[0].commit(one)
    assert (one.current, other.current) == (S.WORK, S.INIT)


def test_a_graph_without_hooks_compiles() -> None:
    assert Machine(TOY, Hooks({})).enter[S.WORK] == ()


def test_only_edges_into_pure_states_are_folded_and_not_where_a_host_has_a_hook() -> None:
    class Host:
        async def enter_check(self, run: object) -> None: ...

    assert [step.dest for steps in machine()._steps.values() for step in steps if step.folded] == [S.CHECK]
    assert not any(step.folded for steps in machine(extra=[Host()])._steps.values() for step in steps)


def test_a_hosts_hook_before_a_commit_asks_for_what_is_folded_to_be_written_first() -> None:
    class Host:
        async def leave_check(self, run: object) -> None: ...

    made = machine(extra=[Host()])
    firsts = {step.source for steps in made._steps.values() for step in steps if step.settle_first}
    assert firsts == {S.CHECK}


def test_our_hooks_of_a_name_come_before_the_hosts() -> None:
    class Host:
        async def enter_work(self, run: object) -> None: ...

    host = Host()
    names = machine(extra=[host], enter_state=nothing).enter["work"]
    assert [name for name, _ in names] == ["enter_work", "enter_work", "enter_state"]
    assert inspect.unwrap(names[1][1]) == host.enter_work

"""States, events, contexts and limits of the modes: names, values, defaults, and what cannot be changed."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, fields, is_dataclass
from enum import Enum
from typing import Any, get_args

import pytest

import orchestrator
from orchestrator import (
    CodeBlocksFound,
    CodeExecuted,
    CodeModeContext,
    CodeModeEvent,
    CodeModeState,
    ConfigError,
    DepthExceeded,
    FinalAnswerFound,
    LLMResponseReceived,
    MaxIterationsReached,
    Message,
    NoToolCalls,
    PolicyStop,
    ToolCall,
    ToolCallsFound,
    ToolsExecuted,
    ToolsModeContext,
    Usage,
)
from orchestrator.kernel.outcome import REASONS, Ending, Outcome
from orchestrator.machines.rlm.model import CODE_LIMITS, TOOLS_LIMITS, ModeContext, finish_reason, output_of
from orchestrator.rlm import CODE_MODE, TOOLS_MODE, NestedConfig, RlmLimits, ToolsModeEvent, ToolsModeState

CALL = ToolCall("c", "look", "{}")

EVENTS: list[Any] = [
    DepthExceeded(1, 1),
    LLMResponseReceived("hello", (CALL,)),
    CodeBlocksFound(("a",)),
    FinalAnswerFound("42"),
    CodeExecuted(("1",), "next"),
    MaxIterationsReached("x"),
    PolicyStop("enough"),
    ToolCallsFound((CALL,)),
    ToolsExecuted((Message("tool", "1"),), "next", (CALL,)),
    NoToolCalls("42"),
]
KINDS = [type(event) for event in EVENTS]


def name(kind: Any) -> str:
    return str(kind.__name__)


# ---- states ----


def test_code_mode_has_the_states_of_the_seed_in_its_order() -> None:
    assert [state.name for state in CodeModeState] == [
        "INIT",
        "SHALLOW_CALL",
        "PROMPTING",
        "EXECUTING",
        "DONE",
    ]


def test_tools_mode_has_the_states_of_the_seed_in_its_order() -> None:
    assert [state.name for state in ToolsModeState] == ["INIT", "PROMPTING", "EXECUTING_TOOLS", "DONE"]


@pytest.mark.parametrize(("states", "graph"), [(CodeModeState, CODE_MODE), (ToolsModeState, TOOLS_MODE)])
def test_graphs_name_states_and_events_as_the_seed_spells_them(states: type[Enum], graph: Any) -> None:
    assert [state.value for state in graph.states] == [state.name for state in states]
    events = get_args(CodeModeEvent if states is CodeModeState else ToolsModeEvent)
    assert {event.value for event in graph.events} == {name(kind) for kind in events} | {"Failed"}


def test_hooks_of_a_host_have_readable_names() -> None:
    names = {event.name for event in CODE_MODE.events}
    assert {"DEPTH_EXCEEDED", "LLM_RESPONSE_RECEIVED", "CODE_BLOCKS_FOUND", "FAILED"} <= names


@pytest.mark.parametrize("graph", [CODE_MODE, TOOLS_MODE])
def test_each_working_state_may_last_only_so_long(graph: Any) -> None:
    assert {state.value for state in graph.states if graph.dwell_of(state)} == set(graph.states) - {"DONE"}
    assert graph.failure == "Failed"


# ---- events ----


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: name(type(event)))
def test_an_event_is_a_frozen_value_with_slots(event: Any) -> None:
    assert is_dataclass(event)
    for field in fields(event):
        with pytest.raises(FrozenInstanceError):
            setattr(event, field.name, None)
    assert not hasattr(event, "__dict__")
    kind: Any = type(event)
    other = kind(*(getattr(event, field.name) for field in fields(event)))
    assert (other, hash(other)) == (event, hash(event))
    assert pickle.loads(pickle.dumps(event)) == event  # noqa: S301 - ours


@pytest.mark.parametrize(
    ("kind", "member"),
    [
        (CodeBlocksFound, "blocks"),
        (CodeExecuted, "results"),
        (ToolCallsFound, "calls"),
        (ToolsExecuted, "results"),
        (ToolsExecuted, "tool_calls"),
        (LLMResponseReceived, "tool_calls"),
    ],
)
def test_a_list_that_an_event_was_given_is_copied(kind: Any, member: str) -> None:
    given = ["a", "b"]
    event = kind(**{member: given})
    given.append("c")
    assert getattr(event, member) == ("a", "b")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not FinalAnswerFound], ids=name)
def test_every_event_but_an_answer_can_be_made_without_arguments(kind: Any) -> None:
    assert kind() == kind()
    with pytest.raises(TypeError):
        FinalAnswerFound()  # type: ignore[call-arg]


def test_the_unions_name_the_events_of_their_mode() -> None:
    assert set(get_args(CodeModeEvent)) | set(get_args(ToolsModeEvent)) == set(KINDS)
    assert len(get_args(CodeModeEvent)) == 6 + 1, "the seed's six and PolicyStop"
    assert len(get_args(ToolsModeEvent)) == 6


@pytest.mark.parametrize("kind", KINDS, ids=name)
def test_every_event_has_its_public_name(kind: Any) -> None:
    assert getattr(orchestrator, name(kind)) is kind


# ---- contexts ----


def test_the_context_of_code_mode_has_the_defaults_of_the_seed() -> None:
    ctx = CodeModeContext()
    assert (ctx.iteration, ctx.max_iterations, ctx.depth, ctx.max_depth) == (0, 30, 0, 1)
    assert (ctx.message_history, ctx.final_answer, ctx.policy_stop) == ([], None, False)


def test_the_context_of_tools_mode_has_the_defaults_of_the_seed() -> None:
    ctx = ToolsModeContext()
    assert (ctx.max_iterations, ctx.policy_stop, ctx.last_response) == (10, False, None)


def test_the_seeds_own_arguments_make_a_context() -> None:
    ctx = CodeModeContext(prompt="Calculate the factorial of 10", max_iterations=30, depth=0)
    assert ctx.prompt == "Calculate the factorial of 10"


@pytest.mark.parametrize("kind", [CodeModeContext, ToolsModeContext])
def test_no_two_contexts_share_anything_that_changes(kind: type[ModeContext]) -> None:
    one, other = kind(), kind()
    one.say(Message("user", "x"))
    one.shared["a"] = one.kept["a"] = 1
    assert other == kind()


def test_the_history_is_in_openai_form_and_can_be_read_as_messages() -> None:
    ctx = CodeModeContext()
    ctx.say(Message("assistant", "x", (CALL,)))
    assert ctx.message_history[0]["tool_calls"][0]["id"] == "c"
    assert ctx.messages == [Message("assistant", "x", (CALL,))]


# ---- how it ended ----


@pytest.mark.parametrize(
    ("context", "end", "reason", "output"),
    [
        ({"final_answer": "42"}, Ending(Outcome.COMPLETED, "none"), "stop", "42"),
        (
            {"policy_stop": True, "last_response": "so"},
            Ending(Outcome.PARTIAL, "policy_stop"),
            "policy_stop",
            "so",
        ),
        (
            {"policy_stop": True, "max_iterations_reached": True},
            Ending(Outcome.FAILED, "policy_stop"),
            "policy_stop",
            None,
        ),
        (
            {"max_iterations_reached": True},
            Ending(Outcome.BUDGET_EXCEEDED, "max_iterations"),
            "max_iterations",
            None,
        ),
        ({}, Ending(Outcome.CANCELLED, "caller"), "caller", None),
        ({}, Ending(Outcome.FAILED, "llm_error"), "llm_error", None),
    ],
)
def test_the_finish_reason_is_the_first_that_holds(
    context: Any, end: Ending, reason: str, output: str | None
) -> None:
    ctx = CodeModeContext(**context)
    assert finish_reason(ctx, end) == reason
    assert output_of(ctx) == output
    assert end.reason in REASONS[end.outcome]


# ---- limits ----


def test_the_limits_have_the_defaults_of_the_seed() -> None:
    assert (CODE_LIMITS.max_iterations, TOOLS_LIMITS.max_iterations, CODE_LIMITS.max_depth) == (30, 10, 1)
    assert (CODE_LIMITS.code_seconds, CODE_LIMITS.result_chars) == (300.0, 20_000)
    assert RlmLimits(max_iterations=10) == TOOLS_LIMITS


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"max_iterations": -1}, "max_iterations is -1; it must be 0 (off) or more"),
        ({"max_depth": 1.5}, "it must be a whole number"),
        ({"max_cost": "3"}, "it must be a number"),
        ({"max_seconds": float("nan")}, "it must be 0 (off) or more"),
        ({"max_turns": 3}, "unknown limit 'max_turns'"),
    ],
)
def test_a_limit_that_is_none_is_refused_in_a_sentence(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RlmLimits(**given)
    assert words in str(caught.value)


def test_limits_are_given_by_name_and_cannot_be_changed() -> None:
    with pytest.raises(ConfigError, match="give limits by name"):
        RlmLimits(3)  # type: ignore[call-arg]
    with pytest.raises(FrozenInstanceError):
        CODE_LIMITS.max_depth = 3  # type: ignore[misc]
    assert Usage() + Usage(1, 2) == Usage(1, 2)
    assert NestedConfig() == NestedConfig("code", (), 10, None)

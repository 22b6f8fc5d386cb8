"""The policies: what each is told, the simple ones that come with the library, and all of them in the LLM loop."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import (
    Agent,
    CodeModeContext,
    CodeModeState,
    ConfigError,
    Message,
    Outcome,
    Response,
    ToolCall,
    tool,
)
from orchestrator.machines.rlm.policy import estimate
from orchestrator.providers.scripted import call
from orchestrator.rlm import (
    CodeModeSource,
    KeepEnds,
    NestedConfig,
    NeverStop,
    NoCompression,
    NoNesting,
    PolicyHooks,
    Rlm,
    RlmLimits,
    SimpleNestedCallPolicy,
    StopAfter,
)
from orchestrator.testing import ScriptedLLM

KEYS = {"iteration", "max_iterations", "agent_mode", "depth", "history", "last_result"}


@tool(effect="pure")
def add(one: int, other: int) -> int:
    """Add two numbers."""
    return one + other


class Notes:
    """A policy that writes down what it was told, and stops when it says so."""

    def __init__(self, stop_at: int = 0) -> None:
        self.told: list[dict[str, Any]] = []
        self.mappings: set[int] = set()
        self.turns: list[tuple[int, Any]] = []
        self._stop_at = stop_at

    async def should_stop(self, context: MutableMapping[str, Any], /) -> bool:
        self.told.append(dict(context))
        self.mappings.add(id(context))
        return bool(self._stop_at) and context["iteration"] >= self._stop_at

    async def on_iteration_complete(self, context: MutableMapping[str, Any], /) -> None:
        self.turns.append((context["iteration"], context["last_result"]))
        context["mine"] = context.get("mine", 0) + 1


def adding(turns: int) -> list[Any]:
    return [*[call("add", one=number, other=0) for number in range(turns)], "done"]


# ---- what policies are told ----


async def test_in_tools_mode_a_policy_is_told_all_that_it_was_promised_in_one_mapping() -> None:
    notes = Notes()
    llm = ScriptedLLM(adding(2))
    await Rlm(llm, mode="tools", tools=[add], stopping=notes, observers=()).run("p")
    assert all(set(told) >= KEYS for told in notes.told)
    assert len(notes.mappings) == 1
    assert {told["agent_mode"] for told in notes.told} == {"tools"}
    assert notes.turns == [(1, "0"), (2, "1")]
    assert notes.told[-1]["mine"] == 2
    assert (notes.told[0]["max_iterations"], notes.told[0]["depth"], notes.told[0]["last_result"]) == (
        10,
        0,
        None,
    )
    assert [len(told["history"]) for told in notes.told] == sorted(
        len(told["history"]) for told in notes.told
    )


async def test_in_code_mode_too() -> None:
    notes = Notes()
    llm = ScriptedLLM(["```repl\nprint(7)\n```", "FINAL(7)"])
    await Rlm(llm, stopping=notes, observers=()).run("p")
    assert {told["agent_mode"] for told in notes.told} == {"code"}
    assert notes.turns == [(1, "7")]


@pytest.mark.parametrize("mode", ["code", "tools"])
async def test_at_the_limit_of_turns_the_policy_comes_first_and_no_answer_is_asked_for(mode: Any) -> None:
    """L6: the limit would ask the model once more."""
    said = "```repl\nprint(7)\n```" if mode == "code" else call("add", one=3, other=4)
    llm, notes = ScriptedLLM([said, "not asked"]), Notes(stop_at=1)
    tools = [add] if mode == "tools" else []
    one = Rlm(llm, mode=mode, tools=tools, stopping=notes, limits=RlmLimits(max_iterations=1), observers=())
    done = await one.run("p")
    assert (done.reason, done.finish_reason, len(llm.requests)) == ("policy_stop", "policy_stop", 1)
    assert notes.turns == [(1, "7")]


async def test_in_the_llm_loop_too() -> None:
    notes = Notes()
    agent = Agent(ScriptedLLM(adding(3)), tools=[add], hooks=[PolicyHooks(stopping=notes)], observers=())
    result = await agent.run("p")
    assert result.outcome is Outcome.COMPLETED
    assert {told["agent_mode"] for told in notes.told} == {"llm_loop"}
    assert all(set(told) >= KEYS for told in notes.told)
    assert (len(notes.mappings), notes.turns) == (1, [(1, "0"), (2, "1"), (3, "2")])
    assert notes.told[-1]["mine"] == 3


# ---- stopping ----


async def test_a_policy_ends_a_run_of_the_llm_loop() -> None:
    hooks = [PolicyHooks(stopping=Notes(stop_at=2))]
    agent = Agent(ScriptedLLM(adding(5)), tools=[add], hooks=hooks, observers=())
    result = await agent.run("p")
    assert (result.outcome, result.reason) == (Outcome.FAILED, "policy_stop")
    assert result.verdict is not None
    assert result.verdict.guard == "stopping_policy"
    assert [message.text for message in result.messages if message.role == "tool"] == ["0", "1"]


async def test_each_run_of_an_agent_has_a_mapping_of_its_own() -> None:
    notes = Notes()
    agent = Agent(
        ScriptedLLM([*adding(1), *adding(1)]), tools=[add], hooks=[PolicyHooks(stopping=notes)], observers=()
    )
    await agent.run("p")
    await agent.run("q")
    assert [told["mine"] for told in notes.told] == [1, 1]


@pytest.mark.parametrize(
    ("policy", "results", "stops"),
    [
        (NeverStop(), ["a", "a", "a", "a"], None),
        (StopAfter(), ["a", "a", "a", "a"], None),
        (StopAfter(iterations=2), ["a", "b", "c", "d"], 2),
        (StopAfter(repeats=3), ["a", "a", "b", "b", "b"], 5),
        (StopAfter(iterations=9, repeats=2), ["a", "a"], 2),
    ],
)
def test_the_policies_that_come_with_the_library(policy: Any, results: list[str], stops: int | None) -> None:
    context: dict[str, Any] = {}
    stopped = None
    for number, result in enumerate(results, 1):
        context.update(iteration=number, last_result=result)
        policy.on_iteration_complete(context)
        if policy.should_stop(context):
            stopped = number
            break
    assert stopped == stops


async def test_an_error_of_a_policy_fails_the_run() -> None:
    class Broken(NeverStop):
        def should_stop(self, _context: Any, /) -> bool:
            raise LookupError("policy")

    done = await Rlm(ScriptedLLM(["FINAL(1)"]), stopping=Broken(), observers=()).run("p")
    assert (done.outcome, done.reason) == (Outcome.FAILED, "callback_error")
    assert isinstance(done.error, LookupError)


# ---- compressing ----


def talk(turns: int, size: int = 400) -> list[Message]:
    said = [Message("system", "s"), Message("user", "question")]
    for number in range(turns):
        said += [Message("assistant", f"a{number}"), Message("user", f"{number}" * size)]
    return said


def test_no_compression_returns_the_very_same_messages() -> None:
    said = talk(9)
    assert NoCompression().compress(said, limit=1) is said


def test_short_and_few_messages_are_left_alone() -> None:
    assert KeepEnds().compress(short := talk(9, 1), limit=1_000) is short
    assert KeepEnds().compress(few := talk(2, 4_000), limit=10) is few


def test_the_opening_and_the_last_messages_are_kept_and_the_gap_is_told() -> None:
    kept = KeepEnds(last=4).compress(talk(9), limit=500)
    assert [one.role for one in kept] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert kept[1].text == "question\n\n[14 earlier messages were left out here to save room.]"
    assert kept[2].text == "a7"
    again = KeepEnds(last=2, least=4).compress(kept, limit=100)
    assert again[1].text == "question\n\n[16 earlier messages were left out here to save room.]"


roles = st.lists(st.sampled_from(["assistant", "user", "tool"]), max_size=25)


@given(roles, st.integers(1, 8), st.integers(2, 8))
def test_what_is_kept_is_the_beginning_and_an_end_that_begins_with_a_turn(
    said: list[Any], last: int, least: int
) -> None:
    calls = (ToolCall("c", "t", "{}"),)
    messages = [Message("system", "s"), Message("user", "q")]
    messages += [Message(role, "x" * 40, calls if role == "assistant" else ()) for role in said]
    kept = KeepEnds(last=last, least=least).compress(messages, limit=10)
    assert kept[0].text == "s"
    assert len(kept) <= len(messages)
    opening = next((at for at, one in enumerate(messages) if one.role == "assistant"), len(messages))
    if len(kept) < len(messages):
        assert all(one in messages for one in kept[opening:])
        assert len(kept) - opening <= last
        assert len(kept) == opening or kept[opening].role == "assistant"


def test_tokens_are_estimated_by_four_characters_each() -> None:
    assert estimate([]) == 0
    assert estimate([Message("user", "x" * 401)]) == 101
    assert estimate([Message("assistant", None, (ToolCall("c", "t", "y" * 40),))]) == 10


async def test_a_compressor_of_ones_own_may_be_async_and_works_in_the_llm_loop() -> None:
    limits: list[int] = []

    class Summary:
        async def compress(self, messages: Sequence[Message], /, *, limit: int) -> Sequence[Message]:
            limits.append(limit)
            return [messages[0], *messages[-2:]]

    llm = ScriptedLLM(adding(4))
    hooks = [PolicyHooks(compressor=Summary(), history_tokens=5)]
    result = await Agent(llm, tools=[add], hooks=hooks, observers=()).run("a question that is long enough")
    assert max(len(request.messages) for request in llm.requests) == 3
    assert len(result.messages) == 10, "the history stays whole"
    assert set(limits) == {5}


async def test_a_compressor_is_not_asked_without_a_limit_or_below_it() -> None:
    class Never:
        def compress(self, messages: Sequence[Message], /, *, limit: int) -> Sequence[Message]:
            raise AssertionError(f"asked with {limit} and {len(messages)}")

    for tokens in (0, 10_000):
        llm = ScriptedLLM(["FINAL(1)"])
        limits = RlmLimits(history_tokens=tokens)
        assert (await Rlm(llm, compressor=Never(), limits=limits, observers=()).run("p")).output == "1"


# ---- nesting ----


@pytest.mark.parametrize(
    ("chars", "depth", "expected"), [(9, 1, False), (10, 1, True), (10, 2, True), (10, 3, False)]
)
def test_the_simple_policy_goes_by_length_and_depth(chars: int, depth: int, expected: bool) -> None:
    policy = SimpleNestedCallPolicy(10, 3, NestedConfig("tools", max_iterations=2))
    assert policy.should_orchestrate("x" * chars, depth) is expected
    assert policy.get_nested_config().agent_mode == "tools"
    assert NoNesting().should_orchestrate("x" * 10**6, 0) is False
    assert NoNesting().get_nested_config() == NestedConfig("code", (), 10, None)


async def test_without_nesting_every_question_is_asked_once() -> None:
    llm = ScriptedLLM(["```repl\nprint(llm_query('q'))\n```", "plain", "FINAL(1)"])
    done = await Rlm(llm, nested=NoNesting(), limits=RlmLimits(max_depth=5), observers=()).run("p")
    assert [len(request.messages) for request in llm.requests] == [2, 1, 4]
    assert done.sub_calls == 1


async def test_an_answer_in_place_of_an_agent_that_was_cut_is_told_as_incomplete() -> None:
    llm = ScriptedLLM([call("helper", task="short"), Response("half", finish_reason="length"), "done"])
    helper = Agent(ScriptedLLM([]), observers=()).as_tool("helper", "Helps.")
    hooks = [PolicyHooks(nested=SimpleNestedCallPolicy(10), agents=["helper"])]
    result = await Agent(llm, tools=[helper], hooks=hooks, observers=()).run("p")
    told = next(message for message in result.messages if message.role == "tool")
    assert told.is_error
    assert "the answer is incomplete (truncated); it said: half" in told.text


@pytest.mark.parametrize(("task", "requests"), [("short", 3), ("a task that is long", 4)])
async def test_in_the_llm_loop_a_policy_decides_which_calls_of_agents_are_runs(
    task: str, requests: int
) -> None:
    llm = ScriptedLLM([call("helper", task=task), "one", *(["two"] if requests == 4 else []), "done"])
    inner = ScriptedLLM(["from the agent"])
    helper = Agent(inner, observers=()).as_tool("helper", "Helps.")
    hooks = [PolicyHooks(nested=SimpleNestedCallPolicy(10), agents=["helper"])]
    result = await Agent(llm, tools=[helper], hooks=hooks, observers=()).run("p")
    told = next(message.text for message in result.messages if message.role == "tool")
    if requests == 3:
        assert (told, result.output, inner.requests) == ("one", "done", [])
        assert result.usage.output_tokens == 3
    else:
        assert (told, result.output, len(inner.requests)) == ("from the agent", "one", 1)


@pytest.mark.parametrize(
    "options",
    [
        {"compressor": KeepEnds()},
        {"history_tokens": 5},
        {"nested": NoNesting()},
        {"agents": ["helper"]},
    ],
)
def test_halves_of_a_policy_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be given together"):
        PolicyHooks(**options)


async def test_a_source_without_policies_asks_none() -> None:
    ctx = CodeModeContext(last_response="FINAL(1)")
    source = CodeModeSource(ScriptedLLM([]), None)  # type: ignore[arg-type]
    event = await source(CodeModeState.PROMPTING, ctx)
    assert event is not None
    assert ctx.shared == {}


def test_a_mode_that_there_is_not_is_refused_where_it_is_said() -> None:
    with pytest.raises(ConfigError, match="agent_mode is 'shell'; allowed: code, tools"):
        NestedConfig("shell")  # type: ignore[arg-type]

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.llm.message import Message, Request, Response, ToolCall, Usage
from orchestrator.providers.replay import (
    OPEN_END,
    REPRODUCED,
    ProviderRecord,
    RecordingEnds,
    ReplayDiverged,
    ReplayLLM,
    ReplayTools,
    RunScript,
    compare,
    expectation,
    irregularities,
    load,
    record_from,
    split_runs,
)
from orchestrator.tools.result import ToolResult

SELECTION = {one.id: one for one in load(Path(__file__).parent.parent / "data/trajectories/selection.jsonl")}
RAW = {
    one["id"]: one
    for line in (Path(__file__).parent.parent / "data/trajectories/selection.jsonl").read_text().splitlines()
    for one in [json.loads(line)]
}
SYSTEM, USER, ANSWER = Message("system", "be brief"), Message("user", "do"), Message("assistant", "done")


class Waits:
    """A clock whose waits take no time and are listed."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def time(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(0, callback)


def calls(*made: ToolCall) -> Message:
    return Message("assistant", None, made)


def look(id_: str, arguments: str = "{}") -> ToolCall:
    return ToolCall(id_, "look", arguments)


def result(id_: str, content: str = "seen", *, failed: bool = False) -> Message:
    return Message("tool", content, tool_call_id=id_, is_error=failed)


def made(*messages: Message) -> ProviderRecord:
    return ProviderRecord("made", messages)


def flagged(flag: str) -> list[ProviderRecord]:
    return [SELECTION[name] for name, raw in RAW.items() if flag in raw["flags"]]


async def replayed(script: RunScript) -> list[Message]:
    """What a bare loop adds to the conversation, up to the answer or the end of the recording."""
    llm, tools = ReplayLLM(script), ReplayTools(script)
    messages = [*script.history, *script.prompt]
    try:
        while messages[-1].role != "assistant" or messages[-1].tool_calls or len(messages) == script.answer:
            reply = (await llm.complete(Request(messages))).message()
            messages.append(reply)
            if reply.tool_calls:
                messages += [one.message() for one in await tools.execute_all(reply.tool_calls)]
    except RecordingEnds as end:
        messages += [one.message() for one in end.results]
    return messages[script.answer :]


async def reproduces(record: ProviderRecord) -> list[Message]:
    """Hold that every run of a conversation comes out as recorded; give all that was added."""
    added: list[Message] = []
    for script in split_runs(record):
        ours = await replayed(script)
        assert compare(script.expected, ours) == []
        added += ours
    return added


# ---- the model ----


async def test_the_model_answers_with_the_recorded_reply_and_all_that_was_recorded_of_it() -> None:
    raw = {
        "model": "mini",
        "messages": [
            USER.to_openai(),
            {
                "role": "assistant",
                "content": "hm",
                "tool_calls": [look("1", "{ }").to_openai()],
                "reasoning_content": "because",
                "refusal": "no",
            },
        ],
        "turns": [
            {"message": 1, "finish_reason": "stop", "usage": {"prompt_tokens": 5, "completion_tokens": 2}}
        ],
    }
    reply = await ReplayLLM(record_from(raw)).complete(Request([USER]))
    assert reply == Response("hm", (look("1", "{ }"),), "stop", Usage(5, 2), "mini", "no", "because")


async def test_the_same_question_gets_the_same_answer_twice() -> None:
    llm = ReplayLLM(made(USER, ANSWER, USER, Message("assistant", "again")))
    assert [(await llm.complete(Request([USER]))).content for _ in range(2)] == ["done", "done"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ([Message("user", "does")], "message 0: content differs, recorded 'do', ours 'does'"),
        (
            [USER, calls(look("2")), result("1")],
            "message 1: tool_calls[0].id differs, recorded '1', ours '2'",
        ),
        (
            [USER, calls(look("1")), result("1", "blind")],
            "message 2: content differs, recorded 'seen', ours 'blind'",
        ),
        ([USER, calls(look("1"))], "message 2: message differs, recorded a message of tool, ours nothing"),
        ([], "message 0: message differs, recorded a message of user, ours nothing"),
        (
            [USER, calls(look("1")), result("1"), ANSWER, USER],
            "message 4: message differs, recorded nothing, ours a message of user",
        ),
    ],
)
async def test_a_question_that_was_not_asked_then_is_refused_with_the_first_difference(
    asked: list[Message], said: str
) -> None:
    (script,) = split_runs(made(USER, calls(look("1")), result("1"), ANSWER))
    with pytest.raises(ReplayDiverged) as caught:
        await ReplayLLM(script).complete(Request(asked))
    assert str(caught.value) == f"the run differs from recording 'made': {said}"
    assert str(caught.value.difference) == said


async def test_a_run_must_bring_its_history() -> None:
    _, second = split_runs(made(USER, ANSWER, USER, ANSWER))
    with pytest.raises(ReplayDiverged, match="message 1: message differs, recorded a message of assistant"):
        await ReplayLLM(second).complete(Request([USER]))


async def test_without_strictness_replies_come_in_order_whatever_is_asked() -> None:
    llm = ReplayLLM(made(USER, calls(look("1")), result("1"), ANSWER), strict=False)
    replies = [await llm.complete(Request([Message("user", "other")])) for _ in range(2)]
    assert [reply.message() for reply in replies] == [calls(look("1")), ANSWER]
    with pytest.raises(RecordingEnds):
        await llm.complete(Request([]))


@pytest.mark.parametrize("strict", [True, False])
async def test_a_model_whose_answer_was_not_recorded_says_so(strict: bool) -> None:
    (script,) = split_runs(made(SYSTEM, USER))
    with pytest.raises(
        RecordingEnds, match="'made' ends before message 2: the model's answer is not recorded"
    ):
        await ReplayLLM(script, strict=strict).complete(Request([SYSTEM, USER]))


async def test_a_run_ends_where_the_user_speaks_again() -> None:
    record = made(USER, calls(look("1")), result("1"), USER, ANSWER)
    asked = Request(record.messages[:3])
    for source in (record, split_runs(record)[0]):
        with pytest.raises(RecordingEnds, match="before message 3"):
            await ReplayLLM(source).complete(asked)


async def test_waiting_as_long_as_it_took_is_a_matter_of_speed() -> None:
    raw = {
        "messages": [USER.to_openai(), calls(look("1")).to_openai(), result("1").to_openai()],
        "turns": [{"message": 1, "latency_s": 2}],
        "tool_seconds": {"1": 0.5},
    }
    for speed, slept in ((0.0, []), (1.0, [2.0, 0.5]), (0.5, [1.0, 0.25])):
        clock = Waits()
        await ReplayLLM(record_from(raw), speed=speed, clock=clock).complete(Request([USER]))
        (found,) = await ReplayTools(record_from(raw), speed=speed, clock=clock).execute_all([look("1")])
        assert (clock.slept, found.seconds) == (slept, 0.5)


def test_a_negative_speed_is_refused() -> None:
    with pytest.raises(ConfigError, match="speed is a factor"):
        ReplayLLM(made(USER), speed=-1)


def test_replays_are_doubles_and_are_called_as_the_recorded_model() -> None:
    assert (
        ReplayLLM.double,
        ReplayLLM(made(USER)).model,
        ReplayLLM(ProviderRecord("x", (USER,), model="m")).model,
    ) == (
        True,
        "recorded",
        "m",
    )


# ---- the tools ----


async def test_results_come_by_turn_and_position_even_if_all_ids_are_equal() -> None:
    record = made(
        USER,
        calls(look(""), look("")),
        result("", "a"),
        result("", "b"),
        calls(look(""), look("")),
        result("", "c"),
        result("", "d", failed=True),
        ANSWER,
    )
    tools = ReplayTools(record)
    found = [await tools.execute_all([look(""), look("")]) for _ in range(2)]
    assert [[(one.position, one.content, one.outcome) for one in turn] for turn in found] == [
        [(0, "a", "ok"), (1, "b", "ok")],
        [(0, "c", "ok"), (1, "d", "error")],
    ]


async def test_calls_that_were_not_made_then_are_refused() -> None:
    tools = ReplayTools(made(USER, calls(look("1")), result("1"), ANSWER))
    with pytest.raises(
        ReplayDiverged, match=r"message 1: tool_calls\[0\].arguments differs, recorded '{}', ours"
    ):
        await tools.execute_all([look("1", '{"more": 1}')])
    await tools.execute_all([look("1")])
    with pytest.raises(RecordingEnds):
        await tools.execute_all([look("1")])


async def test_a_resumed_run_finds_its_place_by_its_calls() -> None:
    record = made(USER, calls(look("1")), result("1"), calls(look("2")), result("2", "later"), ANSWER)
    (found,) = await ReplayTools(record).execute_all([look("2")])
    assert found.content == "later"


async def test_an_open_end_gives_what_is_there_and_names_what_is_not() -> None:
    tools = ReplayTools(made(USER, calls(look("1"), look("2")), result("1", "only")))
    with pytest.raises(RecordingEnds, match="before message 3: the result of look is not recorded") as caught:
        await tools.execute_all([look("1"), look("2")])
    assert [one.content for one in caught.value.results] == ["only"]


async def test_what_is_known_at_an_open_end_is_left_in_done() -> None:
    tools = ReplayTools(made(USER, calls(look("1"), look("2")), result("1", "only")))
    done: list[ToolResult | None] = [None, None]
    with pytest.raises(RecordingEnds):
        await tools.execute_all([look("1"), look("2")], done=done)
    assert [one and one.content for one in done] == ["only", None]


async def test_middleware_sees_replayed_calls_as_it_sees_real_ones() -> None:
    seen: list[str] = []

    async def before(call: ToolCall) -> None:
        seen.append(f"before {call.id}")

    async def after(found: ToolResult) -> ToolResult:
        seen.append(f"after {found.call.id}")
        return dataclasses.replace(found, content=found.content.upper())

    tools = ReplayTools(made(USER, calls(look("1"), look("2")), result("1"), result("2"), ANSWER))
    found = await tools.execute_all([look("1"), look("2")], before=before, after=after, max_concurrent=1)
    assert [one.content for one in found] == ["SEEN", "SEEN"]
    assert seen == ["before 1", "after 1", "before 2", "after 2"]


def test_recorded_tools_are_offered_and_every_called_name_is_known() -> None:
    record = SELECTION["pydantic-ai-test-tool-search-eval-anthropic"]
    tools = ReplayTools(record)
    assert [spec.name for spec in tools.offers] == ["get_weather", "search_tools"]
    assert [spec.effect for spec in tools.offers] == ["pure", "pure"]
    undeclared = ReplayTools(made(USER, calls(ToolCall("1", "ghost")), result("1"), ANSWER))
    assert undeclared.offers == ()
    assert undeclared.find("ghost") is not None
    assert undeclared.find("nobody") is None


async def test_the_offer_follows_the_turns() -> None:
    record = SELECTION["pydantic-ai-test-tool-search-eval-anthropic"]
    tools = ReplayTools(record)
    await tools.execute_all(record.messages[1].tool_calls)
    assert [spec.name for spec in tools.offers] == ["get_weather", "stock_lookup", "search_tools"]


# ---- each oddity of the collection's README: real where it occurs, made where it does not ----


def real(flag: str) -> Iterator[ProviderRecord]:
    found = [record for record in flagged(flag) if not irregularities(record.messages)]
    assert found, f"the selection has no regular conversation with {flag}"
    yield from found


@pytest.mark.parametrize(
    "flag",
    [
        "no-closing-answer",
        "parallel-calls",
        "text-with-calls",
        "empty-assistant-message",
        "tool-error",
        "unanswered-calls",
        "reasoning",
        "empty-tool-result",
        "wide-unicode",
        "duplicate-call-ids",
        "same-call-3x",
        "arguments-break-schema",
        "finish-length",
        "consecutive-user",
    ],
)
async def test_a_conversation_with_this_oddity_comes_out_as_recorded(flag: str) -> None:
    for record in real(flag):
        await reproduces(record)


@pytest.mark.parametrize(
    ("flag", "name"),
    [
        ("user-right-after-tool", "message_right_after_result"),
        ("system-mid-conversation", "message_right_after_result"),
        ("consecutive-assistant", "answer_not_followed_by_user"),
    ],
)
def test_an_order_of_roles_that_no_loop_makes_is_named(flag: str, name: str) -> None:
    found = [irregularities(record.messages) for record in flagged(flag)]
    assert found
    assert all(name in names for names in found)


async def test_every_flag_that_occurs_in_the_collection_occurs_in_the_selection() -> None:
    known = {flag for raw in RAW.values() for flag in raw["flags"]}
    assert len(known) == 18
    assert {raw["kind"] for raw in RAW.values()} == {
        "recorded",
        "converted",
        "text-protocol",
        "gold-executed",
    }


async def test_ids_that_repeat_get_the_result_of_their_own_turn() -> None:
    (record,) = flagged("duplicate-call-ids")
    ids = [call.id for message in record.messages for call in message.tool_calls]
    assert len(set(ids)) < len(ids)
    await reproduces(record)


@pytest.mark.parametrize(
    "text", ["", "null", "[1, 2]", '"text"', '{"cut": "of', "{}{}", "{'single': 1}", "{ \n}"]
)
async def test_arguments_of_any_text_are_kept_as_received(text: str) -> None:
    record = made(USER, calls(look("1", text)), result("1"), ANSWER)
    added = await reproduces(record)
    assert added[0].tool_calls[0].arguments == text


@pytest.mark.parametrize("name", ["functions.look:0", "look at this", "", "größe", "x" * 200])
async def test_names_no_provider_would_take_are_kept(name: str) -> None:
    await reproduces(made(USER, calls(ToolCall("1", name, "{}")), result("1"), ANSWER))


async def test_calls_nobody_answered_end_the_recording() -> None:
    for record in real("unanswered-calls"):
        script = split_runs(record)[-1]
        assert (script.complete, expectation(record)) == (False, OPEN_END)
        assert (await replayed(script))[-1].tool_calls


async def test_a_call_answered_twice_is_irregular_and_keeps_its_first_result() -> None:
    record = made(
        USER, calls(look("1"), look("2")), result("1", "a"), result("1", "b"), result("2", "c"), ANSWER
    )
    assert irregularities(record.messages) == ("results_out_of_order",)
    found = await ReplayTools(record).execute_all([look("1"), look("2")])
    assert [one.content for one in found] == ["a", "c"]


async def test_results_out_of_order_are_given_to_their_calls() -> None:
    record = made(USER, calls(look("1"), look("2")), result("2", "b"), result("1", "a"), ANSWER)
    found = await ReplayTools(record).execute_all([look("1"), look("2")])
    assert [one.content for one in found] == ["a", "b"]


@pytest.mark.parametrize("content", ["", None])
async def test_an_empty_answer_is_an_answer(content: str | None) -> None:
    record = made(USER, Message("assistant", content), USER, ANSWER)
    assert expectation(record) == REPRODUCED
    assert [script.complete for script in split_runs(record)] == [True, True]
    await reproduces(record)


@pytest.mark.parametrize(
    "content",
    ["", "x" * 200_000, "\x1b[31mred\x1b[0m", "日本 🙂 e\u0301", "a\r\nb\x00"],
    ids=["empty", "long", "ansi", "wide", "control"],
)
async def test_results_of_any_text_are_kept_whole(content: str) -> None:
    record = made(USER, calls(look("1")), result("1", content), ANSWER)
    await reproduces(record)
    (found,) = await ReplayTools(record).execute_all([look("1")])
    assert (found.content, found.cut) == (content, False)


async def test_a_result_marked_as_failed_stays_so() -> None:
    added = [message for record in real("tool-error") for message in await reproduces(record)]
    assert any(message.is_error for message in added)


async def test_reasoning_stays_with_its_message() -> None:
    added = [message for record in real("reasoning") for message in await reproduces(record)]
    assert any(message.reasoning for message in added)


async def test_conversations_recorded_with_function_calls_have_tool_calls() -> None:
    found = [SELECTION[name] for name, raw in RAW.items() if "legacy" in raw["api"]]
    assert found
    for record in found:
        assert all(call.id for message in record.messages for call in message.tool_calls)
        if not irregularities(record.messages):
            await reproduces(record)


@pytest.mark.parametrize(
    ("reason", "with_calls"), [("length", False), ("stop", True), ("", True), (None, False)]
)
async def test_the_finish_reason_is_the_recorded_one_whatever_the_message_is(
    reason: Any, with_calls: bool
) -> None:
    reply = calls(look("1")) if with_calls else ANSWER
    raw = {
        "messages": [USER.to_openai(), reply.to_openai()],
        "turns": [{"message": 1, "finish_reason": reason}],
    }
    assert (await ReplayLLM(record_from(raw)).complete(Request([USER]))).finish_reason == reason


async def test_a_reply_cut_at_its_length_is_recorded_so() -> None:
    (record,) = flagged("finish-length")
    assert "length" in {turn.finish_reason for turn in record.turns.values()}


async def test_a_conversation_without_any_prompt_has_nothing_to_run() -> None:
    record = SELECTION["openllmetry-test-chat-tool-calls-with-events-with-no-content"]
    assert (split_runs(record), irregularities(record.messages)) == ([], ("starts_with_assistant",))

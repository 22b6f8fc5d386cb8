from __future__ import annotations

import operator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.llm.message import Message, Request, Response, ToolCall, Transcript, Usage

TEXT = st.text(max_size=20)
CALLS = st.builds(ToolCall, TEXT, TEXT, TEXT)
MESSAGES = st.builds(
    Message,
    st.sampled_from(["system", "developer", "user", "assistant", "tool"]),
    st.none()
    | TEXT
    | st.just([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}]),
    st.lists(CALLS, max_size=3).map(tuple),
    st.none() | TEXT,
    st.none() | TEXT,
    st.none() | TEXT,
    st.none() | TEXT,
    st.booleans(),
)


@given(MESSAGES)
def test_a_message_survives_the_way_to_openai_form_and_back(message: Message) -> None:
    assert Message.from_openai(message.to_openai()) == message


@given(MESSAGES)
def test_strict_form_has_only_members_that_openai_knows(message: Message) -> None:
    known = {"role", "content", "tool_calls", "tool_call_id", "name", "refusal"}

    assert set(message.to_openai(strict=True)) <= known


@pytest.mark.parametrize(
    ("raw", "call"),
    [
        ({}, ToolCall("", "", "")),
        ({"id": None, "function": None}, ToolCall("", "", "")),
        ({"id": "a", "function": {"name": "f", "arguments": None}}, ToolCall("a", "f", "")),
        ({"id": "a", "function": {"name": "f", "arguments": '{"x": 1'}}, ToolCall("a", "f", '{"x": 1')),
    ],
)
def test_a_call_is_read_as_it_was_sent_even_if_half_of_it_is_missing(
    raw: dict[str, Any], call: ToolCall
) -> None:
    assert ToolCall.from_openai(raw) == call


def test_an_unknown_role_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        ValueError, match="unknown role 'robot'; known: assistant, developer, system, tool, user"
    ):
        Message.from_openai({"role": "robot"})


def test_text_is_what_can_be_read_of_the_content() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "image_url"}, {"type": "text", "text": "two"}]

    assert Message("user", "plain").text == "plain"
    assert Message("user", parts).text == "one\ntwo"
    assert Message("assistant").text == ""


def test_a_response_becomes_the_assistants_message() -> None:
    call = ToolCall("1", "f")
    response = Response("text", (call,), refusal="no", reasoning="because")

    assert response.message() == Message("assistant", "text", (call,), refusal="no", reasoning="because")


def test_a_transcript_does_not_see_what_is_appended_later() -> None:
    items = [Message("user", "one")]
    seen = Transcript(items, (Message("user", "notice"),))
    items.append(Message("assistant", "two"))

    assert [message.text for message in seen] == ["one", "notice"]
    assert len(seen) == 2
    assert seen == [Message("user", "one"), Message("user", "notice")]
    assert repr(seen) == "Transcript(2 messages)"


@given(st.lists(TEXT, max_size=5), st.lists(TEXT, max_size=3), st.integers(-10, 10), st.integers(-10, 10))
def test_a_transcript_is_indexed_like_a_list(said: list[str], tail: list[str], first: int, last: int) -> None:
    messages, notices = (
        [Message("user", text) for text in said],
        tuple(Message("user", text) for text in tail),
    )
    seen, plain = Transcript(messages, notices), [*messages, *notices]

    assert seen[first:last] == tuple(plain[first:last])
    if -len(plain) <= first < len(plain):
        assert seen[first] == plain[first]
    else:
        with pytest.raises(IndexError):
            seen[first]
    assert seen != [*plain, Message("user", "more")]
    assert seen != "text"


def test_usage_adds_up_and_an_unknown_price_stays_unknown() -> None:
    assert Usage(1, 2, 3, 4) + Usage(10, 20, 30, 40) == Usage(11, 22, 33, 44, None)
    assert Usage(1, 1, cost=0.5) + Usage(1, 1) == Usage(2, 2, cost=0.5)


def test_a_request_offers_nothing_by_default_and_lets_the_model_choose() -> None:
    request = Request([Message("user", "hello")])

    assert (request.tools, request.tool_choice, request.output_schema, request.params) == (
        (),
        "auto",
        None,
        {},
    )


def test_an_answer_with_half_a_character_gets_a_form_that_can_be_stored_and_sent() -> None:
    broken = Response(
        "half \ud800", (ToolCall("i", "f", '{"a": "\udfff"}'),), refusal="é", reasoning="\ud801"
    )
    mended = broken.encodable()
    assert mended == Response("half ?", (ToolCall("i", "f", '{"a": "?"}'),), refusal="é", reasoning="?")
    named = Response("text", model="m\ud800", finish_reason="\ud800").encodable()
    assert named == Response("text", model="m?", finish_reason="?")
    parts = Response([{"type": "text", "text": "\ud800"}], (), "stop").encodable()
    assert parts == Response([{"type": "text", "text": "?"}], (), "stop")
    plain = Response("text", (ToolCall("i", "f", "{}"),))
    assert plain.encodable() is plain


_COUNTS = st.integers(0, 2**53)
_USAGES = st.builds(
    Usage,
    _COUNTS,
    _COUNTS,
    _COUNTS,
    _COUNTS,
    cost_micros=st.none() | _COUNTS,
    estimated_input_tokens=_COUNTS,
    estimated_output_tokens=_COUNTS,
    estimated_cost_micros=_COUNTS,
)


@given(_USAGES, _USAGES)
def test_the_sum_of_two_usages_is_what_combined_makes_with_addition(one: Usage, other: Usage) -> None:
    assert one + other == one.combined(other, operator.add)

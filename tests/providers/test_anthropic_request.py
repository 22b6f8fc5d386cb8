"""Conversations in Anthropic's form: what its API would refuse is mended, all else is sent as it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel, Field

from orchestrator.errors import LLMError
from orchestrator.llm.message import Message, Request, ToolCall
from orchestrator.llm.structured_output import OutputSpec
from orchestrator.providers.anthropic import Anthropic, MessagesForm
from orchestrator.tools.spec import ToolSpec
from tests.providers.anthropic_words import (
    HELLO,
    answer,
    result,
    said,
    sent,
    text_block,
    turns,
    use,
    user,
)
from tests.providers.exchange import FILES, Place, is_streamed, places
from tests.providers.loopback import Loopback, recorded_reply


def test_system_and_developer_messages_become_the_system_member_after_that_of_the_host() -> None:
    body = sent(
        Message("system", "Be brief."),
        user("hi"),
        Message("developer", [{"type": "text", "text": "And kind.", "cache_control": {"type": "ephemeral"}}]),
        params={"system": "You are a clerk.", "temperature": 0.5, "max_tokens": 7},
    )
    assert body == {
        "max_tokens": 7,
        "temperature": 0.5,
        "model": "m",
        "system": [
            text_block("You are a clerk."),
            text_block("Be brief."),
            {"type": "text", "text": "And kind.", "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [{"role": "user", "content": [text_block("hi")]}],
    }


def test_results_of_a_turn_are_one_user_message_in_the_order_of_their_calls_and_before_what_follows() -> None:
    calls = (ToolCall("a", "look", '{"at": 1}'), ToolCall("b", "look", ""))
    assert turns(
        user("hi"),
        said("Looking.", *calls),
        result("a", "one"),
        result("b", "no", is_error=True),
        user("And?"),
        user("Well?"),
    ) == [
        ("user", "hi"),
        ("assistant", [text_block("Looking."), use("a", at=1), use("b")]),
        (
            "user",
            [answer("a", "one"), answer("b", "no", is_error=True), text_block("And?"), text_block("Well?")],
        ),
    ]


def test_a_result_that_comes_after_a_word_of_the_user_is_still_the_result() -> None:
    assert turns(user("hi"), said(None, ToolCall("a", "look")), user("Hurry!"), result("a", "one"))[2] == (
        "user",
        [answer("a", "one"), text_block("Hurry!")],
    )


def test_ids_are_made_valid_and_unique_and_results_follow_them() -> None:
    odd = [ToolCall("", "look"), ToolCall("", "look"), ToolCall("call|1:x", "look"), ToolCall("0", "look")]
    first = [result("", "1"), result(None, "2"), result("call|1:x", "3"), result("0", "4")]
    found = turns(
        user("hi"), said(None, *odd), *first, said(None, ToolCall("0", "look")), result("0", "5"), user("ok")
    )
    used = ["call", "call_2", "call_1_x", "0"]
    assert found[1] == ("assistant", [use(id_) for id_ in used])
    assert found[2] == ("user", [answer(id_, text) for id_, text in zip(used, "1234", strict=True)])
    assert found[3] == ("assistant", [use("0_2")])
    assert found[4] == ("user", [answer("0_2", "5"), text_block("ok")])


def test_results_without_ids_answer_the_calls_in_their_order() -> None:
    calls = (ToolCall("a", "look"), ToolCall("b", "look"))
    assert turns(user("hi"), said(None, *calls), result(None, "1"), result(None, "2"))[2] == (
        "user",
        [answer("a", "1"), answer("b", "2")],
    )


def test_a_call_without_a_result_gets_one_and_a_result_without_a_call_becomes_text() -> None:
    missing = answer("a", "No result of this call was recorded.", is_error=True)
    assert turns(user("hi"), said(None, ToolCall("a", "look")), user("Go on.")) == [
        ("user", "hi"),
        ("assistant", [use("a")]),
        ("user", [missing, text_block("Go on.")]),
    ]
    assert turns(user("hi"), said(None, ToolCall("a", "look")))[2] == ("user", [missing])
    assert turns(user("hi"), result("zzz", "lost", name="look")) == [
        ("user", [text_block("hi"), text_block("[result of look]\nlost")])
    ]


@pytest.mark.parametrize(
    ("arguments", "sent_as"),
    [
        ("", {}),
        ("null", {}),
        (" {} ", {}),
        ('{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}),
        ('{"a": "cut of', {"unparsed_arguments": '{"a": "cut of'}),
        ("[1]", {"unparsed_arguments": "[1]"}),
        ('{"a": NaN}', {"unparsed_arguments": '{"a": NaN}'}),
        ("look at it", {"unparsed_arguments": "look at it"}),
        ("[" * 100_000, {"unparsed_arguments": "[" * 100_000}),
    ],
)
def test_arguments_that_are_no_object_are_still_sendable(arguments: str, sent_as: dict[str, Any]) -> None:
    assert turns(user("hi"), said(None, ToolCall("a", "look", arguments)))[1] == (
        "assistant",
        [use("a") | {"input": sent_as}],
    )


def test_names_that_the_api_refuses_are_respelt() -> None:
    names = [ToolCall("a", "functions.look up"), ToolCall("b", ""), ToolCall("c", "x" * 80)]
    assert [block["name"] for block in turns(user("hi"), said(None, *names))[1][1]] == [
        "functions_look_up",
        "unnamed",
        "x" * 64,
    ]


def test_what_says_nothing_is_left_out_and_the_user_begins() -> None:
    assert turns(user("hi"), said(""), said(None), user(" \n"), user("again")) == [
        ("user", [text_block("hi"), text_block("again")])
    ]
    assert turns(said("Welcome!"), user("hi"))[0] == (
        "user",
        "(The conversation begins with the assistant.)",
    )
    assert [role for role, _ in turns(Message("system", "Be brief."))] == ["user"]
    refused = Message("assistant", None, refusal="I will not.")
    assert turns(user("hi"), refused, user("why?"))[1] == ("assistant", "I will not.")
    (_, (_, results)) = turns(user("hi"), said(None, ToolCall("a", "look")), result("a", ""))[1:]
    assert results == [{"type": "tool_result", "tool_use_id": "a"}]


def test_pictures_are_translated_and_other_parts_pass_through() -> None:
    document = {"type": "document", "source": {"type": "url", "url": "https://x.example/a.pdf"}}
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0K", "detail": "low"}},
        {
            "type": "image_url",
            "image_url": {"url": "https://x.example/a.png"},
            "cache_control": {"type": "ephemeral"},
        },
        {"type": "image_url", "image_url": "https://x.example/b.png"},
        {"type": "image", "source": {"type": "file", "file_id": "f1"}},
        document,
        {"type": "unheard_of", "data": [1]},
    ]
    shown = Message("user", parts)
    assert turns(shown) == [
        (
            "user",
            [
                text_block("What is this?"),
                {
                    "type": "image",
                    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0K"},
                },
                {
                    "type": "image",
                    "source": {"type": "url", "url": "https://x.example/a.png"},
                    "cache_control": {"type": "ephemeral"},
                },
                {"type": "image", "source": {"type": "url", "url": "https://x.example/b.png"}},
                {"type": "image", "source": {"type": "file", "file_id": "f1"}},
                document,
                {"type": "unheard_of", "data": [1]},
            ],
        )
    ]
    assert len(parts) == 7
    assert parts[1]["type"] == "image_url"  # the message itself is as it was
    picture = Message("tool", parts[1:2], (), "a")
    (_, content) = turns(user("hi"), said(None, ToolCall("a", "look")), picture)[2]
    assert content[0]["content"][0]["type"] == "image"


LOOK = ToolSpec("look", "Look.", {"properties": {"at": {"type": "integer"}}}, lambda at: at)


@pytest.mark.parametrize(
    ("choice", "params", "members"),
    [
        ("auto", {}, {}),
        ("auto", {"tool_choice": {"type": "any"}}, {"tool_choice": {"type": "any"}}),
        ("none", {}, {"tool_choice": {"type": "none"}}),
        ("required", {}, {"tool_choice": {"type": "any"}}),
        ("look", {}, {"tool_choice": {"type": "tool", "name": "look"}}),
        (
            "required",
            {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        ),
    ],
)
def test_tools_and_their_choice(choice: str, params: dict[str, Any], members: dict[str, Any]) -> None:
    body = sent(user("hi"), tools=(LOOK,), tool_choice=choice, params=params)
    schema = {"type": "object", "properties": {"at": {"type": "integer"}}}
    assert body["tools"] == [{"name": "look", "description": "Look.", "input_schema": schema}]
    assert {name: body[name] for name in ("tool_choice",) if name in body} == members


def test_tools_of_the_provider_stand_beside_ours_and_called_ones_are_declared_where_none_is_offered() -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    assert [one["name"] for one in sent(user("hi"), tools=(LOOK,), params={"tools": [search]})["tools"]] == [
        "web_search",
        "look",
    ]
    body = sent(user("hi"), said(None, ToolCall("a", "look")), result("a", "1"), user("Sum up."))
    assert body["tools"] == [{"name": "look", "input_schema": {"type": "object"}}]
    assert body["tool_choice"] == {"type": "none"}
    assert "tools" not in sent(user("hi"))


class City(BaseModel):
    """A city."""

    name: str = Field(min_length=2)
    people: int | None = None


class Tree(BaseModel):
    children: list[Tree] = []


class Open(BaseModel):
    counts: dict[str, int]


def test_a_closed_schema_goes_natively_with_what_the_mode_knows_beside_the_hosts_options() -> None:
    schema = OutputSpec.of(City).schema
    body = sent(user("hi"), output_schema=schema, params={"output_config": {"effort": "low"}})
    assert body["output_config"]["effort"] == "low"
    made = body["output_config"]["format"]
    assert made["type"] == "json_schema"
    assert made["schema"]["additionalProperties"] is False
    assert made["schema"]["properties"]["name"] == {
        "type": "string",
        "title": "Name",
        "description": "{minLength: 2}",
    }
    assert "system" not in body
    assert schema == City.model_json_schema()  # the original is as it was


@pytest.mark.parametrize(
    "kind", [Tree, Open, list[int], {"type": "object", "properties": {"a": {"type": ["string"]}}}]
)
def test_a_schema_that_the_mode_cannot_express_goes_into_the_prompt(kind: Any) -> None:
    schema = OutputSpec.of(kind).schema
    body = sent(user("hi"), output_schema=schema)
    assert "output_config" not in body
    assert json.dumps(schema, ensure_ascii=False) in body["system"][0]["text"]


def test_a_host_may_ask_for_the_prompt() -> None:
    schema = OutputSpec.of(City).schema
    body = MessagesForm(100, "prompt").body("m", replace(HELLO, output_schema=schema), streamed=True)
    assert body["stream"] is True
    assert "output_config" not in body
    assert "minLength" in body["system"][0]["text"]


# ---- what the recorded clients sent ----

TAKEN = ("messages", "model", "tools", "system", "stream")


def recorded_request(body: Mapping[str, Any], *, streamed: bool) -> Request:
    """The request whose body this is, in our words."""
    messages: list[Message] = [Message("system", body["system"])] if body.get("system") else []
    for one in body["messages"]:
        blocks = one["content"]
        calls = tuple(
            ToolCall(block["id"], block["name"], json.dumps(block["input"]))
            for block in blocks
            if block["type"] == "tool_use"
        )
        answered = [block for block in blocks if block["type"] == "tool_result"]
        others = [block for block in blocks if block["type"] not in ("tool_use", "tool_result")]
        messages += [Message("tool", block["content"], (), block["tool_use_id"]) for block in answered]
        if others or calls:
            messages.append(Message(one["role"], others or None, calls))
    offers = tuple(
        ToolSpec(one["name"], one["description"], one["input_schema"], lambda: None)
        for one in body.get("tools", ())
    )
    params = {name: value for name, value in body.items() if name not in TAKEN}
    return Request(messages, offers, params=params, on_delta=(lambda _: None) if streamed else None)


def comparable(body: Mapping[str, Any]) -> dict[str, Any]:
    """A body without what may be said or left unsaid: texts as blocks, defaults."""
    kept = {name: value for name, value in body.items() if (name, value) != ("stream", False)}
    for one in ("system",) if "system" in kept else ():
        kept[one] = blocks_of(kept[one])
    kept["messages"] = [
        {**one, "content": [*map(plain, blocks_of(one["content"]))]} for one in kept["messages"]
    ]
    return kept


def blocks_of(content: Any) -> Any:
    return [text_block(content)] if isinstance(content, str) else content


def plain(block: Mapping[str, Any]) -> dict[str, Any]:
    known = {name: value for name, value in block.items() if (name, value) != ("is_error", False)}
    return {**known, "content": blocks_of(known["content"])} if "content" in known else known


@pytest.mark.filterwarnings("ignore:The model .* is deprecated:DeprecationWarning")
@pytest.mark.parametrize("place", places("anthropic-messages"), ids=lambda place: f"{place[0]}-{place[1]}")
async def test_what_the_recorded_clients_sent_is_what_we_send(place: Place) -> None:
    name, index = place
    exchange = FILES[name]["exchanges"][index]
    body = exchange["request"]["body"]
    async with Loopback([recorded_reply(exchange["response"])]) as server:
        llm = Anthropic(body["model"], base_url=f"{server.url}/v1/", api_key="sk-test", cache_seconds=0)
        with suppress(LLMError):
            await llm.complete(recorded_request(body, streamed=is_streamed(place)))
        await llm.aclose()
        (asked,) = server.asked
    assert comparable(asked.json) == comparable(body)
    assert (asked.method, asked.path) == ("POST", "/v1/messages")
    assert asked.headers["authorization"] == "Bearer sk-test"
    # The version of the SDK knows no sampling any more.
    assert (asked.headers["anthropic-version"] == "2023-06-01") is ("temperature" in body)

"""Chat completions: what goes out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from orchestrator.llm.message import Message, Request, ToolCall
from orchestrator.llm.structured_output import OutputSpec
from orchestrator.providers.openai import ChatForm, OpenAIOptions, ResponsesForm
from orchestrator.tools.spec import ToolSpec

USER = Message("user", "hello")
PARAMETERS = {"type": "object", "properties": {"q": {"type": "string"}}, "x-ours": [1]}
SEARCH = ToolSpec("search", "Search.", PARAMETERS, lambda q: q)
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}


def body(
    *messages: Message, streamed: bool = False, options: OpenAIOptions | None = None, **more: Any
) -> dict[str, Any]:
    request = Request(messages or (USER,), **more)
    return ChatForm(options or OpenAIOptions()).body("m", request, streamed=streamed)


def sent(message: Message, options: OpenAIOptions | None = None) -> dict[str, Any]:
    (found,) = body(message, options=options)["messages"]
    return dict(found)


# ---- requests ----


def test_a_bare_question_is_model_and_messages_and_nothing_else() -> None:
    assert body() == {"model": "m", "messages": [{"role": "user", "content": "hello"}], "stream": False}


@pytest.mark.parametrize("role", ["system", "developer", "user"])
def test_roles_go_as_they_are(role: Any) -> None:
    assert sent(Message(role, "x")) == {"role": role, "content": "x"}


def test_content_parts_go_unharmed() -> None:
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": "what is this?"},
        IMAGE,
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"file_id": "f"}},
        {"type": "of tomorrow", "deep": {"er": [None, 1.5, "ü"]}},
    ]
    assert sent(Message("user", parts))["content"] == parts


@pytest.mark.parametrize(
    ("arguments", "sent_as"),
    [
        ('{"q":  "ü"}', '{"q":  "ü"}'),
        ("", "{}"),
        ("null", "{}"),
        ('{"q": "cut o', '{"unparsed_arguments": "{\\"q\\": \\"cut o"}'),
        ('["a"]', '{"unparsed_arguments": "[\\"a\\"]"}'),
        ('{"q": NaN}', '{"unparsed_arguments": "{\\"q\\": NaN}"}'),
        ("a\ud800b", None),
    ],
)
def test_arguments_that_servers_could_not_read_are_sent_as_an_object(
    arguments: str, sent_as: str | None
) -> None:
    message = Message("assistant", None, (ToolCall("c1", "search", arguments),))
    chat = sent(message)["tool_calls"][0]["function"]["arguments"]
    (item,) = ResponsesForm().body("m", Request((message,)), streamed=False)["input"]
    assert item["arguments"] == chat
    assert isinstance(json.loads(chat), dict)
    assert sent_as in (chat, None)


def test_calls_and_results_go_with_their_arguments_as_written_and_their_ids() -> None:
    call = ToolCall("c1", "search", '{"q":  "so"}')
    asked = sent(Message("assistant", None, (call,)))
    assert asked == {"role": "assistant", "content": None, "tool_calls": [call.to_openai()]}
    result = sent(Message("tool", "found", tool_call_id="c1", is_error=True))
    assert result == {"role": "tool", "content": "found", "tool_call_id": "c1"}


def test_a_refusal_goes_back_and_an_empty_answer_is_an_empty_text() -> None:
    assert sent(Message("assistant", None, refusal="no")) == {
        "role": "assistant",
        "content": None,
        "refusal": "no",
    }
    assert sent(Message("assistant", None)) == {"role": "assistant", "content": ""}
    assert sent(Message("user", None))["content"] == ""


def test_reasoning_goes_back_only_under_the_name_that_was_given() -> None:
    thought = Message("assistant", "4", reasoning="2 and 2")
    assert "reasoning" not in json.dumps(sent(thought))
    assert sent(thought, OpenAIOptions(reasoning_field="reasoning_content"))["reasoning_content"] == "2 and 2"


def test_parts_that_only_another_api_reads_stay_here() -> None:
    kept: list[dict[str, Any]] = [
        {"type": "reasoning", "encrypted_content": "x"},
        {"type": "thinking", "signature": "y"},
    ]
    assert sent(Message("assistant", [*kept, {"type": "text", "text": "4"}]))["content"] == [
        {"type": "text", "text": "4"}
    ]
    assert sent(Message("assistant", [*kept]))["content"] == ""


def test_tools_go_with_their_parameters_as_they_are() -> None:
    function = {"name": "search", "description": "Search.", "parameters": PARAMETERS}
    assert body(tools=(SEARCH,))["tools"] == [{"type": "function", "function": function}]
    own = {"type": "web_search"}
    assert body(tools=(SEARCH,), params={"tools": [own]})["tools"] == [
        own,
        {"type": "function", "function": function},
    ]
    assert "tools" not in body()


@pytest.mark.parametrize(
    ("choice", "written"),
    [
        ("none", "none"),
        ("required", "required"),
        ("search", {"type": "function", "function": {"name": "search"}}),
    ],
)
def test_the_choice_of_tools_is_said_in_words_or_by_name(choice: str, written: object) -> None:
    assert body(tools=(SEARCH,), tool_choice=choice)["tool_choice"] == written
    assert "tool_choice" not in body(tool_choice=choice)  # there is nothing to choose from


def test_the_default_choice_leaves_the_hosts_alone() -> None:
    assert "tool_choice" not in body(tools=(SEARCH,))
    assert body(tools=(SEARCH,), params={"tool_choice": "any"})["tool_choice"] == "any"


def test_parameters_go_as_they_are_and_never_replace_what_is_ours() -> None:
    params = {
        "temperature": 0.2,
        "top_k": 5,
        "thinking": {"type": "disabled"},
        "messages": [],
        "model": "other",
    }
    found = body(params=params)
    assert (found["temperature"], found["top_k"], found["thinking"]) == (0.2, 5, {"type": "disabled"})
    assert (found["model"], found["stream"], len(found["messages"])) == ("m", False, 1)


def test_a_stream_asks_for_usage_unless_the_server_refuses_that() -> None:
    asked = body(streamed=True, params={"stream_options": {"x": 1}})
    assert (asked["stream"], asked["stream_options"]) == (True, {"x": 1, "include_usage": True})
    assert "stream_options" not in body(streamed=True, options=OpenAIOptions(stream_usage=False))


def test_a_schema_goes_in_the_native_form_strict_where_it_keeps_the_rules() -> None:
    found = body(output_schema={**SCHEMA, "title": "An answer!"})["response_format"]
    assert found == {
        "type": "json_schema",
        "json_schema": {"name": "An_answer", "schema": {**SCHEMA, "title": "An answer!"}, "strict": True},
    }

    class Loose(BaseModel):
        n: int = 1

    loose = body(output_schema=OutputSpec.of(Loose).schema)["response_format"]["json_schema"]
    assert (loose["name"], loose["strict"]) == ("Loose", False)


def test_a_schema_that_native_mode_does_not_take_goes_into_the_prompt() -> None:
    for found in (
        body(
            Message("system", "Be brief."), USER, output_schema={"type": "array", "items": {"type": "string"}}
        ),
        body(
            Message("system", "Be brief."),
            USER,
            output_schema=SCHEMA,
            options=OpenAIOptions(structured="prompt"),
        ),
    ):
        assert "response_format" not in found
        told, asked = found["messages"]
        assert told["content"].startswith("Be brief.\n\nGive your final answer as JSON")
        assert told["content"].endswith("}")
        assert asked == {"role": "user", "content": "hello"}

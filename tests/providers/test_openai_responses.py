"""The Responses API: what goes out, what comes back, and what of it has to go out again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from orchestrator import Agent, tool
from orchestrator.errors import LLMError
from orchestrator.llm.message import Message, Request, Response, ToolCall, Usage
from orchestrator.llm.retry import classify
from orchestrator.providers.openai import ChatForm, OpenAI, OpenAIOptions, ResponsesForm
from orchestrator.providers.reading import ServerSentEvent
from orchestrator.tools.spec import ToolSpec
from tests.providers.loopback import Loopback, json_reply

USER = Message("user", "hello")
SEARCH = ToolSpec("search", "Search.", {"type": "object", "properties": {}}, lambda: None)
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


def body(
    *messages: Message, streamed: bool = False, options: OpenAIOptions | None = None, **more: Any
) -> dict[str, Any]:
    request = Request(messages or (USER,), **more)
    return ResponsesForm(options or OpenAIOptions()).body("m", request, streamed=streamed)


def items(*messages: Message) -> list[dict[str, Any]]:
    return list(body(*messages)["input"])


# ---- requests ----


def test_a_bare_question_is_stateless() -> None:
    hello = {"role": "user", "content": "hello"}
    assert body() == {"store": False, "model": "m", "input": [hello], "stream": False}
    assert body(params={"store": True, "reasoning": {"effort": "low"}})["store"] is True
    assert body(streamed=True)["stream"] is True


def test_a_whole_turn_goes_back_as_items() -> None:
    calls = (ToolCall("c1", "search", '{"q": 1}'), ToolCall("c2", "search", ""))
    assert items(
        Message("developer", "Be brief."),
        USER,
        Message("assistant", "Let me see.", calls, reasoning="not sent"),
        Message("tool", "found", tool_call_id="c1"),
        Message("tool", None, tool_call_id="c2", is_error=True),
        Message("assistant", None, refusal="no"),
        Message("assistant", None),
    ) == [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
        {"type": "function_call", "call_id": "c1", "name": "search", "arguments": '{"q": 1}'},
        {"type": "function_call", "call_id": "c2", "name": "search", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "found"},
        {"type": "function_call_output", "call_id": "c2", "output": ""},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    ]


@pytest.mark.parametrize(
    ("part", "written"),
    [
        ({"type": "text", "text": "x"}, {"type": "input_text", "text": "x"}),
        (
            {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}},
            {"type": "input_image", "image_url": "data:x", "detail": "low"},
        ),
        ({"type": "image_url", "image_url": "data:x"}, {"type": "input_image", "image_url": "data:x"}),
        (
            {"type": "file", "file": {"file_data": "data:y", "filename": "a.pdf"}},
            {"type": "input_file", "file_data": "data:y", "filename": "a.pdf"},
        ),
        ({"type": "input_image", "file_id": "f"}, {"type": "input_image", "file_id": "f"}),
        ({"type": "of tomorrow", "x": [1]}, {"type": "of tomorrow", "x": [1]}),
    ],
    ids=lambda part: str(part["type"]),
)
def test_content_parts_of_chat_are_said_in_the_words_of_this_api(
    part: dict[str, Any], written: object
) -> None:
    assert items(Message("user", [part])) == [{"role": "user", "content": [written]}]
    assert items(Message("tool", [part], tool_call_id="c"))[0]["output"] == [written]


def test_tools_schema_and_choice_have_their_own_forms_here() -> None:
    offered = {
        "type": "function",
        "name": "search",
        "description": "Search.",
        "parameters": {"type": "object", "properties": {}},
        "strict": False,
    }
    assert body(tools=(SEARCH,))["tools"] == [offered]
    assert body(tools=(SEARCH,), params={"tools": [{"type": "web_search"}]})["tools"][0] == {
        "type": "web_search"
    }
    assert body(tools=(SEARCH,), tool_choice="none")["tool_choice"] == "none"
    assert body(tools=(SEARCH,), tool_choice="search")["tool_choice"] == {
        "type": "function",
        "name": "search",
    }
    form = {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True}
    assert body(output_schema=SCHEMA, params={"text": {"verbosity": "low"}})["text"] == {
        "verbosity": "low",
        "format": form,
    }
    prompted = body(output_schema=SCHEMA, options=OpenAIOptions(structured="prompt"))
    assert "text" not in prompted
    assert [item["role"] for item in prompted["input"]] == ["system", "user"]


# ---- answers ----


def said(*texts: str, **more: Any) -> dict[str, Any]:
    return {"type": "message", "content": [{"type": "output_text", "text": text} for text in texts], **more}


def answered(*output: object, status: object = "completed", **more: Any) -> dict[str, Any]:
    return {
        "object": "response",
        "status": status,
        "error": None,
        "model": "m-1",
        "output": list(output),
        **more,
    }


def read(raw: Mapping[str, Any]) -> Response:
    return ResponsesForm().response(raw)


REASONING = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "Two steps."}],
    "encrypted_content": "gAAAA",
}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "search", "arguments": '{"q": 1}'}


def test_texts_calls_refusals_and_usage_are_read() -> None:
    used = {
        "input_tokens": 9,
        "input_tokens_details": {"cached_tokens": 8},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 6},
    }
    assert read(
        answered(said("a", "b"), {"type": "web_search_call"}, said("c"), CALL, usage=used)
    ) == Response("ab\nc", (ToolCall("c1", "search", '{"q": 1}'),), "completed", Usage(9, 7, 8, 6), "m-1")
    refused = read(answered({"type": "message", "content": [{"type": "refusal", "refusal": "no"}]}))
    assert (refused.content, refused.refusal) == ("", "no")
    assert read(answered()).content is None


@pytest.mark.parametrize("reason", ["max_output_tokens", "content_filter"])
def test_an_incomplete_answer_says_why(reason: str) -> None:
    raw = answered(said("half"), status="incomplete", incomplete_details={"reason": reason})
    assert (read(raw).content, read(raw).finish_reason) == ("half", reason)
    assert read(answered(said("half"), status="incomplete")).finish_reason == "incomplete"


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [
        ("server_error", "server_error", True),
        ("rate_limit_exceeded", "rate_limited", True),
        ("invalid_prompt", "content_filter", False),
        ("image_too_large", "client_error", False),
        ("vector_store_timeout", "timeout", True),
        (None, "server_error", True),
    ],
)
def test_a_failed_response_is_an_error_of_its_code(code: str | None, kind: str, retryable: bool) -> None:
    error = None if code is None else {"code": code, "message": "no"}
    with pytest.raises(LLMError) as caught:
        read(answered(status="failed") | {"error": error})
    assert (caught.value.kind, classify(caught.value).retryable) == (kind, retryable)


@pytest.mark.parametrize(
    "raw",
    [{}, answered(status="in_progress"), answered(status="cancelled"), {"output": {}}, {"output": None}],
)
def test_what_is_no_finished_response_is_malformed(raw: Mapping[str, Any]) -> None:
    with pytest.raises(LLMError) as caught:
        read(raw)
    assert caught.value.kind == "malformed"


# ---- reasoning ----


def test_encrypted_reasoning_goes_back_where_it_stood_and_stays_out_of_the_text() -> None:
    response = read(answered(REASONING, said("Let me see."), CALL))
    assert (response.message().text, response.reasoning) == ("Let me see.", "Two steps.")
    sent = items(response.message())
    assert sent == [
        REASONING,
        {"role": "assistant", "content": [{"type": "output_text", "text": "Let me see."}]},
        {"type": "function_call", "call_id": "c1", "name": "search", "arguments": '{"q": 1}'},
    ]
    (chat,) = ChatForm().body("m", Request((response.message(),)), streamed=False)["messages"]
    assert chat["content"] == [{"type": "text", "text": "Let me see."}]


def test_reasoning_that_cannot_be_sent_back_is_text_for_people_only() -> None:
    plain = {name: value for name, value in REASONING.items() if name != "encrypted_content"}
    response = read(answered(plain, CALL))
    assert (response.content, response.reasoning) == (None, "Two steps.")
    assert [item["type"] for item in items(response.message())] == ["function_call"]
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    assert read(answered(thought)).reasoning == "hm"


@tool(effect="pure")
async def search(q: int) -> str:
    """Search."""
    return f"found {q}"


async def test_a_run_carries_encrypted_reasoning_through_its_turns() -> None:
    replies = [json_reply(answered(REASONING, CALL)), json_reply(answered(said("Done.")))]
    async with (
        Loopback(replies) as server,
        OpenAI("m", base_url=server.url, api_key="sk-test", api="responses") as llm,
    ):
        result = await Agent(llm, tools=[search], observers=()).run("Search for 1.")
    assert (result.outcome, result.output) == ("completed", "Done.")
    assert server.asked[1].path == "/responses"
    assert server.asked[1].json["input"] == [
        {"role": "user", "content": "Search for 1."},
        REASONING,
        {"type": "function_call", "call_id": "c1", "name": "search", "arguments": '{"q": 1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "found 1"},
    ]


# ---- streams ----


def told(kind: str, **more: Any) -> ServerSentEvent:
    return ServerSentEvent(kind, json.dumps({"type": kind, **more}))


def test_texts_of_two_messages_are_streamed_as_they_are_read() -> None:
    assembly = ResponsesForm().assembly()
    pieces = [
        assembly.take(told("response.output_text.delta", output_index=0, delta="Let me")),
        assembly.take(told("response.output_text.delta", output_index=0, delta=" see.")),
        assembly.take(told("response.output_text.delta", output_index=2, delta="Done.")),
        assembly.take(
            told("response.completed", response=answered(said("Let me see."), CALL, said("Done.")))
        ),
    ]
    assert assembly.over
    assert "".join(pieces) == assembly.text == assembly.response().content == "Let me see.\nDone."


def test_a_last_event_without_output_is_made_up_from_the_items() -> None:
    assembly = ResponsesForm().assembly()
    assembly.take(told("response.output_item.done", item=said("Hi."), output_index=0))
    assembly.take(told("response.output_item.done", item=CALL, output_index=1))
    assembly.take(told("response.completed", response=answered()))
    found = assembly.response()
    assert (found.content, [call.name for call in found.tool_calls]) == ("Hi.", ["search"])


def test_a_stream_that_fails_or_ends_early_keeps_what_had_come() -> None:
    for event, kind in (
        (told("error", code="rate_limit_exceeded", message="slow down", param=None), "rate_limited"),
        (ServerSentEvent("error", json.dumps({"error": {"code": "server_error", "message": "no"}})), "server_error"),
        (told("response.failed", response={"status": "failed", "error": {"code": "server_error"}}), "server_error"),
        (ServerSentEvent("", "[DONE]"), "connection"),
    ):  # fmt: skip
        assembly = ResponsesForm().assembly()
        assembly.take(told("response.output_text.delta", output_index=0, delta="Half"))

        def rest(assembly: Any = assembly, event: ServerSentEvent = event) -> None:
            assembly.take(event)
            assembly.response()

        with pytest.raises(LLMError) as caught:
            rest()
        assert (caught.value.kind, caught.value.partial) == (kind, "Half")

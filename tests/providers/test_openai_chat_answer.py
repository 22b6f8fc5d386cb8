"""Chat completions: what odd things come in, whole and in pieces. Most of it was really seen somewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from orchestrator.errors import LLMError
from orchestrator.llm.message import Response, ToolCall, Usage
from orchestrator.providers.openai import ChatForm
from orchestrator.providers.reading import ServerSentEvent

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA", "detail": "low"}}


# ---- whole answers ----


def read(raw: Mapping[str, Any]) -> Response:
    return ChatForm().response(raw)


def answer(message: object, finish: object = "stop", **more: Any) -> dict[str, Any]:
    return {"choices": [{"message": message, "finish_reason": finish}], **more}


def called(*calls: object) -> tuple[ToolCall, ...]:
    return read(answer({"content": None, "tool_calls": list(calls)})).tool_calls


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("", ""),
        (None, ""),
        ("null", "null"),
        ('{"a', '{"a'),
        ({"a": "ü"}, '{"a": "ü"}'),
        ([], "[]"),
        (0, "0"),
    ],
    ids=repr,
)
def test_arguments_are_kept_as_received(given: object, kept: str) -> None:
    assert called({"id": "1", "function": {"name": "f", "arguments": given}}) == (ToolCall("1", "f", kept),)


def test_a_call_that_lacks_members_is_still_a_call() -> None:
    assert called({"function": {"name": "f"}}, {}, "odd", {"id": 7, "function": None}) == (
        ToolCall("", "f", ""),
        ToolCall("", "", ""),
        ToolCall("", "", ""),
    )


def test_a_legacy_call_counts_where_there_are_no_others() -> None:
    legacy = {"name": "f", "arguments": '{"a": 1}'}
    assert read(answer({"function_call": legacy})).tool_calls == (ToolCall("", "f", '{"a": 1}'),)
    assert read(answer({"content": "x", "function_call": {"name": "", "arguments": ""}})).tool_calls == ()


@pytest.mark.parametrize(
    ("message", "reasoning", "content"),
    [
        ({"content": "4", "reasoning_content": "hm"}, "hm", "4"),
        ({"content": "4", "reasoning": "hm"}, "hm", "4"),
        ({"content": "4", "reasoning": "", "reasoning_content": None}, None, "4"),
        ({"content": "4", "reasoning": {"effort": "low"}}, None, "4"),
        (
            {"content": [{"type": "thinking", "thinking": [{"text": "hm"}]}, {"type": "text", "text": "4"}]},
            "hm",
            "4",
        ),
        ({"content": [{"type": "thinking", "thinking": "hm"}]}, "hm", ""),
    ],
)  # fmt: skip
def test_reasoning_is_found_under_all_its_names(message: object, reasoning: str | None, content: str) -> None:
    found = read(answer(message))
    assert (found.reasoning, found.content) == (reasoning, content)


def test_parts_in_an_answer_stay_parts() -> None:
    parts = [{"type": "text", "text": "here:"}, IMAGE]
    assert read(answer({"content": parts})).content == parts


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, None),
        ("many", None),
        ({"prompt_tokens": 5, "completion_tokens": None}, None),
        ({"prompt_tokens": "5", "completion_tokens": 2}, Usage(5, 2)),
        (
            {
                "prompt_tokens": 5,
                "completion_tokens": 2,
                "prompt_tokens_details": [],
                "completion_tokens_details": None,
            },
            Usage(5, 2),
        ),
        ({"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": "none"}, Usage(5, 2)),
        ({"prompt_tokens": 5, "completion_tokens": 2, "prompt_cache_hit_tokens": 4}, Usage(5, 2, 4)),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 7,
                "prompt_tokens_details": {"cached_tokens": 8},
                "completion_tokens_details": {"reasoning_tokens": 6},
                "cost": 0.5,
            },
            Usage(9, 7, 8, 6, 0.5),
        ),
    ],
    ids=repr,
)
def test_usage_is_read_as_far_as_it_can_be(usage: object, expected: Usage | None) -> None:
    assert read(answer({"content": "x"}, usage=usage)).usage == expected


def test_usage_may_stand_where_groq_puts_it() -> None:
    raw = answer({"content": "x"}, x_groq={"usage": {"prompt_tokens": 3, "completion_tokens": 1}})
    assert read(raw).usage == Usage(3, 1)


@pytest.mark.parametrize("finish", ["stop", "length", "content_filter", "of tomorrow", None])
def test_the_finish_reason_is_kept_as_it_is(finish: str | None) -> None:
    assert read(answer({"content": "x"}, finish)).finish_reason == finish


@pytest.mark.parametrize("finish", ["", " ", "null", 7, {}])
def test_an_empty_finish_reason_is_none(finish: object) -> None:
    assert read(answer({"content": "x"}, finish)).finish_reason is None


def test_a_filtered_answer_is_an_answer_and_a_filtered_question_an_error() -> None:
    filtered = read(answer({"content": "The first"}, "content_filter"))
    assert (filtered.content, filtered.finish_reason) == ("The first", "content_filter")
    with pytest.raises(LLMError) as caught:
        read({"error": {"code": "content_filter", "status": 400}})
    assert (caught.value.kind, caught.value.status) == ("content_filter", 400)


@pytest.mark.parametrize("finish", ["error", "insufficient_system_resource"])
def test_an_answer_that_the_provider_broke_off_is_a_failure_to_be_tried_again(finish: str) -> None:
    with pytest.raises(LLMError, match=finish) as caught:
        read(answer({"content": "half an"}, finish))
    assert (caught.value.kind, caught.value.partial) == ("server_error", "half an")


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"choices": None},
        {"choices": []},
        {"choices": {}},
        {"choices": [None]},
        answer(None),
        answer("text"),
    ],
    ids=repr,
)
def test_what_holds_no_message_is_malformed(raw: Mapping[str, Any]) -> None:
    with pytest.raises(LLMError) as caught:
        read(raw)
    assert caught.value.kind == "malformed"


def test_an_answer_with_nothing_in_it_is_an_answer() -> None:
    assert read(answer({})) == Response(finish_reason="stop", usage=None)


# ---- streams ----


def assembled(*deltas: Mapping[str, Any], finish: str | None = "stop", done: bool = True) -> Response:
    assembly = ChatForm().assembly()
    for delta in deltas:
        chunk = {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        assembly.take(ServerSentEvent("", json.dumps(chunk)))
    assembly.take(ServerSentEvent("", json.dumps({"choices": [{"delta": {}, "finish_reason": finish}]})))
    if done:
        assembly.take(ServerSentEvent("", "[DONE]"))
    return assembly.response()


def fragment(arguments: object, index: object = 0, id_: object = None, name: object = None) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "id": id_, "function": {"name": name, "arguments": arguments}}]}


FRAGMENTED: dict[str, tuple[list[dict[str, Any]], tuple[ToolCall, ...]]] = {
    "by index, interleaved": (
        [
            fragment("", 0, "a", "f"),
            fragment("", 1, "b", "g"),
            fragment('{"x"', 0),
            fragment('{"y"', 1),
            fragment(": 1}", 0),
            fragment(": 2}", 1),
        ],
        (ToolCall("a", "f", '{"x": 1}'), ToolCall("b", "g", '{"y": 2}')),
    ),
    "without index, whole": (
        [fragment("{}", None, "a", "f"), fragment('{"y": 2}', None, "b", "f")],
        (ToolCall("a", "f", "{}"), ToolCall("b", "f", '{"y": 2}')),
    ),
    "all of them at index 0": (
        [fragment("{}", 0, "a", "f"), fragment('{"y"', 0, "b", "f"), fragment(": 2}", 0)],
        (ToolCall("a", "f", "{}"), ToolCall("b", "f", '{"y": 2}')),
    ),
    "id and name repeated": (
        [fragment('{"x"', 0, "a", "f"), fragment(": 1}", 0, "a", "f")],
        (ToolCall("a", "f", '{"x": 1}'),),
    ),
    "another id without a name": (
        [fragment('{"x"', 0, "a", "f"), fragment(": 1}", 0, "b")],
        (ToolCall("a", "f", '{"x": 1}'),),
    ),
    "the name later": (
        [fragment("", 0, "a"), fragment("{}", 0, None, "f")],
        (ToolCall("a", "f", "{}"),),
    ),
    "two in one chunk": (
        [
            {
                "tool_calls": [
                    *fragment("{}", 0, "a", "f")["tool_calls"],
                    *fragment("1", 1, "b", "g")["tool_calls"],
                ]
            }
        ],
        (ToolCall("a", "f", "{}"), ToolCall("b", "g", "1")),
    ),
    "arguments null": ([fragment(None, 0, "a", "f")], (ToolCall("a", "f", ""),)),
    "of the old kind": (
        [{"function_call": {"name": "f", "arguments": ""}}, {"function_call": {"arguments": "{}"}}],
        (ToolCall("", "f", "{}"),),
    ),
}


@pytest.mark.parametrize("name", FRAGMENTED)
def test_fragments_of_calls_come_together(name: str) -> None:
    deltas, calls = FRAGMENTED[name]
    assert assembled(*deltas).tool_calls == calls


def test_text_refusal_and_reasoning_are_each_put_together() -> None:
    found = assembled(
        {"role": "assistant", "content": ""},
        {"reasoning_content": "h"},
        {"reasoning": "m"},
        {"content": "Hel"},
        {"content": "lo"},
        {"refusal": "but "},
        {"refusal": "no"},
    )
    assert (found.content, found.refusal, found.reasoning) == ("Hello", "but no", "hm")
    assert assembled({"role": "assistant", "content": None}).content is None
    assert assembled({"content": [{"type": "text", "text": "a"}]}, {"content": "b"}).content == "ab"


@pytest.mark.parametrize(
    ("finish", "done", "ends"), [(None, True, True), ("stop", False, True), (None, False, False)]
)
def test_a_stream_is_whole_with_a_reason_or_with_its_end_mark(
    finish: str | None, done: bool, ends: bool
) -> None:
    if ends:
        assert assembled({"content": "x"}, finish=finish, done=done).finish_reason == finish
        return
    with pytest.raises(LLMError) as caught:
        assembled({"content": "x"}, finish=finish, done=done)
    assert (caught.value.kind, caught.value.partial) == ("connection", "x")


def test_of_several_answers_the_first_is_taken() -> None:
    assembly = ChatForm().assembly()
    for index, text in ((1, "other"), (0, "this")):
        chunk = {"choices": [{"index": index, "delta": {"content": text}, "finish_reason": "stop"}]}
        assembly.take(ServerSentEvent("", json.dumps(chunk)))
    assert assembly.response().content == "this"


@pytest.mark.parametrize("finish", ["MALFORMED_FUNCTION_CALL", "made up"])
def test_an_answer_that_is_none_has_the_usage_that_is_billed_for_it(finish: str) -> None:
    used = {"prompt_tokens": 900, "completion_tokens": 40}
    with pytest.raises(LLMError) as whole:
        read(answer({"content": None}, finish, usage=used))
    assembly = ChatForm().assembly()
    for chunk in ({"choices": [{"delta": {}, "finish_reason": finish}]}, {"choices": [], "usage": used}):
        assembly.take(ServerSentEvent("", json.dumps(chunk)))
    with pytest.raises(LLMError) as streamed:
        assembly.response()
    assert whole.value.usage == streamed.value.usage == Usage(900, 40)


@pytest.mark.parametrize("chunk", ["{}", "[]", "null", '{"choices": null}', '{"choices": [{"delta": null}]}'])
def test_a_chunk_that_says_nothing_adds_nothing(chunk: str) -> None:
    assembly = ChatForm().assembly()
    assert assembly.take(ServerSentEvent("", chunk)) == ""
    assembly.take(
        ServerSentEvent("", json.dumps({"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]}))
    )
    assert assembly.response().content == "x"

"""The protocols of model families, as far as a loopback server needs them to answer like the family's own server.

A wire answers a request with a text or with a call of `weather`, whole or streamed, with the same usage: 20 tokens
in, 5 of them cached, 7 out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tests.providers.loopback import Asked, Reply, json_reply, stream_reply

CALL = ("call_1", "weather", {"city": "Oslo"})
"""The call of every wire: id, tool, arguments."""


class Wire(NamedTuple):
    """A protocol: answers with this text, or with the call if it is None."""

    whole: Callable[[str | None], Any]
    streamed: Callable[[str | None], str]
    is_streamed: Callable[[Asked], bool] = lambda asked: bool(asked.json.get("stream"))

    def reply(self, asked: Asked, text: str | None) -> Reply:
        return stream_reply(self.streamed(text)) if self.is_streamed(asked) else json_reply(self.whole(text))


def _events(*events: Mapping[str, Any], named: bool = True, end: str = "") -> str:
    lines = [
        (f"event: {event['type']}\n" if named else "") + f"data: {json.dumps(event)}\n\n" for event in events
    ]
    return "".join(lines) + end


def _halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


# ---- chat completions ----

_CHAT_USAGE = {
    "prompt_tokens": 20,
    "completion_tokens": 7,
    "total_tokens": 27,
    "prompt_tokens_details": {"cached_tokens": 5},
}


def _chat_call(index: Mapping[str, int]) -> dict[str, Any]:
    function = {"name": CALL[1], "arguments": json.dumps(CALL[2])}
    return {**index, "id": CALL[0], "type": "function", "function": function}


def _chat_message(text: str | None, index: Mapping[str, int]) -> dict[str, Any]:
    if text is None:
        return {"role": "assistant", "content": None, "tool_calls": [_chat_call(index)]}
    return {"role": "assistant", "content": text}


def _chat(text: str | None) -> Any:
    finish = "tool_calls" if text is None else "stop"
    choice = {"index": 0, "message": _chat_message(text, {}), "finish_reason": finish, "logprobs": None}
    head = {"id": "chat-1", "object": "chat.completion", "created": 1_700_000_000, "model": "m-dated"}
    return {**head, "choices": [choice], "usage": _CHAT_USAGE}


def _chat_stream(text: str | None) -> str:
    head = {"id": "chat-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "m-dated"}
    deltas = (
        [_chat_message(None, {"index": 0})]
        if text is None
        else [{"role": "assistant", "content": half} for half in _halves(text)]
    )
    finish = "tool_calls" if text is None else "stop"
    chunks = [{**head, "choices": [{"index": 0, "delta": one, "finish_reason": None}]} for one in deltas]
    # Groq reports the usage of a stream in a member of its own.
    last = {"usage": _CHAT_USAGE, "x_groq": {"id": "r", "usage": _CHAT_USAGE}}
    end = {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}], **last}
    return _events(*chunks, end, named=False, end="data: [DONE]\n\n")


CHAT = Wire(_chat, _chat_stream)


# ---- responses ----


def _response_item(text: str | None) -> dict[str, Any]:
    if text is None:
        call = {"call_id": CALL[0], "name": CALL[1], "arguments": json.dumps(CALL[2])}
        return {"type": "function_call", "id": "fc_1", "status": "completed", **call}
    content = [{"type": "output_text", "text": text, "annotations": [], "logprobs": []}]
    return {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": content}


def _response(text: str | None, *, done: bool = True) -> Any:
    usage = {
        "input_tokens": 20,
        "output_tokens": 7,
        "total_tokens": 27,
        "input_tokens_details": {"cached_tokens": 5},
        "output_tokens_details": {"reasoning_tokens": 0},
    }
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_700_000_000,
        "model": "m-dated",
        "status": "completed" if done else "in_progress",
        "output": [_response_item(text)] if done else [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage if done else None,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
    }


def _response_stream(text: str | None) -> str:
    item = _response_item(text)
    at = {"output_index": 0, "item_id": item["id"]}
    if text is None:
        added = {**item, "arguments": "", "status": "in_progress"}
        kind, halves, where = "response.function_call_arguments", _halves(item["arguments"]), at
        done = {"type": f"{kind}.done", **at, "arguments": item["arguments"], "name": CALL[1]}
    else:
        added = {**item, "content": [], "status": "in_progress"}
        kind, halves, where = (
            "response.output_text",
            _halves(text),
            {**at, "content_index": 0, "logprobs": []},
        )
        done = {"type": f"{kind}.done", **where, "text": text}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": _response(text, done=False)},
        {"type": "response.output_item.added", "output_index": 0, "item": added},
    ]
    if text is not None:
        part = {"type": "output_text", "text": "", "annotations": []}
        events.append({"type": "response.content_part.added", **at, "content_index": 0, "part": part})
    events += [{"type": f"{kind}.delta", **where, "delta": half} for half in halves]
    events += [
        done,
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": _response(text)},
    ]
    return _events(*({**event, "sequence_number": at} for at, event in enumerate(events)))


RESPONSES = Wire(_response, _response_stream)


# ---- messages ----


def _block(text: str | None) -> dict[str, Any]:
    if text is None:
        return {"type": "tool_use", "id": CALL[0], "name": CALL[1], "input": CALL[2]}
    return {"type": "text", "text": text}


def _messages(text: str | None) -> Any:
    usage = {
        "input_tokens": 12,
        "cache_read_input_tokens": 5,
        "cache_creation_input_tokens": 3,
        "output_tokens": 7,
    }
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m-dated", "stop_sequence": None}
    finish = "tool_use" if text is None else "end_turn"
    return {**head, "content": [_block(text)], "stop_reason": finish, "usage": usage}


def _messages_stream(text: str | None) -> str:
    whole = _messages(text)
    finish = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    start = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
    if text is None:
        opening, key = {**_block(None), "input": {}}, "partial_json"
        deltas = [{"type": "input_json_delta", key: half} for half in _halves(json.dumps(CALL[2]))]
    else:
        opening, key = {"type": "text", "text": ""}, "text"
        deltas = [{"type": "text_delta", key: half} for half in _halves(text)]
    return _events(
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": opening},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": finish, "usage": {"output_tokens": 7}},
        {"type": "message_stop"},
    )


MESSAGES = Wire(_messages, _messages_stream)


# ---- Gemini ----


def _gemini(text: str | None, part: dict[str, Any] | None = None, *, last: bool = True) -> Any:
    call = {"functionCall": {"name": CALL[1], "args": CALL[2]}, "thoughtSignature": "c2lnbmVk"}
    content = {"role": "model", "parts": [part or (call if text is None else {"text": text})]}
    usage = {"promptTokenCount": 20, "candidatesTokenCount": 7, "totalTokenCount": 27}
    return {
        "candidates": [{"content": content, "index": 0, **({"finishReason": "STOP"} if last else {})}],
        "usageMetadata": {**usage, "cachedContentTokenCount": 5},
        "modelVersion": "m-dated",
        "responseId": "r1",
    }


def _gemini_stream(text: str | None) -> str:
    if text is None:
        return _events(_gemini(None), named=False)
    first, second = _halves(text)
    return _events(_gemini(first, last=False), _gemini(second), named=False)


GEMINI = Wire(_gemini, _gemini_stream, lambda asked: ":streamGenerateContent" in asked.path)

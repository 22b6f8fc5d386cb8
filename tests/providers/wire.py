"""The protocols of model families, as far as a loopback server needs them to answer like the family's own server.
`converse_wire` has the binary one of Bedrock, `grok_server` that of xAI.

A wire answers a request with a text or with a call, whole or streamed, with the same usage: 20 tokens
in, 5 of them cached, 7 out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from tests.providers.loopback import Asked, Reply, json_reply, stream_reply


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool."""

    tool: str
    arguments: Mapping[str, Any]
    id: str = "call_1"


Said: TypeAlias = str | Call
WEATHER = Call("weather", {"city": "Oslo"})


class Wire(NamedTuple):
    """A protocol: answers with a text or a call."""

    whole: Callable[[Said], Any]
    streamed: Callable[[Said], str | Reply]
    is_streamed: Callable[[Asked], bool] = lambda asked: bool(asked.json.get("stream"))

    def reply(self, asked: Asked, said: Said) -> Reply:
        if self.is_streamed(asked):
            stream = self.streamed(said)
            return stream if isinstance(stream, Reply) else stream_reply(stream)
        whole = self.whole(said)
        return whole if isinstance(whole, Reply) else json_reply(whole)


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


def _chat_call(said: Call, index: Mapping[str, int]) -> dict[str, Any]:
    function = {"name": said.tool, "arguments": json.dumps(said.arguments)}
    return {**index, "id": said.id, "type": "function", "function": function}


def _chat_message(said: Said, index: Mapping[str, int]) -> dict[str, Any]:
    if isinstance(said, Call):
        return {"role": "assistant", "content": None, "tool_calls": [_chat_call(said, index)]}
    return {"role": "assistant", "content": said}


def _chat(said: Said) -> Any:
    finish = "tool_calls" if isinstance(said, Call) else "stop"
    choice = {"index": 0, "message": _chat_message(said, {}), "finish_reason": finish, "logprobs": None}
    head = {"id": "chat-1", "object": "chat.completion", "created": 1_700_000_000, "model": "m-dated"}
    head["provider"] = "loopback"  # required by OpenRouter's adapter
    return {**head, "choices": [choice], "usage": _CHAT_USAGE}


def _chat_stream(said: Said) -> str:
    head = {"id": "chat-1", "object": "chat.completion.chunk", "created": 1_700_000_000, "model": "m-dated"}
    head["provider"] = "loopback"
    deltas = (
        [_chat_message(said, {"index": 0})]
        if isinstance(said, Call)
        else [{"role": "assistant", "content": half} for half in _halves(said)]
    )
    finish = "tool_calls" if isinstance(said, Call) else "stop"
    chunks = [{**head, "choices": [{"index": 0, "delta": one, "finish_reason": None}]} for one in deltas]
    # Groq reports the usage of a stream in a member of its own.
    last = {"usage": _CHAT_USAGE, "x_groq": {"id": "r", "usage": _CHAT_USAGE}}
    end = {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}], **last}
    return _events(*chunks, end, named=False, end="data: [DONE]\n\n")


CHAT = Wire(_chat, _chat_stream)


# ---- responses ----


def _response_item(said: Said) -> dict[str, Any]:
    if isinstance(said, Call):
        call = {"call_id": said.id, "name": said.tool, "arguments": json.dumps(said.arguments)}
        return {"type": "function_call", "id": "fc_1", "status": "completed", **call}
    content = [{"type": "output_text", "text": said, "annotations": [], "logprobs": []}]
    return {"type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": content}


def _response(said: Said, *, done: bool = True) -> Any:
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
        "output": [_response_item(said)] if done else [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage if done else None,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
    }


def _response_stream(said: Said) -> str:
    item = _response_item(said)
    at = {"output_index": 0, "item_id": item["id"]}
    if isinstance(said, Call):
        added = {**item, "arguments": "", "status": "in_progress"}
        kind, halves, where = "response.function_call_arguments", _halves(item["arguments"]), at
        done = {"type": f"{kind}.done", **at, "arguments": item["arguments"], "name": said.tool}
    else:
        added = {**item, "content": [], "status": "in_progress"}
        kind, halves, where = (
            "response.output_text",
            _halves(said),
            {**at, "content_index": 0, "logprobs": []},
        )
        done = {"type": f"{kind}.done", **where, "text": said}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": _response(said, done=False)},
        {"type": "response.output_item.added", "output_index": 0, "item": added},
    ]
    if not isinstance(said, Call):
        part = {"type": "output_text", "text": "", "annotations": []}
        events.append({"type": "response.content_part.added", **at, "content_index": 0, "part": part})
    events += [{"type": f"{kind}.delta", **where, "delta": half} for half in halves]
    events += [
        done,
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": _response(said)},
    ]
    return _events(*({**event, "sequence_number": at} for at, event in enumerate(events)))


RESPONSES = Wire(_response, _response_stream)


# ---- messages ----


def _block(said: Said) -> dict[str, Any]:
    if isinstance(said, Call):
        return {"type": "tool_use", "id": said.id, "name": said.tool, "input": said.arguments}
    return {"type": "text", "text": said}


def _messages(said: Said) -> Any:
    usage = {
        "input_tokens": 12,
        "cache_read_input_tokens": 5,
        "cache_creation_input_tokens": 3,
        "output_tokens": 7,
    }
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m-dated", "stop_sequence": None}
    finish = "tool_use" if isinstance(said, Call) else "end_turn"
    return {**head, "content": [_block(said)], "stop_reason": finish, "usage": usage}


def _messages_stream(said: Said) -> str:
    whole = _messages(said)
    finish = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    start = {**whole, "content": [], "stop_reason": None, "usage": {**whole["usage"], "output_tokens": 1}}
    if isinstance(said, Call):
        opening, key = {**_block(said), "input": {}}, "partial_json"
        deltas = [{"type": "input_json_delta", key: half} for half in _halves(json.dumps(said.arguments))]
    else:
        opening, key = {"type": "text", "text": ""}, "text"
        deltas = [{"type": "text_delta", key: half} for half in _halves(said)]
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


def _gemini(said: Said, *, last: bool = True) -> Any:
    part: dict[str, Any] = {"text": said}
    if isinstance(said, Call):
        call = {"name": said.tool, "args": said.arguments}
        part = {"functionCall": call, "thoughtSignature": "c2lnbmVk"}
    content = {"role": "model", "parts": [part]}
    usage = {"promptTokenCount": 20, "candidatesTokenCount": 7, "totalTokenCount": 27}
    return {
        "candidates": [{"content": content, "index": 0, **({"finishReason": "STOP"} if last else {})}],
        "usageMetadata": {**usage, "cachedContentTokenCount": 5},
        "modelVersion": "m-dated",
        "responseId": "r1",
    }


def _gemini_stream(said: Said) -> str:
    if isinstance(said, Call):
        return _events(_gemini(said), named=False)
    first, second = _halves(said)
    return _events(_gemini(first, last=False), _gemini(second), named=False)


GEMINI = Wire(_gemini, _gemini_stream, lambda asked: ":streamGenerateContent" in asked.path)


# ---- Cohere ----


def _cohere_call(said: Call, arguments: str) -> dict[str, Any]:
    return {"id": said.id, "type": "function", "function": {"name": said.tool, "arguments": arguments}}


def _cohere_end(said: Said) -> dict[str, Any]:
    tokens = {"input_tokens": 20.0, "output_tokens": 7.0}
    usage = {"billed_units": tokens, "tokens": tokens, "cached_tokens": 5.0}
    return {"finish_reason": "TOOL_CALL" if isinstance(said, Call) else "COMPLETE", "usage": usage}


def _cohere(said: Said) -> Any:
    message: dict[str, Any] = {"role": "assistant"}
    if isinstance(said, Call):
        message |= {"tool_plan": "I look.", "tool_calls": [_cohere_call(said, json.dumps(said.arguments))]}
    else:
        message |= {"content": [{"type": "text", "text": said}]}
    return {"id": "c1", "message": message, **_cohere_end(said)}


def _cohere_stream(said: Said) -> str:
    def event(kind: str, message: Mapping[str, Any]) -> dict[str, Any]:
        return {"type": kind, "index": 0, "delta": {"message": message}}

    if isinstance(said, Call):
        deltas = [event("tool-call-start", {"tool_calls": _cohere_call(said, "")})]
        halves = [{"function": {"arguments": half}} for half in _halves(json.dumps(said.arguments))]
        deltas += [event("tool-call-delta", {"tool_calls": half}) for half in halves]
        ended = "tool-call-end"
    else:
        deltas = [event("content-start", {"content": {"type": "text", "text": ""}})]
        deltas += [event("content-delta", {"content": {"text": half}}) for half in _halves(said)]
        ended = "content-end"
    start = {"type": "message-start", "id": "c1", "delta": {"message": {"role": "assistant", "content": []}}}
    end = {"type": "message-end", "id": "c1", "delta": _cohere_end(said)}
    return _events(start, *deltas, {"type": ended, "index": 0}, end, end="data: [DONE]\n\n")


COHERE = Wire(_cohere, _cohere_stream)

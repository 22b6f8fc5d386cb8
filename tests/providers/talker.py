"""A provider that says what anybody would expect: it calls the first tool it is offered, then answers.

It speaks chat completions, Responses (not streamed) and Anthropic's messages, as a reply function of Loopback:
`Loopback(talker)`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.providers.loopback import Asked, Reply, json_reply, stream_reply

ANSWER = "It is sunny in Oslo."
ARGUMENTS = {"city": "Oslo"}


def talker(asked: Asked) -> Reply:
    """Answer one request."""
    body = asked.json
    streamed = bool(body.get("stream"))
    if asked.path.endswith("/chat/completions"):
        called = _first_tool(body, "tool", lambda tool: tool["function"]["name"])
        return stream_reply("".join(_chat_events(called))) if streamed else json_reply(_chat(called))
    if asked.path.endswith("/responses"):
        return json_reply(_response(_first_response_tool(body)))
    if asked.path.endswith("/messages"):
        called = _first_tool(body, "user", lambda tool: tool["name"], after=1)
        return (
            stream_reply("".join(_anthropic_events(called))) if streamed else json_reply(_anthropic(called))
        )
    return json_reply({"error": {"message": f"no such path: {asked.path}"}}, status=404)


def _first_tool(body: Any, role: str, name: Any, after: int = 0) -> str | None:
    """Return the tool to call: none is offered, or its result is there already, and there is nothing to call."""
    tools = body.get("tools") or []
    answered = sum(message["role"] == role for message in body["messages"]) > after
    return name(tools[0]) if tools and not answered else None


def _first_response_tool(body: Any) -> str | None:
    tools = body.get("tools") or []
    answered = any(item.get("type") == "function_call_output" for item in body["input"])
    return tools[0]["name"] if tools and not answered else None


# ---- chat completions ----

_CHAT_USAGE = {"prompt_tokens": 20, "completion_tokens": 6, "total_tokens": 26}


def _chat(called: str | None) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": None if called else ANSWER}
    if called:
        message["tool_calls"] = [_chat_call(called)]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if called else "stop"}
    head = {"id": "c1", "object": "chat.completion", "created": 1, "model": "talker-1"}
    return {**head, "choices": [choice], "usage": _CHAT_USAGE}


def _chat_call(name: str) -> dict[str, Any]:
    return {
        "id": "call_1",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(ARGUMENTS)},
    }


def _chat_events(called: str | None) -> Iterator[str]:
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "talker-1"}

    def event(delta: dict[str, Any], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return f"data: {json.dumps({**head, 'choices': [choice]})}\n\n"

    if called:
        yield event({"role": "assistant", "tool_calls": [{"index": 0, **_chat_call(called)}]})
    else:
        for word in ANSWER.split(" "):
            yield event({"content": word if word == "It" else f" {word}"})
    yield event({}, "tool_calls" if called else "stop")
    yield f"data: {json.dumps({**head, 'choices': [], 'usage': _CHAT_USAGE})}\n\n"
    yield "data: [DONE]\n\n"


# ---- Responses ----


def _response(called: str | None) -> dict[str, Any]:
    said: dict[str, Any] = {
        "type": "message",
        "id": "m1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": ANSWER, "annotations": []}],
    }
    if called:
        arguments = json.dumps(ARGUMENTS)
        said = {
            "type": "function_call",
            "id": "f1",
            "call_id": "call_1",
            "name": called,
            "arguments": arguments,
        }
    usage = {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 6,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 26,
    }
    head = {"id": "r1", "object": "response", "created_at": 1, "model": "talker-1", "status": "completed"}
    return {**head, "output": [said], "usage": usage}


# ---- Anthropic ----


def _anthropic(called: str | None) -> dict[str, Any]:
    return {
        "id": "m1",
        "type": "message",
        "role": "assistant",
        "model": "talker-1",
        "content": [_anthropic_block(called)],
        "stop_reason": "tool_use" if called else "end_turn",
        "usage": {"input_tokens": 20, "output_tokens": 6},
    }


def _anthropic_block(called: str | None) -> dict[str, Any]:
    if called:
        return {"type": "tool_use", "id": "toolu_1", "name": called, "input": ARGUMENTS}
    return {"type": "text", "text": ANSWER}


def _anthropic_events(called: str | None) -> Iterator[str]:
    def event(kind: str, **members: Any) -> str:
        return f"event: {kind}\ndata: {json.dumps({'type': kind, **members})}\n\n"

    begun = {**_anthropic(called), "content": [], "stop_reason": None}
    yield event("message_start", message=begun)
    if called:
        empty = {**_anthropic_block(called), "input": {}}
        pieces = [{"type": "input_json_delta", "partial_json": json.dumps(ARGUMENTS)}]
    else:
        empty = {"type": "text", "text": ""}
        words = ANSWER.split(" ")
        texts = [word if at == 0 else f" {word}" for at, word in enumerate(words)]
        pieces = [{"type": "text_delta", "text": text} for text in texts]
    yield event("content_block_start", index=0, content_block=empty)
    for piece in pieces:
        yield event("content_block_delta", index=0, delta=piece)
    yield event("content_block_stop", index=0)
    stop = "tool_use" if called else "end_turn"
    yield event("message_delta", delta={"stop_reason": stop}, usage={"output_tokens": 6})
    yield event("message_stop")

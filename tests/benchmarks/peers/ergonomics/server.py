"""The model behind all programs: it calls the tool once, then gives the receipt, in both APIs of OpenAI, streamed.

A reply function of `tests.providers.loopback`. It answers in the form that is requested: chat completions or
Responses, and the receipt as text or, if an output tool is offered, as a call of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tests.providers.loopback import Asked, Reply, json_reply, stream_reply

TEXT = ("I ", "will ", "refund ", "order ", "A-17.")
TOOL = "refund"
ARGUMENTS = {"order": "A-17", "euros": 40}
RESULT = "refunded 40 EUR of order A-17"
RECEIPT = {"order": "A-17", "euros": 40, "message": "You get 40 EUR back."}


class Answer(NamedTuple):
    """One answer of the model: text in pieces, then perhaps a call."""

    text: tuple[str, ...] = ()
    tool: str = ""
    arguments: str = ""


def model(asked: Asked) -> Reply:
    """Answer one request."""
    body = asked.json
    chat, streamed = asked.path.endswith("/chat/completions"), bool(body.get("stream"))
    answer = _answer(body, RESULT in json.dumps(body["messages" if chat else "input"]))
    if not streamed:
        return json_reply(_whole_chat(answer) if chat else _response(_items(answer), "completed"))
    return stream_reply("".join(_chat(answer) if chat else _responses(answer)))


def _answer(body: Any, refunded: bool) -> Answer:
    if not refunded:
        return Answer(TEXT, TOOL, json.dumps(ARGUMENTS))
    names = [tool.get("function", tool)["name"] for tool in body.get("tools") or []]
    receipt = json.dumps(RECEIPT)
    output_tools = [name for name in names if name != TOOL]
    return Answer((), output_tools[0], receipt) if output_tools else Answer((receipt[:20], receipt[20:]))


# ---- chat completions ----

_CHAT_USAGE = {"prompt_tokens": 20, "completion_tokens": 6, "total_tokens": 26}


def _chat(answer: Answer) -> Iterator[str]:
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "loopback-1"}

    def event(delta: dict[str, Any], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return f"data: {json.dumps({**head, 'choices': [choice]})}\n\n"

    yield event({"role": "assistant", "content": ""})
    yield from (event({"content": piece}) for piece in answer.text)
    if answer.tool:
        yield event({"tool_calls": [{"index": 0, **_chat_call(answer)}]})
    yield event({}, "tool_calls" if answer.tool else "stop")
    yield f"data: {json.dumps({**head, 'choices': [], 'usage': _CHAT_USAGE})}\n\n"
    yield "data: [DONE]\n\n"


def _whole_chat(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "".join(answer.text) or None}
    if answer.tool:
        message["tool_calls"] = [_chat_call(answer)]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if answer.tool else "stop"}
    head = {"id": "c1", "object": "chat.completion", "created": 1, "model": "loopback-1"}
    return {**head, "choices": [choice], "usage": _CHAT_USAGE}


def _chat_call(answer: Answer) -> dict[str, Any]:
    function = {"name": answer.tool, "arguments": answer.arguments}
    return {"id": "call_1", "type": "function", "function": function}


# ---- Responses ----


def _responses(answer: Answer) -> Iterator[str]:
    for number, event in enumerate(_response_events(answer)):
        line = {**event, "sequence_number": number}
        yield f"event: {event['type']}\ndata: {json.dumps(line)}\n\n"


def _response_events(answer: Answer) -> Iterator[dict[str, Any]]:
    yield {"type": "response.created", "response": _response((), "in_progress")}
    items = _items(answer)
    for index, item in enumerate(items):
        yield from _call_events(item, index) if "call_id" in item else _message_events(item, answer.text)
    yield {"type": "response.completed", "response": _response(items, "completed")}


def _items(answer: Answer) -> list[dict[str, Any]]:
    text = [_message(answer.text)] if answer.text else []
    return [*text, _call(answer)] if answer.tool else text


def _response(output: Iterable[Any], status: str) -> dict[str, Any]:
    usage = {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 6,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 26,
    }
    return {
        "id": "r1",
        "object": "response",
        "created_at": 1,
        "model": "loopback-1",
        "status": status,
        "output": list(output),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage if status == "completed" else None,
    }


def _message(text: tuple[str, ...]) -> dict[str, Any]:
    part = {"type": "output_text", "text": "".join(text), "annotations": []}
    return {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": [part]}


def _message_events(item: dict[str, Any], text: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    at = {"item_id": "m1", "output_index": 0, "content_index": 0}
    empty = {**item, "status": "in_progress", "content": []}
    yield {"type": "response.output_item.added", "output_index": 0, "item": empty}
    yield {"type": "response.content_part.added", **at, "part": {**item["content"][0], "text": ""}}
    for piece in text:
        yield {"type": "response.output_text.delta", **at, "delta": piece, "logprobs": []}
    yield {"type": "response.output_text.done", **at, "text": "".join(text), "logprobs": []}
    yield {"type": "response.content_part.done", **at, "part": item["content"][0]}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}


def _call(answer: Answer) -> dict[str, Any]:
    names = {"name": answer.tool, "arguments": answer.arguments}
    return {"type": "function_call", "id": "f1", "call_id": "call_1", "status": "completed", **names}


def _call_events(item: dict[str, Any], index: int) -> Iterator[dict[str, Any]]:
    at = {"item_id": "f1", "output_index": index}
    empty = {**item, "status": "in_progress", "arguments": ""}
    yield {"type": "response.output_item.added", "output_index": index, "item": empty}
    yield {"type": "response.function_call_arguments.delta", **at, "delta": item["arguments"]}
    yield {"type": "response.function_call_arguments.done", **at, "arguments": item["arguments"]}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}

"""The model behind all programs: it looks the price up, refunds it, and gives the receipt, in both APIs of OpenAI.

A reply function of `tests.providers.loopback`. It answers in the form that is requested: streamed or not, chat
completions or Responses, and the receipt as text or, if an output tool is offered, as a call of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tests.benchmarks.peers.ergonomics import task
from tests.providers.loopback import Asked, Reply, json_reply, stream_reply

TEXT = ("I ", "will ", "refund ", "order ", "A-17.")
RECEIPT = task.RECEIPT.model_dump()
CALLS = (("price", {"order": "A-17"}), ("refund", {"order": "A-17", "euros": 40}))
RESULTS = ("order A-17 was 40 EUR", "refunded 40 EUR of order A-17")
"""The calls of the model, and the results with which it continues."""


class Call(NamedTuple):
    """One call of a tool."""

    tool: str
    arguments: str
    call_id: str


class Answer(NamedTuple):
    """One answer of the model: text in pieces, then perhaps calls."""

    text: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()


def results_in(asked: Asked) -> int:
    """Return how many results of the calls a request has."""
    body = asked.body.decode()
    return sum(result in body for result in RESULTS)


def model(asked: Asked, tokens: int = 6) -> Reply:
    """Answer one request, with so many tokens of output in its usage."""
    return reply(asked, _answer(asked.json, results_in(asked)), tokens)


def offered(body: Any) -> list[str]:
    """Return the names of the tools of a request."""
    return [tool.get("function", tool)["name"] for tool in body.get("tools") or []]


def reply(asked: Asked, answer: Answer, tokens: int = 6) -> Reply:
    """Return an answer in the form that is requested."""
    chat, streamed = asked.path.endswith("/chat/completions"), bool(asked.json.get("stream"))
    if not streamed:
        return json_reply(
            _whole_chat(answer, tokens) if chat else _response(_items(answer), "completed", tokens)
        )
    return stream_reply("".join(_chat(answer, tokens) if chat else _responses(answer, tokens)))


def _answer(body: Any, step: int) -> Answer:
    if step < len(CALLS):
        name, arguments = CALLS[step]
        return Answer(() if step else TEXT, (Call(name, json.dumps(arguments), f"call_{step}"),))
    receipt = json.dumps(RECEIPT)
    output_tools = [name for name in offered(body) if name not in dict(CALLS)]
    if output_tools:
        return Answer((), (Call(output_tools[0], receipt, f"call_{step}"),))
    return Answer((receipt[:20], receipt[20:]))


# ---- chat completions ----


def _chat_usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 20, "completion_tokens": tokens, "total_tokens": 20 + tokens}


def _chat(answer: Answer, tokens: int) -> Iterator[str]:
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "loopback-1"}

    def event(delta: dict[str, Any], finish: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return f"data: {json.dumps({**head, 'choices': [choice]})}\n\n"

    yield event({"role": "assistant", "content": ""})
    yield from (event({"content": piece}) for piece in answer.text)
    if answer.calls:
        calls = [{"index": index, **_chat_call(call)} for index, call in enumerate(answer.calls)]
        yield event({"tool_calls": calls})
    yield event({}, "tool_calls" if answer.calls else "stop")
    yield f"data: {json.dumps({**head, 'choices': [], 'usage': _chat_usage(tokens)})}\n\n"
    yield "data: [DONE]\n\n"


def _whole_chat(answer: Answer, tokens: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "".join(answer.text) or None}
    if answer.calls:
        message["tool_calls"] = [_chat_call(call) for call in answer.calls]
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if answer.calls else "stop"}
    head = {"id": "c1", "object": "chat.completion", "created": 1, "model": "loopback-1"}
    return {**head, "choices": [choice], "usage": _chat_usage(tokens)}


def _chat_call(call: Call) -> dict[str, Any]:
    function = {"name": call.tool, "arguments": call.arguments}
    return {"id": call.call_id, "type": "function", "function": function}


# ---- Responses ----


def _responses(answer: Answer, tokens: int) -> Iterator[str]:
    for number, event in enumerate(_response_events(answer, tokens)):
        line = {**event, "sequence_number": number}
        yield f"event: {event['type']}\ndata: {json.dumps(line)}\n\n"


def _response_events(answer: Answer, tokens: int) -> Iterator[dict[str, Any]]:
    yield {"type": "response.created", "response": _response((), "in_progress", tokens)}
    items = _items(answer)
    for index, item in enumerate(items):
        yield from _call_events(item, index) if "call_id" in item else _message_events(item, answer.text)
    yield {"type": "response.completed", "response": _response(items, "completed", tokens)}


def _items(answer: Answer) -> list[dict[str, Any]]:
    text = [_message(answer.text)] if answer.text else []
    return [*text, *map(_call, answer.calls)]


def _response(output: Iterable[Any], status: str, tokens: int) -> dict[str, Any]:
    usage = {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 20 + tokens,
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


def _call(call: Call) -> dict[str, Any]:
    names = {"name": call.tool, "arguments": call.arguments}
    return {
        "type": "function_call",
        "id": f"f_{call.call_id}",
        "call_id": call.call_id,
        "status": "completed",
        **names,
    }


def _call_events(item: dict[str, Any], index: int) -> Iterator[dict[str, Any]]:
    at = {"item_id": item["id"], "output_index": index}
    empty = {**item, "status": "in_progress", "arguments": ""}
    yield {"type": "response.output_item.added", "output_index": index, "item": empty}
    yield {"type": "response.function_call_arguments.delta", **at, "delta": item["arguments"]}
    yield {"type": "response.function_call_arguments.done", **at, "arguments": item["arguments"]}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}

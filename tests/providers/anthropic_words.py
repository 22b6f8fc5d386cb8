"""Requests and answers of Anthropic's API in few words, for tests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from orchestrator.llm.message import Message, Request, ToolCall
from orchestrator.providers.anthropic import Anthropic, MessagesForm
from orchestrator.providers.vendor_model import repaired

HELLO = Request((Message("user", "hello"),))


def model(url: str, **options: Any) -> Anthropic:
    return Anthropic("m", base_url=url, api_key="sk-test", **{"timeout": 60.0, "cache_seconds": 0, **options})


def sent(*messages: Message, **request: Any) -> dict[str, Any]:
    """The body of a request."""
    offered = [offer.name for offer in request.get("tools", ())]
    sent = Request(repaired(messages, offered), **request)
    return MessagesForm(max_tokens=100).body("m", sent, streamed=False)


def turns(*messages: Message) -> list[tuple[str, Any]]:
    """The messages of a body; those of one plain text as that text."""
    found: list[tuple[str, Any]] = []
    for message in sent(*messages)["messages"]:
        blocks = message["content"]
        plain = len(blocks) == 1 and blocks[0].keys() == {"type", "text"}
        found.append((message["role"], blocks[0]["text"] if plain else blocks))
    return found


def user(text: str) -> Message:
    return Message("user", text)


def said(text: str | None, *calls: ToolCall) -> Message:
    return Message("assistant", text, calls)


def result(id_: str | None, text: str, *, name: str | None = None, is_error: bool = False) -> Message:
    return Message("tool", text, (), id_, name, None, None, is_error)


def use(id_: str, name: str = "look", **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id_, "name": name, "input": given}


def answer(id_: str, text: str, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id_, "content": text, **more}


def message(*blocks: Mapping[str, Any], stop: str = "end_turn", **more: Any) -> dict[str, Any]:
    """An answer as the API gives it."""
    usage = {"input_tokens": 3, "output_tokens": 2}
    return {
        "type": "message",
        "model": "m-1",
        "content": [*blocks],
        "stop_reason": stop,
        "usage": usage,
        **more,
    }


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def events(raw: Mapping[str, Any]) -> str:
    """An answer as the stream of events that makes it, texts and inputs in pieces of three characters."""
    blank = {**raw, "content": [], "stop_reason": None}
    lines: list[dict[str, Any]] = [{"type": "message_start", "message": blank}, {"type": "ping"}]
    for index, block in enumerate(raw["content"]):
        start, deltas = pieces_of(block)
        lines.append({"type": "content_block_start", "index": index, "content_block": start})
        lines += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        lines.append({"type": "content_block_stop", "index": index})
    ends = {name: raw.get(name) for name in ("stop_reason", "stop_details")}
    lines.append(
        {"type": "message_delta", "delta": ends, "usage": {"output_tokens": raw["usage"]["output_tokens"]}}
    )
    lines.append({"type": "message_stop"})
    return "".join(f"event: {line['type']}\ndata: {json.dumps(line)}\n\n" for line in lines)


def pieces_of(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    kind = block["type"]
    if kind == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": one} for one in threes(block["text"])]
    if kind == "thinking":
        thought = [{"type": "thinking_delta", "thinking": one} for one in threes(block["thinking"])]
        signature = {"type": "signature_delta", "signature": block["signature"]}
        return {"type": kind, "thinking": "", "signature": ""}, [*thought, signature]
    if "input" in block:
        given = block["input"]
        text = given if isinstance(given, str) else json.dumps(given)
        return {**block, "input": {}}, [
            {"type": "input_json_delta", "partial_json": one} for one in threes(text)
        ]
    return dict(block), []


def threes(text: str) -> list[str]:
    return [text[at : at + 3] for at in range(0, len(text), 3)]

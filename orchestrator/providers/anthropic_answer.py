"""Answers of Anthropic's Messages API, whole or as a stream of events.

- Input tokens are what was read in all: the API counts those from and into the cache beside `input_tokens`.
- An answer that thinks and calls keeps its content as a list of parts, thinking with its signature first: the API wants
  it back unchanged with the results. So does one with blocks that are neither text nor call (the provider's own tools).
  Every other answer is its text; what was thought is in `reasoning` either way.
- The input of a streamed call is kept as it was written, cut off or not; one that wrote nothing has the arguments `{}`.
- A refusal (`stop_reason`) is an answer with `refusal` set; an answer without any block is one without content.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from orchestrator.messages import Content, Response, ToolCall, Usage
from orchestrator.providers import fault
from orchestrator.providers.event_stream import Event
from orchestrator.providers.reading import count, loads, malformed, mapping, objects, text, text_or_none

_THINKING = frozenset(("thinking", "redacted_thinking"))
_PLAIN = frozenset(("text", "tool_use"))
_CUT_INPUT = "partial_json"
"""Member of a block in the making: the text of its input so far."""


def response_of(raw: Mapping[str, Any]) -> Response:
    """Read a message. Raises LLMError for an error object, and for what is no message."""
    if fault.holds_error(raw):
        raise fault.of_answer(None, None, raw)
    if not isinstance(raw.get("content"), list):
        raise malformed("there is no content in it")
    blocks = objects(raw["content"])
    calls = tuple(_call(block) for block in blocks if block.get("type") == "tool_use")
    thought = "\n\n".join(filter(None, (text(block.get("thinking")) for block in blocks)))
    stop = text_or_none(raw.get("stop_reason"))
    return Response(
        _content(blocks, keeps_thinking=bool(calls) or stop == "pause_turn"),
        calls,
        stop,
        usage_of(mapping(raw.get("usage"))),
        text_or_none(raw.get("model")),
        _refusal(mapping(raw.get("stop_details"))) if stop == "refusal" else None,
        thought or None,
    )


def usage_of(usage: Mapping[str, Any]) -> Usage:
    """Return the tokens of an answer, those from and into the cache among its input."""
    read, written = (count(usage.get(f"cache_{way}_input_tokens")) for way in ("read", "creation"))
    return Usage(
        count(usage.get("input_tokens")) + read + written,
        count(usage.get("output_tokens")),
        read,
        count(mapping(usage.get("output_tokens_details")).get("thinking_tokens")),
    )


def _content(blocks: list[Mapping[str, Any]], *, keeps_thinking: bool) -> Content:
    kinds = {block.get("type") for block in blocks}
    if kinds - _PLAIN - _THINKING or (keeps_thinking and kinds & _THINKING):
        return merged(_whole(block) for block in blocks if block.get("type") != "tool_use")
    said = [text(block.get("text")) for block in blocks if block.get("type") == "text"]
    return "".join(said) if said else None


def merged(parts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return parts with texts that follow each other made one: the API parts a sentence where it cites."""
    found: list[dict[str, Any]] = []
    for part in parts:
        if part.get("type") == "text" and found and found[-1].get("type") == "text":
            before = found[-1]
            cited = [*(before.get("citations") or ()), *(part.get("citations") or ())]
            found[-1] = {
                **before,
                "text": before["text"] + part["text"],
                **({"citations": cited} if cited else {}),
            }
        else:
            found.append(part)
    return found


def _whole(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return a block as the API takes it back: with its input, where that came in pieces."""
    whole = {name: value for name, value in block.items() if name != _CUT_INPUT}
    if _CUT_INPUT in block:
        with suppress(ValueError):
            whole["input"] = json.loads(block[_CUT_INPUT])
    return whole


def _call(block: Mapping[str, Any]) -> ToolCall:
    given = block.get("input")
    written = block.get(_CUT_INPUT) or json.dumps({} if given is None else given, ensure_ascii=False)
    return ToolCall(text(block.get("id")), text(block.get("name")), written)


def _refusal(details: Mapping[str, Any]) -> str:
    category = text(details.get("category"))
    return text(details.get("explanation")) or f"the model declined to answer{category and f' ({category})'}"


class MessageAssembly:
    """A message from its events."""

    def __init__(self) -> None:
        self.over = False
        self._raw: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._blocks: dict[object, dict[str, Any]] = {}
        self._said: list[str] = []

    @property
    def text(self) -> str:
        """What there is of the text by now."""
        return "".join(self._said)

    def take(self, event: Event) -> str:
        """Take an event and return the text it adds."""
        raw = loads(event.data)
        if fault.holds_error(raw):
            raise fault.of_answer(None, None, raw, partial=self.text)
        raw = mapping(raw)
        match raw.get("type"):
            case "message_start":
                self._start(mapping(raw.get("message")))
            case "content_block_start":
                self._blocks[raw.get("index")] = dict(mapping(raw.get("content_block")))
                return self._heard(text(mapping(raw.get("content_block")).get("text")))
            case "content_block_delta":
                return self._delta(raw.get("index"), mapping(raw.get("delta")))
            case "message_delta":
                self._raw.update(mapping(raw.get("delta")))
                self._count(mapping(raw.get("usage")))
            case "message_stop":
                self.over = True
        return ""

    def response(self) -> Response:
        """Return the message. Raises LLMError where the stream was cut, or held none."""
        if not self.over and self._raw.get("stop_reason") is None:
            raise fault.of_cut(self.text)
        if not self._raw:
            raise malformed("there is no message in the stream")
        return response_of({**self._raw, "content": [*self._blocks.values()], "usage": self._usage})

    def _start(self, message: Mapping[str, Any]) -> None:
        self._raw.update(message)
        self._count(mapping(message.get("usage")))

    def _count(self, usage: Mapping[str, Any]) -> None:
        """Take over what is counted by now: the counts of a stream are sums, and those left out stand."""
        self._usage.update({name: value for name, value in usage.items() if value is not None})

    def _heard(self, piece: str) -> str:
        self._said.append(piece)
        return piece

    def _delta(self, index: object, delta: Mapping[str, Any]) -> str:
        block = self._blocks.setdefault(index, {"type": "text"})
        match delta.get("type"):
            case "text_delta":
                block["text"] = text(block.get("text")) + text(delta.get("text"))
                return self._heard(text(delta.get("text")))
            case "input_json_delta":
                block[_CUT_INPUT] = text(block.get(_CUT_INPUT)) + text(delta.get("partial_json"))
            case "thinking_delta":
                block["thinking"] = text(block.get("thinking")) + text(delta.get("thinking"))
            case "signature_delta":
                block["signature"] = text(delta.get("signature"))
            case "citations_delta":
                block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]
        return ""

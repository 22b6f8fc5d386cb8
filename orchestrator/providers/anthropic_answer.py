"""Read answers of Anthropic's Messages API, whole or as a stream of events.

- Input tokens are the total: the API counts tokens from and into the cache separately from `input_tokens`.
- An answer with thinking and calls keeps its content as a list of parts, thinking with its signature first: the API
  requires it back unchanged with the results. The same applies to blocks that are neither text nor call (the
  provider's own tools). Every other answer is its text. In both cases the thinking is in `reasoning`.
- The input of a streamed call is kept as received, even if cut off; an empty one becomes the arguments `{}`.
- A stream ends with `message_stop`, or with a stop reason in `message_delta` after which nothing is added. Proxies end
  it with `[DONE]`, also after a failure: without a stop reason that counts only if every block was closed.
- A refusal (`stop_reason`) is an answer with `refusal` set; an answer without any block has no content.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from orchestrator.llm.message import ArgumentsPiece, Content, ReasoningPiece, Response, ToolCall, Usage
from orchestrator.providers import fault
from orchestrator.providers.answer_signal import MESSAGES, checked, error_of, finish_reason
from orchestrator.providers.event_stream import ServerSentEvent
from orchestrator.providers.member import token_count
from orchestrator.providers.reading import (
    malformed,
    mapping,
    merged,
    objects,
    parsed,
    position_of,
    text,
    text_or_none,
)
from orchestrator.providers.size_limit import kept_size

_THINKING = frozenset(("thinking", "redacted_thinking"))
_PLAIN = frozenset(("text", "tool_use"))
_COUNTS = (
    "input_tokens",
    "output_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "output_tokens_details",
)
_CUT_INPUT = "partial_json"
"""Member of an unfinished block: the text of its input so far."""


def response_of(raw: Mapping[str, Any]) -> Response:
    """Read a message. Raises LLMError for an error object, and for anything but a message."""
    if (error := error_of(raw, MESSAGES)) is not None:
        raise fault.of_answer(None, None, error)
    if not isinstance(raw.get("content"), list):
        raise malformed("there is no content in it")
    blocks = objects(raw["content"])
    calls = tuple(_call(block) for block in blocks if block.get("type") == "tool_use")
    thought = "\n\n".join(filter(None, (text(block.get("thinking")) for block in blocks)))
    stop = finish_reason(raw.get("stop_reason"))
    response = Response(
        _content(blocks, keeps_thinking=bool(calls) or stop == "pause_turn"),
        calls,
        stop,
        usage_of(mapping(raw.get("usage"))),
        text_or_none(raw.get("model")),
        _refusal(mapping(raw.get("stop_details"))) if stop == "refusal" else None,
        thought or None,
    )
    return checked(response, MESSAGES)


def usage_of(usage: Mapping[str, Any]) -> Usage | None:
    """Return the tokens of an answer, with those from and into the cache in its input; None without both counts."""
    sent, received = (token_count(usage.get(f"{way}_tokens")) for way in ("input", "output"))
    if sent is None or received is None:
        return None
    read, written = (token_count(usage.get(f"cache_{way}_input_tokens")) or 0 for way in ("read", "creation"))
    return Usage(
        sent + read + written,
        received,
        read,
        token_count(mapping(usage.get("output_tokens_details")).get("thinking_tokens")) or 0,
        cache_write_tokens=written,
    )


def _content(blocks: list[Mapping[str, Any]], *, keeps_thinking: bool) -> Content:
    kinds = {block.get("type") for block in blocks}
    if kinds - _PLAIN - _THINKING or (keeps_thinking and kinds & _THINKING):
        return merged(_whole(block) for block in blocks if block.get("type") != "tool_use")
    said = [text(block.get("text")) for block in blocks if block.get("type") == "text"]
    return "".join(said) if said else None


def _whole(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return a block in the form that the API accepts back: with its input, if that came in pieces."""
    whole = {name: value for name, value in block.items() if name != _CUT_INPUT}
    if _CUT_INPUT in block:
        with suppress(ValueError):
            whole["input"] = parsed(text(block[_CUT_INPUT]))
    return whole


def _call(block: Mapping[str, Any]) -> ToolCall:
    given = block.get("input")
    written = text(block.get(_CUT_INPUT)) or json.dumps({} if given is None else given, ensure_ascii=False)
    return ToolCall(text(block.get("id")), text(block.get("name")), written)


def _refusal(details: Mapping[str, Any]) -> str:
    category = text(details.get("category"))
    return text(details.get("explanation")) or f"the model declined to answer{category and f' ({category})'}"


_PIECES = {
    "text_delta": ("text", "text"),
    "input_json_delta": ("partial_json", _CUT_INPUT),
    "thinking_delta": ("thinking", "thinking"),
}
"""Type of a delta -> its member, and the member of the block that it extends."""

_EXTENDED = {
    "text_delta": "text",
    "citations_delta": "text",
    "input_json_delta": "tool_use",  # also of the provider's own tools: server_tool_use, mcp_tool_use
    "thinking_delta": "thinking",
    "signature_delta": "thinking",
}
"""Type of a delta -> end of the type of the block that it extends."""


@dataclass(slots=True)
class _Block:
    """An unfinished block."""

    raw: dict[str, Any]
    pieces: dict[str, list[str]] = field(default_factory=dict)
    """Member of the block -> the texts received for it."""
    citations: list[Any] = field(default_factory=list)

    def whole(self) -> dict[str, Any]:
        """Return the block as received, with all additions."""
        added = {name: text(self.raw.get(name)) + "".join(pieces) for name, pieces in self.pieces.items()}
        cited = [*(self.raw.get("citations") or ()), *self.citations]
        return {**self.raw, **added, **({"citations": cited} if self.citations else {})}


class MessageAssembly:
    """Assembles a message from its events."""

    def __init__(self) -> None:
        self.over = False
        self.ended = False
        self.size = 0
        self.others: list[ReasoningPiece | ArgumentsPiece] = []
        self._raw: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._blocks: list[_Block] = []
        self._at: dict[int | None, list[_Block]] = {}
        """Index -> blocks; some servers give every block the index 0, or none."""
        self._open = False
        """The last block was started and not stopped."""
        self._said: list[str] = []

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._said)

    def take(self, event: ServerSentEvent) -> str:
        """Add an event and return its new text."""
        if event.data.strip() == MESSAGES.end_mark:
            self.over, self.ended = True, self.ended or (bool(self._blocks) and not self._open)
            return ""
        raw = parsed(event.data)
        if (error := error_of(raw, MESSAGES)) is not None:
            raise fault.of_answer(None, None, error, partial=self.text)
        raw = mapping(raw)
        match raw.get("type"):
            case "message_start":
                self._start(mapping(raw.get("message")))
            case "content_block_start":
                self.size += kept_size(event.data)
                self.ended, self._open = False, True
                block = dict(mapping(raw.get("content_block")))
                self._start_block(position_of(raw.get("index")), block)
                return self._add_text(text(block.get("text")))
            case "content_block_delta":
                return self._delta(position_of(raw.get("index")), mapping(raw.get("delta")))
            case "message_delta":
                delta = mapping(raw.get("delta"))
                if finish_reason(delta.get("stop_reason")) is not None and not self.ended:
                    self._raw.update(delta)
                    self.ended = True
                self._count(mapping(raw.get("usage")))
            case "content_block_stop":
                self._open = False
            case kind if kind in MESSAGES.end_events:
                self.over = self.ended = True
        return ""

    def response(self) -> Response:
        """Return the message. Raises LLMError if the stream was cut or had no message."""
        if not self.ended:
            raise fault.of_cut(self.text)
        if not self._raw:
            raise malformed("there is no message in the stream")
        blocks = [block.whole() for block in self._blocks]
        return response_of({**self._raw, "content": blocks, "usage": self._usage})

    def _start(self, message: Mapping[str, Any]) -> None:
        self._raw.update(message)
        # Its output tokens are those of the beginning. The last event has the total.
        begun = mapping(message.get("usage"))
        self._count({name: count for name, count in begun.items() if name != "output_tokens"})

    def _count(self, usage: Mapping[str, Any]) -> None:
        """Update the counts: those of a stream are totals. Omitted ones stay; some proxies send 0 in place of them."""
        for name in _COUNTS:
            total = usage.get(name)
            if total or (total is not None and name not in self._usage):
                self._usage[name] = total

    def _add_text(self, piece: str) -> str:
        if piece:
            self._said.append(piece)
        return piece

    def _start_block(self, index: int | None, raw: dict[str, Any]) -> _Block:
        block = _Block(raw)
        self._blocks.append(block)
        self._at.setdefault(index, []).append(block)
        return block

    def _block(self, index: int | None, kind: object) -> _Block:
        """Return the block that a delta extends: the last one of its type at its index, else a new one."""
        wanted = _EXTENDED.get(kind, "") if isinstance(kind, str) else ""
        at = self._at.get(index) or (self._blocks if index is None else self._at.get(None))
        fitting = (block for block in reversed(at or ()) if text(block.raw.get("type")).endswith(wanted))
        return next(fitting, None) or self._start_block(index, {"type": wanted or "text"})

    def _delta(self, index: int | None, delta: Mapping[str, Any]) -> str:
        kind = delta.get("type")
        block = self._block(index, kind)
        self.ended = False
        if isinstance(kind, str) and kind in _PIECES:
            member, added_to = _PIECES[kind]
            piece = text(delta.get(member))
            block.pieces.setdefault(added_to, []).append(piece)
            self.size += kept_size(piece)
            if kind == "text_delta":
                return self._add_text(piece)
            self._other(block, kind, piece)
            return ""
        if kind == "signature_delta":
            block.raw["signature"] = text(delta.get("signature"))
        elif kind == "citations_delta":
            block.citations.append(delta.get("citation"))
            self.size += len(repr(delta))
        return ""

    def _other(self, block: _Block, kind: str, piece: str) -> None:
        """Keep a piece that is not text. The input of the provider's own tools is no piece of a call."""
        if piece and kind == "thinking_delta":
            self.others.append(ReasoningPiece(piece))
        elif piece and block.raw.get("type") == "tool_use":
            calls = (one for one in self._blocks if one.raw.get("type") == "tool_use")
            position = next(at for at, one in enumerate(calls) if one is block)
            self.others.append(ArgumentsPiece(position, text(block.raw.get("name")), piece))

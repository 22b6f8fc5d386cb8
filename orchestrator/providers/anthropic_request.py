"""Convert conversations to the form of Anthropic's Messages API.

The API is stricter than conversations from other sources, or after a cut: roles alternate and the user is first,
inputs are objects, no text is empty, and called tools must be declared. This module repairs violations of these rules,
for this request only, and drops no information. `history` has repaired names, ids and results before.

- System and developer messages, at any position, become the `system` member.
- Results of a turn become one user message; arguments that are not a JSON object are sent as text, under
  `unparsed_arguments`.
- Thinking is sent back with its signature and at its position, or not at all: the API refuses it otherwise. It is
  stored in the content parts of the message (`anthropic_answer`); reasoning of other vendors is not sent.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from orchestrator.errors import ConfigError
from orchestrator.llm.content_part import CITATIONS, data_of
from orchestrator.llm.message import Content, Message, Request, ToolCall
from orchestrator.providers.history import BEGINNING
from orchestrator.providers.reading import mapping

Block = dict[str, Any]


def conversation(messages: Iterable[Message]) -> tuple[list[Block], list[Block]]:
    """Return the blocks of `system` and the messages."""
    system: list[Block] = []
    made = _Turns()
    for message in messages:
        if message.role in ("system", "developer"):
            system += _blocks(message.content)
        elif message.role == "user":
            made.said(_blocks(message.content))
        elif message.role == "assistant":
            made.answered(message)
        else:
            made.result(message)
    return system, made.finished()


def tools(request: Request, messages: Sequence[Block]) -> dict[str, Any]:
    """Return the members for tools. Tools among the parameters belong to the provider, and stay."""
    own = list(request.params.get("tools") or ())
    offers = [_tool(offer.name, offer.description, offer.parameters) for offer in request.tools]
    if not offers and not own:
        called = {block["name"] for message in messages for block in _calls_in(message)}
        if not called:
            return {}
        # The history shows calls, so they must be declared, and no tool may be called.
        declared = [_tool(name, "", {}) for name in sorted(called)]
        return {"tools": declared, "tool_choice": {"type": "none"}}
    return {"tools": [*own, *offers], **_choice(request)}


def _choice(request: Request) -> dict[str, Any]:
    """Return the choice of tools; nothing for auto, the default, so that the parameters decide."""
    if request.tool_choice == "auto":
        return {}
    if request.tool_choice == "none":
        return {"tool_choice": {"type": "none"}}
    asked = request.params.get("tool_choice")
    kept = {"disable_parallel_tool_use": True} if mapping(asked).get("disable_parallel_tool_use") else {}
    if request.tool_choice == "required":
        return {"tool_choice": {"type": "any", **kept}}
    return {"tool_choice": {"type": "tool", "name": request.tool_choice, **kept}}


def _tool(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    about = {"description": description} if description else {}
    return {"name": name, **about, "input_schema": {"type": "object", **parameters}}


def _calls_in(message: Block) -> Iterator[Block]:
    return (block for block in message["content"] if block["type"] == "tool_use")


class _Turns:
    """Builds messages with alternating roles."""

    def __init__(self) -> None:
        self._messages: list[Block] = []

    def said(self, blocks: list[Block]) -> None:
        if blocks:
            self._add("user", blocks)

    def answered(self, message: Message) -> None:
        blocks = _blocks(message.content) or _blocks(message.refusal)
        if not blocks and not message.tool_calls:
            return  # an empty answer has no form here
        if not self._messages:
            self._add("user", [{"type": "text", "text": BEGINNING}])
        calls = [
            {"type": "tool_use", "id": call.id, "name": call.name, "input": _input(call)}
            for call in message.tool_calls
        ]
        self._add("assistant", [*blocks, *calls])

    def result(self, message: Message) -> None:
        result: Block = {"type": "tool_result", "tool_use_id": message.tool_call_id}
        if content := _blocks(message.content):
            only_text = len(content) == 1 and content[0].keys() == {"type", "text"}
            result["content"] = content[0]["text"] if only_text else content
        if message.is_error:
            result["is_error"] = True
        self._add("user", [result])

    def finished(self) -> list[Block]:
        if not self._messages:
            self._add("user", [{"type": "text", "text": BEGINNING}])
        return self._messages

    def _add(self, role: str, blocks: list[Block]) -> None:
        if self._messages and self._messages[-1]["role"] == role:
            self._messages[-1]["content"] += blocks
        else:
            self._messages.append({"role": role, "content": [*blocks]})


def _input(call: ToolCall) -> dict[str, Any]:
    """Return the arguments of a call as an object, for any text of the model."""
    text = call.arguments.strip()
    if text in ("", "null"):
        return {}
    try:
        value = from_json(text, allow_inf_nan=False)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"unparsed_arguments": call.arguments}


# ---- content ----


def _blocks(content: Content) -> list[Block]:
    """Return content as blocks: texts that are not empty, images in this API's form, all else unchanged."""
    if content is None:
        return []
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [block for part in parts if (block := _block(part)) is not None]


def _block(part: Mapping[str, Any]) -> Block | None:
    kind = part.get("type")
    if kind == "text":
        return dict(part) if str(part.get("text") or "").strip() else None
    if kind == "image_url":
        return _picture(part)
    if kind == "file":
        return _document(part)
    if kind in ("reasoning", "pydantic_ai", "openai_chat", *CITATIONS) or (
        kind == "thinking" and not part.get("signature")
    ):
        return None  # another vendor's: only the API that made it accepts it back
    return dict(part)


def _picture(part: Mapping[str, Any]) -> Block:
    given = part.get("image_url")
    url = given.get("url") if isinstance(given, Mapping) else given
    if not isinstance(url, str):
        return dict(part)
    kept = {name: value for name, value in part.items() if name == "cache_control"}
    if data := data_of(url):
        source = {"type": "base64", "media_type": data[0], "data": data[1]}
    else:
        source = {"type": "url", "url": url}
    return {"type": "image", "source": source, **kept}


def _document(part: Mapping[str, Any]) -> Block:
    """Return a file in this API's form: a PDF, or a text. Raises ConfigError for another media type."""
    given = mapping(part.get("file"))
    data = data_of(str(given.get("file_data") or ""))
    if data is None:
        raise ConfigError(
            "Anthropic reads files from their bytes only; give file_data as a data URL with base64"
        )
    media, encoded = data
    if media == "application/pdf":
        source = {"type": "base64", "media_type": media, "data": encoded}
    elif media.startswith("text/"):
        text = b64decode(encoded).decode(errors="replace")
        source = {"type": "text", "media_type": "text/plain", "data": text}
    else:
        raise ConfigError(
            f"Anthropic cannot read a file of type {media!r}; possible: application/pdf and text/*"
        )
    title = {"title": given["filename"]} if given.get("filename") else {}
    return {"type": "document", "source": source, **title}

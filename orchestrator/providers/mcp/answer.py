"""Convert a server's answer to a call to content for the model; and the errors of a call without an answer.

The model reads each piece of a result once. Servers send structured content next to text that repeats it, so it is
added only if the text lacks some of its values; text that it repeats as a whole is then dropped. To append it always
was rejected: a file of 8 kB then costs 16 kB.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic_core import from_json, to_json

from orchestrator.llm.content_part import (
    KINDS,
    ContentPart,
    PartKind,
    audio_part,
    file_part,
    image_part,
    text_part,
)

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock

_SHOWN = 200
"""Characters of an address, a name or a type that a server puts into a result of ours."""
_IMAGES = frozenset(("image/png", "image/jpeg", "image/gif", "image/webp"))
_AUDIO = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}
_FILES = frozenset(("application/pdf",))
_SEARCHED = 100_000_000
"""Characters that are searched for the values of structured content; a larger result counts as repeated."""

_WORD = 64
"""Characters of a value above which it is no word, so that its neighbours do not matter."""

Content = str | list[str | ContentPart]
"""Text, or texts and parts in order, as a tool returns them."""


class ToolFailed(Exception):
    """The tool reported a failure; the text is the server's."""


class CallRefused(Exception):
    """The server refused the call with an error of the protocol."""


class ToolDisabled(Exception):
    """The tool differs from the allowed version, so the call was not sent."""


class SessionLost(Exception):
    """The session has ended, or none could be opened."""


class Reader(NamedTuple):
    """The limits of the model that reads a result."""

    reads: Collection[PartKind] = KINDS
    """Kinds of parts that the model reads."""
    max_bytes: int = 0
    """Maximum bytes of one part; 0 is no limit."""

    def part(self, media: str, data: str, name: str) -> ContentPart | None:
        """Return base64 data as a part; None if the model does not read it."""
        media = media.lower()
        kind: PartKind = "image" if media in _IMAGES else "audio" if media in _AUDIO else "file"
        if (kind == "file" and media not in _FILES) or kind not in self.reads:
            return None
        if 0 < self.max_bytes < len(data) * 3 // 4:
            return None
        try:
            body = b64decode(data, validate=True)
        except binascii.Error:
            return None
        if kind == "image":
            return image_part(body, media)
        return (
            audio_part(body, "wav" if _AUDIO[media] == "wav" else "mp3")
            if kind == "audio"
            else file_part(body, media, name)
        )


def content_of(result: CallToolResult, reader: Reader = Reader()) -> Content:  # noqa: B008 - a tuple
    """Return the content of a result for a model. Raises ToolFailed if the server marks it as an error.

    Images, audio and documents become parts if the model reads them, in their original order. What it does not read,
    or what is larger than the limit, is named with type and size. Links are named with their address.
    """
    blocks = [content_of_block(block, reader) for block in result.content]
    texts = [block for block in blocks if isinstance(block, str)]
    structured = result.structured_content
    if structured is not None and not _repeats(result.content, texts, structured):
        as_json = to_json(structured).decode()
        blocks = [
            block for block in blocks if not (isinstance(block, str) and block and _holds(structured, block))
        ]
        blocks.append(as_json)
    merged = joined(blocks)
    if result.is_error:
        said = (
            merged if isinstance(merged, str) else "\n".join(part for part in merged if isinstance(part, str))
        )
        raise ToolFailed(said or "the tool failed without a reason")
    return merged


def joined(blocks: Sequence[str | ContentPart]) -> Content:
    """Return blocks with neighbouring texts joined by line ends; one text if there is no part."""
    merged: list[str | ContentPart] = []
    for block in blocks:
        if isinstance(block, str) and merged and isinstance(merged[-1], str):
            merged[-1] = f"{merged[-1]}\n{block}"
        else:
            merged.append(block)
    if any(isinstance(block, ContentPart) for block in merged):
        return [block for block in merged if block != ""]
    return str(merged[0]) if merged else ""


def content_of_block(block: ContentBlock, reader: Reader) -> str | ContentPart:
    """Return one block as text or as a part."""
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            named = f"{block.type} {short(block.mime_type)}"
            return (
                reader.part(block.mime_type, block.data, "")
                or f"[{named}, {_size(block.data)} bytes, not shown]"
            )
        case "resource_link":
            media = f" ({short(block.mime_type)})" if block.mime_type else ""
            return f"[link {short(block.name)}: {short(block.uri)}{media}]"
        case "resource":
            return resource_content(block.resource, reader)


def resource_content(resource: Any, reader: Reader) -> str | ContentPart:
    """Return the text of a resource with its address, or its data as a part."""
    named = f"resource {short(resource.uri)}"
    if (text := getattr(resource, "text", None)) is not None:
        return f"[{named}]\n{text}"
    media = resource.mime_type or ""
    name = short(str(resource.uri).rstrip("/").rpartition("/")[2]) or "resource"
    part = reader.part(media, resource.blob, name)
    return part or f"[{named} {short(media or 'of unknown type')}, {_size(resource.blob)} bytes, not shown]"


def parts_of(content: Content | ContentPart) -> list[ContentPart]:
    """Return content as parts, for a message."""
    blocks = content if isinstance(content, list) else [content]
    return [text_part(block) if isinstance(block, str) else block for block in blocks]


def short(text: object) -> str:
    """Return a server's text on one line, cut."""
    return " ".join(str(text).split())[:_SHOWN]


def _size(base64: str) -> str:
    """Return the number of bytes that a base64 text encodes."""
    return f"{len(base64.rstrip('=')) * 3 // 4:,}"


def _repeats(blocks: Sequence[ContentBlock], texts: list[str], structured: object) -> bool:
    """Return whether the blocks have every value of the structured content."""
    if not blocks:
        return False
    if any(_is_same(_parsed(text), structured) for text in texts):
        return True
    data = [str(getattr(block, "data", "")) for block in blocks]
    whole = "\n".join((*texts, *data))
    values = set(_values(structured))
    if len(values) * len(whole) > _SEARCHED:
        return True
    return all(_has(whole, value) for value in values)


def _has(whole: str, value: str) -> bool:
    """Return whether a text has a value that is not a part of a longer word or number."""
    if len(value) > _WORD:
        return value in whole
    return re.search(rf"(?<![\w.]){re.escape(value)}(?!\w|\.\d)", whole) is not None


def _holds(structured: object, text: str) -> bool:
    """Return whether a value of structured content is this text."""
    return text in _values(structured) or _is_same(_parsed(text), structured)


def _is_same(parsed: object, structured: object) -> bool:
    """Return whether a parsed text is the structured content, or the value that SDKs wrap in `result`."""
    meant = [structured]
    if isinstance(structured, dict) and structured.keys() == {"result"}:
        meant.append(structured["result"])
    return any(type(parsed) is type(one) and parsed == one for one in meant)


def _values(structured: object) -> Iterator[str]:
    """Yield the texts, numbers and other values in JSON data."""
    if isinstance(structured, Mapping):
        for value in structured.values():
            yield from _values(value)
    elif isinstance(structured, list):
        for value in structured:
            yield from _values(value)
    else:
        yield structured if isinstance(structured, str) else to_json(structured).decode()


def _parsed(text: str) -> object:
    try:
        return from_json(text)
    except ValueError:
        return text

"""Convert a server's answer to a call to text for the model; and the errors of a call without an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic_core import from_json, to_json

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock

_SHOWN = 200
"""Characters of an address, a name or a type that a server puts into a result of ours."""


class ToolFailed(Exception):
    """The tool reported a failure; the text is the server's."""


class CallRefused(Exception):
    """The server refused the call with an error of the protocol."""


class ToolDisabled(Exception):
    """The tool differs from the allowed version, so the call was not sent."""


class SessionLost(Exception):
    """The session has ended, or none could be opened."""


def text_of(result: CallToolResult) -> str:
    """Return the text of a result. Raises ToolFailed if the server marks it as an error.

    Text and resources of text are included in order. Other content (images, sounds, files, links) is named with its
    type and size, never inlined: a model reads images as content parts, not as base64. Structured content follows as
    JSON, unless the text repeats it already, as the protocol asks servers to do.
    """
    said = [_text(block) for block in result.content]
    text = "\n".join(said)
    if result.structured_content is not None and not _says(said, result.structured_content):
        text = "\n".join(filter(None, (text, to_json(result.structured_content).decode())))
    if result.is_error:
        raise ToolFailed(text or "the tool failed without a reason")
    return text


def _text(block: ContentBlock) -> str:
    match block.type:
        case "text":
            return block.text
        case "image" | "audio":
            return f"[{block.type} {_short(block.mime_type)}, {_size(block.data)} bytes, not shown]"
        case "resource_link":
            return f"[link {_short(block.name)}: {_short(block.uri)}]"
        case "resource":
            return _resource(block.resource)


def _resource(resource: Any) -> str:
    named = f"resource {_short(resource.uri)}"
    if (text := getattr(resource, "text", None)) is not None:
        return f"[{named}]\n{text}"
    return f"[{named} {_short(resource.mime_type or 'of unknown type')}, {_size(resource.blob)} bytes, not shown]"


def _short(text: object) -> str:
    return " ".join(str(text).split())[:_SHOWN]


def _size(base64: str) -> str:
    """Return the number of bytes that a base64 text encodes."""
    return f"{len(base64.rstrip('=')) * 3 // 4:,}"


def _says(said: list[str], structured: object) -> bool:
    """Return whether text blocks repeat the structured content: as JSON, or as the value that SDKs wrap in `result`."""
    meant = [structured]
    if isinstance(structured, dict) and structured.keys() == {"result"}:
        meant.append(structured["result"])
    parsed = [_parsed(text) for text in said]
    readings = [said, parsed, *(said + parsed if len(said) == 1 else ())]
    return any(type(one) is type(other) and one == other for one in readings for other in meant)


def _parsed(text: str) -> object:
    try:
        return from_json(text)
    except ValueError:
        return text

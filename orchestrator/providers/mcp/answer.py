"""Convert a server's answers to content for the model: of calls, resources and prompts; and errors without an answer.

The model reads each piece of a result once. Servers send structured content next to text that repeats it, so it is
added only if the text lacks some of its values; text that it repeats as a whole is then dropped. To append it always
was rejected: a file of 8 kB then costs 16 kB.
"""

from __future__ import annotations

import binascii
import logging
import re
from base64 import b64decode
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic_core import from_json, to_json

from orchestrator.errors import ConfigError
from orchestrator.llm.message import (
    KINDS,
    ContentPart,
    Message,
    PartKind,
    audio_part,
    file_part,
    image_part,
    text_part,
)
from orchestrator.providers.mcp.offer import clean

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import CallToolResult, ContentBlock, GetPromptResult, Prompt

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
    """The session has ended, none could be opened, or a call got no answer in it."""


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
    or what is larger than the limit, is named with type and size, and so is each part of an error, which is a text.
    Links are named with their address.
    """
    if result.is_error:
        reader = Reader(reads=())
    blocks = [content_of_block(block, reader) for block in result.content]
    texts = [block for block in blocks if isinstance(block, str)]
    structured = result.structured_content
    if structured is not None and not _repeats(result.content, texts, structured):
        as_json = to_json(structured).decode()
        blocks = [
            block
            for block in blocks
            if not (
                isinstance(block, str)
                and block
                and (block in _values(structured) or _is_same(_parsed(block), structured))
            )
        ]
        blocks.append(as_json)
    merged = joined(blocks)
    if result.is_error:
        raise ToolFailed(str(merged) or "the tool failed without a reason")
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


_log = logging.getLogger("orchestrator.mcp")

LIST: Final = "list_resources"
READ: Final = "read_resource"
_ABOUT_CHARS = 200
_PAGES = 50

LIST_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "cursor": {"type": "string", "description": "The cursor of the page before, for the next page."}
    },
}
READ_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "uri": {"type": "string", "description": "Address of the resource, as list_resources has it."}
    },
    "required": ["uri"],
}


async def has_resources(client: Client) -> bool:
    """Return whether a server lists a resource or a template of some."""
    if client.server_capabilities.resources is None:
        return False
    if (await client.list_resources()).resources:
        return True
    return bool((await client.list_resource_templates()).resource_templates)


async def list_resources(client: Client, cursor: str | None) -> str:
    """Return one page of the resources as lines; the first page also has the templates."""
    page = await client.list_resources(cursor=cursor)
    lines = [_line(one.uri, one.name, one.mime_type, one.description) for one in page.resources]
    if not cursor:
        templates = (await client.list_resource_templates()).resource_templates
        lines += [_line(one.uri_template, one.name, one.mime_type, one.description) for one in templates]
    if page.next_cursor:
        lines.append(f"[more: cursor {short(page.next_cursor)}]")
    return "\n".join(lines) or "there are no resources"


def _line(uri: object, name: str, media: str | None, about: str | None) -> str:
    told = clean(" ".join((about or "").split()), _ABOUT_CHARS)
    return (
        f"{short(uri)} - {short(name)}"
        + (f" ({short(media)})" if media else "")
        + (f": {told}" if told else "")
    )


async def read_resource(client: Client, uri: str, reader: Reader) -> Content:
    """Return the contents of a resource: texts with their addresses, and parts that the model reads."""
    result = await client.read_resource(uri)
    return joined([resource_content(one, reader) for one in result.contents])


# ---- prompts ----


class ServerPrompt(NamedTuple):
    """A prompt that a server offers."""

    name: str
    description: str
    required: tuple[str, ...]
    """Names of the arguments that it needs."""
    optional: tuple[str, ...]


async def all_prompts(client: Client, server: str) -> list[Prompt]:
    """Return the prompts of a server, page by page; none if it has no prompts. A repeated cursor ends the list."""
    if client.server_capabilities.prompts is None:
        return []
    prompts: list[Prompt] = []
    cursor: str | None = None
    cursors: set[str] = set()
    for _ in range(_PAGES):
        page = await client.list_prompts(cursor=cursor)
        prompts += page.prompts
        cursor = page.next_cursor
        if not cursor:
            break
        if cursor in cursors:
            _log.warning("MCP server %r repeats a cursor of its list of prompts; the list ends there", server)
            break
        cursors.add(cursor)
    return prompts


def described_prompts(prompts: list[Prompt]) -> Iterator[ServerPrompt]:
    """Yield prompts with clean texts."""
    for prompt in prompts:
        arguments = prompt.arguments or []
        yield ServerPrompt(
            prompt.name,
            clean(prompt.description or prompt.title or "", _ABOUT_CHARS),
            tuple(one.name for one in arguments if one.required),
            tuple(one.name for one in arguments if not one.required),
        )


def check_arguments(server: str, prompt: ServerPrompt, arguments: Mapping[str, str]) -> None:
    """Raise ConfigError for a missing or unknown argument of a prompt."""
    missing = [name for name in prompt.required if name not in arguments]
    unknown = [name for name in arguments if name not in (*prompt.required, *prompt.optional)]
    if missing or unknown:
        have = ", ".join([*prompt.required, *(f"{name} (optional)" for name in prompt.optional)]) or "none"
        fault = f"needs the argument {missing[0]!r}" if missing else f"has no argument {unknown[0]!r}"
        raise ConfigError(f"prompt {prompt.name!r} of MCP server {server!r} {fault}; its arguments: {have}")


def prompt_messages(result: GetPromptResult, max_bytes: int) -> list[Message]:
    """Return the messages of a prompt, with images and other parts."""
    reader = Reader(KINDS, max_bytes)
    found = []
    for one in result.messages:
        content = content_of_block(one.content, reader)
        said: Any = content if isinstance(content, str) else parts_of(content)
        found.append(Message(one.role, said))
    return found

"""Resources and prompts of a server: tools with which a model lists and reads resources, and prompts as messages."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from orchestrator.errors import ConfigError
from orchestrator.llm.content_part import KINDS
from orchestrator.llm.message import Message
from orchestrator.providers.mcp.answer import (
    Content,
    Reader,
    content_of_block,
    joined,
    parts_of,
    resource_content,
    short,
)
from orchestrator.providers.mcp.offer import clean

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import GetPromptResult, Prompt

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

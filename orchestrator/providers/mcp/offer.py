"""Make the tools that a server lists safe to offer: names that a model can call, bounded clean texts, effects.

All of it comes from outside. A tool that cannot be offered is refused by name, with the option that omits it. It is
never dropped silently, because a run would then differ from the host's expectation.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

from pydantic_core import to_json

from orchestrator.errors import ConfigError
from orchestrator.tools.spec import Effect

if TYPE_CHECKING:
    from mcp_types import Tool, ToolAnnotations

_UNCALLABLE = re.compile(r"[^a-zA-Z0-9_-]")
_NAME_CHARS = 64
_TEXT_CHARS = 1_024
"""OpenAI's limit for the description of a function."""
_SCHEMA_BYTES = 64 * 1024
_HIDDEN = frozenset(("Cc", "Cf", "Cs"))
"""Control characters, invisible ones (directions, tags) and lone surrogates."""
_DATA = frozenset(("const", "default", "enum", "examples"))
"""Members of a schema whose values are data, not schemas."""
_EFFECTS = tuple(effect for effect in get_args(Effect) if effect != "compensable")


@dataclass(frozen=True, slots=True)
class ServerTool:
    """One tool of a server: the texts for the model, and `theirs`, the server's own name and `schema`."""

    name: str
    theirs: str
    description: str
    parameters: Mapping[str, Any]
    schema: Mapping[str, Any]
    effect: Effect


def digest_of(tool: Tool) -> str:
    """Return the SHA-256 of the parts of a tool that the model reads or that decide how it is called.

    These are its name, title, description, schemas and annotations.
    """
    told = tool.model_dump(
        mode="json",
        by_alias=True,
        exclude_none=True,
        include={"name", "title", "description", "input_schema", "output_schema", "annotations"},
    )
    text = json.dumps(told, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def clean(text: str, limit: int) -> str:
    """Return text without invisible characters, at most `limit` of it, including a mark if it was cut."""
    seen = "".join(
        char for char in text[: 4 * limit] if char in "\n\t" or unicodedata.category(char) not in _HIDDEN
    ).strip()
    return seen if len(seen) <= limit else f"{seen[: limit - 1]}…"


def declared(
    server: str,
    tools: Iterable[Tool],
    *,
    prefix: str | None,
    include: Iterable[str] | None,
    exclude: Iterable[str] | None,
    effects: Mapping[str, Effect] | Effect | None,
) -> tuple[ServerTool, ...]:
    """Return the tools of a server to offer. Raises ConfigError for a duplicate or unknown name."""
    listed = list(tools)
    known = [tool.name for tool in listed]
    wanted = known if include is None else [include] if isinstance(include, str) else list(include)
    without = [exclude] if isinstance(exclude, str) else list(exclude or ())
    ours = (
        {}
        if effects is None
        else dict.fromkeys(known, effects)
        if isinstance(effects, str)
        else dict(effects)
    )
    for option, names in (("include", wanted), ("exclude", without), ("effects", ours)):
        _refuse_unknown(server, option, names, known)
    if wrong := [effect for effect in ours.values() if effect not in _EFFECTS]:
        possible = ", ".join(map(repr, _EFFECTS))
        raise ConfigError(f"MCP server {server!r}: an effect is {wrong[0]!r}; possible: {possible}")
    offers = [
        _offer(server, tool, prefix or "", ours.get(tool.name))
        for tool in listed
        if tool.name in wanted and tool.name not in without
    ]
    _refuse_twice(server, offers)
    return tuple(offers)


def effect_of(annotations: ToolAnnotations | None) -> Effect:
    """Return the effect class for a server's annotations. Unknown or contradictory ones mean the worst case."""
    if annotations is None or annotations.destructive_hint:
        return "irreversible"
    if annotations.read_only_hint:
        return "pure"
    return "idempotent" if annotations.idempotent_hint else "irreversible"


def _offer(server: str, tool: Tool, prefix: str, effect: Effect | None) -> ServerTool:
    name = (prefix + _UNCALLABLE.sub("_", tool.name))[:_NAME_CHARS]
    if (size := len(to_json(tool.input_schema))) > _SCHEMA_BYTES:
        raise ConfigError(
            f"MCP server {server!r}: the schema of tool {clean(tool.name, _NAME_CHARS)!r} has {size:,} bytes, at most "
            f"{_SCHEMA_BYTES:,} are taken; leave it out with exclude=[…]"
        )
    about = clean(tool.description or tool.title or "", _TEXT_CHARS)
    parameters = _cleaned(tool.input_schema)
    return ServerTool(
        name, tool.name, about, parameters, tool.input_schema, effect or effect_of(tool.annotations)
    )


def _cleaned(schema: Any) -> Any:
    """Clean the readable texts of a schema; the checked parts stay unchanged."""
    if isinstance(schema, list):
        return [_cleaned(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: clean(value, _TEXT_CHARS)
        if key in {"description", "title"} and isinstance(value, str)
        else value
        if key in _DATA
        else _cleaned(value)
        for key, value in schema.items()
    }


def _refuse_unknown(server: str, option: str, names: Iterable[str], known: list[str]) -> None:
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {len(known)} others"
            raise ConfigError(f"MCP server {server!r} has no tool {name!r}, named in {option}; {hint}")


def _refuse_twice(server: str, offers: Iterable[ServerTool]) -> None:
    seen: dict[str, ServerTool] = {}
    for offer in offers:
        first = seen.setdefault(offer.name.casefold(), offer)
        if first is not offer:
            both = f"{clean(first.theirs, _NAME_CHARS)!r} and {clean(offer.theirs, _NAME_CHARS)!r}"
            raise ConfigError(
                f"MCP server {server!r} has two tools that would be {offer.name!r}: {both}; exclude one"
            )

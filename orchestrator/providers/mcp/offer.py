"""Make the tools that a server lists safe to offer: names that a model can call, bounded clean texts, effects.

All of it comes from outside. A tool that cannot be offered is left out with a sentence that says why, and the others
stay: one bad tool of a server must not cost the host the whole server. A wrong name in an option of the host is an
error.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

from pydantic_core import to_json

from orchestrator.errors import ConfigError
from orchestrator.tools.spec import Effect

if TYPE_CHECKING:
    from mcp_types import Tool, ToolAnnotations

_UNCALLABLE = re.compile(r"[^a-zA-Z0-9_-]")
NAME_CHARS = 64
_DIGEST = 8
"""Characters of a digest in a name."""
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


class ToolChoice(NamedTuple):
    """The host's choice among the tools of a server, by the server's own names."""

    prefix: str = ""
    include: frozenset[str] | None = None
    """None: all."""
    exclude: frozenset[str] = frozenset()
    effects: Mapping[str, Effect] | Effect | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> ToolChoice:
        """Return the choice of an McpServer's options. Raises ConfigError for an effect that a tool cannot have."""
        include, exclude, effects = (options.get(key) for key in ("include", "exclude", "effects"))
        for effect in (effects,) if isinstance(effects, str) else (effects or {}).values():
            if effect not in _EFFECTS:
                possible = ", ".join(map(repr, _EFFECTS))
                raise ConfigError(f"an effect of an MCP tool is {effect!r}; possible: {possible}")
        return cls(
            options.get("prefix") or "",
            None if include is None else _names(include),
            _names(exclude or ()),
            effects,
        )

    def has(self, name: str) -> bool:
        """Return whether the host wants a tool."""
        return name not in self.exclude and (self.include is None or name in self.include)

    def effect(self, name: str) -> Effect | None:
        """Return the host's effect of a tool; None leaves it to the annotations."""
        return (
            self.effects if self.effects is None or isinstance(self.effects, str) else self.effects.get(name)
        )

    def check(self, server: str, known: Sequence[str]) -> None:
        """Raise ConfigError for a name that the server does not have."""
        effects = () if self.effects is None or isinstance(self.effects, str) else self.effects
        for option, names in (
            ("include", self.include or ()),
            ("exclude", self.exclude),
            ("effects", effects),
        ):
            for name in sorted(names):
                if name not in known:
                    close = difflib.get_close_matches(name, known, n=1)
                    hint = f"did you mean {close[0]!r}?" if close else f"it has {len(known)} others"
                    raise ConfigError(
                        f"MCP server {server!r} has no tool {name!r}, named in {option}; {hint}"
                    )


def _names(names: Iterable[str]) -> frozenset[str]:
    return frozenset((names,) if isinstance(names, str) else names)


class NotOffered(NamedTuple):
    """A tool that cannot be offered, and the reason as a clause."""

    theirs: str
    why: str


def declared(
    tools: Iterable[Tool], choice: ToolChoice
) -> tuple[tuple[ServerTool, ...], tuple[NotOffered, ...]]:
    """Return the tools of a server to offer, and those of the choice that cannot be offered."""
    offers: dict[str, ServerTool] = {}
    without: list[NotOffered] = []
    chosen = [tool for tool in tools if choice.has(tool.name)]
    full = [choice.prefix + _UNCALLABLE.sub("_", tool.name) for tool in chosen]
    cut = Counter(name[:NAME_CHARS].casefold() for name in full)
    for tool, name in zip(chosen, full, strict=True):
        if len(name) > NAME_CHARS:
            # A digest only if names become equal, so that the name of any other tool stays what it was.
            is_alone = cut[name[:NAME_CHARS].casefold()] == 1
            name = name[:NAME_CHARS] if is_alone else _with_digest(name, tool.name)  # noqa: PLW2901
        first = offers.get(name.casefold())
        if (why := _fault(tool)) is not None:
            without.append(NotOffered(tool.name, why))
        elif first is not None:
            why = f"its name would be {name!r}, like that of {clean(first.theirs, NAME_CHARS)!r}"
            without.append(NotOffered(tool.name, why))
        else:
            effect = choice.effect(tool.name)
            about = clean(tool.description or tool.title or "", _TEXT_CHARS)
            parameters = _cleaned(tool.input_schema)
            offers[name.casefold()] = ServerTool(
                name, tool.name, about, parameters, tool.input_schema, effect or effect_of(tool.annotations)
            )
    return tuple(offers.values()), tuple(without)


def _with_digest(name: str, theirs: str) -> str:
    """Return a name that is too long with a digest of the server's own name at its end."""
    digest = hashlib.sha256(theirs.encode(errors="replace")).hexdigest()[:_DIGEST]
    return f"{name[: NAME_CHARS - _DIGEST - 1]}_{digest}"


def effect_of(annotations: ToolAnnotations | None) -> Effect:
    """Return the effect class for a server's annotations. Unknown or contradictory ones mean the worst case."""
    if annotations is None or annotations.destructive_hint:
        return "irreversible"
    if annotations.read_only_hint:
        return "pure"
    return "idempotent" if annotations.idempotent_hint else "irreversible"


def _fault(tool: Tool) -> str | None:
    """Return why a tool cannot be offered, or None."""
    if (size := len(to_json(tool.input_schema))) > _SCHEMA_BYTES:
        return f"its schema has {size:,} bytes, and at most {_SCHEMA_BYTES:,} are read"
    if tool.execution is not None and tool.execution.task_support == "required":
        return "it runs only as a task, which this client does not support"
    return None


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

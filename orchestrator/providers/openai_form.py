"""What the two APIs of OpenAI have in common: how a form of request and answer is used, and how JSON is read.

Answers are read as JSON, not as the SDK's types: those describe what OpenAI sends, and compatible servers send more,
less and otherwise. Every reader here takes what it finds and gives nothing for what is of another type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from orchestrator.errors import ConfigError, LLMError
from orchestrator.messages import NO_USAGE, Request, Response, ToolCall, Usage
from orchestrator.providers import openai_schema
from orchestrator.providers.event_stream import Event
from orchestrator.providers.member import Malformed
from orchestrator.providers.recording import usage_from


@dataclass(frozen=True, slots=True)
class Options:
    """What a host may choose of the form of requests; `OpenAI` says what each is for."""

    structured: Literal["native", "prompt"] = "native"
    stream_usage: bool = True
    reasoning_field: str | None = None

    def schema(self, request: Request) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
        """Return the output schema for the native mode and for the prompt: one of them, or none."""
        schema = request.output_schema
        if schema is None:
            return None, None
        native = self.structured == "native" and openai_schema.is_object(schema)
        return (schema, None) if native else (None, schema)


class Assembly(Protocol):
    """A streamed answer in the making."""

    over: bool
    """The stream said that it is over."""

    @property
    def text(self) -> str:
        """What there is of the text by now."""
        ...

    def take(self, event: Event) -> str:
        """Take an event and return the text it adds. Raises LLMError for an error object, ValueError for no JSON."""
        ...

    def response(self) -> Response:
        """Return the whole answer. Raises LLMError where the stream was cut or makes no answer."""
        ...


def check_address(base_url: str) -> None:
    """Raise ConfigError for what is no address of a server."""
    try:
        parts = urlsplit(base_url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(
            f"base_url is {base_url!r}; possible: an address that begins with http:// or https://"
        )


def malformed(why: str, partial: str = "") -> LLMError:
    """Return the error of an answer that is none."""
    return LLMError(f"the provider sent no valid answer: {why}", kind="malformed", partial=partial)


def mapping(value: object) -> Mapping[str, Any]:
    """Return a JSON object, an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def objects(value: object) -> list[Mapping[str, Any]]:
    """Return the JSON objects in a list."""
    return [one for one in value if isinstance(one, Mapping)] if isinstance(value, list) else []


def text_or_none(value: object) -> str | None:
    """Return text that says something, else None."""
    return value if isinstance(value, str) and value else None


def text(value: object) -> str:
    """Return text, empty for anything else."""
    return value if isinstance(value, str) else ""


def usage(value: object) -> Usage:
    """Return what an answer used, as any provider writes it; nothing where it is written otherwise."""
    try:
        return usage_from(mapping(value))
    except Malformed:
        return NO_USAGE


def count(value: object) -> int:
    """Return a number of tokens, 0 for anything else."""
    return int(value) if isinstance(value, int | float) and value > 0 else 0


def arguments(value: object) -> str:
    """Return the arguments of a call as JSON text: as received, empty for null; an object is written as text."""
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False)


def tool_call(id_: object, name: object, given: object) -> ToolCall:
    """Return a call from what a provider wrote of it."""
    return ToolCall(text(id_), text(name), arguments(given))

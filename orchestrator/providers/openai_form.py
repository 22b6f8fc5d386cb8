"""Options of a host for the requests of OpenAI's two APIs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from orchestrator.llm.message import Request
from orchestrator.providers import openai_schema
from orchestrator.providers.chat_server import ChatServer


@dataclass(frozen=True, slots=True)
class OpenAIOptions:
    """Options of a host for the form of requests; `OpenAI` documents them."""

    structured: Literal["native", "prompt"] = "native"
    stream_usage: bool = True
    reasoning_field: str | None = None
    server: ChatServer = field(default_factory=ChatServer)
    host: str = ""
    """Host and port of the server; without it, no members of answers are kept."""

    def schema(self, request: Request) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
        """Return the output schema for the native mode and for the prompt: one of them, or none."""
        schema = request.output_schema
        if schema is None:
            return None, None
        native = self.structured == "native" and openai_schema.is_object(schema)
        return (schema, None) if native else (None, schema)

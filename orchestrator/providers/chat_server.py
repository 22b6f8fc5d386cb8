"""The servers of chat completions that people use, and what each of them requires of a request.

Servers implement OpenAI's API with rules of their own. `OpenAI` finds the rules by the host of its address; a host
that reaches a vendor through a proxy of its own names the vendor with `provider`. A server without a row has no rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from orchestrator.errors import ConfigError


@dataclass(frozen=True, slots=True)
class ChatServer:
    """What the servers of a vendor require."""

    hosts: tuple[str, ...] = ()
    """Hosts of the vendor; a leading dot stands for every host below it."""
    call_id: re.Pattern[str] = re.compile(r"(?s).+")
    """Ids of calls that the vendor accepts. Servers without a rule get back every id that they gave: LiteLLM puts
    the signatures of Gemini into its ids."""


CHAT_SERVERS: Final[Mapping[str, ChatServer]] = {
    "openai": ChatServer(("api.openai.com",), re.compile(r"(?s).{1,40}")),
    "azure.ai.openai": ChatServer((".openai.azure.com",), re.compile(r"(?s).{1,40}")),
    "mistral_ai": ChatServer(("api.mistral.ai",), re.compile(r"[a-zA-Z0-9]{9}")),
}
"""Name of a vendor in the GenAI conventions of OpenTelemetry -> its servers."""
_OTHER: Final = ChatServer()


def server_of(address: str, provider: str | None = None) -> ChatServer:
    """Return the rules of a vendor by its name, else by its address. Raises ConfigError for an unknown name."""
    if provider is not None:
        if provider not in CHAT_SERVERS:
            raise ConfigError(f"provider is {provider!r}; possible: {', '.join(CHAT_SERVERS)}, None")
        return CHAT_SERVERS[provider]
    host = urlsplit(address).hostname or ""
    for server in CHAT_SERVERS.values():
        if any(host == known or (known[0] == "." and host.endswith(known)) for known in server.hosts):
            return server
    return _OTHER

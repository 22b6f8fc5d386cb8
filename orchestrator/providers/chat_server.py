"""The servers of chat completions that people use, and what each of them requires of a request.

Servers implement OpenAI's API with rules of their own. `OpenAI` finds the rules by the host of its address; a host
that reaches a vendor through a proxy of its own names the vendor with `provider`. A server without a row has no rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from orchestrator.providers.connection import provider_name


@dataclass(frozen=True, slots=True)
class ChatServer:
    """What the servers of a vendor require."""

    call_id: re.Pattern[str] = re.compile(r"(?s).+")
    """Ids of calls that the vendor accepts. Servers without a rule get back every id that they gave: LiteLLM puts
    the signatures of Gemini into its ids."""
    reasoning_field: str = ""
    """Name under which reasoning is sent back; empty sends none."""
    reasoning_required: bool = False
    """Refuses a message with calls without that name, also if there was no reasoning."""
    returns_members: bool = True
    """Accepts the members back that it gave; the others refuse every name that is not in their documentation."""
    takes_citations: bool = False
    """Accepts its citations back inside the content; other servers get the text without them."""
    signed_calls: bool = False
    """Refuses calls without a signature (Gemini)."""


_THINKING: Final = ChatServer(reasoning_field="reasoning_content", reasoning_required=True)
_STRICT: Final = ChatServer(returns_members=False)
CHAT_SERVERS: Final[Mapping[str, ChatServer]] = {
    "openai": replace(_STRICT, call_id=re.compile(r"(?s).{1,40}")),
    "azure.ai.openai": replace(_STRICT, call_id=re.compile(r"(?s).{1,40}")),
    "mistral_ai": replace(_STRICT, call_id=re.compile(r"[a-zA-Z0-9]{9}"), takes_citations=True),
    "groq": _STRICT,
    "cerebras": _STRICT,
    "gcp.gemini": ChatServer(signed_calls=True),
    "gcp.vertex_ai": ChatServer(signed_calls=True),
    "deepseek": _THINKING,
    "moonshot_ai": _THINKING,
}
"""Name of a provider (`connection.provider_name`) -> its servers. A provider without a row has no rules."""
_OTHER: Final = ChatServer()


def server_of(address: str, provider: str | None = None) -> ChatServer:
    """Return the rules of a vendor by its name, else by its address; a vendor without a row has no rules."""
    return CHAT_SERVERS.get(provider_name(provider, "", address), _OTHER)

"""The servers of chat completions that people use, and what each of them requires of a request.

Servers implement OpenAI's API with rules of their own. `OpenAI` finds the rules by the host of its address; a host
that reaches a vendor through a proxy of its own names the vendor with `provider`. A server without a row has no rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class ChatServer:
    """What the servers of a vendor require."""

    hosts: tuple[str, ...] = ()
    """Hosts of the vendor; a leading dot or hyphen stands for every host that ends so."""
    call_id: re.Pattern[str] = re.compile(r"(?s).+")
    """Ids of calls that the vendor accepts. Servers without a rule get back every id that they gave: LiteLLM puts
    the signatures of Gemini into its ids."""
    reasoning_field: str = ""
    """Name under which reasoning is sent back; empty sends none."""
    reasoning_required: bool = False
    """Refuses a message with calls without that name, also if there was no reasoning."""
    returns_members: bool = True
    """Accepts the members back that it gave; the others refuse every name that is not in their documentation."""
    signed_calls: bool = False
    """Refuses calls without a signature (Gemini)."""


_THINKING: Final = ChatServer(reasoning_field="reasoning_content", reasoning_required=True)
_GOOGLE: Final = ChatServer(signed_calls=True)
_STRICT: Final = ChatServer(returns_members=False)
CHAT_SERVERS: Final[Mapping[str, ChatServer]] = {
    "openai": replace(_STRICT, hosts=("api.openai.com",), call_id=re.compile(r"(?s).{1,40}")),
    "azure.ai.openai": replace(_STRICT, hosts=(".openai.azure.com",), call_id=re.compile(r"(?s).{1,40}")),
    "mistral_ai": replace(_STRICT, hosts=("api.mistral.ai",), call_id=re.compile(r"[a-zA-Z0-9]{9}")),
    "groq": replace(_STRICT, hosts=("api.groq.com",)),
    "cerebras": replace(_STRICT, hosts=("api.cerebras.ai",)),
    "gcp.gemini": replace(_GOOGLE, hosts=("generativelanguage.googleapis.com",)),
    "gcp.vertex_ai": replace(_GOOGLE, hosts=("aiplatform.googleapis.com", "-aiplatform.googleapis.com")),
    "deepseek": replace(_THINKING, hosts=("api.deepseek.com",)),
    "moonshot_ai": replace(_THINKING, hosts=("api.moonshot.ai", "api.moonshot.cn")),
    "openrouter": ChatServer(("openrouter.ai", ".openrouter.ai")),
}
"""Name of a vendor, in the GenAI conventions of OpenTelemetry if they have one -> its servers."""
_OTHER: Final = ChatServer()


def server_of(address: str, provider: str | None = None) -> ChatServer:
    """Return the rules of a vendor by its name, else by its address; a name without a row has no rules."""
    if provider is not None:
        return CHAT_SERVERS.get(provider, _OTHER)
    host = urlsplit(address).hostname or ""
    for server in CHAT_SERVERS.values():
        if any(host == known or (known[0] in ".-" and host.endswith(known)) for known in server.hosts):
            return server
    return _OTHER

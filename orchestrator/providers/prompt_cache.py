"""Hints with which providers cache the beginning of a prompt.

- Anthropic caches up to a block with `cache_control`. Two blocks get it: the end of `system`, which all
  conversations of an agent share, and the end of the last message, from which the next turn continues. If the host
  marks blocks itself, nothing is added.
- OpenAI caches without a hint, and sends requests with the same `prompt_cache_key` to the same machine. The key is a
  digest of the messages up to the first of the user: the same in every turn of a run, also after a resume.

Gemini and others cache without hints. Hints are only for the vendor's own service: compatible servers refuse them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any, Final

from orchestrator.errors import ConfigError
from orchestrator.llm.message import Message

_TTL: Final[Mapping[int, dict[str, str]]] = {
    300: {"type": "ephemeral"},
    3600: {"type": "ephemeral", "ttl": "1h"},
}
_MARK: Final = "cache_control"


def check_cache_seconds(seconds: int) -> int:
    """Return the seconds for which Anthropic caches, 0 for no hints. Raises ConfigError for any other number."""
    if seconds != 0 and seconds not in _TTL:
        raise ConfigError(f"cache_seconds is {seconds!r}; possible: 0 (no hints), 300 and 3600")
    return seconds


def with_breakpoints(body: dict[str, Any], seconds: int) -> dict[str, Any]:
    """Return the body of a request to Anthropic with the end of `system` and of the messages marked."""
    if seconds == 0 or _MARK in body or _is_marked(body.get("system")) or _is_marked(body.get("tools")):
        return body
    contents = [message["content"] for message in body["messages"]]
    if any(map(_is_marked, contents)):
        return body
    for blocks in (body.get("system"), contents[-1]):
        if isinstance(blocks, list) and blocks:
            blocks[-1] = {**blocks[-1], _MARK: _TTL[seconds]}
    return body


def cache_key(messages: Iterable[Message]) -> str:
    """Return the key of a conversation: a digest of its messages up to the first one of the user."""
    digest = sha256()
    for message in messages:
        digest.update(f"{message.role}\0{message.text}\0".encode(errors="replace"))
        if message.role == "user":
            break
    return digest.hexdigest()[:32]


def _is_marked(blocks: object) -> bool:
    return isinstance(blocks, list) and any(isinstance(one, Mapping) and _MARK in one for one in blocks)

"""Ask for structured output in the prompt, for models without a mode for it. Every provider uses this text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.llm.message import Message

_WORDS = (
    "Give your final answer as JSON that fits the JSON schema below: only the JSON, no text around it, no code "
    "fence. Tools may be called before that as usual.\n\n{schema}"
)


def instruction(schema: Mapping[str, Any]) -> str:
    """Return the instruction about the form of the final answer."""
    return _WORDS.format(schema=json.dumps(schema, ensure_ascii=False))


def instructed(messages: Sequence[Message], schema: Mapping[str, Any]) -> list[Message]:
    """Return the messages with the instruction in the first system message, or in a new one.

    In the first message, because templates of many open models accept a single system message, at the start. At the
    start and not at the end, because the prefix that prompt caches compare then stays the same from turn to turn.
    """
    words = instruction(schema)
    first = messages[0] if messages else None
    if first is None or first.role not in ("system", "developer"):
        return [Message("system", words), *messages]
    if isinstance(first.content, list):
        told = replace(first, content=[*first.content, {"type": "text", "text": words}])
    else:
        told = replace(first, content=f"{first.content}\n\n{words}" if first.content else words)
    return [told, *messages[1:]]

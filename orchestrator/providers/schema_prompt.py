"""Structured output in words, for models that have no mode of their own for it. Every provider uses these words."""

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
    """Return what the model is told of the form of its final answer."""
    return _WORDS.format(schema=json.dumps(schema, ensure_ascii=False))


def instructed(messages: Sequence[Message], schema: Mapping[str, Any]) -> list[Message]:
    """Return the messages with the instruction in the first system message, or as one where there is none.

    In the first, not in one more: templates of many open models take a single system message, at the beginning. At
    the beginning, not at the end: what caches of prompts see stays the same from turn to turn.
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

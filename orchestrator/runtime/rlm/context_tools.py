"""Tools with which tools mode reads the data of a prompt, which the model never sees as a whole."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from orchestrator.machines.code_mode.ports import Answer
from orchestrator.tools.spec import ToolSpec, tool

_PIECE = 10_000
"""Maximum characters of one read."""
_AROUND = 80
"""Characters on each side of a search hit."""
_PLACES = 20
_LONGEST_QUERY = 200_000
"""Maximum characters of the data in one query to a model."""

Ask = Callable[[tuple[str, ...]], Awaitable[Sequence[Answer]]]


def context_tools(context: Any, ask: Ask) -> list[ToolSpec]:
    """Return the tools for some data: read, search, and query a model about a part of it; none without data."""
    if context is None:
        return []
    text = context if isinstance(context, str) else json.dumps(context, ensure_ascii=False, indent=1)

    @tool(effect="pure")
    def context_read(start: int = 0, length: int = 2_000) -> str:
        """Read a piece of the data, by position in characters; at most 10,000 characters at once."""
        start = max(0, start)
        end = min(len(text), start + max(0, min(length, _PIECE)))
        return f"[{start:,} to {end:,} of {len(text):,} characters]\n{text[start:end]}"

    @tool(effect="pure")
    def context_search(words: str, start: int = 0) -> str:
        """Find words in the data, capitals apart: the first 20 places from `start` on, each with its position."""
        if not words:
            return "give the words to look for"
        places = [
            found.start() for found in re.finditer(re.escape(words), text[max(0, start) :], re.IGNORECASE)
        ]
        shown = [_excerpt(text, max(0, start) + at, len(words)) for at in places[:_PLACES]]
        more = f"\n{len(places) - _PLACES:,} more places" if len(places) > _PLACES else ""
        return ("\n".join(shown) + more) or "not found"

    @tool(effect="idempotent")
    async def context_query(question: str, start: int = 0, length: int = 50_000) -> str:
        """Ask another model a question about a piece of the data (at most 200,000 characters); it sees nothing else."""
        start = max(0, start)
        piece = text[start : start + max(0, min(length, _LONGEST_QUERY))]
        (answer,) = await ask((f"{question}\n\n{piece}",))
        if isinstance(answer, Exception):
            raise answer
        return answer

    return [context_read, context_search, context_query]


def _excerpt(text: str, at: int, length: int) -> str:
    start, end = max(0, at - _AROUND), min(len(text), at + length + _AROUND)
    return f"{at:,}: …{' '.join(text[start:end].split())}…"

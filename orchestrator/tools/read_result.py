"""The tool `read_result`: with it, a model reads on in a result that was cut (`tools.result`)."""

from __future__ import annotations

from orchestrator.tools.result import NoSuchResult
from orchestrator.tools.spec import ToolContext, tool

MOST = 18_000
"""Most characters of one part. With its heading it stays below `max_result_chars`, so that it is not cut again."""


@tool(effect="pure")
async def read_result(context: ToolContext, handle: str, start: int = 0, characters: int = MOST) -> str:
    """Read a part of an earlier tool result that was too long to be shown whole.

    Args:
        handle: The handle in the mark at the end of the cut result, such as "3:0".
        start: Number of the first character, from 0.
        characters: Number of characters, at most 18000.
    """
    if context.stored_result is None:
        raise NoSuchResult("this run stores no results")
    text = await context.stored_result(handle)
    if not 0 <= start < len(text):
        raise ValueError(f"start is {start}; the result has the characters 0 to {len(text) - 1}")
    if characters < 1:
        raise ValueError(f"characters is {characters}; it must be 1 to {MOST}")
    part = text[start : start + min(characters, MOST)]
    return f"[characters {start} to {start + len(part) - 1} of {len(text)}]\n{part}"

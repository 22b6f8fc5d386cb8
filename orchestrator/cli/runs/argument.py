"""The call of a question, for a person: one argument on each line, every character visible.

The lines show the recorded JSON, without a conversion by a parser: numbers keep their digits, and a name that occurs
twice has two lines.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from orchestrator.telemetry.escape import escape

COLUMNS = 72
"""Width of a row: 80 columns without the indentation."""
ROWS = 12
"""Rows for all arguments: 24 lines without heading, digest and answers."""
VALUE_ROWS = 3
"""Most rows for one of them."""
LONGEST_TOOL = 72
"""Most characters of a tool's name."""


@dataclass(frozen=True, slots=True)
class CallView:
    """A call as lines. The same call has the same view in every command, so `hidden` is always the same."""

    tool: str
    lines: tuple[str, ...]
    hidden: int = 0
    """Characters of tool and arguments that are left out."""

    @classmethod
    def complete(cls, tool: str, arguments: str) -> CallView:
        """Return the whole call."""
        return cls(escape(tool, keep=""), tuple(_lines(arguments)))

    @classmethod
    def screen(cls, tool: str, arguments: str) -> CallView:
        """Return the part of the call that a screen of 80 columns and 24 lines shows."""
        whole = cls.complete(tool, arguments)
        lines: list[str] = []
        left, omitted = ROWS, 0
        hidden = max(len(whole.tool) - LONGEST_TOOL, 0)
        for line in whole.lines:
            part = _fitting(line, min(VALUE_ROWS, left))
            left -= _rows(part)
            more = len(line) - len(part)
            hidden += more
            omitted += not part
            if part:
                lines.append(f"{part}… ({more:,} more characters)" if more else part)
        if omitted:
            lines.append(f"… ({omitted:,} more arguments)")
        return cls(whole.tool[:LONGEST_TOOL], tuple(lines), hidden)


class _Number(str):
    __slots__ = ()


class _Object(list[tuple[str, Any]]):
    __slots__ = ()


def _lines(arguments: str) -> Iterator[str]:
    if not arguments.strip():
        return
    try:
        found = json.loads(
            arguments,
            object_pairs_hook=_Object,
            parse_int=_Number,
            parse_float=_Number,
            parse_constant=_Number,
        )
        texts = [(name, _json(value)) for name, value in found] if isinstance(found, _Object) else None
    except (ValueError, RecursionError):
        texts = None
    for name, text in [("arguments", _json(arguments))] if texts is None else texts:
        yield escape(f"{name if name.isidentifier() else _json(name)} = {text}", keep="")


def _json(value: Any) -> str:
    match value:
        case _Number():
            return str(value)
        case _Object():
            return f"{{{', '.join(f'{_json(name)}: {_json(one)}' for name, one in value)}}}"
        case list():
            return f"[{', '.join(map(_json, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _fitting(line: str, rows: int) -> str:
    """Return the part of a line that fits into so many rows."""
    left = rows * COLUMNS
    for index, one in enumerate(line):
        left -= _width(one)
        if left < 0:
            return line[:index]
    return line


def _rows(line: str) -> int:
    return -(-sum(map(_width, line)) // COLUMNS)


def _width(one: str) -> int:
    return 2 if unicodedata.east_asian_width(one) in "WF" else 1

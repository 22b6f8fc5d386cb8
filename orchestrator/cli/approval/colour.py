"""Colour for a person, and text that cannot hide anything from one."""

from __future__ import annotations

import os
from enum import StrEnum

from orchestrator.cli.output import is_terminal


class Paint(StrEnum):
    """What a text means, as the terminal's codes."""

    ADDED = "32"
    REMOVED = "31"
    PLACE = "36"
    HEAD = "1"
    WARNING = "1;31"
    HIDDEN = "7"
    FAINT = "2"


def coloured() -> bool:
    """Whether standard output takes colour: a terminal, and nobody said NO_COLOR (https://no-color.org)."""
    return is_terminal() and not os.environ.get("NO_COLOR")


def painted(text: str, paint: Paint, *, colour: bool) -> str:
    """Return a text in its colour, or as it is."""
    return f"\x1b[{paint.value}m{text}\x1b[0m" if colour and text else text


def visible(text: str, paint: Paint | None = None, *, colour: bool = False) -> str:
    """Return a line in which every character can be seen: what a terminal would obey or hide is an escape.

    A person approves what is on the screen. Text that turns the direction of writing, has no width or moves the
    cursor could show another change than the one that is made.
    """
    parts: list[str] = []
    for one in text:
        if one == "\t" or one.isprintable():
            parts.append(one)
            continue
        escape = painted(one.encode("unicode_escape").decode("ascii"), Paint.HIDDEN, colour=colour)
        parts.append(f"\x1b[0m{escape}\x1b[{paint.value}m" if colour and paint is not None else escape)
    joined = "".join(parts).replace("\t", "    ")
    return joined if paint is None else painted(joined, paint, colour=colour)


def hidden(text: str) -> int:
    """Return how many characters of a text `visible` shows as escapes; ends of lines do not count."""
    return sum(not (one.isprintable() or one in "\t\n") for one in text.replace("\r\n", "\n"))

"""Lines that a person types: an answer while a run continues, and prompts, with an editor of lines on a terminal."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Iterable
from typing import Protocol

from orchestrator.cli.output import is_terminal, styled_file
from orchestrator.errors import MissingExtra

_MOST = 4_096


def present() -> bool:
    """Return whether input and output are both a terminal."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


async def line() -> str | None:
    """Return the next line that is typed, without its line end; None at the end of the input.

    A cancelled wait loses no input: nothing is read before the wait is over, and then without another one.
    """
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    typed = asyncio.Event()
    loop.add_reader(descriptor, typed.set)
    try:
        await typed.wait()
    finally:
        loop.remove_reader(descriptor)
    try:
        said = os.read(descriptor, _MOST)
    except OSError:  # the terminal is gone
        return None
    return said.decode(errors="replace").strip() if said else None


MARK = "> "


class LineReader(Protocol):
    """A source of prompts."""

    async def read(self) -> str | None:
        """Return the next line, or None at the end. Raises KeyboardInterrupt for Ctrl-C in a line."""


class LineEditor:
    """The terminal: a line can be edited, and earlier prompts recalled.

    Args:
        earlier: Prompts of the conversation, the oldest first.

    Raises:
        MissingExtra: prompt_toolkit is not installed.
    """

    def __init__(self, earlier: Iterable[str]) -> None:
        try:
            from prompt_toolkit import PromptSession
            from prompt_toolkit.data_structures import Size
            from prompt_toolkit.history import InMemoryHistory
            from prompt_toolkit.input import create_input
            from prompt_toolkit.output.vt100 import Vt100_Output
        except ImportError as error:
            raise MissingExtra("prompt_toolkit", "cli") from error

        def size() -> Size:
            columns, lines = shutil.get_terminal_size()
            return Size(lines, columns)

        # The editor shows control characters of a line in its own way. It does not ask the terminal where its cursor
        # is, because not every terminal answers.
        output = Vt100_Output(styled_file(), size, term=os.environ.get("TERM"), enable_cpr=False)
        history = InMemoryHistory(list(earlier))
        self._session: PromptSession[str] = PromptSession(
            MARK,
            history=history,
            input=create_input(sys.__stdin__),
            output=output,
            enable_history_search=True,
        )

    async def read(self) -> str | None:
        """Return the next line. Raises KeyboardInterrupt for Ctrl-C."""
        try:
            return await self._session.prompt_async()
        except EOFError:
            return None


class PipedLines:
    """A pipe, a file, or a terminal that cannot move its cursor."""

    async def read(self) -> str | None:
        """Return the next line."""
        if sys.stdin is None:
            return None
        if present():
            return await line()
        text = await asyncio.to_thread(sys.stdin.readline)
        return text.rstrip("\r\n") if text else None


def line_reader(earlier: Iterable[str]) -> LineReader:
    """Return the reader for standard input. Raises MissingExtra."""
    return LineEditor(earlier) if present() and is_terminal() else PipedLines()

"""Reads a line of the terminal, such as yes or no, while the run continues."""

from __future__ import annotations

import asyncio
import os
import sys

_MOST = 4_096


def present() -> bool:
    """Return whether input and output are both a terminal."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


async def line() -> str | None:
    """Return the next line that is typed, without its line end; None at the end of the input.

    The terminal keeps an incomplete line, so a cancelled wait loses no input.
    """
    loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()
    typed: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        loop.remove_reader(descriptor)
        if not typed.done():
            try:
                typed.set_result(os.read(descriptor, _MOST))
            except OSError:  # the terminal is gone
                typed.set_result(b"")

    loop.add_reader(descriptor, read)
    try:
        said = await typed
    finally:
        loop.remove_reader(descriptor)
    return said.decode(errors="replace").strip() if said else None

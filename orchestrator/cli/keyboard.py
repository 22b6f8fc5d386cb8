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

"""A line of the terminal, such as yes or no, read while the run continues."""

from __future__ import annotations

import asyncio
import os
import sys

_MOST = 4_096


def present() -> bool:
    """Return whether a person sits at a terminal: input and output are both one."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


async def line() -> str | None:
    """Return the next line that is typed, without its end; None when no more will come.

    What is typed stays with the terminal until its line is whole, so a wait that is cancelled loses nothing.
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

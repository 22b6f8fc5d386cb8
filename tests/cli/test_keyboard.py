"""A line that is typed at a terminal."""

from __future__ import annotations

import asyncio
import os
import pty
import sys
from collections.abc import Iterator

import pytest

from orchestrator.cli import keyboard


@pytest.fixture
def typist(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield ours
    os.close(ours)


async def test_a_line_is_read_without_its_end(typist: int) -> None:
    os.write(typist, b" yes \nno\n")
    assert [await keyboard.line(), await keyboard.line()] == ["yes", "no"]


@pytest.mark.parametrize("steps", range(6))
async def test_a_wait_that_is_cancelled_as_a_line_arrives_loses_nothing(typist: int, steps: int) -> None:
    waiting = asyncio.ensure_future(keyboard.line())
    await asyncio.sleep(0)
    os.write(typist, b"no\n")
    for _ in range(steps):
        await asyncio.sleep(0)
    waiting.cancel()
    (said,) = await asyncio.gather(waiting, return_exceptions=True)
    if isinstance(said, asyncio.CancelledError):
        said = await asyncio.wait_for(keyboard.line(), 30)
    assert said == "no"


async def test_a_terminal_that_is_gone_is_the_end_of_the_input(typist: int) -> None:
    os.write(typist, b"\x04")
    assert await keyboard.line() is None

"""A program that is given bytes on its standard input and answers on its standard output, and that ends when told to.

Started without a shell, as the leader of a group of its own: with it goes all that it started.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from orchestrator.errors import RunError

_TAIL = 500
"""Characters of standard error that a failure quotes."""
_KEPT = 65_536
"""Bytes of standard error that are kept: the last ones."""
_MOST = 32 * 1024 * 1024
"""Bytes of standard output that are an answer; who says more has gone wrong."""


class TooMuchSaid(RunError):
    """A program wrote more than anybody reads."""

    def __init__(self) -> None:
        super().__init__(f"printed more than {_MOST // 1024 // 1024} MiB and was killed")


class Ended(NamedTuple):
    """How a program ended: its exit code (minus the signal's number where one ended it) and what it said."""

    code: int
    out: bytes
    err: bytes

    @property
    def how(self) -> str:
        """How it ended, in words."""
        return f"was ended by signal {-self.code}" if self.code < 0 else f"ended with exit code {self.code}"


async def run_program(
    argv: Sequence[str],
    given: bytes,
    *,
    seconds: float | None = None,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Run a program to its end, which is when it and all that holds its output are gone.

    `seconds` is how long it may take, `environment` is added to that of this process. Raises OSError where it cannot be
    started, TimeoutError where it took longer, TooMuchSaid. Whatever keeps it from its end, it is killed with all that
    it started.
    """
    pipe = asyncio.subprocess.PIPE
    running = await asyncio.create_subprocess_exec(
        *argv,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        start_new_session=True,
        cwd=folder,
        env=None if environment is None else {**os.environ, **environment},
    )
    try:
        async with asyncio.timeout(seconds):
            out, err = await _talk(running, given)
            await running.wait()
    except BaseException:
        await _killed(running)
        raise
    return Ended(running.returncode or 0, out, err)


async def _talk(running: asyncio.subprocess.Process, given: bytes) -> tuple[bytes, bytes]:
    """Give a program its input and return what it says on both its ends. Raises TooMuchSaid."""
    ends = (running.stdin, running.stdout, running.stderr)
    assert ends[0] is not None  # noqa: S101 - all are pipes
    assert ends[1] is not None  # noqa: S101
    assert ends[2] is not None  # noqa: S101
    # No TaskGroup: on 3.11 one that fails leaves its parent marked as cancelled, and whoever looks believes it.
    fed = asyncio.create_task(_fed(ends[0], given))
    complains = asyncio.create_task(_last_of(ends[2]))
    try:
        out = await _heard(ends[1])
        await fed
        return out, await complains
    finally:
        fed.cancel()
        complains.cancel()


async def _fed(stream: asyncio.StreamWriter, given: bytes) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # it need not read all of it
        stream.write(given)
        await stream.drain()
    with suppress(BrokenPipeError, ConnectionResetError):
        stream.close()
        await stream.wait_closed()


async def _heard(stream: asyncio.StreamReader) -> bytes:
    said = bytearray()
    while piece := await stream.read(_KEPT):
        said += piece
        if len(said) > _MOST:
            raise TooMuchSaid
    return bytes(said)


async def _last_of(stream: asyncio.StreamReader) -> bytes:
    said = b""
    while piece := await stream.read(_KEPT):
        said = (said + piece)[-_KEPT:]
    return said


async def _killed(running: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    # Our ends are closed first: `wait` waits for them too, and what the program left behind may hold the others. Not
    # the whole transport: its close() may take the exit code that the watcher waits for, which it then complains of.
    transport = getattr(running, "_transport")  # noqa: B009 - asyncio has no other way to them
    for end in (0, 1, 2):
        if (pipe := transport.get_pipe_transport(end)) is not None:
            pipe.close()
    await running.wait()


def last_words(err: bytes) -> str:
    """Return the end of what a program said on standard error, on one line."""
    return " ".join(err.decode(errors="replace").split())[-_TAIL:]

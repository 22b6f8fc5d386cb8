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

_TAIL = 500
"""Characters of standard error that a failure quotes."""


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
    started, TimeoutError where it took longer. Whatever keeps it from its end, it is killed with all that it started.
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
            out, err = await running.communicate(given)
    except BaseException:
        await _killed(running)
        raise
    return Ended(running.returncode or 0, out, err)


async def _killed(running: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    await running.wait()


def last_words(err: bytes) -> str:
    """Return the end of what a program said on standard error, on one line."""
    return " ".join(err.decode(errors="replace").split())[-_TAIL:]

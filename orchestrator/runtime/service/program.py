"""Programs that are given bytes on their standard input and answer on their standard output, and their record.

`start_program` is the one way in which a machine starts a program: without a shell, marked, as the leader of a session
of its own. `run_program` runs one to its end. What it starts inside a run is recorded in the journal of that run:

    program        {mark, call, name, host}     before it is started
    program_ended  {mark}                       after its end

A program without the second record may have outlived its owner. Before the run is resumed it is ended by its mark (see
`surviving_program`), or a person is asked where it was started on another host (see `recovery`).
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.errors import RunError
from orchestrator.kernel.run import Run
from orchestrator.runtime.service.run_scope import here
from orchestrator.runtime.service.surviving_program import host_name, variable

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


class ProgramExit(NamedTuple):
    """How a program ended: its exit code (minus the signal's number where one ended it) and what it said."""

    code: int
    out: bytes
    err: bytes

    @property
    def how(self) -> str:
        """How it ended, in words."""
        return f"was ended by signal {-self.code}" if self.code < 0 else f"ended with exit code {self.code}"


async def start_program(
    argv: Sequence[str], mark: str, environment: Mapping[str, str], **options: Any
) -> asyncio.subprocess.Process:
    """Start a program that carries a mark, in a session of its own. Raises OSError where it cannot be started.

    `environment` is all that it finds beside the mark; `options` are those of `asyncio.create_subprocess_exec`.
    """
    found = {**environment, **variable(mark)} if mark else dict(environment)
    return await asyncio.create_subprocess_exec(*argv, env=found, start_new_session=True, **options)


async def run_program(
    argv: Sequence[str],
    given: bytes,
    *,
    call: str = "",
    seconds: float | None = None,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> ProgramExit:
    """Run a program to its end, which is when it and all that holds its output are gone.

    `call` is the key of the work that it does for the current run, `seconds` is how long it may take, `environment` is
    added to that of this process. Raises OSError where it cannot be started, TimeoutError where it took longer,
    TooMuchSaid, and JournalError where it cannot be recorded. Whatever keeps it from its end, it is killed with all
    that it started.
    """
    pipe = asyncio.subprocess.PIPE
    async with _recorded(argv[0], call) as mark:
        running = await start_program(
            argv,
            mark,
            {**os.environ, **(environment or {})},
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            cwd=folder,
        )
        try:
            async with asyncio.timeout(seconds):
                out, err = await _talk(running, given)
                await running.wait()
        except BaseException:
            await _killed(running)
            raise
        return ProgramExit(running.returncode or 0, out, err)


@asynccontextmanager
async def _recorded(name: str, call: str) -> AsyncIterator[str]:
    """Record a program of the current run before the block and its end after it; yield the program's mark."""
    current, mark = here(), secrets.token_hex(16)
    if current is None:
        yield mark
        return
    begun = {"mark": mark, "call": call, "name": Path(name).name, "host": host_name()}
    try:
        # A synchronous stage may have an event loop of its own, in its thread; the run is written from one only.
        await current.on_loop(_record(current.run, begun))
        yield mark
    finally:
        current.on_loop_soon(current.run.note, "program_ended", {"mark": mark})
    # What is raised is not held up by this: the record is then durable with the next one.
    await current.on_loop(current.run.settle())


async def _record(run: Run[Any, Any], begun: Mapping[str, Any]) -> None:
    run.note("program", begun)
    await run.settle()


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

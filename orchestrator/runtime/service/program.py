"""External programs that read standard input and answer on standard output, and their records.

`start_program` is the only way in which a machine starts a program: without a shell, with a mark, as the leader of
its own session. `run_program` runs one to its end. A program that is started inside a run is recorded in the journal
of that run:

    program        {mark, call, name, host}     before it is started
    program_ended  {mark}                       after its end

A program without the second record may have outlived its owner. Before the run is resumed, the program is ended by
its mark (see `surviving_program`), or a person is asked if it was started on another host (see `recovery`).
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.errors import ConfigError, RunError
from orchestrator.kernel.run import Run
from orchestrator.runtime.service.run_scope import here
from orchestrator.runtime.service.surviving_program import MARK, host_name, variable

_TAIL = 500
"""Characters of standard error that an error quotes."""
_KEPT = 65_536
"""Last bytes of standard error that are kept."""
_MOST = 32 * 1024 * 1024
"""Maximum bytes of standard output."""


INHERITED = (
    "PATH",
    "HOME",
    "USER",
    "SHELL",
    "TERM",
    "TMPDIR",
    "LANG",
    "LC_*",
    "XDG_*",
    "SSH_AUTH_SOCK",
    *(form for name in ("HTTP", "HTTPS", "ALL", "NO") for form in (f"{name}_PROXY", f"{name.lower()}_proxy")),
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
)
"""Names and patterns of the environment variables that every program gets; the others may be keys."""


_OF_THE_SHELL = {"PWD", "OLDPWD", "SHLVL", "_", MARK}


def inherited(names: Iterable[str] = ()) -> dict[str, str]:
    """Return the environment variables that a program gets from this process.

    Args:
        names: Names or patterns (`AWS_*`) of variables in addition to INHERITED; `*` is the whole environment.

    Example:
        >>> "PATH" in inherited() and "ANTHROPIC_API_KEY" not in inherited()
        True
    """
    patterns = (*INHERITED, *names)
    return {
        name: value
        for name, value in os.environ.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }


def dropped(programs: Iterable[Iterable[str]]) -> list[str]:
    """Return the names of the environment variables that no program gets; `programs` has their lists of names."""
    passed = inherited(name for names in programs for name in names).keys()
    return sorted(os.environ.keys() - passed - _OF_THE_SHELL)


def check_names(names: object) -> tuple[str, ...]:
    """Return names or patterns of variables. Raises ConfigError for anything else."""
    if isinstance(names, Sequence) and not isinstance(names, str):
        texts = tuple(name for name in names if isinstance(name, str) and name and "=" not in name)
        if len(texts) == len(names):
            return texts
    raise ConfigError(
        f"env is {names!r}; possible: a list of names or patterns of environment variables, for example "
        "['GITHUB_TOKEN', 'AWS_*']; ['*'] is the whole environment"
    )


class TooMuchSaid(RunError):
    """A program wrote more than the maximum."""

    def __init__(self) -> None:
        super().__init__(f"printed more than {_MOST // 1024 // 1024} MiB and was killed")


class ProgramExit(NamedTuple):
    """The exit code of a program (negative for a signal) and its output."""

    code: int
    out: bytes
    err: bytes

    @property
    def how(self) -> str:
        """Description of the exit."""
        return f"was stopped by signal {-self.code}" if self.code < 0 else f"ended with exit code {self.code}"


async def start_program(
    argv: Sequence[str], mark: str, environment: Mapping[str, str], **options: Any
) -> asyncio.subprocess.Process:
    """Start a program with a mark in its own session. Raises OSError if it cannot be started.

    `environment` and the mark are its whole environment; `options` are for `asyncio.create_subprocess_exec`.
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
    """Run a program until it and all processes that hold its output have ended.

    An interrupted program is killed with all processes that it started. `given` is its standard input, `call` the key
    of its work for the current run, `seconds` its time limit; `environment` is its whole environment, by default the
    `inherited()` part of that of this process.

    Raises:
        OSError: The program cannot be started.
        TimeoutError: The program took too long.
        TooMuchSaid: The program printed too much.
        JournalError: The program cannot be recorded.
    """
    pipe = asyncio.subprocess.PIPE
    async with _recorded(argv[0], call) as mark:
        running = await start_program(
            argv,
            mark,
            inherited() if environment is None else environment,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            cwd=folder,
        )
        try:
            async with asyncio.timeout(seconds):
                out, err = await _communicate(running, given)
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
        # A synchronous stage may have its own event loop in its thread; only the loop of the run writes records.
        await current.on_loop(_record(current.run, begun))
        yield mark
    finally:
        current.on_loop_soon(current.run.note, "program_ended", {"mark": mark})
    # An error does not wait for this: the record is durable with the next one then.
    await current.on_loop(current.run.settle())


async def _record(run: Run[Any, Any], begun: Mapping[str, Any]) -> None:
    run.note("program", begun)
    await run.settle()


async def _communicate(running: asyncio.subprocess.Process, given: bytes) -> tuple[bytes, bytes]:
    """Write a program's input and return its output on both streams. Raises TooMuchSaid."""
    ends = (running.stdin, running.stdout, running.stderr)
    assert ends[0] is not None  # noqa: S101 - all are pipes
    assert ends[1] is not None  # noqa: S101
    assert ends[2] is not None  # noqa: S101
    # No TaskGroup: on Python 3.11 a failing one leaves its parent marked as cancelled.
    fed = asyncio.create_task(_fed(ends[0], given))
    complains = asyncio.create_task(_last_of(ends[2]))
    try:
        out = await _read_output(ends[1])
        await fed
        return out, await complains
    finally:
        fed.cancel()
        complains.cancel()


async def _fed(stream: asyncio.StreamWriter, given: bytes) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # it may read only a part
        stream.write(given)
        await stream.drain()
    with suppress(BrokenPipeError, ConnectionResetError):
        stream.close()
        await stream.wait_closed()


async def _read_output(stream: asyncio.StreamReader) -> bytes:
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
    # Close our ends first: `wait` waits for them too, and children of the program may hold the others. Do not close
    # the whole transport: its close() may take the exit code that the child watcher waits for.
    transport = getattr(running, "_transport")  # noqa: B009 - asyncio has no other access
    for end in (0, 1, 2):
        if (pipe := transport.get_pipe_transport(end)) is not None:
            pipe.close()
    await running.wait()


def last_words(err: bytes) -> str:
    """Return the last part of a program's standard error on one line."""
    return " ".join(err.decode(errors="replace").split())[-_TAIL:]

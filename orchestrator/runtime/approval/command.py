"""One command of a plan: a program and its arguments, without a shell, with few variables, in its own process group.

The program is looked up on the PATH and never taken from the project. Of the caller's environment it gets only the
variables that programs need to find each other and to select a language: keys are not passed on. At the time limit
the whole group is asked to end, and then killed. A program that leaves its group on purpose is not covered: a person
approves programs of their own machine. A command that outlives this process is found by its mark
(`surviving_program`).
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.machines.approval.fault import ApprovalError, Fault
from orchestrator.machines.approval.rules import starts_others
from orchestrator.runtime.approval.file_inspection import fault_of
from orchestrator.runtime.service import surviving_program
from orchestrator.runtime.service.program import start_program

KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
"""Environment variables that a command gets."""
OUTPUT_BYTES = 65_536
"""Last bytes of a command's output that are kept."""
GRACE = surviving_program.GRACE
"""Seconds between SIGTERM and SIGKILL."""
_LINGERING = 1.0
"""Seconds that children of a command may hold its output open after it has ended."""
_NOT_NOW = frozenset((errno.EAGAIN, errno.ETXTBSY, errno.ENOMEM, errno.EMFILE, errno.ENFILE))


@dataclass(frozen=True, slots=True)
class CommandResult:
    """A finished command. `exit_code` is negative after a signal, and None after its time limit."""

    exit_code: int | None
    output: str
    """Last part of its output, on both streams."""


def environment(given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that a command gets from the given environment (None: that of this process)."""
    source = os.environ if given is None else given
    return {name: source[name] for name in KEPT if name in source}


def program(name: str, root: Path) -> tuple[str, Fault | None]:
    """Return the absolute path of a program, or why it cannot run."""
    path = os.pathsep.join(one for one in environment().get("PATH", os.defpath).split(os.pathsep) if one)
    found = shutil.which(name, path=path)
    if found is None:
        return "", Fault("BLD-001", f"the program {name!r} is not installed (not found on the PATH)")
    where = Path(found).absolute()
    if any(_is_writable_by_plans(one, root) for one in (where, where.resolve())):
        return "", Fault("SEC-012", f"the program {name!r} is in the project itself: {found}")
    if (
        starts_others(other := where.resolve().name) and other != "busybox"
    ):  # which implements all programs of some systems
        return "", Fault(
            "SEC-012", f"the program {name!r} is {other!r}, which starts the program in its arguments"
        )
    return str(where), None


def _is_writable_by_plans(file: Path, root: Path) -> bool:
    """Return whether a plan could have written a program: plans may not write hidden folders of the project."""
    return root in file.parents and not any(
        part.startswith(".") for part in file.relative_to(root).parts[:-1]
    )


async def run(argv: tuple[str, ...], *, root: Path, seconds: float, mark: str = "") -> CommandResult:
    """Run a command in the project and wait for its end. Raises ApprovalError (family BLD) if it was not started.

    `mark` identifies the command for a later search for surviving programs.
    """
    executable, fault = program(argv[0], root)
    if fault is not None:
        raise ApprovalError(fault)
    # Our own pipe: with one of asyncio's, waiting for the program would mean waiting for all its children.
    reading, writing = os.pipe()
    try:
        process = await _started(argv, executable, root, writing, mark)
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    ended = asyncio.ensure_future(process.wait())
    kept = bytearray()
    output = asyncio.ensure_future(_read_tail(reading, kept))
    try:
        in_time = await _waited(process, ended, output, seconds)
        if output.done():
            output.result()  # raises the error of the reading
        return CommandResult(process.returncode if in_time else None, kept.decode(errors="replace"))
    finally:
        output.cancel()
        if process.returncode is None:
            _signal(process, signal.SIGKILL)
            await ended


async def _started(
    argv: tuple[str, ...], executable: str, root: Path, writing: int, mark: str
) -> asyncio.subprocess.Process:
    try:
        return await start_program(
            argv,
            mark,
            environment(),
            executable=executable,
            cwd=root,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
        )
    except OSError as error:
        if error.errno in _NOT_NOW:
            said = f"{argv[0]!r} could temporarily not be started"
            raise ApprovalError(Fault("BLD-004", said, f"errno {error.errno}")) from None
        raise ApprovalError(fault_of(error, argv[0])) from None


async def _waited(
    process: asyncio.subprocess.Process,
    ended: asyncio.Future[int],
    output: asyncio.Future[None],
    seconds: float,
) -> bool:
    """Wait until a command and all processes of its group that hold its output have ended.

    False after the time limit.
    """
    in_time = bool((await asyncio.wait((ended,), timeout=seconds))[0])
    if not in_time:
        _signal(process, signal.SIGTERM)
        await asyncio.wait((ended, output), timeout=GRACE)
        if not (ended.done() and output.done()):
            _signal(process, signal.SIGKILL)
        await ended
    await asyncio.wait((output,), timeout=_LINGERING)
    if (
        not output.done()
    ):  # a process of its group still holds the output, so the group id still belongs to it
        _signal(process, signal.SIGKILL)
        await asyncio.wait((output,), timeout=_LINGERING)
    return in_time


async def _read_tail(fd: int, kept: bytearray) -> None:
    """Keep the last part of an output. What was read counts, also if its end is not waited for."""
    stream = asyncio.StreamReader()
    pipe = os.fdopen(fd, "rb", buffering=0)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stream), pipe
    )
    try:
        while chunk := await stream.read(OUTPUT_BYTES):
            kept += chunk
            del kept[:-OUTPUT_BYTES]
    finally:
        transport.close()


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)

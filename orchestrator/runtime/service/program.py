"""External programs that read standard input and answer on standard output, and their records.

`start_program` is the only way in which a machine starts a program: without a shell, with a mark, as the leader of
its own session. `run_program` runs one to its end. A program that is started inside a run is recorded in the journal
of that run:

    program        {mark, call, name, host}     before it is started
    program_ended  {mark}                       after its end

A program without the second record may have outlived its owner. Before the run is resumed, the program is ended by
its mark, or a person is asked if it was started on another host.

A process that is killed with -9 ends nothing, and its programs continue to write while their work is repeated. Each
program has an environment variable with a mark and passes it to all processes that it starts, even to those that
leave its session. The mark is durable before the program is started, so no process number has to be stored, which
could belong to another process later. A program that runs inside another one has the marks of both. Rejected
alternatives: PR_SET_PDEATHSIG, which reaches one process and not its children, and a supervisor for each program,
which is one more process and can be killed too.

Linux only, because /proc shows the environment and the parent of each process; elsewhere `can_find` is False, and a
person is asked. The scan sees the processes of this user in this PID namespace. A process that empties its
environment is found if its parent is found; a process of another user is not found.

Programs of this host are found and ended. Nothing is known about a program of another host, and about any program on
a system that does not show the owner of processes. Then the run is parked with the reason `unknown_effect` and the
names of the programs, until a person states that they have ended: with `resume(run_id, again=True)`, or with a
`resume` request that is posted after the question. A cancelled run repeats nothing and asks no question.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import select
import signal
import socket
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.errors import ConfigError, RunError, Suspended
from orchestrator.journal.stored_run import StoredRun
from orchestrator.kernel.journal import Posted
from orchestrator.kernel.run import Run
from orchestrator.runtime.service.child_run import current_scope

MARK = "ORCHESTRATOR_COMMAND"
"""The variable. Its value is the marks of a program, separated by spaces, the innermost last."""
GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""
_ROUNDS = 5
"""Number of repeated scans for processes that were started meanwhile."""
_PROC = Path("/proc")


class ProgramEnd(NamedTuple):
    """The result of `end`."""

    marks: frozenset[str]
    """Marks of which at least one process was found."""
    left: tuple[int, ...]
    """Processes that could not be killed and still exist."""


class _Process(NamedTuple):
    pid: int
    parent: int
    began: str
    """Start time in ticks since the boot. With the number it identifies a process."""
    mark: str
    """The mark that was found; empty if it has none."""


def mark_of(*identity: str) -> str:
    """Return the mark that is derived from these parts: the same in every process."""
    return hashlib.sha256("\0".join(identity).encode()).hexdigest()


def mark_variable(mark: str) -> Mapping[str, str]:
    """Return the environment variable of a program with `mark` and the marks of this process."""
    return {MARK: f"{os.environ.get(MARK, '')} {mark}".strip()}


def host_name() -> str:
    """Return the name of this host, as in the owner of a lease."""
    return socket.gethostname()


def can_find() -> bool:
    """Return whether this system shows the environment and the parent of each process."""
    return hasattr(os, "pidfd_open") and (_PROC / "self" / "environ").exists()


def end_processes(marks: Collection[str], grace: float = GRACE) -> ProgramEnd:
    """End every process with one of these marks, and its children. Blocks.

    Each gets SIGTERM, and SIGKILL after `grace` seconds. This process itself is excluded.
    """
    marks, found = frozenset(marks), set[str]()
    alive: list[_Process] = []
    for number in range(_ROUNDS + 1):
        alive = _survivors(marks)
        if not alive or number == _ROUNDS:
            break
        found.update(one.mark for one in alive)
        with ExitStack() as stack:
            # A child without a mark cannot be found after its parent has ended, so all are opened before.
            opened = []
            for one in alive:
                with suppress(OSError):
                    fd = os.pidfd_open(one.pid)
                    stack.callback(os.close, fd)
                    # Read after opening: from here on the descriptor refers to this process or to none.
                    if (now := _read(one.pid)) is not None and now[2] == one.began:
                        opened.append(fd)
            if number == 0:
                _signal(opened, signal.SIGTERM, grace)
            _signal(opened, signal.SIGKILL, GRACE)  # on a busy machine a killed process does not end at once
    return ProgramEnd(frozenset(found), tuple(one.pid for one in alive))


def _signal(opened: Collection[int], number: signal.Signals, seconds: float) -> None:
    """Signal processes, and wait until they have ended."""
    waiting = select.poll()
    for fd in opened:
        with suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(fd, number)
        waiting.register(fd, select.POLLIN)
    left, until = len(opened), time.monotonic() + seconds
    while left and (rest := until - time.monotonic()) > 0:
        for fd, _ in waiting.poll(rest * 1000):
            waiting.unregister(fd)
            left -= 1


def _survivors(marks: frozenset[str]) -> list[_Process]:
    """Return the processes with one of these marks, and their descendants without a mark."""
    if not marks or not can_find():
        return []
    there = []
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and (pid := int(entry.name)) != os.getpid():
            read = _read(pid)
            if read is not None and read[0] not in {"Z", "X"}:  # ended, but not reaped by its parent
                there.append(_Process(pid, read[1], read[2], _mark_in(entry, marks)))
    below: dict[int, list[_Process]] = {}
    for one in there:
        below.setdefault(one.parent, []).append(one)
    found = {one.pid: one for one in there if one.mark}
    queue = list(found.values())
    while queue:
        above = queue.pop()
        new = [one._replace(mark=above.mark) for one in below.get(above.pid, ()) if one.pid not in found]
        found |= {one.pid: one for one in new}
        queue += new
    return list(found.values())


def _read(pid: int) -> tuple[str, int, str] | None:
    """Return state, parent and start of a process; None if it does not exist."""
    with suppress(OSError):
        fields = (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[0], int(fields[1]), fields[19]
    return None


def _mark_in(entry: Path, marks: frozenset[str]) -> str:
    """Return the wanted mark of a process; empty if it has none or its environment cannot be read."""
    with suppress(OSError):
        for line in (entry / "environ").read_bytes().split(b"\0"):
            name, _, value = line.partition(b"=")
            if name == MARK.encode():
                return next((mark for mark in value.decode(errors="replace").split() if mark in marks), "")
    return ""


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
    found = {**environment, **mark_variable(mark)} if mark else dict(environment)
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
    current, mark = current_scope(), secrets.token_hex(16)
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
        out = bytearray()
        while piece := await ends[1].read(_KEPT):
            out += piece
            if len(out) > _MOST:
                raise TooMuchSaid
        await fed
        return bytes(out), await complains
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


PROGRAMS_REASON = "unknown_effect"
"""Reason of a parked run that asks a person about its programs."""
_THEN = "end it, then resume with again=True (`--again`)"


class ProgramsUnknown(Suspended):
    """Programs of the run may still run, which only a person can find out."""

    def __init__(self, run_id: str, why: str, *, parked: bool = False) -> None:
        super().__init__(run_id, why)
        self.parked = parked
        """Whether the run was parked for this now; False if it was parked before."""
        self.args = (f"run {run_id!r} waits for a person: {why}",)


def programs_question(stored: StoredRun) -> str:
    """Return the question about the programs of a parked run, "" if there is none."""
    parked = stored.parked or {}
    return str(parked.get("why", "")) if parked.get("programs") else ""


def programs_answered(stored: StoredRun, unread: Iterable[Posted]) -> bool:
    """Return whether a request allows a run with such a question to continue."""
    asked = int((stored.parked or {}).get("inbox", 0)) if programs_question(stored) else None
    return any(
        one.kind == "cancel" or (one.kind == "resume" and asked is not None and one.number > asked)
        for one in unread
    )


async def end_programs(stored: StoredRun) -> tuple[list[str], str]:
    """End the remaining programs of a run on this host.

    Returns the names of the programs that were still running, and a sentence about programs of unknown state, or "".
    """
    programs, host = stored.programs, host_name()
    local = [mark for mark, one in programs.items() if one.get("host") == host]
    known = can_find()
    ended = await asyncio.to_thread(end_processes, local if known else ())
    names = [str(programs[mark].get("name")) for mark in local if mark in ended.marks]
    elsewhere = next((one for one in programs.values() if one.get("host") != host), None)
    if elsewhere is not None:
        there = elsewhere.get("host")
        return names, (
            f"{_named(elsewhere)} was started on host {there!r} and may still run there, which cannot be seen from "
            f"this host ({host!r}): check there and {_THEN}"
        )
    if local and not known:
        return names, (
            f"{_named(programs[local[0]])} was started by a process that died and may still run: only Linux shows "
            f"which programs a process has started; look for it and {_THEN}"
        )
    numbers = ", ".join(map(str, ended.left))
    why = f"a program of the run still runs and cannot be ended by this user (process {numbers}): {_THEN}"
    return names, why if ended.left else ""


def _named(program: Mapping[str, Any]) -> str:
    call = program.get("call")
    return f"the program {program.get('name')!r}" + (f" (call {call})" if call else "")

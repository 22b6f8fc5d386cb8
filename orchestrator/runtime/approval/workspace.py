"""The project folder of a plan: its files, the effect of a plan on them, and changes since.

Only this module makes a plan from a draft: it checks the rules and every path, and rehearses all steps in memory. So
a person approves the exact bytes to write, and a step with any other result is refused later.

Each folder of the path is opened from its parent without following links, as in a write. The result may be outdated
later: the write inspects the same path again in the same way.

Diffs compare the current files with the future ones. A step that depends on another one is shown on top of it.

The program is looked up on the PATH and never taken from the project. Of the caller's environment it gets only the
variables that programs need to find each other and to select a language: keys are not passed on. At the time limit
the whole group is asked to end, and then killed. A program that leaves its group on purpose is not covered: a person
approves programs of their own machine. A command that outlives this process is found by its mark
(`runtime.service.program`).

The check uses the running Python; a project for a newer Python whose files it cannot parse has to be changed by hand.
"""

from __future__ import annotations

import ast
import asyncio
import errno
import hashlib
import json
import os
import shlex
import shutil
import signal
import stat
import time
import tomllib
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TypeVar

from orchestrator.files import atomic as stored
from orchestrator.files.path_safety import NO_FOLDER, ODD, serves
from orchestrator.files.rollback import within
from orchestrator.machines.approval import patch, rules
from orchestrator.machines.approval.fault import ApprovalError, Fault
from orchestrator.machines.approval.limits import PlanCaps
from orchestrator.machines.approval.plan import (
    ApprovalPlan,
    DriftEntry,
    DriftReport,
    FileChange,
    Fingerprint,
    Intent,
    PlanDraft,
    StepKind,
    StepOutcome,
    digest_of,
)
from orchestrator.machines.approval.rules import folded, path_faults, starts_others
from orchestrator.runtime.service import program
from orchestrator.runtime.service.program import start_program

_BOM = b"\xef\xbb\xbf"
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class FileContent:
    """A text file. `text` is None if the file does not exist."""

    fingerprint: Fingerprint
    text: str | None = None


def look(root: Path, path: str, most_bytes: int = 0) -> FileContent:
    """Return the file at a path. Raises ApprovalError for forbidden and unreadable files."""
    try:
        with _folder(root, path) as folder:
            return FileContent(Fingerprint(path=path)) if folder is None else _file(folder, path, most_bytes)
    except OSError as error:
        raise ApprovalError(fault_of(error, path)) from None


def fingerprint(path: str, content: bytes | None) -> Fingerprint:
    """Return the fingerprint of a file's content; None means no file."""
    if content is None:
        return Fingerprint(path=path)
    encoding = "utf-8-sig" if content.startswith(_BOM) else "utf-8"
    try:
        content.decode()
    except UnicodeDecodeError:
        encoding = "binary"
    if b"\0" in content:
        encoding = "binary"
    digest = hashlib.sha256(content).hexdigest()
    return Fingerprint(path=path, sha256=digest, size=len(content), encoding=encoding)


def encoded(text: str, encoding: str | None) -> bytes:
    """Return a text as bytes in the encoding of its file."""
    return text.encode("utf-8-sig" if encoding == "utf-8-sig" else "utf-8")


def fault_of(error: OSError, path: str) -> Fault:
    """Return the fault of an operating system error."""
    code, why = _CODES.get(error.errno or 0, ("FS-010", "cannot be read or written"))
    return Fault(code, f"{path!r} {why}", f"{type(error).__name__} {error.errno}", path=path)


_CODES = {
    errno.ENOENT: ("FS-001", "does not exist"),
    errno.EEXIST: ("FS-002", "exists already"),
    errno.EACCES: ("FS-003", "may not be read or written by this user"),
    errno.EPERM: ("FS-003", "may not be read or written by this user"),
    errno.EROFS: ("FS-004", "is on a read-only file system"),
    errno.EBUSY: ("FS-005", "is in use"),
    errno.EAGAIN: ("FS-005", "is locked"),
    errno.ETXTBSY: ("FS-005", "is a running program"),
    errno.EISDIR: ("FS-009", "is a folder"),
    errno.ENOTDIR: ("SEC-011", "is in a path that is no longer a folder"),
    errno.ELOOP: ("SEC-011", "goes through a link that was not there before"),
    errno.ENAMETOOLONG: ("FS-011", "is too long a name"),
    errno.ETIMEDOUT: ("FS-012", "is on a file system that does not answer"),
    errno.ENOSPC: ("RES-001", "has no room on the disk"),
    errno.EDQUOT: ("RES-001", "has no room on the disk"),
    errno.ENOMEM: ("RES-003", "needs more memory than is available"),
    errno.EMFILE: ("RES-003", "needs more open files than the limit allows"),
    errno.ENFILE: ("RES-003", "needs more open files than the limit allows"),
}


@contextmanager
def _folder(root: Path, path: str) -> Iterator[int | None]:
    """Open the folder of a path; None if it does not exist. Raises ApprovalError."""
    fd: int | None = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *folders, name = PurePosixPath(path).parts
        if serves(name) is not None:
            raise ApprovalError(
                Fault("SEC-005", f"{path!r} has a name that is reserved for our temporary files", path=path)
            )
        for part in folders:
            if fd is None:
                break
            status = _status(fd, part, path)
            if status is not None:
                if stat.S_ISREG(status.st_mode):
                    said = f"{path!r}: {part!r} is a file, not a folder"
                    raise ApprovalError(Fault("FS-009", said, path=path))
                _refuse_special(status, part, path)
            deeper = None if status is None else os.open(part, _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = deeper
        yield fd
    finally:
        if fd is not None:
            os.close(fd)


def _status(fd: int, name: str, path: str) -> os.stat_result | None:
    """Return the status of a name in its folder. Raises ApprovalError SEC-009 if it exists in another spelling."""
    for entry in os.listdir(fd):
        if entry != name and folded(entry) == folded(name):
            said = f"{path!r}: {entry!r} exists, which is the same name on some file systems"
            raise ApprovalError(Fault("SEC-009", said, path=path))
    try:
        return os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _refuse_special(status: os.stat_result, name: str, path: str) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise ApprovalError(Fault("SEC-003", f"{path!r}: {name!r} is a symlink", path=path))
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise ApprovalError(Fault("SEC-007", f"{path!r}: {name!r} is a device, pipe or socket", path=path))


def _file(folder: int, path: str, most_bytes: int) -> FileContent:
    name = PurePosixPath(path).name
    status = _status(folder, name, path)
    if status is None:
        return FileContent(Fingerprint(path=path))
    _refuse_special(status, name, path)
    if stat.S_ISDIR(status.st_mode):
        raise ApprovalError(Fault("FS-009", f"{path!r} is a folder", path=path))
    fd = os.open(name, _FLAGS, dir_fd=folder)
    try:
        opened = os.fstat(fd)
        if (opened.st_ino, opened.st_dev) != (status.st_ino, status.st_dev):
            raise ApprovalError(Fault("SEC-011", f"{path!r} was replaced during its inspection", path=path))
        if opened.st_nlink > 1:
            said = f"{path!r} has {opened.st_nlink} names (hard links); a plan may change only files with one"
            raise ApprovalError(Fault("SEC-008", said, path=path))
        if opened.st_mode & (
            stat.S_ISUID | stat.S_ISGID
        ):  # a diff does not show whose rights the new content would have
            said = f"{path!r} runs with the rights of its owner or group (set-id bits); no plan may change it"
            raise ApprovalError(Fault("SEC-013", said, path=path))
        if most_bytes and opened.st_size > most_bytes:
            said = f"{path!r} has {opened.st_size} bytes, at most {most_bytes} are allowed"
            raise ApprovalError(Fault("FS-008", said, path=path))
        with open(fd, "rb", closefd=False) as file:
            content = file.read()
        found = fingerprint(path, content)
        if found.encoding == "binary":
            raise ApprovalError(Fault("FS-007", f"{path!r} is binary: not UTF-8 text", path=path))
        return FileContent(found, content.decode("utf-8-sig" if found.encoding == "utf-8-sig" else "utf-8"))
    finally:
        os.close(fd)


MOST_FILES = 2_000
"""Maximum number of listed files, in order of their paths."""


class ListingProgress:
    """Progress of a listing, written by its thread and read by the waiting task."""

    def __init__(self) -> None:
        self.at: tuple[str, float] = ("", time.monotonic())
        """The file or folder in progress (empty: the project), and the time of its start."""
        self.given_up = False
        """Set when no task waits any more."""

    def turns_to(self, path: str) -> None:
        """Set the file in progress. Raises TimeoutError if no task waits any more."""
        if self.given_up:
            raise TimeoutError
        self.at = (path, time.monotonic())


def files(root: Path, caps: PlanCaps, progress: ListingProgress) -> tuple[Fingerprint, ...]:
    """Return the files that a plan could touch: not hidden, build output, denied, links, or above the size cap."""
    found: list[Fingerprint] = []
    refused = [folded(rule) for rule in (*caps.build_output, *caps.denied)]
    for folder, folders, names, fd in os.fwalk(root, follow_symlinks=False, onerror=_raise):
        folders[:] = sorted(
            one
            for one in folders
            if not one.startswith(".") and not any(fnmatchcase(folded(one), rule) for rule in refused)
        )
        below = Path(folder).relative_to(root).as_posix()
        for name in sorted(names):
            if len(found) >= MOST_FILES:
                return tuple(sorted(found, key=lambda one: one.path))
            path = name if below == "." else f"{below}/{name}"
            progress.turns_to(path)
            with suppress(FileNotFoundError):  # removed meanwhile
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                is_file = stat.S_ISREG(status.st_mode) and not any(path_faults(path, caps))
                if is_file and (not caps.file_bytes or status.st_size <= caps.file_bytes):
                    found.append(fingerprint_at(root, path))
        progress.turns_to("")
    return tuple(sorted(found, key=lambda one: one.path))


def fingerprint_at(root: Path, path: str) -> Fingerprint:
    """Return the fingerprint of any file at a path. Raises ApprovalError if it cannot be read."""
    try:
        snapshot = stored.read_file(path, root=root)
    except OSError as error:
        raise ApprovalError(fault_of(error, path)) from None
    if snapshot.digest in ODD:
        return Fingerprint(path=path, encoding=snapshot.digest)
    return fingerprint(path, None if snapshot.digest is None else snapshot.content)


def _raise(error: OSError) -> None:
    """Ignore a folder that was removed or replaced meanwhile.

    Other errors are raised, so that no file is silently missed.
    """
    if error.errno not in NO_FOLDER | {errno.ENOENT, errno.EACCES}:
        raise error


KEPT = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")
"""Environment variables that a command gets."""
OUTPUT_BYTES = 65_536
"""Last bytes of a command's output that are kept."""
GRACE = program.GRACE
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


def program_path(name: str, root: Path) -> tuple[str, Fault | None]:
    """Return the absolute path of a program, or why it cannot run."""
    path = os.pathsep.join(one for one in environment().get("PATH", os.defpath).split(os.pathsep) if one)
    found = shutil.which(name, path=path)
    if found is None:
        return "", Fault("BLD-001", f"the program {name!r} is not installed (not found on the PATH)")
    where = Path(found).absolute()
    for file in (where, where.resolve()):  # a plan may write there, but in no hidden folder of the project
        hidden = root in file.parents and any(
            part.startswith(".") for part in file.relative_to(root).parts[:-1]
        )
        if root in file.parents and not hidden:
            return "", Fault("SEC-012", f"the program {name!r} is in the project itself: {found}")
    if (
        starts_others(other := where.resolve().name) and other != "busybox"
    ):  # which implements all programs of some systems
        return "", Fault(
            "SEC-012", f"the program {name!r} is {other!r}, which starts the program in its arguments"
        )
    return str(where), None


async def run(argv: tuple[str, ...], *, root: Path, seconds: float, mark: str = "") -> CommandResult:
    """Run a command in the project and wait for its end. Raises ApprovalError (family BLD) if it was not started.

    `mark` identifies the command for a later search for surviving programs.
    """
    executable, fault = program_path(argv[0], root)
    if fault is not None:
        raise ApprovalError(fault)
    # Our own pipe: with one of asyncio's, waiting for the program would mean waiting for all its children.
    reading, writing = os.pipe()
    try:
        process = await start_program(
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
        os.close(reading)
        if error.errno in _NOT_NOW:
            said = f"{argv[0]!r} could temporarily not be started"
            raise ApprovalError(Fault("BLD-004", said, f"errno {error.errno}")) from None
        raise ApprovalError(fault_of(error, argv[0])) from None
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


def _python(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ast.parse(text)


_CHECKS: Mapping[str, Callable[[str], object]] = {
    ".py": _python,
    ".pyi": _python,
    ".json": json.loads,
    ".toml": tomllib.loads,
}


T = TypeVar("T")


class Workspace:
    """A project folder. `seconds` and `index_seconds` of 0 mean no limit.

    Raises ApprovalError CFG-003 if the folder is invalid, and FS-012 if a file takes longer than `seconds`, or longer
    than `index_seconds` when all files are listed.
    """

    def __init__(
        self,
        root: Path | str,
        caps: PlanCaps | None = None,
        seconds: float = 0.0,
        index_seconds: float = 0.0,
    ) -> None:
        self.caps = caps or PlanCaps()
        self._seconds = seconds
        self._index_seconds = index_seconds
        try:
            self.root = Path(root).resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            raise ApprovalError(Fault("CFG-003", f"the folder {str(root)!r} does not exist")) from None
        if not self.root.is_dir():
            raise ApprovalError(Fault("CFG-003", f"{str(root)!r} is not a folder"))

    async def validated(
        self,
        draft: PlanDraft,
        *,
        plan_id: str,
        version: int,
        intent: Intent | None = None,
        derived_from: str = "",
    ) -> ApprovalPlan:
        """Return the plan of a draft for the current files.

        Raises ApprovalError VAL-004 (-003, -005) with all faults.
        """
        if found := rules.faults(draft, self.caps):
            raise ApprovalError(found, code="VAL-004")
        files = sum(len(step.paths) for step in draft.steps)
        targets, outcomes = await self._in_time(partial(self._rehearsed, draft), files)
        return ApprovalPlan(
            goal=draft.goal,
            steps=draft.steps,
            id=plan_id,
            version=version,
            intent_digest="" if intent is None else intent.digest,
            caps_digest=digest_of(asdict(self.caps)),
            targets=targets,
            outcomes=outcomes,
            derived_from=derived_from,
        )

    async def drift(self, plan: ApprovalPlan, done: Collection[str] = ()) -> DriftReport:
        """Compare every file of a plan with its expected state after the steps `done`."""

        def compare() -> DriftReport:
            compared = (
                DriftEntry(expected=expected, found=fingerprint_at(self.root, path))
                for path, expected in plan.expected(frozenset(done)).items()
            )
            return DriftReport(tuple(entry for entry in compared if entry.found != entry.expected))

        return await self._in_time(compare, len(plan.targets))

    async def found(self, path: str) -> FileContent:
        """Return the file at a path. Raises ApprovalError."""
        return await self._in_time(partial(self.look, path), 1, path)

    async def tree(self) -> tuple[Fingerprint, ...]:
        """Return the files of the project in order of their paths; see `files` for the omitted ones.

        A slow file is an error and not omitted, because the planner would assume that it does not exist.
        """
        progress = ListingProgress()
        listed = asyncio.ensure_future(within(0, partial(files, self.root, self.caps, progress)))
        try:
            while not listed.done():
                path, since = progress.at
                left = since + self._index_seconds - time.monotonic() if self._index_seconds else None
                if left is not None and left <= 0:
                    raise ApprovalError(fault_of(TimeoutError(errno.ETIMEDOUT, ""), path or str(self.root)))
                await asyncio.wait((listed,), timeout=left)
        finally:
            progress.given_up = True
            listed.cancel()
        return listed.result()

    def look(self, path: str) -> FileContent:
        """Return the file at a path. Blocks. Raises ApprovalError."""
        return look(self.root, path, self.caps.file_bytes)

    async def _in_time(self, work: Callable[[], T], files: int, path: str = "") -> T:
        """Run work on several files in a thread. Abandoning it is safe: it writes nothing."""
        try:
            return await within(self._seconds * max(files, 1), work)
        except TimeoutError as error:
            raise ApprovalError(fault_of(error, path or str(self.root))) from None

    # ---- private, blocking ----

    def _rehearsed(self, draft: PlanDraft) -> tuple[tuple[Fingerprint, ...], tuple[StepOutcome, ...]]:
        """Execute all steps in memory; return the files before and after each step. Raises ApprovalError."""
        faults: list[Fault] = []
        there: dict[str, FileContent] = {}
        for step in draft.steps:
            if step.kind is StepKind.RUN:
                if fault := program_path(step.argv[0], self.root)[1]:
                    faults.append(fault.at(step.id))
                continue
            for path in step.paths:
                if path not in there:
                    try:
                        there[path] = self.look(path)
                    except ApprovalError as error:
                        faults += [one.at(step.id) for one in error.faults]
        now = dict(there)
        outcomes: list[StepOutcome] = []
        for step in draft.steps:
            for file in step.files:
                if file.path in now:  # otherwise it is among the faults
                    try:
                        now[file.path] = _done(step.kind, file, now[file.path], self.caps)
                    except ApprovalError as fault:
                        faults += [one.at(step.id) for one in fault.faults]
                        del now[file.path]
            made = tuple(now[path].fingerprint for path in sorted(step.paths) if path in now)
            outcomes.append(StepOutcome(step=step.id, files=made))
        if faults:
            codes = {fault.code for fault in faults}  # a common one counts, if the table retries it
            raise ApprovalError(
                faults, code=codes.pop() if codes in ({"VAL-003"}, {"VAL-005"}) else "VAL-004"
            )
        return tuple(there[path].fingerprint for path in sorted(there)), tuple(outcomes)


def changed(kind: StepKind, file: FileChange, found: FileContent) -> str | None:
    """Return the text of a file after a step; None if it is deleted. Pure. Raises ApprovalError."""
    path = file.path
    if file.sha256 is not None and file.sha256 != found.fingerprint.sha256:
        raise ApprovalError(
            Fault("FS-006", f"{path!r} differs from the file that the plan was made for", path=path)
        )
    if kind is StepKind.CREATE:
        if found.text is not None:
            raise ApprovalError(Fault("FS-002", f"{path!r} exists already; edit it instead", path=path))
        return file.content
    if found.text is None:
        raise ApprovalError(Fault("FS-001", f"{path!r} does not exist; {kind.value} needs a file", path=path))
    if kind is StepKind.DELETE:
        return None
    try:
        text = patch.parse(file.diff or "").apply(found.text)
    except patch.PatchMismatch as error:
        raise ApprovalError(Fault("VAL-003", f"{path!r}: {error}", path=path)) from None
    if text == found.text:
        raise ApprovalError(Fault("VAL-018", f"{path!r}: the diff changes nothing", path=path))
    return text


def _done(kind: StepKind, file: FileChange, found: FileContent, caps: PlanCaps) -> FileContent:
    """Return a file after a step, in memory. Raises ApprovalError."""
    text = changed(kind, file, found)
    if text is None:
        return FileContent(Fingerprint(path=file.path))
    content = encoded(text, found.fingerprint.encoding)
    if caps.file_bytes and len(content) > caps.file_bytes:
        said = f"{file.path!r} would have {len(content)} bytes, at most {caps.file_bytes} are allowed"
        raise ApprovalError(Fault("FS-008", said, path=file.path))
    check = _CHECKS.get(PurePosixPath(file.path).suffix.casefold())  # a file in an unknown language has none
    try:
        if check is not None:
            check(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        where = f" at line {line}" if line else ""
        said = f"{file.path!r} would not be valid{where}: {type(error).__name__}"
        raise ApprovalError(Fault("VAL-005", said, getattr(error, "msg", ""), path=file.path)) from None
    return FileContent(fingerprint(file.path, content), text)


NO_UNDO = "cannot be undone"


@dataclass(frozen=True, slots=True)
class FileDiff:
    """One file of a step, or its command (with an empty `path` and the command line as `text`)."""

    step_id: str
    kind: str
    path: str
    text: str
    added: int = 0
    removed: int = 0
    note: str = ""
    """Additional information for the person."""


async def preview(
    plan: ApprovalPlan, root: Path | str, caps: PlanCaps | None = None, seconds: float = 0.0
) -> tuple[FileDiff, ...]:
    """Return all actions of a plan in order. The note of a file says if it changed meanwhile.

    Raises ApprovalError FS-012 if a file takes longer than `seconds`, because its changes are unknown then.
    """
    workspace = Workspace(root, caps, seconds)
    now: dict[str, FileContent | None] = {}
    for target in plan.targets:  # None: it differs from the file that the plan was made for
        try:
            found = await workspace.found(target.path)
        except ApprovalError as fault:
            if fault.code == "FS-012":
                raise
            now[target.path] = None
        else:
            now[target.path] = found if found.fingerprint == target else None
    return await asyncio.to_thread(_all, plan, now)


def _all(plan: ApprovalPlan, now: dict[str, FileContent | None]) -> tuple[FileDiff, ...]:
    shown: list[FileDiff] = []
    for step in plan.steps:
        if step.kind is StepKind.RUN:
            shown.append(FileDiff(step.id, step.kind.value, "", shlex.join(step.argv), note=NO_UNDO))
        for file in step.files:
            note, found = "", now.get(file.path)
            if found is None:  # not the file of the plan: show the plan's own text
                text = file.diff if file.diff is not None else patch.make(file.path, None, file.content)
                note = "the file is not as it was when the plan was made"
            else:
                before, after = found.text, changed(step.kind, file, found)
                text = patch.make(file.path, before, after)
                content = None if after is None else encoded(after, found.fingerprint.encoding)
                now[file.path] = FileContent(fingerprint(file.path, content), after)
            # Lines of a diff, without its header lines, which may be missing.
            lines = patch.split(text)[2 if text.startswith("--- ") else 0 :]
            added, removed = (sum(line.startswith(mark) for line in lines) for mark in "+-")
            shown.append(FileDiff(step.id, step.kind.value, file.path, text, added, removed, note))
    return tuple(shown)

"""The rules for paths and plans that can be checked on the plan itself. Pure: the disk is not read.

A path comes from a model. It is rejected if any common file system could resolve it to another file than the person
reads: the project may lie on a file system that folds case, composes accents, drops a trailing blank, or has streams
and devices.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Generator, Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import PurePosixPath, PureWindowsPath
from typing import TypeAlias

from orchestrator.machines.approval import patch
from orchestrator.machines.approval.fault import Fault
from orchestrator.machines.approval.limits import PlanCaps
from orchestrator.machines.approval.plan import FileChange, PlanDraft, PlanStep, StepKind

# ---- paths ----


_LONGEST_NAME = 255
LONGEST_PATH = 1_024
_FORBIDDEN = frozenset('\\:*?"<>|')
_DEVICES = frozenset(
    ("con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10)))
)

_NEVER = frozenset(("SEC-001", "SEC-002", "SEC-004"))


def folded(path: str) -> str:
    """Return the common form of all spellings that some file system treats as one name."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFKC", path).casefold())


def is_never_allowed(path: str) -> bool:
    """Return whether every plan must avoid a path, with any caps: it leaves the project, or is hidden in it."""
    return any(fault.code in _NEVER for fault in path_faults(path, PlanCaps()))


def path_faults(path: str, caps: PlanCaps) -> Iterator[Fault]:
    """Yield the faults in the spelling of a path; none if the path may be looked up on the disk."""
    shown = ascii(path)[1:-1] if any(_hides(letter) for letter in path) else path
    if len(path) > LONGEST_PATH:
        yield Fault("FS-011", f"{shown[:60]!r}… is too long", path=path[:60])
    elif not path or not PurePosixPath(path).parts:
        yield Fault("VAL-014", "a step names no file")
    elif path.startswith(("/", "~", "\\")) or PureWindowsPath(path).drive:
        yield Fault("SEC-002", f"{shown!r} is absolute; use a path below the project folder", path=path)
    elif ".." in path.replace("\\", "/").split("/"):
        yield Fault("SEC-001", f"{shown!r} leads out of the project", path=path)
    elif fault := _name_fault(path, shown):
        yield fault
    else:
        *folders, name = folded(path).split("/")
        # Whether a folder is spelt like the short name (`GIT~1`) that some systems give to a hidden folder.
        if any(folder.startswith(".") for folder in folders) or any(
            "~" in folder and folder.rpartition("~")[2].isdigit() for folder in folders
        ):
            yield Fault("SEC-004", f"{path!r} is in a hidden folder", path=path)
        if name in {".git", ".orchestrator", ".exacta"}:
            yield Fault("SEC-004", f"{path!r} is a hidden folder", path=path)
        if any(fnmatchcase(folder, folded(rule)) for folder in folders for rule in caps.build_output):
            yield Fault("SEC-006", f"{path!r} is in a folder of build output", path=path)
        if any(fnmatchcase(part, folded(rule)) for part in (*folders, name) for rule in caps.denied):
            yield Fault("SEC-005", f"{path!r} is on the list of denied names", path=path)


def _name_fault(path: str, shown: str) -> Fault | None:
    parts = path.split("/")
    if any(_hides(letter) or letter in _FORBIDDEN for letter in path):
        return Fault("SEC-010", f"{shown!r} has characters that hide or change the name", path=path)
    if path != unicodedata.normalize("NFC", path):
        return Fault("SEC-010", f"{shown!r} has accents separate from their letters (not NFC)", path=path)
    if any(part in {"", "."} or part != part.strip() or part.endswith(".") for part in parts):
        return Fault("SEC-010", f"{shown!r} is not spelt as file systems store it", path=path)
    if any(folded(part).partition(".")[0].strip() in _DEVICES for part in parts):
        return Fault("SEC-007", f"{shown!r} is the name of a device on some systems", path=path)
    if any(len(part.encode()) > _LONGEST_NAME for part in parts):
        return Fault("FS-011", f"{path[:60]!r}… is too long a name", path=path)
    return None


def _hides(letter: str) -> bool:
    """Return whether a letter is invisible, changes the reading order, looks like a space, or is unassigned."""
    return not letter.isprintable()


# ---- plans ----


SHELLS = frozenset(
    (
        *("sh", "bash", "dash", "zsh", "ksh", "mksh", "csh", "tcsh", "fish", "ash", "busybox", "pwsh"),
        *("powershell", "cmd", "command", "wscript", "cscript", "mshta"),
        *("sudo", "su", "doas", "pkexec", "runuser", "env", "xargs", "nohup", "setsid", "nice", "timeout"),
        *("time", "watch", "script", "expect", "ssh", "chroot", "unshare", "nsenter", "eval", "exec"),
        *("parallel", "strace", "ltrace", "stdbuf", "taskset", "ionice", "at", "batch", "crontab"),
        *("systemd-run", "screen", "tmux", "socat", "nc", "ncat", "flock", "find"),
    )
)
"""Programs that take another command as an argument or as text: the command that runs would not be the one shown."""


Counted: TypeAlias = Generator[Fault, None, int]
"""Yields faults and returns the number of changed lines."""


def starts_others(program: str) -> bool:
    """Return whether a program is in SHELLS, in any version (`zsh-5.9`) and on any system (`CMD.EXE`)."""
    return program.casefold().removesuffix(".exe").rstrip("0123456789.-") in SHELLS


MOST_FAULTS = 50
"""Maximum faults of one plan: all of them are stored with the error, and the plan has to be changed anyway."""
LONGEST_WORDS = 2_000
"""Maximum characters of a goal, a title or a constraint."""
LONGEST_ID = 64


def faults(draft: PlanDraft, caps: PlanCaps) -> tuple[Fault, ...]:
    """Return the faults of a draft: first those of the whole, then by step, at most MOST_FAULTS."""
    return tuple(islice(_plan_faults(draft, caps), MOST_FAULTS))


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_ID else f"{text[:LONGEST_ID]}…"


def _words(what: str, *texts: str) -> Iterator[Fault]:
    """Yield faults of texts for the person: too long, or with characters that a terminal may interpret."""
    if (longest := max(map(len, texts), default=0)) > LONGEST_WORDS:
        yield Fault("VAL-012", f"{what} has {longest} characters, at most {LONGEST_WORDS} are allowed")
    yield from _hiding(what, *texts)


def _hiding(what: str, *texts: str) -> Iterator[Fault]:
    if not all(letter.isprintable() or letter in "\t\n" for text in texts for letter in text):
        yield Fault("SEC-010", f"{what} has characters that hide its meaning")


def _plan_faults(draft: PlanDraft, caps: PlanCaps) -> Iterator[Fault]:
    if not draft.steps:
        yield Fault("VAL-006", "the plan has no step")
    yield from _words("the goal of the plan", draft.goal)
    paths = {path: step.id for step in draft.steps for path in step.paths}
    deletions = [path for step in draft.steps if step.kind is StepKind.DELETE for path in step.paths]
    yield from _over("VAL-007", "the plan has {} steps, at most {} are allowed", len(draft.steps), caps.steps)
    yield from _over("VAL-009", "the plan has {} files, at most {} are allowed", len(paths), caps.files)
    yield from _over(
        "VAL-013", "the plan deletes {} files, at most {} is allowed", len(deletions), caps.deletions
    )
    yield from _collisions([path for path in paths if len(path) <= LONGEST_PATH])
    earlier: set[str] = set()
    for step in draft.steps:
        for fault in _step_faults(step, earlier, caps):
            yield fault.at(_short(step.id))
        earlier.add(step.id)


def _collisions(paths: Iterable[str]) -> Iterator[Fault]:
    """Yield names that some file systems treat as one, including folders, and a file that is also used as a folder."""
    spelt: dict[str, str] = {}
    files = {folded(path) for path in paths}
    for path in paths:
        parts = path.split("/")
        for depth in range(1, len(parts) + 1):
            name = "/".join(parts[:depth])
            first = spelt.setdefault(folded(name), name)
            if first != name:
                yield Fault(
                    "SEC-009", f"{first!r} and {name!r} are the same name on some file systems", path=path
                )
            elif depth < len(parts) and folded(name) in files:
                yield Fault("FS-009", f"{name!r} is a file and a folder in this plan", path=path)


def _step_faults(step: PlanStep, earlier: set[str], caps: PlanCaps) -> Iterator[Fault]:
    if not step.id.strip() or "/" in step.id or not step.id.isprintable() or len(step.id) > LONGEST_ID:
        needed = f"at most {LONGEST_ID} plain characters"
        yield Fault("VAL-015", f"a step has the id {_short(step.id)!r}; use {needed}")
    if step.id in earlier:
        yield Fault("VAL-015", f"there are two steps {_short(step.id)!r}")
    for one in step.depends_on:
        if one not in earlier:
            yield Fault("VAL-015", f"it depends on {_short(one)!r}, which is not an earlier step")
    yield from _words("the title or a constraint of the step", step.title, *step.constraints)
    if step.kind is StepKind.RUN:
        yield from _command_faults(step, caps)
    else:
        if step.argv:
            yield Fault("VAL-016", f"a step of kind {step.kind.value} runs no command")
        if not step.files:
            yield Fault("VAL-014", "the step names no file")
        given, most = len(step.files), caps.files_per_step
        yield from _over("VAL-008", "the step has {} files, at most {} are allowed", given, most)
        if len(set(step.paths)) < len(step.paths):
            yield Fault("VAL-015", "the step names one file twice")
        lines = 0
        for file in step.files:
            yield from path_faults(file.path, caps)
            lines += yield from _change_faults(step.kind, file)
        yield from _over(
            "VAL-010", "the step changes {} lines, at most {} are allowed", lines, caps.diff_lines
        )
        size = sum(
            sum(len(text.encode()) for text in (file.content, file.diff) if text) for file in step.files
        )
        yield from _over(
            "VAL-012", "the step writes {} bytes, at most {} are allowed", size, caps.operation_bytes
        )
    given, most = len(step.constraints), caps.constraints
    yield from _over("VAL-011", "the step has {} constraints, at most {} are allowed", given, most)


def _command_faults(step: PlanStep, caps: PlanCaps) -> Iterator[Fault]:
    if step.files:
        yield Fault("VAL-016", "a command step must not name files")
    if not step.argv or not step.argv[0].strip():
        yield Fault("VAL-014", "a command names no program")
        return
    yield from _hiding("an argument of the command", *step.argv)
    size = sum(len(one.encode()) for one in step.argv)
    yield from _over(
        "VAL-012", "the command has {} bytes, at most {} are allowed", size, caps.operation_bytes
    )
    program = step.argv[0]
    if len(program) > LONGEST_ID or not program.isascii() or any(letter in program for letter in "/\\ ~$`"):
        yield Fault(
            "SEC-012", f"{_short(program)!a} is no plain name of a program that is looked up on the PATH"
        )
    elif starts_others(program):
        yield Fault("SEC-012", f"{program!r} starts what its arguments say; name that program itself")
    if caps.command_seconds and step.timeout > caps.command_seconds:
        longest = f"{caps.command_seconds:g} s are allowed"
        yield Fault("VAL-016", f"the command may last {step.timeout:g} s, at most {longest}")


def _change_faults(kind: StepKind, file: FileChange) -> Counted:
    """Yield the faults of one file of a step; return the number of lines that it changes."""
    wanted = {StepKind.CREATE: "content", StepKind.EDIT: "diff"}.get(kind)
    for name in ("content", "diff"):
        if (getattr(file, name) is not None) != (name == wanted):
            said = "needs" if name == wanted else "takes no"
            yield Fault("VAL-016", f"a step of kind {kind.value} {said} {name}", path=file.path)
            return 0
    if file.content is not None:
        if "\0" in file.content:
            yield Fault("FS-007", f"{file.path!r} would be binary: it has a zero byte", path=file.path)
        return len(patch.split(file.content))
    return (yield from _diff_faults(file)) if file.diff is not None else 0


def _diff_faults(file: FileChange) -> Counted:
    text = file.diff or ""
    if "\0" in text or "GIT binary patch" in text or text.startswith("Binary files "):
        yield Fault("FS-007", f"{file.path!r}: the diff is binary", path=file.path)
        return 0
    try:
        read = patch.parse(text)
    except patch.PatchUnreadable as error:
        yield Fault("VAL-017", f"{file.path!r}: the diff cannot be read: {error}", path=file.path)
        return 0
    for name in (read.old, read.new):
        if name is not None and patch.named(name) != file.path:
            said = f"{file.path!r}: the diff is of {patch.named(name)!r}"
            yield Fault("VAL-017", said, path=file.path)
    if not read.changed:
        yield Fault("VAL-018", f"{file.path!r}: the diff changes nothing", path=file.path)
    return read.changed


def _over(code: str, message: str, given: int, most: int) -> Iterator[Fault]:
    if most and given > most:
        yield Fault(code, message.format(given, most))

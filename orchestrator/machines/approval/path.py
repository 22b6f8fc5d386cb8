"""Checks of a plan's paths by their spelling alone, before the disk is read. Pure.

A path comes from a model. It is rejected if any common file system could resolve it to another file than the person
reads: the project may lie on a file system that folds case, composes accents, drops a trailing blank, or has streams
and devices.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import PurePosixPath, PureWindowsPath

from orchestrator.machines.approval.caps import PlanCaps
from orchestrator.machines.approval.fault import Fault

_LONGEST_NAME = 255
LONGEST_PATH = 1_024
_HIDING = frozenset(("Cc", "Cf", "Co", "Cs", "Cn", "Zl", "Zp"))
"""Unicode categories that are invisible, change the reading order, or are unassigned."""
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
        yield from _path_faults(path, caps)


def _name_fault(path: str, shown: str) -> Fault | None:
    parts = path.split("/")
    if any(_hides(letter) or letter in _FORBIDDEN for letter in path):
        return Fault("SEC-010", f"{shown!r} has characters that hide or change the name", path=path)
    if path != unicodedata.normalize("NFC", path):
        return Fault("SEC-010", f"{shown!r} has accents separate from their letters (not NFC)", path=path)
    if any(part in {"", "."} or part != part.strip() or part.endswith(".") for part in parts):
        return Fault("SEC-010", f"{shown!r} is not spelt as file systems store it", path=path)
    if any(_is_device(part) for part in parts):
        return Fault("SEC-007", f"{shown!r} is the name of a device on some systems", path=path)
    if any(len(part.encode()) > _LONGEST_NAME for part in parts):
        return Fault("FS-011", f"{path[:60]!r}… is too long a name", path=path)
    return None


def _path_faults(path: str, caps: PlanCaps) -> Iterator[Fault]:
    *folders, name = folded(path).split("/")
    if any(folder.startswith(".") for folder in folders) or _is_hidden_by_short_name(folders):
        yield Fault("SEC-004", f"{path!r} is in a hidden folder", path=path)
    if name in {".git", ".orchestrator", ".exacta"}:
        yield Fault("SEC-004", f"{path!r} is a hidden folder", path=path)
    if any(fnmatchcase(folder, folded(rule)) for folder in folders for rule in caps.build_output):
        yield Fault("SEC-006", f"{path!r} is in a folder of build output", path=path)
    if any(fnmatchcase(part, folded(rule)) for part in (*folders, name) for rule in caps.denied):
        yield Fault("SEC-005", f"{path!r} is on the list of denied names", path=path)


def _hides(letter: str) -> bool:
    return unicodedata.category(letter) in _HIDING


def _is_device(part: str) -> bool:
    return folded(part).partition(".")[0].strip() in _DEVICES


def _is_hidden_by_short_name(folders: list[str]) -> bool:
    """Return whether a folder is spelt like the short name (`GIT~1`) that some systems give to a hidden folder."""
    return any("~" in folder and folder.rpartition("~")[2].isdigit() for folder in folders)

"""Changes to files as data: their journal records, and the undo that follows from the records. No file access.

Record bodies. `"effect": "file"` marks them; `before` also names the blob with the prior content:
    intent       {effect, key, step, change, path, before, after, mode, owner, folders}
    done         {effect, key, after, folders}        folders: those that were really created
    rolled_back  {effect, key, outcome}               outcome: restored, already, kept
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeAlias

from orchestrator.files.path_safety import ODD, FileRefused
from orchestrator.kernel.journal import Draft, Record

AnyRecord: TypeAlias = Record | Draft

EFFECT = "file"
"""Marks our bodies among all records of kind intent, done and rolled_back."""


class ChangeKind(StrEnum):
    """The effect of a change on its path."""

    CREATE = "create"
    EDIT = "edit"
    DELETE = "delete"


class UndoOutcome(StrEnum):
    """The outcome of an undo of one change."""

    RESTORED = "restored"
    ALREADY = "already"
    """The prior content was already in place."""
    KEPT = "kept"
    """The file keeps an edit from outside, or the change never reached it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change to one file. Digests are SHA-256 (hex), None without a file."""

    key: str
    step: str
    kind: ChangeKind
    path: str
    """Relative to the root, with `/`."""
    before: str | None
    after: str | None
    mode: int | None
    """Permission bits: the prior ones, or the requested ones of a new file."""
    owner: tuple[int, int] | None = None
    """User and group before, by number; None if no file existed, and in older journals."""
    folders: tuple[str, ...] = ()
    """Folders created for it, outermost first."""
    done: bool = False
    """False: in doubt; the change may have happened or not."""

    def intent(self) -> dict[str, Any]:
        """Return the body of its `intent` record."""
        names = ("key", "step", "path", "before", "after", "mode")
        named = {name: getattr(self, name) for name in names}
        lists = {"owner": self.owner and list(self.owner), "folders": list(self.folders)}
        return {"effect": EFFECT, **named, "change": self.kind.value, **lists}

    def conflict(self, found: str | None) -> Conflict:
        """Return the conflict of a path that does not hold the result of this change."""
        return Conflict(path=self.path, expected=self.after, found=found, key=self.key, step=self.step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """A file is not in the state that this run left. `found` is a digest, None, or one of `path_safety.ODD`."""

    path: str
    expected: str | None
    found: str | None
    key: str = ""
    step: str = ""

    def __str__(self) -> str:
        found, expected = (name[:12] if name else "nothing" for name in (self.found, self.expected))
        return f"{self.path!r} was changed from outside: {found} is there instead of {expected}"


@dataclass(frozen=True, slots=True)
class UndoReport:
    """The result of an undo: reverted changes, newest first, and files that it kept unchanged."""

    changes: tuple[Change, ...]
    conflicts: tuple[Conflict, ...]


class ExternalEdit(FileRefused):
    """A file is not as expected, so it was not touched; `conflict` has the details."""

    def __init__(self, conflict: Conflict) -> None:
        super().__init__(conflict.path, str(conflict).removeprefix(f"{conflict.path!r} "))
        self.conflict = conflict


def plan_undo(records: Iterable[AnyRecord], *, step: str | None = None) -> list[Change]:
    """Return the changes (of one step) that are not undone yet, in undo order. Pure."""
    stack: dict[str, Change] = {}
    for record in records:
        fold(stack, record.kind, record.body)
    return to_undo(stack, step)


def judge(change: Change, found: str | None) -> UndoOutcome:
    """Return the undo outcome for a change whose path holds `found`. Pure."""
    if found == change.before:
        return UndoOutcome.ALREADY
    return UndoOutcome.RESTORED if found == change.after else UndoOutcome.KEPT


def refuse(kind: ChangeKind, path: str, found: str | None, expected: str | None) -> None:
    """Raise FileRefused if a change cannot be made to a path that holds `found`."""
    if found in ODD:
        raise FileRefused(path, f"is not a regular file: {found}")
    if (kind is ChangeKind.CREATE or expected is not None) and found != expected:
        raise ExternalEdit(Conflict(path=path, expected=expected, found=found))
    if kind is not ChangeKind.CREATE and found is None:
        raise FileRefused(path, f"does not exist: nothing to {kind}")


def to_undo(stack: Mapping[str, Change], step: str | None) -> list[Change]:
    """Return a stack's changes (of one step), newest first. Raises FileRefused if a later change hides one."""
    chosen: list[Change] = []
    later: dict[str, str] = {}
    for change in reversed(list(stack.values())):
        if step is not None and change.step != step:
            later[change.path] = change.step
        elif change.path in later:
            why = f"was changed again in step {later[change.path]!r}: undo that first"
            raise FileRefused(change.path, why)
        else:
            chosen.append(change)
    return chosen


def fold(stack: dict[str, Change], kind: str, body: Mapping[str, Any]) -> bool:
    """Apply one record to the stack. Returns True for the intent of a change."""
    if body.get("effect") != EFFECT:
        return False
    key = body["key"]
    if kind == "intent":
        facts = {name: body[name] for name in ("key", "step", "path", "before", "after", "mode")}
        owner = body.get("owner") and tuple(body["owner"])
        folders = tuple(body["folders"])
        stack[key] = Change(kind=ChangeKind(body["change"]), owner=owner, folders=folders, **facts)
    elif kind == "done":
        stack[key] = replace(stack[key], done=True, folders=tuple(body["folders"]))
    elif kind == "rolled_back":
        stack.pop(key, None)
    return kind == "intent"

"""Make changes to files that can all be undone: the prior content is durable before a file is touched.

    intent (with the prior content) → temporary file → still ours? → rename → done       undo: … → rolled_back

- The stack consists of these records only (`plan_undo`). After a crash at any point, also in an undo, call `recover`
  and `undo`. An undo needs no intent: if the prior content is in place, the change was already restored, so a second
  undo has no further effect.
- Bytes are replaced or removed only if the journal has their digest. Anything else is an edit from outside: it is
  kept and reported, together with all earlier changes of that path.
- A change is completed or reverted even if it is cancelled meanwhile; the cancellation is raised afterwards.
- An owner that lost the run is refused when it appends its intent, by `OwnedFiles` before its rename, or at the
  rename, because an undo starts with a sweep.
- Remaining risk: an edit from outside in the microseconds between the last check of a file and the rename.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias, TypeVar, cast

from orchestrator.errors import Fenced, StoreDown
from orchestrator.files import atomic as files
from orchestrator.files.atomic import FileSnapshot, Hook, Owner, StagedWrite, silent
from orchestrator.files.path_safety import ODD, FileRefused, inside, make_folder, remove_folder
from orchestrator.kernel.cancellation import in_thread
from orchestrator.kernel.journal import Draft, Journal, Lease, Record, write_records

# ---- changes as data ----
#
# The bodies of their records. `"effect": "file"` marks them; `before` also names the blob with the prior content:
#     intent       {effect, key, step, change, path, before, after, mode, owner, folders}
#     done         {effect, key, after, folders}        folders: those that were really created
#     rolled_back  {effect, key, outcome}               outcome: restored, already, kept


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


# ---- access to files in threads, only while the caller owns the run ----
#
# Every replacement and removal checks the run's epoch in the store and inspects the target, both right before its
# rename. If an owner is frozen between the check and the rename, its rename fails: the next owner sweeps first, which
# removes the source or target of that rename, and inspects the target after that.
#
# A thread that hangs on an unresponsive disk cannot be stopped. Its caller gets an error after a time limit. The late
# work of the thread is as harmless as that of a frozen owner, and the thread removes the files that it prepared. Each
# operation has its own daemon thread: a few hanging threads would fill a pool, and the process waits for pool threads
# at its end. A thread that ends with the process is a crash like any other.


T = TypeVar("T")


def _forgotten(_: Any) -> None:
    """Ignore a late result."""


async def within(seconds: float, work: Callable[[], T], late: Callable[[T], None] = _forgotten) -> T:
    """Run blocking work in a thread and wait up to `seconds` (0: no limit). Raises TimeoutError (ETIMEDOUT).

    `late` receives, in that thread, the result of the work if no caller waits for it any more.
    """
    given_up = False

    def done() -> T:
        made = work()
        if given_up:
            late(made)
        return made

    task = asyncio.ensure_future(in_thread(done, "file"))
    try:
        await asyncio.wait((task,), timeout=seconds or None)
    finally:
        if not task.done():
            given_up = True
            task.cancel()  # the thread continues
    if given_up:
        raise TimeoutError(errno.ETIMEDOUT, f"the file system did not answer within {seconds:g} s")
    made, error = task.result()
    if error is not None:
        raise error
    return cast("T", made)


class OwnedFiles:
    """The functions of `files`, in threads. Paths are relative to `root`, which may itself be a symlink.

    Each operation may take up to `seconds` (0: no limit), else it raises TimeoutError.
    """

    def __init__(
        self, journal: Journal, lease: Lease, root: Path | str, hook: Hook, seconds: float = 0.0
    ) -> None:
        self._journal = journal
        self._lease = lease
        self._root = Path(root).resolve(strict=True)
        self._hook = hook
        self._seconds = seconds

    async def check(self) -> None:
        """Raise Fenced if the run has another owner now."""
        head = await self._journal.head(self._lease.run_id)
        if head.epoch != self._lease.epoch:
            raise Fenced(self._lease.run_id, self._lease.epoch)
        self._hook("owned")

    async def digest(self, path: str) -> str | None:
        """Return a digest, None, or one of `path_safety.ODD`."""
        return await self._within(files.read_digest, path, root=self._root)

    async def read(self, path: str) -> FileSnapshot:
        """Return the state of a path."""
        return await self._within(files.read_file, path, root=self._root)

    async def sweep(self, path: str) -> None:
        """Remove leftovers of earlier owners' writes to this path."""
        pure = PurePosixPath(path)
        await self._within(files.sweep, str(pure.parent), name=pure.name, root=self._root)
        self._hook("swept")

    async def put(
        self,
        path: str,
        content: bytes | None,
        *,
        expected: str | None,
        mode: int | None,
        owner: Owner | None = None,
    ) -> None:
        """Replace the file with the digest `expected` (None: no file) by `content`; None removes it.

        Raises ExternalEdit.
        """
        if content is None:
            work = partial(files.stage_delete, path, root=self._root)
        else:
            work = partial(
                files.stage, path, content, mode=mode, owner=owner, root=self._root, hook=self._hook
            )
        staged = await within(self._seconds, work, StagedWrite.discard)
        try:
            await self.check()
            await self._within(self._last_look, staged, path, expected)
        except TimeoutError:
            raise  # a discard would wait for the same disk; the undo of the change sweeps first
        except BaseException:
            staged.discard()
            raise

    async def missing_folders(self, path: str) -> tuple[str, ...]:
        """Return the missing folders of this path, outermost first."""
        parents = [str(parent) for parent in reversed(PurePosixPath(path).parents)][1:]
        return tuple([parent for parent in parents if await self.digest(parent) is None])

    async def make_folders(self, folders: Iterable[str]) -> list[str]:
        """Create folders; return those that did not exist."""
        made = []
        for folder in folders:
            if await self._within(make_folder, folder, root=self._root):
                made.append(folder)
            self._hook("folder made")
        return made

    async def remove_folders(self, folders: Iterable[str]) -> None:
        """Remove the empty ones of these folders."""
        for folder in folders:
            await self._within(remove_folder, folder, root=self._root)
            self._hook("folder removed")

    async def _within(self, work: Callable[..., T], *args: Any, **named: Any) -> T:
        return await within(self._seconds, partial(work, *args, **named))

    def _last_look(self, staged: StagedWrite, path: str, expected: str | None) -> None:
        found = files.read_digest(path, root=self._root)
        if found != expected:
            raise ExternalEdit(Conflict(path=path, expected=expected, found=found))
        staged.commit(self._hook)


# ---- the stack ----


def _every(_: str) -> bool:
    return True


class RollbackStack:
    """The changes of one run below one folder, one at a time.

    No operation on a file takes longer than `seconds` (0: no limit). After Fenced or StoreDown the stack cannot be
    used any more. If the disk does not allow a change to be reverted either, the change stays in doubt.

    Raises:
        FileRefused: The change is not possible and nothing was touched (ExternalEdit for an edit from outside).
        OSError: The disk failed; the change was reverted.
        JournalError: The journal failed.

    Example:
        stack = RollbackStack.recover(await journal.load(run_id), journal, lease, root)
        await stack.undo(step="3")                            # revert a step that a crash interrupted
        await stack.edit("src/a.py", content, expected=digest, step="4")
    """

    def __init__(
        self, journal: Journal, lease: Lease, root: Path | str, *, hook: Hook = silent, seconds: float = 0.0
    ) -> None:
        self._journal = journal
        self._lease = lease
        self._files = OwnedFiles(journal, lease, root, hook, seconds)
        self._hook = hook
        self._stack: dict[str, Change] = {}
        self._keys = 0
        self._turn = asyncio.Lock()

    @classmethod
    def recover(
        cls,
        records: Iterable[AnyRecord],
        journal: Journal,
        lease: Lease,
        root: Path | str,
        *,
        hook: Hook = silent,
        seconds: float = 0.0,
        steps: Callable[[str], bool] = _every,
    ) -> RollbackStack:
        """Return the stack that the records of a run describe. Touches no file.

        Only changes of `steps` are on it: if one run does several pieces of work in turn, the changes of an earlier
        piece stay.
        """
        stack = cls(journal, lease, root, hook=hook, seconds=seconds)
        for record in records:
            stack._keys += fold(stack._stack, record.kind, record.body)
        for key in [key for key, change in stack._stack.items() if not steps(change.step)]:
            del stack._stack[key]
        return stack

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes that are not undone, oldest first."""
        return tuple(self._stack.values())

    async def create(self, path: str, content: bytes, *, step: str = "", mode: int | None = None) -> Change:
        """Create a file at a free path, and the folders it needs."""
        return await self._alone(partial(self._apply, ChangeKind.CREATE, path, content, step=step, mode=mode))

    async def edit(self, path: str, content: bytes, *, step: str = "", expected: str | None = None) -> Change:
        """Replace the content of a file; `expected` is the digest it must have."""
        return await self._alone(
            partial(self._apply, ChangeKind.EDIT, path, content, step=step, expected=expected)
        )

    async def delete(self, path: str, *, step: str = "", expected: str | None = None) -> Change:
        """Remove a file; `expected` is the digest it must have."""
        return await self._alone(
            partial(self._apply, ChangeKind.DELETE, path, None, step=step, expected=expected)
        )

    async def undo(self, *, step: str | None = None) -> UndoReport:
        """Revert changes, newest first: all, or those of one step. It may be called again at any time."""
        undone: list[Change] = []
        conflicts: dict[str, Conflict] = {}
        for change in to_undo(self._stack, step):
            if change.path not in conflicts:
                conflict = await self._alone(partial(self._take_back, change))
                if conflict is None:
                    undone.append(change)
                else:
                    conflicts[change.path] = conflict
        return UndoReport(tuple(undone), tuple(conflicts.values()))

    async def keep(self, path: str) -> None:
        """Keep a file unchanged, as a person decided: its changes leave the stack, no file is touched."""
        for change in reversed(self.changes):
            if change.path == inside(path):
                await self._alone(partial(self._leave, change, UndoOutcome.KEPT))

    async def drift(self) -> tuple[Conflict, ...]:
        """Compare every changed file with the state that the run left; files in doubt are not compared."""
        async with self._turn:
            newest = {change.path: change for change in self.changes}
            compared = [await self._compare(change) for change in newest.values() if change.done]
        return tuple(conflict for conflict in compared if conflict is not None)

    # ---- forward ----

    async def _apply(
        self,
        kind: ChangeKind,
        path: str,
        content: bytes | None,
        *,
        step: str,
        expected: str | None = None,
        mode: int | None = None,
    ) -> Change:
        for change in self.changes:
            if not change.done:
                raise FileRefused(
                    change.path, "is in doubt after a crash or an error: undo that change first"
                )
        if self._stack:
            conflict = await self._compare(self.changes[-1])
            if conflict is not None:
                raise ExternalEdit(conflict)
        path = inside(path)
        there = await self._files.read(path)
        refuse(kind, path, there.digest, expected)
        change = Change(
            key=f"{EFFECT}-{self._keys}",
            step=step,
            kind=kind,
            path=path,
            before=there.digest,
            after=None if content is None else hashlib.sha256(content).hexdigest(),
            mode=mode if kind is ChangeKind.CREATE else there.mode,
            owner=there.owner,
            folders=await self._files.missing_folders(path),
        )
        await self._append("intent", change.intent(), {there.digest: there.content} if there.digest else {})
        try:
            made = await self._files.make_folders(change.folders)
            mode = change.mode if change.kind is ChangeKind.CREATE else None
            await self._files.put(change.path, content, expected=change.before, mode=mode)
        except Fenced:
            # removed only if they are ours and empty
            await self._files.remove_folders(reversed(change.folders))
            raise
        except StoreDown:
            raise
        except FileRefused:  # always raised before the file is touched
            await self._files.check()
            await self._leave(change, UndoOutcome.KEPT)
            raise
        except Exception:
            await self._take_back(change)
            raise
        body = {"effect": EFFECT, "key": change.key, "after": change.after, "folders": made}
        await self._append("done", body)
        return self._stack[change.key]

    # ---- undo ----

    async def _take_back(self, change: Change) -> Conflict | None:
        await self._files.check()
        # Before any check: from here on, a rename of an earlier owner of the run fails.
        await self._files.sweep(change.path)
        found = await self._files.digest(change.path)
        outcome = judge(change, found)
        if outcome is UndoOutcome.RESTORED:
            try:
                content = None if change.before is None else await self._journal.blob(change.before)
                if content is not None:
                    await self._files.make_folders(await self._files.missing_folders(change.path))
                mode, owner = (
                    (change.mode, change.owner) if change.kind is ChangeKind.DELETE else (None, None)
                )
                await self._files.put(change.path, content, expected=change.after, mode=mode, owner=owner)
            except ExternalEdit as edit:
                found, outcome = edit.conflict.found, UndoOutcome.KEPT
        if outcome is UndoOutcome.KEPT:
            await self._files.check()  # else it is not an edit from outside, but work of the next owner
            return change.conflict(found)
        await self._leave(change, outcome)
        return None

    async def _leave(self, change: Change, outcome: UndoOutcome) -> None:
        await self._files.remove_folders(reversed(change.folders))
        body = {"effect": EFFECT, "key": change.key, "outcome": outcome.value}
        await self._append("rolled_back", body)

    # ---- both ----

    async def _compare(self, change: Change) -> Conflict | None:
        found = await self._files.digest(change.path)
        return None if found == change.after else change.conflict(found)

    async def _append(self, kind: str, body: dict[str, Any], blobs: dict[str, bytes] | None = None) -> None:
        await write_records(self._journal, self._lease, Draft(kind, body), blobs=blobs)
        self._keys += fold(self._stack, kind, body)
        self._hook(kind)

    async def _alone(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async with self._turn:
            task = asyncio.ensure_future(work())
            late: asyncio.CancelledError | None = None
            while not task.done():
                try:
                    await asyncio.wait((task,))
                except asyncio.CancelledError as cancelled:
                    late = cancelled
            if late is not None:
                raise late from (None if task.cancelled() else task.exception())
            return task.result()

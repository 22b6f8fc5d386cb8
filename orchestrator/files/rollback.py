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
import hashlib
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.errors import Fenced, StoreDown
from orchestrator.files.atomic import Hook, silent
from orchestrator.files.change import (
    EFFECT,
    AnyRecord,
    Change,
    ChangeKind,
    Conflict,
    ExternalEdit,
    UndoOutcome,
    UndoReport,
    fold,
    judge,
    refuse,
    to_undo,
)
from orchestrator.files.owned import OwnedFiles
from orchestrator.files.path_safety import FileRefused, inside
from orchestrator.kernel.journal import Draft, Journal, Lease, write_records

T = TypeVar("T")


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
        await self._ready()
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
        return await self._execute(change, content)

    async def _execute(self, change: Change, content: bytes | None) -> Change:
        try:
            made = await self._touch(change, content)
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

    async def _ready(self) -> None:
        for change in self.changes:
            if not change.done:
                raise FileRefused(
                    change.path, "is in doubt after a crash or an error: undo that change first"
                )
        if self._stack:
            conflict = await self._compare(self.changes[-1])
            if conflict is not None:
                raise ExternalEdit(conflict)

    async def _touch(self, change: Change, content: bytes | None) -> list[str]:
        made = await self._files.make_folders(change.folders)
        mode = change.mode if change.kind is ChangeKind.CREATE else None
        await self._files.put(change.path, content, expected=change.before, mode=mode)
        return made

    # ---- undo ----

    async def _take_back(self, change: Change) -> Conflict | None:
        await self._files.check()
        # Before any check: from here on, a rename of an earlier owner of the run fails.
        await self._files.sweep(change.path)
        found = await self._files.digest(change.path)
        outcome = judge(change, found)
        if outcome is UndoOutcome.RESTORED:
            try:
                await self._restore(change)
            except ExternalEdit as edit:
                found, outcome = edit.conflict.found, UndoOutcome.KEPT
        if outcome is UndoOutcome.KEPT:
            await self._files.check()  # else it is not an edit from outside, but work of the next owner
            return change.conflict(found)
        await self._leave(change, outcome)
        return None

    async def _restore(self, change: Change) -> None:
        content = None if change.before is None else await self._journal.blob(change.before)
        if content is not None:
            await self._files.make_folders(await self._files.missing_folders(change.path))
        mode, owner = (change.mode, change.owner) if change.kind is ChangeKind.DELETE else (None, None)
        await self._files.put(change.path, content, expected=change.after, mode=mode, owner=owner)

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

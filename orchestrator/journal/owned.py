"""The files below one folder, as the owner of a run may touch them: in threads, and only while it owns it.

Every replacement and removal asks the store for the run's epoch and looks at the target, both right before it
renames. An owner frozen in between fails at its rename: the next one sweeps first, which takes away what that
rename needs, and looks at the target after that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from pathlib import Path, PurePosixPath

from orchestrator.errors import Fenced
from orchestrator.journal import files
from orchestrator.journal.change import Conflict, ExternalEdit
from orchestrator.journal.files import Hook, Snapshot, Staged
from orchestrator.journal.place import make_folder, remove_folder
from orchestrator.kernel.journal import Journal, Lease


class OwnedFiles:
    """What `files` does, in threads. Paths are relative to `root`, which may itself be a symlink."""

    def __init__(self, journal: Journal, lease: Lease, root: Path | str, hook: Hook) -> None:
        self._journal = journal
        self._lease = lease
        self._root = Path(root).resolve(strict=True)
        self._hook = hook

    async def check(self) -> None:
        """Raise Fenced where the run has another owner by now."""
        head = await self._journal.head(self._lease.run_id)
        if head.epoch != self._lease.epoch:
            raise Fenced(self._lease.run_id, self._lease.epoch)
        self._hook("owned")

    async def digest(self, path: str) -> str | None:
        """Return a digest, None, or one of `place.ODD`."""
        return await asyncio.to_thread(files.read_digest, path, root=self._root)

    async def read(self, path: str) -> Snapshot:
        """Return what is at a path."""
        return await asyncio.to_thread(files.read_file, path, root=self._root)

    async def sweep(self, path: str) -> None:
        """Remove what earlier owners left of writes to this path."""
        pure = PurePosixPath(path)
        await asyncio.to_thread(files.sweep, str(pure.parent), name=pure.name, root=self._root)
        self._hook("swept")

    async def put(self, path: str, content: bytes | None, *, expected: str | None, mode: int | None) -> None:
        """Replace what has the digest `expected` (None: nothing is there) by content; None removes it.

        Raises ExternalEdit.
        """
        if content is None:
            work = partial(files.stage_delete, path, root=self._root)
        else:
            work = partial(files.stage, path, content, mode=mode, root=self._root, hook=self._hook)
        staged = await asyncio.to_thread(work)
        try:
            await self.check()
            await asyncio.to_thread(self._last_look, staged, path, expected)
        except BaseException:
            staged.discard()
            raise

    async def missing_folders(self, path: str) -> tuple[str, ...]:
        """Return the folders that a file at this path would need, outermost first."""
        parents = [str(parent) for parent in reversed(PurePosixPath(path).parents)][1:]
        return tuple([parent for parent in parents if await self.digest(parent) is None])

    async def make_folders(self, folders: Iterable[str]) -> list[str]:
        """Make folders; return those that were not there."""
        made = []
        for folder in folders:
            if await asyncio.to_thread(make_folder, folder, root=self._root):
                made.append(folder)
            self._hook("folder made")
        return made

    async def remove_folders(self, folders: Iterable[str]) -> None:
        """Remove those that are empty."""
        for folder in folders:
            await asyncio.to_thread(remove_folder, folder, root=self._root)
            self._hook("folder removed")

    def _last_look(self, staged: Staged, path: str, expected: str | None) -> None:
        found = files.read_digest(path, root=self._root)
        if found != expected:
            raise ExternalEdit(Conflict(path=path, expected=expected, found=found))
        staged.commit(self._hook)

"""Access files below one folder in threads, only while the caller owns the run.

Every replacement and removal checks the run's epoch in the store and inspects the target, both right before its
rename. If an owner is frozen between the check and the rename, its rename fails: the next owner sweeps first, which
removes the source or target of that rename, and inspects the target after that.

A thread that hangs on an unresponsive disk cannot be stopped. Its caller gets an error after a time limit. The late
work of the thread is as harmless as that of a frozen owner, and the thread removes the files that it prepared. Each
operation has its own daemon thread: a few hanging threads would fill a pool, and the process waits for pool threads
at its end. A thread that ends with the process is a crash like any other.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar, cast

from orchestrator.errors import Fenced
from orchestrator.files import atomic as files
from orchestrator.files.atomic import FileSnapshot, Hook, Owner, StagedWrite
from orchestrator.files.change import Conflict, ExternalEdit
from orchestrator.files.path_safety import make_folder, remove_folder
from orchestrator.kernel.journal import Journal, Lease
from orchestrator.kernel.thread import in_thread

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

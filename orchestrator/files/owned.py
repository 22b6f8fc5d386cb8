"""The files below one folder, as the owner of a run may touch them: in threads, and only while it owns it.

Every replacement and removal asks the store for the run's epoch and looks at the target, both right before it
renames. An owner frozen in between fails at its rename: the next one sweeps first, which takes away what that
rename needs, and looks at the target after that.

A thread that hangs on a disk that does not answer cannot be stopped. Whoever waits for one is told after a time; what
the thread would still do is as harmless as what that frozen owner would, and what it prepared it takes away itself.
Each operation has a daemon thread of its own: a pool would be full after a few that hang, and its threads are waited
for at the end of the process. One that ends there is a crash as any other.
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
    """Let be what came too late."""


async def within(seconds: float, work: Callable[[], T], late: Callable[[T], None] = _forgotten) -> T:
    """Do blocking work in a thread, and wait so long for it; 0: for ever. Raises TimeoutError (ETIMEDOUT).

    `late` gets, in that thread, what the work brings when nobody waits for it any more.
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
            task.cancel()  # the thread goes on
    if given_up:
        raise TimeoutError(errno.ETIMEDOUT, f"the file system did not answer within {seconds:g} s")
    made, error = task.result()
    if error is not None:
        raise error
    return cast("T", made)


class OwnedFiles:
    """What `files` does, in threads. Paths are relative to `root`, which may itself be a symlink.

    No operation takes longer than `seconds`; 0: as long as it takes. Raises TimeoutError.
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
        """Raise Fenced where the run has another owner by now."""
        head = await self._journal.head(self._lease.run_id)
        if head.epoch != self._lease.epoch:
            raise Fenced(self._lease.run_id, self._lease.epoch)
        self._hook("owned")

    async def digest(self, path: str) -> str | None:
        """Return a digest, None, or one of `place.ODD`."""
        return await self._within(files.read_digest, path, root=self._root)

    async def read(self, path: str) -> FileSnapshot:
        """Return what is at a path."""
        return await self._within(files.read_file, path, root=self._root)

    async def sweep(self, path: str) -> None:
        """Remove what earlier owners left of writes to this path."""
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
        """Replace what has the digest `expected` (None: nothing is there) by content; None removes it.

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
            raise  # to discard it would wait for the same disk; whoever undoes the change sweeps first
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
            if await self._within(make_folder, folder, root=self._root):
                made.append(folder)
            self._hook("folder made")
        return made

    async def remove_folders(self, folders: Iterable[str]) -> None:
        """Remove those that are empty."""
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

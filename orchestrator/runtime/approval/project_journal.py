"""The folder `.orchestrator/` of a project: its journal is the truth, and every append refreshes the projections.

    journal.db  journal.db-owners/  journal.db-blobs/     the journal: records, prior contents
    state.json  steps.json  hashes.json  error.json       projections of the current request
    plan/<id>.v<version>.json  rollback/stack.json        projections: its plan versions; the changes that can be
    undone
    config.json                                           the project's id
    logs/<day>.jsonl                                      events, without contents

An append returns when its records are durable and the projections written; only then does the state change in memory.
A crash between the two leaves projections that are one append behind. That is not damage: the next process refreshes
them. Any other difference is damage (`projection.verify`).
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import secrets
import stat
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Unpack

from orchestrator.errors import StoreDown
from orchestrator.files.atomic import Hook, atomic_write, silent, sweep
from orchestrator.journal.stored_run import PLAN
from orchestrator.kernel.journal import (
    Draft,
    Journal,
    Lease,
    Posted,
    Record,
    RunConditions,
    RunCounts,
    RunHead,
    write_records,
)
from orchestrator.machines.approval.fault import ApprovalError, Fault
from orchestrator.runtime.approval.projection import Projection

FOLDER = ".orchestrator"
EMPTY = f"{FOLDER}/ was changed from outside: its journal is empty, state.json is not"
"""The damage of a project whose journal is missing while its projections exist."""
_FOLDERS = ("plan", "rollback", "logs")


def folder_of(project: Path | str) -> Path:
    """Return the folder of a project, which may not exist. Raises ApprovalError if the project is invalid."""
    root = Path(project)
    try:
        found = root.resolve(strict=True)
        if not found.is_dir():
            raise NotADirectoryError(root)
    except OSError as error:
        why = "is not a folder" if isinstance(error, NotADirectoryError) else "cannot be opened"
        raise ApprovalError(Fault("CFG-003", f"the project {str(project)!r} {why}")) from None
    if not _is_text(found):
        raise ApprovalError(
            Fault("CFG-003", f"the project {str(found)!r} has a name that is not UTF-8; rename it")
        )
    folder = found / FOLDER
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise ApprovalError(Fault("CFG-003", f"{FOLDER!r} in the project must be a real folder; remove it"))
    return folder


def _is_text(path: Path) -> bool:
    """Return whether a path is valid UTF-8, which the store and its records require."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def prepare(folder: Path) -> str:
    """Create the folder with its subfolders, and return the project's id."""
    try:
        for each in (folder, *(folder / name for name in _FOLDERS)):
            each.mkdir(mode=0o700, exist_ok=True)
            if stat.S_ISLNK(os.lstat(each).st_mode):
                raise ApprovalError(Fault("CFG-003", f"{each.name!r} in {FOLDER!r} is a symlink; remove it"))
        with _alone(folder):  # of two processes that come first, only one makes the id
            return project_id(folder) or _new_id(folder)
    except OSError as error:
        raise ApprovalError(Fault("CFG-003", f"{FOLDER!r} cannot be used: {error.strerror}")) from None


def tidy(folder: Path) -> None:
    """Remove remains of crashes. Only for the owner of the project: a write in flight would lose its temporary file."""
    for each in (folder, *(folder / name for name in _FOLDERS)):
        sweep(each)


def project_id(folder: Path) -> str:
    """Return the id of a project, empty if it has none. Raises ApprovalError if it cannot be read."""
    try:
        text = (folder / "config.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError):
        text = ""
    try:
        return str(json.loads(text)["project_id"])
    except (ValueError, KeyError, TypeError):
        message = f"config.json in {FOLDER!r} cannot be read; remove it to give the project a new id"
        raise ApprovalError(Fault("ST-002", message)) from None


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _new_id(folder: Path) -> str:
    made = secrets.token_hex(16)
    body = {"schema_version": 1, "project_id": made}
    atomic_write(folder / "config.json", json.dumps(body, indent=2).encode() + b"\n", mode=0o600)
    return made


def forget_plans(folder: Path, last: int) -> None:
    """Remove the plans of the requests up to number `last`."""
    for file in (folder / "plan").glob("plan-*.json"):
        number = file.name.removeprefix("plan-").partition(".")[0].partition("-")[0]
        if number.isdecimal() and int(number) <= last:
            file.unlink(missing_ok=True)


def set_aside(folder: Path) -> str:
    """Move untrusted files into a new folder for a person to inspect; return its name."""
    number = next(n for n in range(1, 1_000_000) if not (folder / f"damaged-{n}").exists())
    aside = folder / f"damaged-{number}"
    aside.mkdir(mode=0o700)
    for each in sorted(folder.iterdir()):
        if not each.name.startswith(("damaged-", "logs", "config.json")):
            each.rename(aside / each.name)
    return aside.name


class ProjectJournal:
    """A journal that serializes its appends, each with the projections that follow from it.

    The steps of a plan and the driver append for the same run; both do so while a cancelled step is in flight.
    """

    def __init__(self, inner: Journal, folder: Path, projection: Projection, hook: Hook = silent) -> None:
        self.inner = inner
        self.backend = inner.backend
        self.shared = inner.shared
        self._folder = folder
        self._turn = asyncio.Lock()
        self.projection = projection
        """Projections of the run of the folder."""
        self._hook = hook

    async def create(self, run_id: str, owner: str, body: Mapping[str, Any]) -> Lease:
        lease = await self.inner.create(run_id, owner, body)
        self._hook("created")
        self.projection.begin(run_id)
        self.projection.take("created", body)
        await self.refresh(lease.seq)
        return lease

    async def append(
        self, lease: Lease, drafts: Sequence[Draft], blobs: Mapping[str, bytes] | None = None
    ) -> None:
        async with self._turn:
            drafts = self._with_question(drafts)
            await write_records(self.inner, lease, *drafts, blobs=blobs)
            self._hook("appended")
            for draft in drafts:
                self.projection.take(draft.kind, draft.body)
            await self.refresh(lease.seq)

    def _with_question(self, drafts: Sequence[Draft]) -> Sequence[Draft]:
        """Name the plan in a record that parks the run with a plan to approve: a listing shows what it waits for."""
        last = drafts[-1]
        if last.kind != "parked" or not self.projection.stored.moved_by(drafts[:-1]).questions:
            return drafts
        return [*drafts[:-1], Draft(last.kind, {**last.body, "tools": [PLAN]})]

    async def refresh(self, seq: int) -> None:
        """Write the changed projections. Raises StoreDown; the run must not continue then."""
        changed = self.projection.changed(seq)
        try:
            await asyncio.to_thread(self._write, changed)
        except OSError as error:
            self.projection.forget()
            raise StoreDown(f"{FOLDER}/ cannot be written: {error.strerror}", "io") from error

    def _write(self, changed: Mapping[str, bytes]) -> None:
        for name, content in changed.items():
            atomic_write(name, content, mode=0o600, root=self._folder)
            self._hook("projected")

    # ---- delegated to the store ----

    async def claim(self, run_id: str, owner: str, *, steal: bool = False) -> Lease:
        return await self.inner.claim(run_id, owner, steal=steal)

    async def release(self, lease: Lease) -> None:
        await self.inner.release(lease)

    async def load(self, run_id: str, since: int = 0) -> list[Record]:
        return await self.inner.load(run_id, since)

    async def blob(self, digest: str) -> bytes:
        return await self.inner.blob(digest)

    async def head(self, run_id: str) -> RunHead:
        return await self.inner.head(run_id)

    def runs(self, **conditions: Unpack[RunConditions]) -> AsyncIterator[RunHead]:
        return self.inner.runs(**conditions)

    async def count(self, **conditions: Unpack[RunConditions]) -> RunCounts:
        return await self.inner.count(**conditions)

    async def names(self) -> list[tuple[str, str]]:
        return await self.inner.names()

    async def version(self) -> str:
        return await self.inner.version()

    async def newest(self, conversation_id: str) -> RunHead | None:
        return await self.inner.newest(conversation_id)

    async def post(self, run_id: str, request: Posted) -> bool:
        return await self.inner.post(run_id, request)

    async def inbox(self, run_id: str, since: int = 0) -> list[Posted]:
        return await self.inner.inbox(run_id, since)

    async def news(self, since: int) -> tuple[int, list[str]]:
        return await self.inner.news(since)

    async def prune(self, *, older_than: float | None = None, keep_last: int | None = None) -> int:
        return await self.inner.prune(older_than=older_than, keep_last=keep_last)

    async def erase(self, run_id: str) -> None:
        await self.inner.erase(run_id)

    async def close(self) -> None:
        await self.inner.close()

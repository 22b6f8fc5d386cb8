"""Copy a journal file with its blobs. A copy is durable and verified before it gets its name."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import apsw

from orchestrator.errors import StoreDown
from orchestrator.journal.sqlite import place
from orchestrator.journal.sqlite.place import beside
from orchestrator.journal.sqlite.schema import hide_earlier


def write_copy(
    db: apsw.Connection, blobs: Path, target: Path, *, verify: Callable[[Path], None], link: bool = False
) -> None:
    """Copy the journal that `db` has open to `target`, which must not exist. Raises StoreDown.

    `verify` raises StoreDown for a bad copy. With `link` the big blobs are hard links to the originals, which nothing
    ever changes.
    """
    refuse_existing(target)
    hide_earlier(db)  # the copy is of the same version
    part = beside(target, ".part")
    remove(part)
    try:
        # One read transaction, beside which writers continue; the copy has no free pages and no log.
        db.execute("VACUUM INTO ?", (str(part),))
        part.chmod(0o600)
        close_for_good(part)
        copy_blobs(blobs, part, link=link)
        verify(part)
        close_for_good(part)  # the check opened it, which may have given it an identity
        put(part, target)
    except OSError as error:
        raise StoreDown(f"backup {target} cannot be written: {error.strerror or error}") from error
    except apsw.Error as error:
        raise StoreDown(f"backup {target} cannot be written: {error}") from error
    finally:
        remove(part)


def close_for_good(part: Path) -> None:
    """Mark a copy as not in use, and remove the identity of its original: no mark belongs to it."""
    db = apsw.Connection(str(part), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        if db.table_exists("main", "mark"):
            db.execute("DELETE FROM mark")
    finally:
        db.close()


def copy_blobs(folder: Path, part: Path, *, link: bool = False) -> None:
    """Copy the files of big blobs beside a copy."""
    if not folder.is_dir():
        return
    copy = beside(part, "-blobs")
    copy.mkdir(mode=0o700)
    for file in folder.iterdir():
        if not file.name.endswith(".tmp"):
            # A file may be removed meanwhile; if a run of the copy needs it, the check reports that.
            with contextlib.suppress(FileNotFoundError):
                _copy(file, copy / file.name, link=link)
    place.sync_folder(copy)


def _copy(file: Path, copy: Path, *, link: bool) -> None:
    if link:
        with contextlib.suppress(OSError):  # a file system without hard links
            os.link(file, copy)
            return
    shutil.copyfile(file, copy)
    _sync(copy)


def put(part: Path, target: Path) -> None:
    """Make the parts durable, then give them their names: the blobs first, the file that names them last."""
    _sync(part)
    if beside(part, "-blobs").is_dir():
        beside(part, "-blobs").replace(beside(target, "-blobs"))
    os.link(part, target)  # unlike a rename it cannot replace a journal that was created meanwhile
    part.unlink()
    place.sync_folder(target.parent)


def _sync(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse_existing(target: Path) -> None:
    """Raise StoreDown if there is a journal of this name, or a part of one."""
    for path in (target, beside(target, "-wal"), beside(target, "-blobs")):
        if path.exists():
            raise StoreDown(f"{path} exists and was not overwritten")


def remove(part: Path) -> None:
    """Remove a copy that did not get its name."""
    for suffix in ("", "-wal", "-shm"):
        beside(part, suffix).unlink(missing_ok=True)
    for suffix in ("-blobs", "-owners"):
        shutil.rmtree(beside(part, suffix), ignore_errors=True)

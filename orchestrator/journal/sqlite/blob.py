"""Store blobs by their SHA-256: small ones as rows, big ones as files beside the journal.

A file is complete and durable (temporary file, sync, rename, sync of the folder) before the row that names it is
committed. `sweep` removes a file whose row was never committed or was deleted.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import apsw

from orchestrator.journal.codec import verified_blob
from orchestrator.journal.sqlite.place import sync_folder

BIG = 1 << 20
"""Minimum bytes of a blob that becomes a file: a row of that length would lengthen the write-ahead log twice."""


class Blobs:
    """The blobs of one journal. The first big blob creates `folder`."""

    def __init__(self, folder: Path, token: Callable[[], str]) -> None:
        self.folder = folder
        self._token = token

    @staticmethod
    def is_big(content: bytes) -> bool:
        """Return whether the content is stored as a file."""
        return len(content) >= BIG

    def write(self, digest: str, content: bytes) -> None:
        """Write a file, durable when this returns. Raises OSError."""
        if not self.folder.is_dir():
            self.folder.mkdir(mode=0o700, exist_ok=True)
            sync_folder(self.folder.parent)
        temporary = self.folder / f"{digest}.{self._token()}.tmp"
        try:
            descriptor = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)
            try:
                written = 0
                while written < len(content):
                    written += os.write(descriptor, memoryview(content)[written:])
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            temporary.replace(self.folder / digest)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        sync_folder(self.folder)

    def insert(self, cursor: apsw.Cursor, run: int, blobs: Mapping[str, bytes]) -> None:
        """Add the rows of the blobs that a run names, within its append."""
        for digest, content in blobs.items():
            name, big = bytes.fromhex(digest), self.is_big(content)
            if big and not (self.folder / digest).exists():
                self.write(digest, content)  # swept meanwhile, because it had no row yet
            row = (name, len(content), None if big else content)
            cursor.execute("INSERT INTO blob VALUES (?,?,?) ON CONFLICT DO NOTHING", row)
            cursor.execute("INSERT INTO blob_use VALUES (?,?) ON CONFLICT DO NOTHING", (run, name))

    def read(self, cursor: apsw.Cursor, digest: str) -> bytes:
        """Return a blob. Raises Corrupt."""
        # No bytes.fromhex: a malformed digest is simply not here.
        row = cursor.execute("SELECT content FROM blob WHERE digest=unhex(?)", (digest,)).fetchone()
        if row is None or row[0] is not None:
            return verified_blob(digest, None if row is None else row[0])
        try:
            content: bytes | None = (self.folder / digest).read_bytes()
        except FileNotFoundError:
            content = None
        return verified_blob(digest, content)

    def sweep(self, cursor: apsw.Cursor, alive: Callable[[str | None], bool]) -> None:
        """Remove files without a row, and incomplete files of dead writers.

        It runs under the write lock, so that no process is unnoticed between a file and its row, and in a transaction
        that removed no row itself: a failed commit restores a row, but not a file.
        """
        if not self.folder.is_dir():
            return
        rows = cursor.execute("SELECT digest FROM blob WHERE content IS NULL")
        named = {bytes(row[0]).hex() for row in rows}
        for file in self.folder.iterdir():
            digest, _, rest = file.name.partition(".")
            if not (alive(rest.removesuffix(".tmp")) if rest else digest in named):
                file.unlink(missing_ok=True)

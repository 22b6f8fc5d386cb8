"""Files of one folder that are read with their hash, and written only if they have not changed since."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from orchestrator.files.atomic import atomic_write, read_digest, read_file
from orchestrator.files.path_safety import ODD, serves
from orchestrator.machines.ralph.fault import OutsideEdit, SessionFileError
from orchestrator.machines.ralph.outline import decoded, encoded


class FileSet:
    """The files of a folder by name. All methods block."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen: dict[str, str | None] = {}

    def where(self, name: str) -> str:
        """Return a file's path, for an error."""
        return str(self.folder / name)

    def read(self, name: str) -> str | None:
        """Return a file as text that preserves all bytes, None if it does not exist; remember its hash."""
        found = read_file(name, root=self.folder)
        if found.digest in ODD:
            raise SessionFileError(self.where(name), 0, f"is a {found.digest}, not a file")
        self._seen[name] = found.digest
        return None if found.digest is None else decoded(found.content)

    def content(self, name: str) -> bytes | None:
        """Return the bytes of a file without remembering its hash; None if it does not exist."""
        found = read_file(name, root=self.folder)
        return None if found.digest is None or found.digest in ODD else found.content

    def is_as_read(self, name: str) -> bool:
        """Return whether a file is unchanged since it was last read."""
        return read_digest(name, root=self.folder) == self._seen.get(name)

    def write(self, name: str, text: str) -> None:
        """Replace a file that was read. Raises OutsideEdit if it has changed since."""
        if not self.is_as_read(name):
            raise OutsideEdit(self.where(name))
        self._seen[name] = atomic_write(name, encoded(text), root=self.folder)

    def add(self, name: str, text: str) -> None:
        """Write a new file. Raises OutsideEdit if it exists."""
        self._seen[name] = None
        self.write(name, text)

    def names(self) -> Iterator[str]:
        """Yield the names of the files, sorted, without our temporary ones."""
        for entry in sorted(os.scandir(self.folder), key=lambda one: one.name):
            if entry.is_file(follow_symlinks=False) and serves(entry.name) is None:
                yield entry.name

    def sync(self) -> None:
        """Make every file and its name durable. Raises OSError."""
        for name in (*self.names(), "."):
            with suppress(FileNotFoundError):
                fd = os.open(self.folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)

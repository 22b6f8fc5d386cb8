"""Tools with which a model reads and writes the files of one folder, and none outside of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from orchestrator.files import path_safety
from orchestrator.files.atomic import atomic_write, read_file
from orchestrator.tools.spec import ToolSpec, tool

_MOST = 500
"""Maximum number of listed paths."""

Barred = Callable[[str, bool], str | None]
"""(path below the folder, whether the file exists) -> why it may not be written, or None."""


def file_tools(root: Path, barred: Barred | None = None) -> list[ToolSpec]:
    """Return read_file, list_files, write_file and replace_in_file for the folder `root`.

    Paths are relative to it, and no symlink is followed. `barred` returns why a path may not be written, or None.
    """
    files = _Files(root.absolute(), barred or (lambda *_: None))
    read = tool(effect="pure", name="read_file", max_result_chars=60_000)
    return [
        read(files.read_file),
        tool(effect="pure", name="list_files")(files.list_files),
        tool(effect="idempotent", name="write_file")(files.write_file),
        tool(effect="idempotent", name="replace_in_file")(files.replace_in_file),
    ]


class _Files:
    def __init__(self, root: Path, barred: Barred) -> None:
        self._root = root
        self._barred = barred

    async def read_file(self, path: str) -> str:
        """Read a file.

        Args:
            path: From the working folder.
        """
        return await asyncio.to_thread(self._text, path)

    async def list_files(self, folder: str = ".") -> list[str]:
        """List the files below a folder.

        Args:
            folder: From the working folder.
        """
        return await asyncio.to_thread(self._list, folder)

    async def write_file(self, path: str, content: str) -> str:
        """Write a whole file, and the folders it is in; a file that is there is replaced.

        Args:
            path: From the working folder.
            content: All of it.
        """
        return await asyncio.to_thread(self._write, path, content)

    async def replace_in_file(self, path: str, old: str, new: str) -> str:
        """Replace a piece of text that is in a file exactly once.

        Args:
            path: From the working folder.
            old: What is there, with enough around it to be there once.
            new: What is to be there instead.
        """
        return await asyncio.to_thread(self._replace, path, old, new)

    # ---- implementation, in a thread ----

    def _text(self, path: str) -> str:
        found = read_file(path, root=self._root)
        if found.digest is None or found.digest in path_safety.ODD:
            raise FileNotFoundError(f"{path!r} is no file here; list_files says which there are")
        return found.content.decode(errors="replace")

    def _list(self, folder: str) -> list[str]:
        start = self._root if folder in {"", "."} else self._root / path_safety.inside(folder)
        found: list[str] = []
        for where, folders, names in os.walk(start):
            folders[:] = sorted(name for name in folders if name not in {".git", "__pycache__", ".venv"})
            found += [os.path.relpath(os.path.join(where, name), self._root) for name in sorted(names)]  # noqa: PTH118
            if len(found) > _MOST:
                return [*found[:_MOST], "… (there are more; name a folder)"]
        return found

    def _write(self, path: str, content: str) -> str:
        path = path_safety.inside(path)
        there = read_file(path, root=self._root).digest is not None
        if why := self._barred(path, there):
            raise PermissionError(f"{path} may not be written: {why}")
        for parent in reversed(PurePosixPath(path).parents[:-1]):
            path_safety.make_folder(str(parent), root=self._root)
        atomic_write(path, content.encode(), root=self._root)
        return f"{path} written, {len(content)} characters"

    def _replace(self, path: str, old: str, new: str) -> str:
        text = self._text(path)
        if (times := text.count(old)) != 1 or not old:
            raise ValueError(f"that text is in {path} {times} times; give a piece that is there exactly once")
        return self._write(path, text.replace(old, new))

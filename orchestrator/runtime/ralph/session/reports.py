"""Reports of attempts, and of checks of the whole. None is ever written over: a review comes after what is there."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.files.atomic import atomic_write
from orchestrator.machines.ralph import reports as paper
from orchestrator.machines.ralph.fault import SessionFileError
from orchestrator.machines.ralph.outline import decoded, encoded
from orchestrator.runtime.ralph.session.file_set import FileSet

_CHECK = re.compile(r"progress\.review(?P<number>[1-9]\d*)?\.md")


class Reports:
    """The reports of one session."""

    def __init__(self, shelf: FileSet) -> None:
        self._shelf = shelf
        self._begins: dict[str, tuple[int, str]] = {}
        """Name -> length and hash of what must stay the beginning of the file."""

    def look(self) -> None:
        """Remember what the reports say. Raises SessionFileError where one says something else than it did.

        One that is gone is not there, as for a process that never saw it: whoever needs it asks `find`.
        """
        for name in list(self._begins):
            content = self._shelf.content(name)
            if content is None:
                del self._begins[name]
            else:
                self._check(name, content)
        for name in self._names():
            self._remember(name)

    def attempts(self, task_id: str) -> int:
        """Return the number of a task's last report: one before it may be gone, and its number stays taken."""
        found = (paper.report_of(name) for name in self._names())
        return max((one[1] for one in found if one is not None and one[0] == task_id), default=0)

    def path(self, task_id: str, attempt: int) -> Path:
        """Return where the report of an attempt belongs."""
        return self._shelf.folder / paper.report_name(task_id, attempt)

    def find(self, task_id: str, attempt: int) -> Path | None:
        """Return the report of an attempt; None where it is missing, or says nothing."""
        path = self.path(task_id, attempt)
        return path if (self._shelf.content(path.name) or b"").strip() else None

    def set_aside(self, task_id: str, attempt: int) -> Path | None:
        """Give the report of an attempt that was cut short a name that counts for nothing; None without one."""
        path = self.path(task_id, attempt)
        if not path.is_file():
            return None
        number = 1
        while (aside := path.with_name(f"{path.stem}.interrupted-{number}.md")).exists():
            number += 1
        os.rename(path, aside)  # noqa: PTH104 - as the rest of this package
        self._begins.pop(path.name, None)
        return aside

    def append_review(self, task_id: str, attempt: int, review: Mapping[str, Any]) -> None:
        """Add the second part to a report that has none. Raises SessionFileError without a report."""
        name = paper.report_name(task_id, attempt)
        content = self._shelf.content(name)
        if content is None:
            raise SessionFileError(self._shelf.where(name), 0, "is missing, so it cannot be reviewed")
        self._check(name, content)  # before what the reviewer made of it is taken for what was reviewed
        text = decoded(content)
        if not paper.is_reviewed(text):
            apart = "" if text.endswith("\n") else "\n"
            atomic_write(name, encoded(text + apart + paper.review_part(review)), root=self._shelf.folder)
        self._remember(name)

    def write_check(self, check: Mapping[str, Any]) -> str:
        """Write what a check of the whole found, unless it was the last to be written; return the file's name."""
        numbers = [
            int(found["number"] or 1) for name in self._shelf.names() if (found := _CHECK.fullmatch(name))
        ]
        last = max(numbers, default=0)
        name = f"progress.review{last}.md"
        if last and self._shelf.content(name) == encoded(paper.check_paper(last, check)):
            return name
        name = f"progress.review{last + 1}.md"
        self._shelf.add(name, paper.check_paper(last + 1, check))
        return name

    def _names(self) -> Iterator[str]:
        return (name for name in self._shelf.names() if paper.report_of(name))

    def _check(self, name: str, now: bytes) -> None:
        length, digest = self._begins.get(name, (0, _digest(b"")))
        if _digest(now[:length]) != digest:
            why = "was written over; a report is only ever added to"
            raise SessionFileError(self._shelf.where(name), 0, why)

    def _remember(self, name: str) -> None:
        content = self._shelf.content(name) or b""
        self._begins[name] = (len(content), _digest(content))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

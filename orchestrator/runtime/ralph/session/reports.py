"""Reports of attempts and of checks. No report is ever overwritten: a review is appended."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.files.atomic import atomic_write
from orchestrator.machines.ralph import reports as report_text
from orchestrator.machines.ralph.fault import SessionFileError
from orchestrator.machines.ralph.outline import decoded, encoded
from orchestrator.runtime.ralph.session.file_set import FileSet

_CHECK = re.compile(r"progress\.review(?P<number>[1-9]\d*)?\.md")


class Reports:
    """The reports of one session."""

    def __init__(self, shelf: FileSet) -> None:
        self._shelf = shelf
        self._begins: dict[str, tuple[int, str]] = {}
        """Name -> length and hash of the start of the file, which must not change."""

    def look(self) -> None:
        """Remember the content of the reports. Raises SessionFileError if existing content has changed.

        A deleted report counts as missing; `find` reports it to the caller that needs it.
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
        """Return the number of a task's last report. Earlier reports may be missing, but their numbers stay taken."""
        found = (report_text.report_of(name) for name in self._names())
        return max((one[1] for one in found if one is not None and one[0] == task_id), default=0)

    def path(self, task_id: str, attempt: int) -> Path:
        """Return the path for the report of an attempt."""
        return self._shelf.folder / report_text.report_name(task_id, attempt)

    def find(self, task_id: str, attempt: int) -> Path | None:
        """Return the report of an attempt; None if it is missing or empty."""
        path = self.path(task_id, attempt)
        return path if (self._shelf.content(path.name) or b"").strip() else None

    def set_aside(self, task_id: str, attempt: int) -> Path | None:
        """Rename the report of an interrupted attempt to a name that is ignored; return None without one."""
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
        """Append the second part to a report that has none. Raises SessionFileError without a report."""
        name = report_text.report_name(task_id, attempt)
        content = self._shelf.content(name)
        if content is None:
            raise SessionFileError(self._shelf.where(name), 0, "is missing, so it cannot be reviewed")
        self._check(name, content)  # before the reviewer's version counts as the reviewed one
        text = decoded(content)
        if not report_text.is_reviewed(text):
            apart = "" if text.endswith("\n") else "\n"
            atomic_write(
                name, encoded(text + apart + report_text.review_part(review)), root=self._shelf.folder
            )
        self._remember(name)

    def write_check(self, check: Mapping[str, Any]) -> str:
        """Write the result of a check, unless the last file has it already; return the file's name."""
        numbers = [
            int(found["number"] or 1) for name in self._shelf.names() if (found := _CHECK.fullmatch(name))
        ]
        last = max(numbers, default=0)
        name = f"progress.review{last}.md"
        if last and self._shelf.content(name) == encoded(report_text.check_report(last, check)):
            return name
        name = f"progress.review{last + 1}.md"
        self._shelf.add(name, report_text.check_report(last + 1, check))
        return name

    def _names(self) -> Iterator[str]:
        return (name for name in self._shelf.names() if report_text.report_of(name))

    def _check(self, name: str, now: bytes) -> None:
        length, digest = self._begins.get(name, (0, _digest(b"")))
        if _digest(now[:length]) != digest:
            why = "was overwritten; a report may only be appended to"
            raise SessionFileError(self._shelf.where(name), 0, why)

    def _remember(self, name: str) -> None:
        content = self._shelf.content(name) or b""
        self._begins[name] = (len(content), _digest(content))


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

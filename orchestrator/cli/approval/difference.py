"""The changes of a plan to each file as lines: the unified diff, coloured, with every character visible."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from orchestrator.cli.output import TextColor, joined, painted, visible
from orchestrator.cli.runs.phrase import many
from orchestrator.runtime.approval.workspace import FileDiff
from orchestrator.telemetry.escape import escapes

_MARKS = {"+": TextColor.ADDED, "-": TextColor.REMOVED, "@": TextColor.PLACE, "\\": TextColor.FAINT}
"""First character of a line of a hunk -> kind of the line."""


def lines(diffs: Sequence[FileDiff], titles: dict[str, str], *, colour: bool) -> Iterator[str]:
    """Return the lines of a whole plan: a heading for each step (`titles`: id -> title), then its files."""
    step = None
    for one in diffs:
        if one.step_id != step:
            if step is not None:
                yield ""
            step = one.step_id
            yield _heading(one, titles, colour=colour)
        yield from _file(one, colour=colour)
    yield ""
    yield total(diffs)


def total(diffs: Iterable[FileDiff]) -> str:
    """Return a summary of the plan in one line."""
    known = list(diffs)
    files = {one.path for one in known if one.path}
    added, removed = sum(one.added for one in known), sum(one.removed for one in known)
    commands = sum(not one.path for one in known)
    said = f"{many(len(files), 'file')}, +{added} -{removed}"
    return said + (f"; {many(commands, 'command')} that cannot be undone" if commands else "")


def plain(one: FileDiff) -> dict[str, Any]:
    """Return one file's diff as data."""
    return {
        "step": one.step_id,
        "kind": str(one.kind),
        "path": one.path or None,
        "text": one.text,
        "added": one.added,
        "removed": one.removed,
        "note": one.note,
        "hidden_characters": hidden(one.text),
    }


def hidden(text: str) -> int:
    """Return how many characters of a text are shown as escapes; line ends do not count."""
    return escapes(text.replace("\r\n", "\n"), keep="\n\t")


def _heading(one: FileDiff, titles: dict[str, str], *, colour: bool) -> str:
    title = titles.get(one.step_id, "")
    said = f"step {visible(one.step_id)}  {one.kind}" + (f"  {visible(title)}" if title else "")
    return painted(said, TextColor.HEAD, colour=colour)


def _file(one: FileDiff, *, colour: bool) -> Iterator[str]:
    if not one.path:
        yield joined("$ ", visible(one.text, colour=colour))
    else:
        inside = False
        for line in one.text.split("\n")[: -1 if one.text.endswith("\n") else None]:
            inside = inside or line.startswith("@@")
            yield _line(line, inside=inside, colour=colour)
    if one.note:
        yield painted(visible(one.note), TextColor.WARNING, colour=colour)
    if count := hidden(one.text):
        said = f"{many(count, 'character')} that a terminal hides or obeys, shown as \\x… or \\u…"
        yield painted(said, TextColor.WARNING, colour=colour)


def _line(line: str, *, inside: bool, colour: bool) -> str:
    body = line.removesuffix("\r")  # CRLF line ends are not suspicious
    paint = _MARKS.get(body[:1]) if inside else TextColor.HEAD
    return visible(body, paint, colour=colour)

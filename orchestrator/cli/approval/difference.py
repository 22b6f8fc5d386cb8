"""A plan as a person reads it before its approval: its steps, and its changes to each file line by line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from orchestrator.cli.approval import status as status_view
from orchestrator.cli.output import TextColor, joined, painted, visible
from orchestrator.cli.runs.phrase import many
from orchestrator.errors import ConfigError
from orchestrator.machines.approval.plan import ApprovalPlan
from orchestrator.runtime.approval.status import Status
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
            title = titles.get(one.step_id, "")
            said = f"step {visible(one.step_id)}  {one.kind}" + (f"  {visible(title)}" if title else "")
            yield painted(said, TextColor.HEAD, colour=colour)
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


def _file(one: FileDiff, *, colour: bool) -> Iterator[str]:
    if not one.path:
        yield joined("$ ", visible(one.text, colour=colour))
    else:
        inside = False
        for line in one.text.split("\n")[: -1 if one.text.endswith("\n") else None]:
            inside = inside or line.startswith("@@")
            body = line.removesuffix("\r")  # CRLF line ends are not suspicious
            paint = _MARKS.get(body[:1]) if inside else TextColor.HEAD
            yield visible(body, paint, colour=colour)
    if one.note:
        yield painted(visible(one.note), TextColor.WARNING, colour=colour)
    if count := hidden(one.text):
        said = f"{many(count, 'character')} that a terminal hides or obeys, shown as \\x… or \\u…"
        yield painted(said, TextColor.WARNING, colour=colour)


def plan_lines(found: Status) -> Iterator[str]:
    """Return a whole plan as lines."""
    made = the_plan(found)
    yield from status_view.plan_lines(found)
    yield f"goal: {status_view.one_line(made.goal)}"
    if found.intent:
        said = f"{found.intent.get('kind')}, confidence {float(found.intent.get('confidence') or 0):.2f}"
        yield f"intent: {visible(said)}"
    for step in made.steps:
        about = [status_view.one_line(step.title)] if step.title else []
        about += [f"after {', '.join(map(visible, step.depends_on))}"] if step.depends_on else []
        about += [status_view.one_line(one) for one in step.constraints]
        if step.argv:
            about.append(f"a command: cannot be undone, at most {step.timeout:g} s")
        if about:
            yield f"  {visible(step.id)}: {'; '.join(about)}"
    if made.derived_from:
        yield f"derived from: {visible(made.derived_from)}"
    yield f"digest {made.digest}"


def the_plan(found: Status) -> ApprovalPlan:
    """Return the plan. Raises ConfigError if there is none."""
    if found.plan is not None:
        return found.plan
    known = ", ".join(str(version) for _, version in found.versions)
    raise ConfigError(
        f"there is no such version of the plan; there are {known}"
        if known
        else f"the project is {found.state.value}: there is no plan"
    )

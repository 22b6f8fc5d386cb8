"""Parser of prd.json and progress.txt, the task files of other loops of this kind. Pure; nothing is guessed.

prd.json      {"description", "userStories": [{"id", "title", "acceptanceCriteria", "priority", "passes", ...}]}
progress.txt  a log, newest entry anywhere: `## [2026-03-04] - US-013`, `## 2026-03-21 - setup: title`
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.machines.ralph.fault import SessionFileError
from orchestrator.machines.ralph.tasklist import SAFE_ID

_STORIES = re.compile(r'"userStories"\s*:\s*\[')
_GAP = " \t\r\n,"
_ENTRY = re.compile(r"##\s+\[?(?P<date>\d{4}-\d\d-\d\d)\]?\s+[-–—]\s+(?P<id>[^\s:]+)\s*(?::.*)?")
_DATED = re.compile(r"##\s+\[?\d{4}-\d")
_SECTION = re.compile(r"##\s+(?P<title>.*\S)")


@dataclass(frozen=True, slots=True, kw_only=True)
class PrdTask:
    """A task of a prd.json."""

    id: str
    title: str
    description: str = ""
    criteria: tuple[str, ...] = ()
    priority: float = 0.0
    done: bool = False
    notes: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PrdPlan:
    """A prd.json."""

    title: str
    description: str
    stories: tuple[PrdTask, ...]
    context: Any = None
    """Other information about the whole, as plain data."""


def read_prd(text: str, where: str) -> PrdPlan:
    """Parse a prd.json. Raises SessionFileError with the line of the first error."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise SessionFileError(where, error.lineno, f"is not JSON: {error.msg}") from None
    except ValueError as error:  # a number with thousands of digits
        raise SessionFileError(where, 0, f"cannot be read: {error}") from None
    except RecursionError:
        raise SessionFileError(where, 0, "is nested too deeply") from None
    if not isinstance(data, Mapping) or not isinstance(data.get("userStories"), list):
        raise SessionFileError(where, 1, 'is not a list of stories; it must be an object with "userStories"')
    lines = list(_lines(text))
    stories = [
        _story(story, where, lines[index] if index < len(lines) else 0)
        for index, story in enumerate(data["userStories"])
    ]
    seen: dict[str, int] = {}
    for story in stories:
        if story.id in seen:
            first = seen[story.id]
            raise SessionFileError(where, story.line, f"story {story.id} occurs twice; first in line {first}")
        seen[story.id] = story.line
    return PrdPlan(
        title=str(data.get("project") or data.get("productName") or "Imported stories"),
        description=str(data.get("description") or ""),
        stories=tuple(sorted(stories, key=lambda story: story.priority)),
        context=data.get("context"),
    )


def _lines(text: str) -> Iterator[int]:
    """Yield the first line of each story."""
    found = _STORIES.search(text)
    decoder, at = json.JSONDecoder(), found.end() if found else len(text)
    while True:
        while at < len(text) and text[at] in _GAP:
            at += 1
        if at >= len(text) or text[at] == "]":
            return
        yield text.count("\n", 0, at) + 1
        try:
            _, at = decoder.raw_decode(text, at)
        except ValueError:
            return


def _story(given: object, where: str, line: int) -> PrdTask:
    if not isinstance(given, Mapping):
        raise SessionFileError(where, line, "a story must be an object")
    story_id, title = given.get("id"), given.get("title")
    if not isinstance(story_id, str) or not SAFE_ID.fullmatch(story_id):
        raise SessionFileError(where, line, f"the id of a story is {story_id!r}; use letters, digits, - _ .")
    if not isinstance(title, str) or not title.strip():
        raise SessionFileError(where, line, f"story {story_id} has no title")
    criteria, passes = given.get("acceptanceCriteria", []), given.get("passes", False)
    if not isinstance(criteria, list) or not all(isinstance(one, str) for one in criteria):
        raise SessionFileError(where, line, f"acceptanceCriteria of {story_id} must be a list of texts")
    if not isinstance(passes, bool):
        raise SessionFileError(where, line, f"passes of {story_id} is {passes!r}; it must be true or false")
    priority = given.get("priority", 0)
    if isinstance(priority, bool) or not isinstance(priority, int | float):
        raise SessionFileError(where, line, f"priority of {story_id} is {priority!r}; it must be a number")
    return PrdTask(
        id=story_id,
        title=title.strip(),
        description=str(given.get("description") or ""),
        criteria=tuple(criteria),
        priority=priority,
        done=passes,
        notes=str(given.get("notes") or ""),
        line=line,
    )


@dataclass(frozen=True, slots=True)
class ProgressEntry:
    """An entry of a progress.txt."""

    story: str
    date: str
    text: str
    line: int


@dataclass(frozen=True, slots=True)
class ProgressLog:
    """A progress.txt: its entries, and other sections."""

    entries: tuple[ProgressEntry, ...]
    sections: Mapping[str, str]
    """Heading -> text of sections that are not entries: patterns, learnings."""


def read_log(text: str, where: str, known: Sequence[str] = ()) -> ProgressLog:
    """Parse a progress.txt.

    Raises SessionFileError for an invalid entry, or one about a story that is not in `known`.
    """
    entries: list[ProgressEntry] = []
    sections: dict[str, str] = {}
    for line, heading, body in _parts(text):
        found = _ENTRY.fullmatch(heading)
        if found is None and _DATED.match(heading):
            raise SessionFileError(where, line, "is not an entry; write it as `## [2026-03-04] - US-013`")
        if found is None:
            sections[heading.lstrip("# ")] = body
            continue
        if known and found["id"] not in known:
            raise SessionFileError(
                where, line, f"is about the unknown story {found['id']}; known: {', '.join(known)}"
            )
        entries.append(ProgressEntry(found["id"], found["date"], body, line))
    return ProgressLog(tuple(entries), sections)


def _parts(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line, heading and text of each part with a second-level heading."""
    lines = text.splitlines()
    starts = [index for index, line in enumerate(lines) if _SECTION.fullmatch(line)]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=False):
        body = "\n".join(line for line in lines[start + 1 : end] if line.strip() != "---").strip()
        yield start + 1, lines[start].strip(), body

"""Texts that the loop writes for people: the second part of a report, the holistic check, instructions."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

REVIEW_PART = "## PART 2: REVIEW REPORT"
_HAS_REVIEW = re.compile(r"^#{1,6}[ \t]+PART 2\b", re.MULTILINE | re.IGNORECASE)
_REPORT = re.compile(r"tasks\.(?P<id>.+)-report(?:-r(?P<number>[2-9]|[1-9]\d+))?\.md")


def report_name(task_id: str, attempt: int) -> str:
    """Return the file name of the report of an attempt; the first has no number."""
    return f"tasks.{task_id}-report{f'-r{attempt}' if attempt > 1 else ''}.md"


def report_of(name: str) -> tuple[str, int] | None:
    """Return task and attempt of a report's file name, None for any other file."""
    found = _REPORT.fullmatch(name)
    return None if found is None else (found["id"], int(found["number"] or 1))


def is_reviewed(report: str) -> bool:
    """Return whether a report has its second part."""
    return _HAS_REVIEW.search(report) is not None


def review_part(review: Mapping[str, Any]) -> str:
    """Return the second part of a report, from the output of the reviewer (ReviewerOutput as plain data)."""
    lines = ["", "---", REVIEW_PART, "", "### Success Criteria Validation"]
    for one in review.get("criteria_results") or ():
        lines.append(
            f"- {'✅' if one.get('met') else '❌'} **{_line(one.get('criterion'))}**: "
            f"{'Met' if one.get('met') else 'Not Met'}"
        )
        lines += _fields(one, {"Evidence Reviewed": "evidence", "Finding": "finding"}, "  ")
    lines += ["", "### Quality Assessment", _line(review.get("quality_assessment")) or "None given."]
    if issues := review.get("issues"):
        lines += ["", "### Issues Identified", *(f"- {_line(one)}" for one in issues)]
    lines += ["", "### Recommendation", f"**Status**: {review.get('verdict') or review.get('status')}"]
    if feedback := review.get("feedback"):
        lines += ["", "### Feedback for Next Iteration", _line(feedback)]
    return "\n".join(lines) + "\n"


def check_report(number: int, check: Mapping[str, Any]) -> str:
    """Return the text of `progress.review<N>.md`, from the output of the checker (CheckerOutput as plain data)."""
    passed = bool(check.get("passed"))
    lines = [f"# Session Review {number}", "", f"**Goal met**: {'Yes' if passed else 'No'}"]
    if summary := _line(check.get("summary")):
        lines += ["", "## Summary", summary]
    if missing := check.get("missing_tasks"):
        lines += ["", "## Missing Tasks"]
        for task in missing:
            lines.append(f"- {_line(task.get('id'))}: {_line(task.get('description'))}")
            lines += _fields(task, {"Rationale": "rationale"}, "    ")
    return "\n".join(lines) + "\n"


def instructions_report(session_id: str, folder: str, request: str) -> str:
    """Return the text of a new instructions file, with front matter for the editor variant of the loop."""
    front = [
        f"description: Custom instructions for Ralph session {session_id}",
        f"applyTo: {folder}/{session_id}/**",
        "max_parallel_executors: 1",
        "max_parallel_reviewers: 1",
        "max_parallel_questioners: 1",
    ]
    body = [
        f"# Session: {session_id}",
        "",
        "## Context",
        "",
        *quoted(request),
        "",
        "## Important Constraints",
    ]
    return "\n".join(["---", *front, "---", "", *body]) + "\n"


def quoted(text: str) -> list[str]:
    """Return text as a quotation, so that none of it is parsed as a heading or a task."""
    return [f"> {line}".rstrip() for line in text.splitlines() or [""]]


def front_matter(text: str) -> tuple[Mapping[str, str], str]:
    """Return the plain members of a file's front matter, and the text after it."""
    head, _, rest = text.removeprefix("\ufeff").partition("\n")
    if head.strip() != "---":
        return {}, text
    members: dict[str, str] = {}
    body = rest.splitlines(keepends=True)
    for index, line in enumerate(body):
        if line.strip() == "---":
            return members, "".join(body[index + 1 :])
        name, colon, value = line.partition(":")
        if colon and not line.startswith((" ", "\t", "#")):
            members[name.strip()] = value.strip().strip("\"'")
    return {}, text


def _fields(given: Mapping[str, Any], names: Mapping[str, str], indent: str) -> Sequence[str]:
    return [
        f"{indent}- **{title}**: {said}" for title, name in names.items() if (said := _line(given.get(name)))
    ]


def _line(value: object) -> str:
    return " ".join(str(value or "").split())

"""plan.questions.md as data, and as text with an answer inserted. Pure; all other text stays.

    ### Cycle 1
    #### Generated Questions
    1. **[High Priority]** Which framework?
       - **Category**: Technical
       - **Status**: Unanswered
       - **Answer**:

The id of a question is its cycle and its number in it: `1.1`. A question is answered if text other than a placeholder
in brackets follows `Answer`, on that line or indented below it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.machines.ralph.outline import Node, Outline, outline
from orchestrator.machines.ralph.tasklist import one_line

CATEGORIES = ("technical", "requirements", "constraints", "assumptions", "risks")
"""Each category may have its own file: plan.questions.<category>.md."""

_ID = re.compile(rf"(?:(?:{'|'.join(CATEGORIES)}):)?[1-9][0-9]*\.(?:0|[1-9][0-9]*)\+*")
_CYCLE = re.compile(r"Cycle\s+(?P<number>\d+)\b.*", re.IGNORECASE)
_NUMBER = re.compile(r"\s*(?P<number>\d{1,9})[.)]\s")
_PRIORITY = re.compile(r"\*\*\[(?P<priority>\w+)(?:\s+Priority)?\]\*\*\s*", re.IGNORECASE)
_FIELD = re.compile(
    r"(?:\*\*)?(?P<name>Category|Priority|Status|Answer|Source|Confidence)(?:\*\*)?:(?:\*\*)?\s*(?P<value>.*)"
)
_PLACEHOLDER = re.compile(r"(?:\[[^\]]*\]|_+|TBD|\?*|-+)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionEntry:
    """A question of a file, with the positions of its parts."""

    id: str
    text: str
    node: Node
    category: str = ""
    priority: str = ""
    answer: str | None = None
    answer_node: Node | None = None
    status_node: Node | None = None


def can_name(text: str) -> bool:
    """Return whether a text has the form of a question id: `1.1`, `technical:1.1`."""
    return _ID.fullmatch(text) is not None


def cycles(found: Outline) -> int:
    """Count the cycles that have a heading."""
    return sum(1 for node in found.nodes if node.heading and _CYCLE.fullmatch(node.text))


def question_entries(found: Outline) -> tuple[QuestionEntry, ...]:
    """Return the questions of a file in order."""
    return tuple(_entries(found))


def _entries(found: Outline) -> Iterator[QuestionEntry]:
    cycle = 0
    taken: set[str] = set()
    for node in found.nodes:
        if node.heading:
            named = _CYCLE.fullmatch(node.text)
            cycle = int(named["number"]) if named else cycle
            continue
        number = _NUMBER.match(found.lines[node.line])
        if node.depth or number is None or not cycle or "Question" not in node.section:
            continue
        name = f"{cycle}.{int(number['number'])}"
        while name in taken:
            name += "+"
        taken.add(name)
        priority = _PRIORITY.match(node.text)
        values: dict[str, str] = {}
        places: dict[str, Node] = {}
        for below in found.nodes:
            if (
                node.line < below.line < node.end
                and not below.heading
                and (field := _FIELD.fullmatch(below.text))
            ):
                key = field["name"]
                values.setdefault(key, field["value"].strip())
                places.setdefault(key, below)
        answer, place = None, places.get("Answer")
        if place is not None:
            value = values["Answer"]
            said = [] if _PLACEHOLDER.fullmatch(value) else [value]
            below_it = [line.strip() for line in found.lines[place.line + 1 : place.end] if line.strip()]
            answer = "\n".join([*said, *below_it]) or None
        yield QuestionEntry(
            id=name,
            text=node.text[priority.end() :] if priority else node.text,
            node=node,
            category=values.get("Category", ""),
            priority=values.get("Priority") or (priority["priority"] if priority else ""),
            answer=answer,
            answer_node=place,
            status_node=places.get("Status"),
        )


def answered(found: Outline, question: QuestionEntry, text: str, source: str) -> str:
    """Return the file with the answer to a question on one line. An existing answer stays."""
    if question.answer is not None:
        return found.text()
    said = one_line(text)
    field = " " * (question.node.indent + 4)
    new = [f"{field}- **Answer**: {said}", f"{field}- **Source**: {source}"]
    lines = list(found.lines)
    if question.answer_node is None:
        whole = outline(found.inserted(question.node.end, new))
    else:
        lines[question.answer_node.line] = _filled(lines[question.answer_node.line], said)
        whole = outline("".join(lines))
        whole = _with_source(whole, question, source)
    if question.status_node is not None:
        lines = list(whole.lines)
        lines[question.status_node.line] = _filled(lines[question.status_node.line], "Answered")
        return "".join(lines)
    return whole.text()


def _with_source(whole: Outline, question: QuestionEntry, source: str) -> Outline:
    """Set the source of the answer if the question has a line for it."""
    for node in whole.nodes:
        if question.node.line < node.line < question.node.end:
            field = _FIELD.fullmatch(node.text)
            if field and field["name"] == "Source" and _PLACEHOLDER.fullmatch(field["value"].strip()):
                lines = list(whole.lines)
                lines[node.line] = _filled(lines[node.line], source)
                return outline("".join(lines))
    return whole


def _filled(line: str, value: str) -> str:
    """Return the line of a field with another value."""
    bare = line.rstrip("\r\n")
    head = re.match(r".*?:(?:\*\*)?", bare)
    start = head[0] if head else bare
    return f"{start} {value}{line[len(bare) :]}"

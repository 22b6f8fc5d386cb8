"""The parser of a model's reply: code blocks to run, and a final answer. Pure, linear in the length of the reply.

Only fences tagged `repl` are run; a fence on its own line closes them. FINAL(…) and FINAL_VAR(name) count at the
start of a line. The last one of each counts, and FINAL_VAR comes before FINAL.

Fences follow CommonMark: text inside another fence is text, and a longer fence can contain shorter ones. An answer
inside a fence is code or an example and does not count.

Regular expressions cannot find the end of an answer, because apostrophes, smileys and `1)` are ambiguous. Therefore
the parser searches three times: for parentheses outside quotes and smileys, then outside smileys, then for all of
them. The first parenthesis that closes the answer ends it, except if the text continues up to another parenthesis at
the end of a line that closes nothing else: then that one ends the answer.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

LONGEST_NAME = 200
"""Maximum characters of an invalid FINAL_VAR(…) name that are shown to the model."""

_FENCE = re.compile(r"^([ \t]*)(`{3,}(?=[^`\n]*$)|~{3,})[ \t]*([^\n]*)", re.MULTILINE)
_MARKER = re.compile(r"^[ \t]*(?:\*\*)?(FINAL|FINAL_VAR)\(", re.MULTILINE)
_NAME = re.compile(r"([\"']?)([^\W\d]\w*)\1")
_TAIL = re.compile(r"[ \t*_`.]*(?:\n|\Z)")
_QUOTES = re.compile(
    r"`[^`\n]*`|(?<!\w)\"[^\"\n]*\"|(?<!\w)'[^'\n]*'(?!\w)|(?<!\S)[:;]['-]?[()](?=[\s.,!?)]|\Z)|[()]"
)
_SMILEYS = re.compile(r"(?<!\S)[:;]['-]?[()](?=[\s.,!?)]|\Z)|[()]")
_PLAIN = re.compile(r"[()]")
_EMPTY = ("", '""', "''")


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """A final answer: its text, or the name of the variable that contains it."""

    kind: Literal["text", "variable"]
    value: str


@dataclass(frozen=True, slots=True)
class Reply:
    """The parsed reply."""

    blocks: tuple[str, ...] = ()
    final: FinalAnswer | None = None
    unclosed: bool = False
    """A block or an answer starts and never ends, as in a truncated reply."""


def read(text: str) -> Reply:
    """Return the blocks and the answer of a reply. Never raises."""
    text = text.replace("\r\n", "\n")
    fences = tuple(_fences(text))
    blocks = tuple(fence.code for fence in fences if fence.is_repl and fence.closed)
    # The answer, and whether the last one that starts has no end.
    markers = [marker for gap in _gaps(fences, 0, len(text)) for marker in _MARKER.finditer(text, *gap)]
    limits = [*(marker.start() for marker in markers[1:]), len(text)]
    starts = [fence.start for fence in fences]
    found: dict[str, FinalAnswer] = {}
    unclosed = False
    for marker, limit in zip(markers, limits, strict=False):
        inside = fences[bisect_left(starts, marker.end()) : bisect_left(starts, limit)]
        said = _enclosed(text, marker.end(), limit, inside)
        unclosed = said is None
        final = _meant(marker[1], said or "")
        if final is not None:
            found[marker[1] if final.kind == "text" or final.value.isidentifier() else "no name"] = final
    final, open_answer = found.get("FINAL_VAR") or found.get("FINAL") or found.get("no name"), unclosed
    return Reply(blocks, final, open_answer or any(fence.is_repl and not fence.closed for fence in fences))


def code_blocks(text: str) -> tuple[str, ...]:
    """Return the code of the `repl` fences, in order."""
    return read(text).blocks


def final_answer(text: str) -> FinalAnswer | None:
    """Return the final answer of a reply, or None."""
    return read(text).final


# ---- fences ----


@dataclass(frozen=True, slots=True)
class _Fence:
    start: int
    end: int
    is_repl: bool
    closed: bool
    code: str = ""


def _fences(text: str) -> Iterator[_Fence]:
    """Yield the fences in order. An unclosed fence is text, except a `repl` fence, which extends to the end."""
    lines = list(_FENCE.finditer(text))
    longest = _longest_behind(lines)
    inside: re.Match[str] | None = None
    for index, line in enumerate(lines):
        if inside is None:
            closes = longest[line[2][0]][index + 1] >= len(line[2])
            if closes:
                inside = line
            elif _is_repl(line):
                yield _Fence(line.start(), len(text), is_repl=True, closed=False)
                return
        elif _closes(inside, line):
            code = _unindented(text[inside.end() + 1 : line.start()], len(inside[1]))
            yield _Fence(inside.start(), line.end(), _is_repl(inside), closed=True, code=code)
            inside = None
    if inside is not None and _is_repl(inside):
        yield _Fence(inside.start(), len(text), is_repl=True, closed=False)


def _longest_behind(lines: list[re.Match[str]]) -> dict[str, list[int]]:
    """Return, for each kind of fence and each line, the longest untagged fence from that line on."""
    found = {kind: [0] * (len(lines) + 1) for kind in "`~"}
    for index in range(len(lines) - 1, -1, -1):
        for kind, longest in found.items():
            length = len(lines[index][2]) if lines[index][2][0] == kind and not lines[index][3].strip() else 0
            longest[index] = max(longest[index + 1], length)
    return found


def _closes(opening: re.Match[str], line: re.Match[str]) -> bool:
    """Return whether a line closes a fence: same kind, at least as long, untagged, indented at most three deeper."""
    same = line[2][0] == opening[2][0] and len(line[2]) >= len(opening[2])
    return same and not line[3].strip() and len(line[1]) <= len(opening[1]) + 3


def _is_repl(opening: re.Match[str]) -> bool:
    return opening[3].strip() == "repl"


def _unindented(code: str, depth: int) -> str:
    """Return the code of an indented fence, as in a list, without the indentation."""
    if not depth:
        return code.removesuffix("\n")
    lines = [line[min(depth, len(line) - len(line.lstrip(" \t"))) :] for line in code.split("\n")]
    return "\n".join(lines).removesuffix("\n")


# ---- answers ----


def _gaps(fences: Sequence[_Fence], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each text outside fences."""
    for fence in fences:
        yield start, fence.start
        start = fence.end
    yield start, end


def _enclosed(text: str, start: int, limit: int, fences: Sequence[_Fence]) -> str | None:
    """Return the text from `start` to its closing parenthesis before `limit`, or None."""
    for index, fence in enumerate(fences):
        if fence.is_repl:
            fences, limit = fences[:index], fence.start
            break
    gaps = tuple(_gaps(fences, start, limit))
    for pattern in (_QUOTES, _SMILEYS, _PLAIN):
        parentheses = (match for gap in gaps for match in pattern.finditer(text, *gap) if match[0] in "()")
        # The parenthesis that closes the one before the answer.
        depth, first, last = 1, None, None
        for match in parentheses:
            depth += 1 if match[0] == "(" else -1
            if depth > 0 or (first is not None and depth == 0):
                continue
            depth = 0
            if first is None:
                first = match
            elif _ends_line(text, match) and (not _ends_line(text, first) or _begins_line(text, match)):
                last = match
        found = last or first
        end = None if found is None else found.start()
        if end is not None:
            return text[start:end]
    ends = [match.start() for gap in gaps for match in _PLAIN.finditer(text, *gap) if _ends_line(text, match)]
    return text[start : ends[-1]] if ends else None


def _ends_line(text: str, parenthesis: re.Match[str]) -> bool:
    """Return whether a closing parenthesis is followed only by punctuation on its line."""
    return parenthesis[0] == ")" and _TAIL.match(text, parenthesis.end()) is not None


def _begins_line(text: str, parenthesis: re.Match[str]) -> bool:
    """Return whether a parenthesis is the first text of its line. Called once per line, so parsing stays linear."""
    at = parenthesis.start()
    return not text[text.rfind("\n", 0, at) + 1 : at].strip()


def _meant(name: str, said: str) -> FinalAnswer | None:
    """Return the answer of a marker with this content; None if it is empty."""
    said = said.strip()
    if said in _EMPTY:
        return None
    if name == "FINAL":
        return FinalAnswer("text", said)
    match = _NAME.fullmatch(said)
    return FinalAnswer("variable", match[2] if match else said[:LONGEST_NAME])

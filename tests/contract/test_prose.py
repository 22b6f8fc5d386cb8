"""Docstrings and Markdown are plain technical English; docstrings name existing arguments."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.contract.syntax import nodes

pytestmark = pytest.mark.check

ROOT = Path(__file__).resolve().parents[2]

LIMITS: dict[str, tuple[str, float]] = {
    "what": (r"\bwhat\b", 40),
    "pronouns": (r"\b(?:somebody|nobody|anybody|everybody|whoever|whom)\b", 2),
    "go on": (r"\b(?:go|goes|going|went) on\b", 1),
}
"""Words that stand for a subject without a name -> pattern, and the number per 10,000 words to stay below."""

OTHERS = ("tests/data/*/LICENSES.md", "tests/data/task_lists/*--*.md", "orchestrator/examples/*/LICENSES.md")
"""Markdown that others wrote: data of tests."""
MARKDOWN = ("callbacks", "dashboards", "guards", "orchestrator", "tests")
"""Folders with pages; those at the root are another group."""

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
SHOWN = 20


class Line(NamedTuple):
    file: Path
    number: int
    text: str


def folders() -> list[str]:
    inside = {file.parent for file in (ROOT / "orchestrator").glob("*/__init__.py")}
    return [
        "callbacks",
        "guards",
        "orchestrator",
        *sorted(folder.relative_to(ROOT).as_posix() for folder in inside),
    ]


def docstrings(source: str) -> Iterator[ast.Constant]:
    """Yield the docstrings of a module: of itself, its classes and functions, and below their fields."""
    for node in nodes(source):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value


class Module(NamedTuple):
    """What the tests read of a module."""

    lines: list[Line]
    """The lines of its docstrings."""
    wrong_arguments: list[str]


@cache
def read(file: Path) -> Module:
    source = file.read_text(encoding="utf-8")
    lines = [
        Line(file, docstring.lineno + offset, text)
        for docstring in docstrings(source)
        for offset, text in enumerate(str(docstring.value).splitlines())
    ]
    return Module(lines, list(wrong_arguments(source)))


def pages(folder: str) -> list[Path]:
    """Return the pages of a folder with its subfolders; at the root, those that are in no folder."""
    found = ROOT.glob("*.md") if folder == "." else (ROOT / folder).rglob("*.md")
    others = {file for pattern in OTHERS for file in ROOT.glob(pattern)}
    return sorted(file for file in found if file not in others)


def page_lines(file: Path, text: str) -> Iterator[Line]:
    """Yield the prose of a page: no code blocks, and no contents list, which repeats the headings."""
    code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            code = not code
        elif not code and not re.match(r"- \[.*\]\(#.*\)$", line):
            yield Line(file, number, line)


def problems(lines: list[Line]) -> list[str]:
    """Return the figures that reach their limit, each with its lines."""
    words = sum(len(re.findall(r"[A-Za-z']+", line.text)) for line in lines)
    found: list[str] = []
    for name, (pattern, limit) in LIMITS.items():
        hits = [(line, len(re.findall(pattern, line.text, re.IGNORECASE))) for line in lines]
        figure = sum(number for _, number in hits) * 10_000 / max(words, 1)
        if figure >= limit:
            found.append(f"{name}: {figure:.1f} per 10,000 words, below {limit} is required")
            shown = sorted((hit for hit in hits if hit[1]), key=lambda hit: -hit[1])[:SHOWN]
            found += [f"  {line.file}:{line.number}: {line.text.strip()}" for line, _ in shown]
    return found


def sources(folder: str) -> list[Path]:
    """Return the modules of a folder with its subfolders; of `orchestrator`, those that are in no subfolder."""
    pattern = "*.py" if folder == "orchestrator" else "**/*.py"
    return sorted((ROOT / folder).glob(pattern))


def arguments(node: ast.AST) -> list[str] | None:
    """Return the names of the arguments of a function or of a class's constructor, None if they are unknown."""
    if isinstance(node, ast.ClassDef):
        functions = [item for item in node.body if isinstance(item, ast.FunctionDef)]
        node = next(
            (item for item in reversed(functions) if item.name == "__init__"), node
        )  # overloads come first
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    given = node.args
    names = [item.arg for item in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return names + [item.arg for item in (given.vararg, given.kwarg) if item]


def wrong_arguments(source: str) -> Iterator[str]:
    """Yield each docstring whose `Args:` names an argument that does not exist, or in another order."""
    for node in nodes(source):
        text = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
        existing = arguments(node)
        if text is None or existing is None or "Args:\n" not in text:
            continue
        section = text.partition("Args:\n")[2].partition("\n\n")[0]
        named = re.findall(r"^ {4}\*{0,2}(\w+):", section, re.MULTILINE)
        if named != [name for name in existing if name in named]:
            yield f"{node.lineno}: {', '.join(named)}; the signature has {', '.join(existing)}"  # type: ignore[attr-defined]


@pytest.mark.parametrize("folder", folders())
def test_docstrings_are_plain_english(folder: str) -> None:
    lines = [line for file in sources(folder) for line in read(file).lines]
    assert lines
    assert not (found := problems(lines)), "\n".join(found)


@pytest.mark.parametrize("folder", [".", *MARKDOWN])
def test_pages_are_plain_english(folder: str) -> None:
    lines = [line for file in pages(folder) for line in page_lines(file, file.read_text(encoding="utf-8"))]
    assert lines
    assert not (found := problems(lines)), "\n".join(found)


def test_code_and_contents_of_a_page_do_not_count_and_its_lines_keep_their_numbers() -> None:
    text = "# What\n\n- [What](#what)\n\n```sh\nwhat\n```\n\n- an item\n  ```text\n  goes on\n  ```\nNobody goes on.\n"
    lines = list(page_lines(Path("a.md"), text))
    assert [(line.number, line.text) for line in lines if line.text] == [
        (1, "# What"),
        (9, "- an item"),
        (13, "Nobody goes on."),
    ]
    assert "  a.md:13: Nobody goes on." in problems(lines)


def test_every_use_of_a_listed_word_counts() -> None:
    text = '"""Tell nobody what goes on."""\nlimit = 1\n"""Whoever asks."""\ndef ask():\n    """What?"""\n'
    lines = [Line(Path("a.py"), one.lineno, str(one.value)) for one in docstrings(text)]
    assert [line.number for line in lines] == [1, 3, 5]
    assert [found for found in problems(lines) if not found.startswith(" ")] == [
        "what: 2500.0 per 10,000 words, below 40 is required",
        "pronouns: 2500.0 per 10,000 words, below 2 is required",
        "go on: 1250.0 per 10,000 words, below 1 is required",
    ]


def test_text_without_a_listed_word_has_no_problem() -> None:
    assert problems([Line(Path("a.py"), 1, "Return the open runs of this agent.")]) == []


@pytest.mark.parametrize("folder", folders())
def test_documented_arguments_exist_and_are_in_order(folder: str) -> None:
    found = [f"{file}:{problem}" for file in sources(folder) for problem in read(file).wrong_arguments]
    assert not found, "\n".join(found)


def test_an_argument_that_does_not_exist_is_found() -> None:
    text = 'def ask(a, b):\n    """Ask.\n\n    Args:\n        b: One.\n        c: Another.\n    """\n'
    assert list(wrong_arguments(text)) == ["1: b, c; the signature has a, b"]
